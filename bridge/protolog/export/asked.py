"""What a request asks, as the parts of a conversation: from a Responses body or a chat body alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bridge.protolog.export.loose import dumps, member, objects, text_of

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that was said. `kind`: text, reasoning, call, output (of a call), media, or other (its JSON)."""

    role: str
    kind: str
    text: str
    name: str = ""
    """The tool's, of a call."""
    call_id: str = ""


def parts_from_body(body: dict[str, Any] | None) -> Iterator[Part]:
    """The instructions and the whole history, in order."""
    if body is None:
        return
    if isinstance(body.get("instructions"), str) and body["instructions"]:
        yield Part("system", "text", body["instructions"])
    given = body.get("input")
    if isinstance(given, str):
        yield Part("user", "text", given)
    for item in objects(given):
        yield from parts_from_item(item)
    for message in objects(body.get("messages")):
        yield from _chat_message(message)


def tools_offered(body: dict[str, Any] | None) -> list[str]:
    """The names of the tools in a body; of a tool without a name, its type."""
    found = []
    for tool in objects((body or {}).get("tools")):
        name = tool.get("name") or member(tool, "function", "name") or member(tool, "custom", "name")
        found.append(text_of(name or tool.get("type")))
    return found


def parts_from_item(item: dict[str, Any]) -> Iterator[Part]:
    """The parts of one item of the Responses API, from an input or an output."""
    kind, call_id = text_of(item.get("type") or "message"), text_of(item.get("call_id"))
    if kind == "message":
        yield from _content(text_of(item.get("role") or "user"), item.get("content"))
    elif kind in ("function_call", "custom_tool_call"):
        space, name = text_of(item.get("namespace")), text_of(item.get("name"))
        given = item.get("arguments" if kind == "function_call" else "input")
        yield Part("assistant", "call", text_of(given), f"{space}.{name}" if space else name, call_id)
    elif kind.endswith("_call_output"):
        yield Part("tool", "output", _joined(item.get("output")), "", call_id)
    elif kind == "reasoning":
        thought = _joined(item.get("summary")) or _joined(item.get("content"))
        if thought:
            yield Part("assistant", "reasoning", thought)
    else:
        yield Part("assistant" if kind.endswith("_call") else "user", "other", dumps(item), kind)


def _chat_message(message: dict[str, Any]) -> Iterator[Part]:
    role = text_of(message.get("role") or "user")
    if role in ("tool", "function"):
        yield Part("tool", "output", _joined(message.get("content")), "", text_of(message.get("tool_call_id")))
        return
    if isinstance(message.get("reasoning_content"), str) and message["reasoning_content"]:
        yield Part(role, "reasoning", message["reasoning_content"])
    yield from _content(role, message.get("content"))
    for call in objects(message.get("tool_calls")):
        yield chat_call(call)


def chat_call(call: dict[str, Any]) -> Part:
    """A call as chat completions write it."""
    function = member(call, "function") or member(call, "custom") or {}
    given = member(function, "arguments")
    return Part(
        "assistant",
        "call",
        text_of(member(function, "input") if given is None else given),
        text_of(member(function, "name")),
        text_of(call.get("id")),
    )


def _content(role: str, content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Part(role, "text", content)
        return
    for part in objects(content):
        kind = text_of(part.get("type"))
        if kind in _TEXTS:
            yield Part(role, "text", text_of(part.get("text") or part.get("refusal")))
        elif "image" in kind or "audio" in kind or "file" in kind:
            yield Part(role, "media", dumps(part), kind)
        else:
            yield Part(role, "other", dumps(part), kind)


def _joined(content: Any) -> str:
    """The text of a string, or of a list of parts; anything else as JSON."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(
        text_of(part.get("text")) if isinstance(part, dict) and part.get("type") in _TEXTS else text_of(part)
        for part in content
    )
