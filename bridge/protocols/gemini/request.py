"""POST /v1beta/models/{model}:generateContent: the request's body becomes a Turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field

from bridge import exact_json
from bridge.core.images import open_document
from bridge.core.items import (
    FAILED,
    Document,
    FunctionCall,
    FunctionOutput,
    Image,
    Item,
    Message,
    OutputFormat,
    Part,
    Text,
)
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.gemini.signatures import items_in, standard_base64
from bridge.protocols.gemini.tools import FunctionCallingConfig, Spelled, choose, json_schema, member, read_tools
from bridge.protocols.items import check_number, missing_call, read_call_id, read_name
from bridge.protocols.reading import effort_of_budget, read_object, read_string, validate

MAX_STOPS = 16
MAX_CANDIDATES = 8


class ThinkingConfig(Spelled):
    include_thoughts: bool | None = None
    thinking_budget: int | None = Field(None, ge=-1)
    thinking_level: str | None = None


class GenerationConfig(Spelled):
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    candidate_count: int | None = Field(None, ge=1, le=MAX_CANDIDATES)
    max_output_tokens: int | None = Field(None, ge=1)
    stop_sequences: list[str] | None = Field(None, max_length=MAX_STOPS)
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    thinking_config: ThinkingConfig | None = None


class ToolConfig(Spelled):
    function_calling_config: FunctionCallingConfig | None = None


class GeminiBody(Spelled):
    """The fields that are read; others are ignored, and named in a response header if they matter.

    `model` and `stream` come from the path.
    """

    model: str = Field(min_length=1, max_length=256)
    stream: bool | None = None
    contents: list[Any]
    system_instruction: Any = None
    tools: list[Any] | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None


FIELD_NAMES: Mapping[str, str] = {
    "reasoning.effort": "thinkingConfig",
    "include:reasoning.encrypted_content": "thoughtSignature",
    "text.format": "responseSchema",
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "tools:web_search": "tools:googleSearch",
}


def parse_gemini(data: dict[str, Any]) -> Turn:
    """The Turn of a request. Raises InvalidRequest."""
    body = validate(GeminiBody, data)
    if not body.contents:
        raise InvalidRequest("'contents' is empty: send at least one content.", param="contents")
    wanted = body.generation_config or GenerationConfig.model_construct()
    thinking = wanted.thinking_config
    calling = (body.tool_config or ToolConfig()).function_calling_config or FunctionCallingConfig()
    offered, search = read_tools(body.tools or ())
    functions, choice = choose(calling, offered)
    name = body.model.removeprefix("models/")
    return Turn(
        model=name,
        requested_model=name,
        items=_read_contents(body.contents),
        instructions=_read_instruction(body.system_instruction),
        tools=functions,
        tool_choice=choice,
        effort=_effort(thinking),
        output_format=_read_format(wanted),
        stream=bool(body.stream),
        include_usage=True,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        max_output_tokens=wanted.max_output_tokens,
        n=wanted.candidate_count if (wanted.candidate_count or 1) > 1 else None,
        stop=tuple(text for text in wanted.stop_sequences or () if text),
        web_search=search if choice.mode != "none" else None,
        # A client that configures no thinking need not send signatures back.
        encrypted_reasoning=thinking is not None and thinking.thinking_budget != 0,
        field_names=FIELD_NAMES,
    )


def _effort(thinking: ThinkingConfig | None) -> str | None:
    """The level, or the effort whose budget is as large. A budget of 0 or -1 leaves the effort to the model."""
    if thinking is None:
        return None
    if thinking.thinking_level is not None:
        level = thinking.thinking_level.lower()
        if level not in ("minimal", "low", "medium", "high", "xhigh", "thinking_level_unspecified"):
            place = "generationConfig.thinkingConfig.thinkingLevel"
            raise InvalidRequest(f"Invalid {place!r}: use MINIMAL, LOW, MEDIUM, HIGH or XHIGH.", param=place)
        return None if level == "thinking_level_unspecified" else level
    budget = thinking.thinking_budget
    return effort_of_budget(budget) if budget is not None and budget > 0 else None


def _read_format(wanted: GenerationConfig) -> OutputFormat | None:
    extra = wanted.model_extra or {}
    schema = wanted.response_json_schema or extra.get("_responseJsonSchema")
    if schema is None and wanted.response_schema is not None:
        schema = json_schema(wanted.response_schema)
    if isinstance(schema, dict):
        raw = {"type": "json_schema", "name": "response", "schema": schema}
        return OutputFormat("json_schema", raw, schema)
    if wanted.response_mime_type == "application/json":
        return OutputFormat("json_object", {"type": "json_object"})
    if wanted.response_mime_type in (None, "text/plain"):
        return None
    place = "generationConfig.responseMimeType"
    raise InvalidRequest(f"Invalid {place!r}: use text/plain or application/json.", param=place)


# Contents


def _read_instruction(value: Any) -> str | None:
    """The system instruction: a content, a part, a text, or a list of them."""
    texts: list[str] = []
    stack = [value]
    while stack:
        given = stack.pop()
        if given is None:
            continue
        if isinstance(given, str):
            texts.append(given)
        elif isinstance(given, list):
            stack += reversed(given)
        elif isinstance(parts := read_object(given, "systemInstruction").get("parts"), list):
            stack += reversed(parts)
        elif isinstance(parts, dict):
            stack.append(parts)
        else:
            texts.append(read_string(given.get("text"), "systemInstruction.parts.text"))
    return "\n\n".join(text for text in texts if text.strip()) or None


@dataclass(slots=True)
class History:
    """The calls of the contents so far. Calls and responses may come without ids: then names and their order decide."""

    ids: set[str] = field(default_factory=set)
    open: list[tuple[str, str]] = field(default_factory=list)
    """(name, id) of the calls without a response."""

    def called(self, name: str, given: Any, place: str) -> str:
        """The id of a call."""
        call_id = f"call_{len(self.ids) + 1}" if given is None else read_call_id(given, f"{place}.id")
        self.ids.add(call_id)
        self.open.append((name, call_id))
        return call_id

    def answered(self, name: str, given: Any) -> str:
        """The id of the call that a response answers. Raises InvalidRequest if no call matches."""
        matching = [each for each in self.open if each[1] == given] or [each for each in self.open if each[0] == name]
        if matching:
            self.open.remove(matching[0])
            return matching[0][1]
        if isinstance(given, str) and given in self.ids:
            return given
        raise missing_call(given if isinstance(given, str) else name, "contents")


def _read_contents(contents: Sequence[Any]) -> tuple[Item, ...]:
    items: list[Item] = []
    history = History()
    size = 0
    for index, content in enumerate(contents):
        for item in read_content(content, f"contents[{index}]", history):
            items.append(item)
            size += max(1, len(item.parts)) if isinstance(item, Message | FunctionOutput) else 1
            check_number(size, "contents")
    if not items:
        raise InvalidRequest("'contents' holds nothing to answer.", param="contents")
    return tuple(items)


def read_content(value: Any, place: str, history: History | None = None) -> Iterator[Item]:
    """The items of a content: texts and images that follow each other are one message. Raises InvalidRequest."""
    history = history or History()
    content = read_object(value, place)
    role, parts = content.get("role") or "user", content.get("parts")
    if role not in ("user", "model", "function", "tool"):
        raise InvalidRequest(f"Invalid {place + '.role'!r}: {role!r}. Use user or model.", param=f"{place}.role")
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, list):
        raise InvalidRequest(f"Invalid {place + '.parts'!r}: expected a list of parts.", param=f"{place}.parts")
    check_number(len(parts), f"{place}.parts")
    speaker: Literal["user", "assistant"] = "assistant" if role == "model" else "user"
    said: list[Part] = []
    for index, entry in enumerate(parts):
        here = f"{place}.parts[{index}]"
        part = read_object(entry, here)
        found = list(_read_items(part, here, speaker, history))
        if found and said:
            yield Message(speaker, tuple(said))
            said = []
        yield from found
        said += _read_texts(part, here, speaker)
    if said:
        yield Message(speaker, tuple(said))


_SKIPPED = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts about tools that Google has run itself: the text has the result."""


def _read_items(part: Mapping[str, Any], place: str, speaker: str, history: History) -> Iterator[Item]:
    """The items of a part besides its text: the reasoning in its signature, a call, an output."""
    call, response = member(part, "functionCall"), member(part, "functionResponse")
    name, call_id = None, None
    if speaker == "assistant" and call is not None:
        here = f"{place}.functionCall"
        call = read_object(call, here)
        name = read_name(call.get("name"), f"{here}.name")
        call_id = history.called(name, call.get("id"), here)
    if speaker == "assistant" and (signature := member(part, "thoughtSignature")) is not None:
        yield from items_in(read_string(signature, f"{place}.thoughtSignature"), call_id)
    if name is not None and call_id is not None and call is not None:
        arguments = read_object(call.get("args") or {}, f"{place}.functionCall.args")
        yield FunctionCall(call_id, name, exact_json.dumps(arguments).decode())
    elif speaker == "user" and response is not None:
        yield _read_response(read_object(response, f"{place}.functionResponse"), f"{place}.functionResponse", history)


def _read_response(response: Mapping[str, Any], place: str, history: History) -> FunctionOutput:
    call_id = history.answered(read_string(response.get("name"), f"{place}.name"), response.get("id"))
    given = read_object(response.get("response") or {}, f"{place}.response")
    parts: list[Part] = []
    if set(given) == {"error"}:
        parts = [FAILED, _as_text(given["error"])]
    elif set(given) in ({"output"}, {"result"}):
        parts = [_as_text(next(iter(given.values())))]
    elif given:
        parts = [_as_text(given)]
    further = response.get("parts") or []
    if not isinstance(further, list):
        raise InvalidRequest(f"Invalid {place + '.parts'!r}: expected a list of parts.", param=f"{place}.parts")
    for index, entry in enumerate(further):
        here = f"{place}.parts[{index}]"
        parts += _read_data(read_object(entry, here), here)
    return FunctionOutput(call_id, tuple(parts))


def _as_text(value: Any) -> Text:
    return Text(value if isinstance(value, str) else exact_json.dumps(value).decode())


def _read_texts(part: Mapping[str, Any], place: str, speaker: str) -> list[Part]:
    """A part as text or image; none for a thought, which is for people, and for what is an item of its own."""
    if "text" in part:
        text = read_string(part["text"], f"{place}.text")
        return [] if part.get("thought") is True or not text else [Text(text)]
    if member(part, "functionCall") is not None or member(part, "functionResponse") is not None:
        is_wrong = (member(part, "functionCall") is not None) != (speaker == "assistant")
        if is_wrong:
            raise _unsupported(part, place, "the model calls functions, and the user sends their responses")
        return []
    if any(member(part, name) is not None for name in _SKIPPED) or member(part, "thoughtSignature") is not None:
        return []
    return _read_data(part, place)


def _read_data(part: Mapping[str, Any], place: str) -> list[Part]:
    """Inline data or a file: an image, a text or another document."""
    inline, file = member(part, "inlineData"), member(part, "fileData")
    if inline is not None:
        here = f"{place}.inlineData"
        inline = read_object(inline, here)
        kind = read_string(member(inline, "mimeType"), f"{here}.mimeType").lower()
        data = standard_base64(read_string(inline.get("data"), f"{here}.data"))
        if kind.startswith(("audio/", "video/")):
            raise _unsupported(part, place, "send text, images or documents")
        try:
            return [open_document(kind, data, _name_of(inline))]
        except ValueError:
            why = f"Invalid {here!r}: expected a MIME type, and data as base64; a text in UTF-8."
            raise InvalidRequest(why, param=f"{here}.data") from None
    if file is not None:
        here = f"{place}.fileData"
        file = read_object(file, here)
        uri = read_string(member(file, "fileUri"), f"{here}.fileUri")
        kind = str(member(file, "mimeType") or "image/")
        if kind.startswith("image/"):
            return [Image(uri)]
        if not kind.startswith(("audio/", "video/")):
            return [Document(uri, _name_of(file))]
    raise _unsupported(part, place, "send text, or images or documents as inlineData")


def _name_of(data: Mapping[str, Any]) -> str | None:
    name = member(data, "displayName")
    return name if isinstance(name, str) and name else None


def _unsupported(part: Mapping[str, Any], place: str, remedy: str) -> InvalidRequest:
    kind = next(iter(part), "an empty part")
    return InvalidRequest(
        f"Invalid {place!r}: {str(kind)[:60]} is not supported here; {remedy}.",
        param=place,
        code="unsupported_content",
    )
