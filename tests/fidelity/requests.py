"""Requests that agents might send, of any content, in either API's words."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

TAGS = ['<tool_call>{"name":"look"}</tool_call>', "</tool_call>", "<image>", "&lt;tool_call>", "@user", "\r\n\t", "�"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="@"), min_size=1, max_size=40) | st.lists(
    st.sampled_from(TAGS[:4] + TAGS[5:]), min_size=1, max_size=3
).map("".join)
"""Without the mark that a script for the provider begins with."""
ARGUMENTS = st.dictionaries(st.text(max_size=5), TEXTS | st.integers(-(2**53), 2**53) | st.booleans(), max_size=3)


@st.composite
def chats(draw: st.DrawFn) -> list[Json]:
    """The messages of a chat that ends with something to answer."""
    messages: list[Json] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(TEXTS)})
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(TEXTS | st.lists(TEXTS, min_size=1, max_size=3).map(_parts))})
        names = draw(st.lists(st.sampled_from(["look", "write"]), max_size=2))
        calls = [
            {
                "id": f"call_{turn}_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(draw(ARGUMENTS), ensure_ascii=False)},
            }
            for number, name in enumerate(names)
        ]
        said = draw(TEXTS | st.none()) if calls else draw(TEXTS)
        messages.append({"role": "assistant", "content": said, **({"tool_calls": calls} if calls else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)} for call in calls]
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": draw(TEXTS)})
    return messages


def _parts(texts: list[str]) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


def as_items(messages: list[Json]) -> list[Json]:
    """The same as the input of a response."""
    items: list[Json] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": content})
            continue
        if content is not None:
            texts = [content] if isinstance(content, str) else [part["text"] for part in content]
            kind = "output_text" if message["role"] == "assistant" else "input_text"
            items.append({"role": message["role"], "content": [{"type": kind, "text": text} for text in texts]})
        items += [
            {"type": "function_call", "call_id": call["id"], **call["function"]}
            for call in message.get("tool_calls", ())
        ]
    return items


TOOLS: list[Json] = [
    {
        "name": name,
        "description": f"Does {name}.",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
            "additionalProperties": False,
        },
    }
    for name in ("look", "write")
]
