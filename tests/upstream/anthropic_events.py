"""Messages events as Anthropic streams them: blocks in, a list of events out. No I/O.

    answer(text("hel", "lo"))
    answer(thinking("hm", signature="sig"), tool_use("add", '{"a":', "2}"), tool_use("add"))
    answer(text("hel"), stop="max_tokens")
    answer(text("hel"), end=error("overloaded_error"))

The result is a plain list, so a test may cut it, repeat an event, or put a gate or a fault between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Json = dict[str, Any]

MODEL = "claude-sonnet-4-5"
USAGE = {"fresh": 11, "written": 2, "read": 3, "output": 7}

_tags = count(1)


@dataclass(frozen=True)
class Block:
    """One block of content: how it begins, and what is streamed of it."""

    start: Json
    deltas: list[Json] = field(default_factory=list)


def answer(
    *blocks: Block,
    stop: str | None = None,
    end: Sequence[Json] | None = None,
    tag: str | None = None,
    model: str = MODEL,
    thinking_tokens: int | None = None,
    **usage: int,
) -> list[Json]:
    """A whole stream; `stop` is what fits the blocks, unless it is given. `end` replaces the last two events.

    `tag` is part of the message's id and of those calls' that have none; without one each answer has its own.
    """
    tag = tag or str(next(_tags))
    counts = USAGE | usage
    message: Json = {
        "id": f"msg_{tag}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": counts["fresh"],
            "cache_creation_input_tokens": counts["written"],
            "cache_read_input_tokens": counts["read"],
            "output_tokens": 1,
        },
    }
    calls = any(block.start["type"] == "tool_use" for block in blocks)
    details = {} if thinking_tokens is None else {"output_tokens_details": {"thinking_tokens": thinking_tokens}}
    last = [
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop or ("tool_use" if calls else "end_turn"), "stop_sequence": None},
            "usage": {"output_tokens": counts["output"], **details},
        },
        {"type": "message_stop"},
    ]
    events: list[Json] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        start = dict(block.start)
        if start.get("id") == "":
            start["id"] = f"toolu_{tag}_{index}"
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in block.deltas]
        events.append({"type": "content_block_stop", "index": index})
    return [*events, *(last if end is None else end)]


# Blocks


def text(*pieces: str) -> Block:
    """A text, in these pieces."""
    return Block({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces])


def cited(piece: str, url: str) -> Block:
    """A text with where it comes from."""
    citation = {
        "type": "web_search_result_location",
        "url": url,
        "title": None,
        "cited_text": piece,
        "encrypted_index": "RW5j",
    }
    deltas: list[Json] = [{"type": "citations_delta", "citation": citation}, {"type": "text_delta", "text": piece}]
    return Block({"type": "text", "text": "", "citations": []}, deltas)


def thinking(*pieces: str, signature: str = "c2lnbmVk") -> Block:
    """Thoughts in these pieces, and their signature."""
    deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    signed: list[Json] = [{"type": "signature_delta", "signature": signature}] if signature else []
    return Block({"type": "thinking", "thinking": "", "signature": ""}, deltas + signed)


def redacted(data: str = "aGlkZGVu") -> Block:
    """Thoughts that nobody may read."""
    return Block({"type": "redacted_thinking", "data": data})


def tool_use(name: str, *pieces: str, call_id: str = "") -> Block:
    """A call whose arguments come in these pieces."""
    deltas: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return Block({"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)


def search(*pieces: str, call_id: str = "srvtoolu_1") -> Block:
    """A search that the provider makes, by the pieces of its arguments."""
    deltas: list[Json] = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return Block({"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}, deltas)


def found(*urls: str, call_id: str = "srvtoolu_1") -> Block:
    """What a search has found."""
    pages = [
        {"type": "web_search_result", "url": url, "title": url, "encrypted_content": "RW5j", "page_age": None}
        for url in urls
    ]
    return Block({"type": "web_search_tool_result", "tool_use_id": call_id, "content": pages})


# Ends


def error(kind: str, message: str = "scripted error") -> list[Json]:
    """An `error` event at the end of a stream."""
    return [{"type": "error", "error": {"type": kind, "message": message}}]


NOTHING: list[Json] = []
"""No terminal event: the stream just ends."""
