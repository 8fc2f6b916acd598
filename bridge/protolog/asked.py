"""What a request asks, as the parts of a conversation: from a body of any protocol alike. Any is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bridge.protolog.assist import wishes_of
from bridge.protolog.loose import dumps, member, objects, text_of

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that was said. `kind`: text, reasoning, call, output (of a call), media, or other (its JSON).

    What a backend said may also be a search, a retry or an error.
    """

    role: str
    """The instructions have a role of their own: the name of their member."""
    kind: str
    text: str
    name: str = ""
    """The tool's, of a call; of media and others, their type."""
    call_id: str = ""

    @property
    def words(self) -> str:
        """The text; of a call, after its name."""
        return f"{self.name} {self.text}" if self.kind == "call" else self.text


def messages_from_body(body: dict[str, Any] | None) -> Iterator[list[Part]]:
    """The instructions and the whole history, in order: the parts of each message. A text in them may be empty."""
    body = body or {}
    if isinstance(payload := body.get("payload"), dict) and "query" in payload:
        yield from _assist_messages(body, payload)
    for name in ("instructions", "system"):
        if body.get(name):
            yield [Part(name, "text", joined_text(body[name]))]
    for name in ("input", "messages", "prompt"):
        given = body.get(name)
        for item in [given] if isinstance(given, str) else given if isinstance(given, list) else ():
            yield list(_parts(item))


def _assist_messages(body: dict[str, Any], payload: dict[str, Any]) -> Iterator[list[Part]]:
    """What a ServiceRequest asks; what was said before in its conversation does not stand in it."""
    if instructions := wishes_of(body).get("instructions"):
        yield [Part("instructions", "text", text_of(instructions))]
    files = payload.get("files")
    images = [{"type": "input_image", "image_url": file} for file in files] if isinstance(files, list) else []
    asked = [Part("user", "media", dumps(image), "input_image") for image in images]
    yield [Part("user", "text", text_of(payload.get("query"))), *asked]


def parts_from_items(items: Iterable[dict[str, Any]]) -> list[Part]:
    """The parts of items of the Responses API, from an input or an output; no empty text."""
    return with_words(_parts(item) for item in items)


def with_words(messages: Iterable[Iterable[Part]]) -> list[Part]:
    """The parts of messages, without empty texts."""
    return [part for parts in messages for part in parts if part.text or part.kind not in ("text", "reasoning")]


def tools_offered(body: dict[str, Any] | None) -> list[str]:
    """The names of the tools in a body; of a tool without a name, its type."""
    found = []
    for tool in objects((body or {}).get("tools")):
        name = tool.get("name") or member(tool, "function", "name") or member(tool, "custom", "name")
        found.append(text_of(name or tool.get("type") or "?"))
    return found


def chat_call(call: dict[str, Any]) -> Part:
    """A call as chat completions write it."""
    function = member(call, "function") or member(call, "custom") or {}
    given = member(function, "arguments")
    given = text_of(member(function, "input") if given is None else given)
    return Part("assistant", "call", given, text_of(member(function, "name")), text_of(call.get("id")))


def joined_text(content: Any) -> str:
    """The text of a string, or of a list of parts; anything else as JSON."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(_text(part) if _is_text(part) else text_of(part) for part in content)


def _parts(item: Any) -> Iterator[Part]:
    """The parts of an item, or of a message of chat."""
    if not isinstance(item, dict):
        yield Part("user", "text", text_of(item))
        return
    kind = text_of(item.get("type") or ("message" if "role" in item or "content" in item else "item"))
    call_id = text_of(item.get("call_id"))
    if kind in ("function_call", "custom_tool_call"):
        space, name = text_of(item.get("namespace")), text_of(item.get("name"))
        given = text_of(item.get("arguments" if kind == "function_call" else "input"))
        yield Part("assistant", "call", given, f"{space}.{name}" if space else name, call_id)
    elif kind.endswith("_call_output"):
        yield Part("tool", "output", joined_text(item.get("output")), "", call_id)
    elif kind == "reasoning":
        yield Part("assistant", "reasoning", joined_text(item.get("summary")) or joined_text(item.get("content")))
    elif kind == "message" or "role" in item:
        yield from _message(item)
    else:
        yield Part("assistant" if kind.endswith("_call") else "user", "other", dumps(item), kind)


def _message(message: dict[str, Any]) -> Iterator[Part]:
    role, content = text_of(message.get("role") or "user"), message.get("content")
    if role in ("tool", "function"):
        yield Part("tool", "output", joined_text(content), "", text_of(message.get("tool_call_id")))
        return
    if isinstance(message.get("reasoning_content"), str) and message["reasoning_content"]:
        yield Part(role, "reasoning", message["reasoning_content"])
    for part in content if isinstance(content, list) and content else [text_of(content or "")]:
        kind = text_of(member(part, "type"))
        if _is_text(part) or not isinstance(part, dict):
            yield Part(role, "text", _text(part))
        else:
            media = "image" in kind or "audio" in kind or "file" in kind
            yield Part(role, "media" if media else "other", dumps(part), kind)
    for call in objects(message.get("tool_calls")):
        yield chat_call(call)


def _is_text(part: Any) -> bool:
    return member(part, "type") in _TEXTS


def _text(part: Any) -> str:
    return text_of(part.get("text") or part.get("refusal")) if isinstance(part, dict) else text_of(part)
