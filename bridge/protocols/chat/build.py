"""A Turn as the body of a chat completions request, and the options that such a body cannot have."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from bridge.core.images import document_refusal
from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Message,
    OutputFormat,
    Part,
    RawItem,
    Text,
)
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.chat.calls import extra_content, unpack
from bridge.protocols.chat.presets import Preset
from bridge.protocols.items import missing_call
from bridge.protocols.responses.build import document_name
from bridge.protocols.upstream import ToolNames, legal_name
from bridge.tools.payload import arguments_of, arguments_or_none

MAX_NAME = 64

# A turn's items as chat messages.
#
# The API requires each call's output right after the answer with the call. So all calls of one answer are in one
# assistant message, together with the text before them, and one `tool` message for each follows in the order of the
# calls, wherever the client put the outputs.
#
# Calls that follow each other were one answer's. A call after an output is a new answer's: it may depend on that
# output.

SEE_BELOW = "The output is an image; it is in the message that follows."
DOCUMENT_BELOW = SEE_BELOW.replace("an image", "a document")
_DETAILS = ("auto", "low", "high")


def build_messages(turn: Turn, names: ToolNames, preset: Preset) -> list[Json]:
    """The whole conversation, the instructions first. Items that only the Responses API has are left out.

    Raises InvalidRequest for an output whose call does not come before it, and when nothing is left.
    """
    history = _History()
    signatures: dict[str, str] = {}
    if turn.instructions:
        history.add(Message("system", (Text(turn.instructions),)))
    for item in turn.items:
        if isinstance(item, RawItem):
            signatures |= unpack(item)
        else:
            history.add(item)
    writer = _Writer(turn.model, names, preset, signatures)
    messages = [message for entry in history.entries for message in writer.write(entry)]
    if not messages:
        raise InvalidRequest("The input holds nothing that this model could be given; send a message.", param="input")
    return _with_one_system(messages) if preset.one_system else messages


class _Answer:
    """One answer of the assistant: a text, calls, and the outputs of these calls so far."""

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        self.parts = parts
        self.calls: list[FunctionCall] = []
        self.outputs: list[list[Part] | None] = []


class _History:
    """Items in, messages and answers out. An output goes to its call, however late it comes."""

    def __init__(self) -> None:
        self.entries: list[Message | _Answer] = []
        self._answer: _Answer | None = None
        """The answer that the next call is part of."""
        self._waiting: dict[str, list[tuple[_Answer, int]]] = {}
        """Calls by id. An id may be used again in a later answer: its newest call gets the output."""

    def add(self, item: Message | FunctionCall | FunctionOutput) -> None:
        if isinstance(item, FunctionCall):
            self._call(item)
        elif isinstance(item, FunctionOutput):
            self._output(item)
        elif item.role == "assistant":
            self._begin(item.parts)
        else:
            self._answer = None
            self.entries.append(item)

    def _begin(self, parts: tuple[Part, ...] = ()) -> _Answer:
        self._answer = _Answer(parts)
        self.entries.append(self._answer)
        return self._answer

    def _call(self, call: FunctionCall) -> None:
        answer = self._answer or self._begin()
        waiting = self._waiting.setdefault(call.call_id, [])
        if waiting and waiting[-1][0] is not answer:
            waiting.clear()
        waiting.append((answer, len(answer.calls)))
        answer.calls.append(call)
        answer.outputs.append(None)

    def _output(self, output: FunctionOutput) -> None:
        self._answer = None
        waiting = self._waiting.get(output.call_id)
        if waiting is None:
            raise missing_call(output.call_id, "input")
        # The last one stays: several outputs of one call are joined.
        answer, number = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        answer.outputs[number] = [*(answer.outputs[number] or ()), *output.parts]


class _Writer:
    def __init__(self, model: str, names: ToolNames, preset: Preset, signatures: dict[str, str]) -> None:
        self._model = model
        self._names = names
        self._preset = preset
        self._signatures = signatures

    def write(self, entry: Message | _Answer) -> Iterator[Json]:
        if isinstance(entry, _Answer):
            yield from self._answer(entry)
        elif entry.role == "user" and not all(isinstance(part, Text) for part in entry.parts):
            yield {"role": "user", "content": [self._part(part) for part in entry.parts]}
        else:
            yield {"role": "user" if entry.role == "user" else "system", "content": entry.text}
            if entry.role != "user":
                yield from self._media(entry.parts, "")

    def _answer(self, answer: _Answer) -> Iterator[Json]:
        # As in OpenAI's own answers: null, not an empty text, if there are only calls.
        message: Json = {"role": "assistant", "content": _text(answer.parts) if answer.parts else None}
        if answer.calls:
            message["tool_calls"] = [self._call(call, first=number == 0) for number, call in enumerate(answer.calls)]
        yield message
        outputs = [
            (self._id(call.call_id), output)
            for call, output in zip(answer.calls, answer.outputs, strict=True)
            if output is not None
        ]
        for call_id, output in outputs:
            media = [part for part in output if not isinstance(part, Text)]
            below = SEE_BELOW if any(isinstance(part, Image) for part in media) else DOCUMENT_BELOW
            shown = _text(output) or (below if media else "")
            yield {"role": "tool", "tool_call_id": call_id, "content": shown}
        # A `tool` message can have only text (and must follow the calls at once), so images and documents come after
        # all of them, in a message of the only role that can have any.
        yield from self._media(answer.parts, "")
        for call_id, output in outputs:
            yield from self._media(output, f"From the output of {call_id}:")

    def _media(self, parts: Iterable[Part], about: str) -> Iterator[Json]:
        media = [part for part in parts if not isinstance(part, Text)]
        if media:
            said: list[Part] = [Text(about)] if about else []
            yield {"role": "user", "content": [self._part(part) for part in (*said, *media)]}

    def _part(self, part: Part) -> Json:
        if isinstance(part, Text):
            return {"type": "text", "text": part.text}
        if isinstance(part, Image):
            detail = {"detail": part.detail} if part.detail in _DETAILS else {}
            return {"type": "image_url", "image_url": {"url": part.url, **detail}}
        if part.media_type is None:
            raise document_refusal(
                part, "a chat completions API", "Send the document itself, as a data URL with base64."
            )
        if self._preset.documents == "image_url":
            return {"type": "image_url", "image_url": {"url": part.url}}
        return {"type": "file", "file": {"filename": document_name(part), "file_data": part.url}}

    def _call(self, call: FunctionCall, *, first: bool) -> Json:
        arguments = arguments_of(call.arguments) if call.custom else arguments_or_none(call.arguments)
        signed: Json = {}
        if self._preset.signatures:
            signed = extra_content(self._signatures.get(call.call_id), self._model, first=first)
        return {
            "id": self._id(call.call_id),
            "type": "function",
            "function": {"name": self._names.of(call.full_name), "arguments": arguments},
            **signed,
        }

    def _id(self, call_id: str) -> str:
        longest = self._preset.longest_id
        if longest is None or len(call_id) <= longest:
            return call_id
        digest = f"_{zlib.crc32(call_id.encode('utf-8', 'replace')):08x}"
        return call_id[: longest - len(digest)] + digest


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _with_one_system(messages: list[Json]) -> list[Json]:
    count = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    joined = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": joined}, *messages[count:]]


Json = dict[str, Any]


def build_body(turn: Turn, preset: Preset) -> Json:
    """The body: always streamed, with usage, and without options that the turn does not ask for."""
    names = ToolNames(turn.functions, MAX_NAME)
    options = {
        "response_format": None if turn.output_format is None else _format(turn.output_format, preset),
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        preset.limit: turn.max_output_tokens,
        "reasoning_effort": turn.effort if turn.effort in preset.efforts else None,
        "verbosity": turn.verbosity if preset.verbosity else None,
        "service_tier": turn.service_tier if preset.service_tier else None,
    }
    return {
        "model": turn.model,
        "messages": build_messages(turn, names, preset),
        **_tooling(turn, names, preset),
        **{name: value for name, value in options.items() if value is not None},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def dropped(turn: Turn, preset: Preset) -> list[str]:
    """The options of the turn that this server does not support."""
    must_call = turn.functions and turn.tool_choice.mode in ("required", "named")
    is_dropped = {
        "reasoning.effort": turn.effort is not None and turn.effort not in preset.efforts,
        "reasoning.summary": turn.summary is not None,
        "text.verbosity": turn.verbosity is not None and not preset.verbosity,
        "service_tier": turn.service_tier is not None and not preset.service_tier,
        "tools:web_search": turn.web_search is not None,
        "include:reasoning.encrypted_content": turn.encrypted_reasoning and not preset.signatures,
        "tool_choice": must_call and preset.tool_choice == "ignored",
    }
    return [name for name, dropped in is_dropped.items() if dropped]


def _tooling(turn: Turn, names: ToolNames, preset: Preset) -> Json:
    choice, tools = turn.tool_choice, names.tools
    if not tools or (choice.mode == "none" and preset.tool_choice == "ignored"):
        return {}
    said: Any = None if choice.mode == "auto" or preset.tool_choice == "ignored" else choice.mode
    if said == "named":
        name = names.of(choice.name or "")
        if preset.tool_choice == "any":
            said = {"type": "function", "function": {"name": name}}
        else:
            # Requiring a call when only one function is offered means the same.
            said, tools = "required", {name: tools[name]}
    tooling: Json = {"tools": [_tool(name, tool) for name, tool in tools.items()]}
    if said is not None:
        tooling["tool_choice"] = said
    if not turn.parallel and preset.parallel:
        tooling["parallel_tool_calls"] = False
    return tooling


def _tool(name: str, tool: FunctionTool) -> Json:
    """A function, nested. A custom tool is offered as a function of one text (see `bridge.tools.payload`)."""
    function: Json = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    given = tool.parameters
    function["parameters"] = {"type": "object", "properties": {}} if given is None or isinstance(given, bool) else given
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _format(wanted: OutputFormat, preset: Preset) -> Json:
    if wanted.schema is None:
        if preset.json_object:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}
    schema: Json = {"name": legal_name(wanted.name, MAX_NAME), "schema": wanted.schema}
    if wanted.description is not None:
        schema["description"] = wanted.description
    if wanted.strict:
        schema["strict"] = True
    return {"type": "json_schema", "json_schema": schema}
