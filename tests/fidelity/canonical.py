"""A conversation in one form, whichever API it was written in, so that what was sent and what arrived can be compared.

An entry is a message (its role and parts), a call or an output. `system` and `developer` are one role. A part is a text
or an image with its detail, of which `auto` is the same as none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

Json = dict[str, Any]
Part = tuple[Any, ...]
"""`text` and the text, or `image`, its source and its detail."""
Entry = tuple[str, str, tuple[Part, ...]] | tuple[str, str, str, str]
Atom = tuple[str, ...]

_CALL_IN_TEXT = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)


def message(role: str, parts: Iterable[Part]) -> Entry:
    return "message", "developer" if role == "system" else role, tuple(parts)


def parts_of(entry: Entry) -> tuple[Part, ...]:
    """The parts of a message or an output."""
    assert not isinstance(entry[2], str)
    return entry[2]


def as_it_is(text: str) -> str:
    return text


# What the client sends


def of_responses(items: list[Json], shown: Callable[[str], str] = as_it_is) -> list[Entry]:
    """The entries of `input`, in a client's request or in one to a provider. `shown`: how a text may be changed."""
    return [entry for item in items for entry in _item(item, shown)]


def of_chat(messages: list[Json], shown: Callable[[str], str] = as_it_is) -> list[Entry]:
    """The entries of `messages`, likewise."""
    entries: list[Entry] = []
    for each in messages:
        parts = _parts(each.get("content"), shown)
        if each["role"] == "tool":
            entries.append(("output", each["tool_call_id"], parts))
            continue
        if parts:
            entries.append(message(each["role"], parts))
        for call in each.get("tool_calls", ()):
            function = call["function"]
            entries.append(("call", call["id"], function["name"], shown(function["arguments"])))
    return entries


def _item(item: Json, shown: Callable[[str], str]) -> Iterable[Entry]:
    kind = item.get("type", "message")
    if kind == "message":
        yield message(item["role"], _parts(item["content"], shown))
    elif kind == "function_call":
        yield "call", item["call_id"], item["name"], shown(item["arguments"])
    elif kind == "function_call_output":
        yield "output", item["call_id"], _parts(item["output"], shown)
    elif kind != "reasoning":
        yield "message", kind, ()


def _parts(content: Any, shown: Callable[[str], str]) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (("text", shown(content)),)
    return tuple(_part(part, shown) for part in content)


def _part(part: Json, shown: Callable[[str], str]) -> Part:
    if "text" in part:
        return "text", shown(part["text"])
    source, detail = part["image_url"], part.get("detail")
    if isinstance(source, dict):
        source, detail = source["url"], source.get("detail")
    return "image", source, None if detail == "auto" else detail


# What a provider receives


def without_written_calls(entries: list[Entry]) -> list[Entry]:
    """In text mode a thread that is continued holds the model's own text, calls and all, before the calls as items."""
    found: list[Entry] = []
    for entry, after in zip(entries, [*entries[1:], None], strict=True):
        if entry[0] == "message" and entry[1] == "assistant" and after is not None and after[0] == "call":
            parts = tuple((kind, _CALL_IN_TEXT.sub("", text), *rest) for kind, text, *rest in parts_of(entry))
            entry = message("assistant", (part for part in parts if part != ("text", "")))
            if not entry[2]:
                continue
        found.append(entry)
    return found


def of_anthropic(body: Json) -> list[Atom]:
    """What is said in a request of the Messages API, without the boundaries of messages."""
    said: list[Atom] = [("developer", block["text"]) for block in body.get("system", ())]
    for each in body["messages"]:
        said += [atom for block in each["content"] for atom in _block(each["role"], block)]
    return said


def _block(role: str, block: Json) -> Iterable[Atom]:
    kind = block["type"]
    if kind == "text":
        yield role, block["text"]
    elif kind == "image":
        source = block["source"]
        yield "image", f"data:{source['media_type']};base64,{source['data']}"
    elif kind == "tool_use":
        yield "call", block["id"], block["name"], json.dumps(block["input"], sort_keys=True)
    elif kind == "tool_result":
        content = block.get("content") or ()
        for inner in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            for atom in _block("output", inner):
                yield "output", block["tool_use_id"], *atom[1:]


def atoms(entries: list[Entry]) -> list[Atom]:
    """The same of entries. Arguments are compared by what they mean: this API has no JSON text for them."""
    said: list[Atom] = []
    for entry in entries:
        if len(entry) == 4:
            said.append(("call", entry[1], entry[2], json.dumps(json.loads(entry[3]), sort_keys=True)))
            continue
        for part in parts_of(entry):
            kind, text = part[0], part[1]
            who = ("output", entry[1]) if entry[0] == "output" else ("image",) if kind == "image" else (entry[1],)
            said.append((*who, text))
    return said


def with_one_text(entries: list[Entry]) -> list[Entry]:
    """Each message with its texts joined: many servers of the chat API take one text, and no parts."""
    return [
        (entry[0], entry[1], (("text", "\n".join(part[1] for part in entry[2])),))
        if entry[0] != "call" and entry[2] and all(part[0] == "text" for part in entry[2])
        else entry
        for entry in entries
    ]
