"""What a recorded request asked, as a person would read it: messages, calls, results, tools. Any body is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """Something that was said before the answer. `role` is a role, or `call` and `result` for those of tools."""

    role: str
    text: str


def read_messages(body: dict[str, Any]) -> list[Message]:
    """The messages of a body of either endpoint, in order."""
    said = []
    for name in ("instructions", "system"):
        if body.get(name):
            said.append(Message(name, read_content(body[name])))
    for name in ("input", "messages", "prompt"):
        items = body.get(name)
        if isinstance(items, str):
            said.append(Message("user", items))
        elif isinstance(items, list):
            for item in items:
                said += _read_item(item)
    return said


def tool_names(body: dict[str, Any]) -> list[str]:
    """The tools that were offered, by name; one without a name by its type."""
    names = []
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            inner = tool.get("function") or tool.get("custom")
            inner = inner if isinstance(inner, dict) else tool
            names.append(str(inner.get("name") or tool.get("type") or "?"))
    return names


def read_content(content: Any) -> str:
    """Content as text; what is no text is named in brackets."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else dump(content)
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text", part.get("refusal"))
            parts.append(text if isinstance(text, str) else _other_part(part))
    return "\n".join(parts)


def dump(value: Any) -> str:
    """A value as JSON."""
    return orjson.dumps(value, default=str).decode()


def _read_item(item: Any) -> list[Message]:
    if not isinstance(item, dict):
        return [Message("user", read_content(item))]
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        return [Message("call", f"{item.get('name')}({read_content(item.get('arguments', item.get('input')))})")]
    if kind in ("function_call_output", "custom_tool_call_output"):
        return [Message("result", read_content(item.get("output")))]
    if kind == "reasoning":
        return [Message("reasoning", read_content([*_list(item, "summary"), *_list(item, "content")]))]
    if "role" not in item:
        return [Message(str(kind or "item"), dump(item))]
    role = str(item["role"])
    said = [Message("result" if role == "tool" else role, read_content(item.get("content")))]
    if role == "assistant" and not said[0].text:
        said = []
    for call in _list(item, "tool_calls"):
        function = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if isinstance(function, dict):
            given = function.get("arguments", function.get("input"))
            said.append(Message("call", f"{function.get('name')}({read_content(given)})"))
    return said


def _other_part(part: dict[str, Any]) -> str:
    kind = str(part.get("type", "part"))
    source = part.get("image_url")
    source = source.get("url") if isinstance(source, dict) else source
    if isinstance(source, str):
        shown = source if len(source) <= 80 else f"{source[:30]}… {len(source):,} characters"
        return f"[{kind}: {shown}]"
    return f"[{kind}]"


def _list(item: dict[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    return value if isinstance(value, list) else []
