"""Chunks of chat completions as OpenAI streams them. No I/O.

    answer(text("hel", "lo"))
    answer(reasoning("hm"), call("add", '{"a":', "2}"), call("add", '{"a":3}'))
    answer(text("hel"), finish="length")
    answer(text("hel"), finish=None, usage=None)[:-1]

The result is a plain list, so a test may cut it, change a chunk, or put a gate or a fault between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

Json = dict[str, Any]

MODEL = "some-model"
USAGE: Json = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}

Deltas = list[Json]
"""What one item of an answer comes in."""

_tags = count(1)


def answer(
    *items: Deltas, finish: str | None = "auto", usage: Json | None = USAGE, tag: str | None = None, model: str = MODEL
) -> list[Json]:
    """A whole stream but for `[DONE]`. `finish` is found out unless given; without `usage` the last chunk is left out.

    `tag` is part of every id; without one each answer has its own.
    """
    tag = tag or str(next(_tags))
    about = {"id": f"chatcmpl-{tag}", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model}
    deltas: Deltas = [{"role": "assistant", "content": ""}, *_numbered(items, tag)]
    if finish == "auto":
        finish = "tool_calls" if any("tool_calls" in delta for delta in deltas) else "stop"
    chunks = [{**about, "choices": [choice(delta)]} for delta in deltas]
    chunks.append({**about, "choices": [choice({}, finish)]})
    if usage is not None:
        chunks.append({**about, "choices": [], "usage": usage})
    return chunks


def choice(delta: Json, finish: str | None = None) -> Json:
    """The one choice of a chunk."""
    return {"index": 0, "delta": delta, "finish_reason": finish}


def chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    """One chunk by itself, with as little around it as servers get away with."""
    return {"choices": [choice(delta, finish)], **more}


def completion(chunks: list[Json]) -> Json:
    """The same answer as one object, as if no stream had been asked for."""
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    calls: dict[int, Json] = {}
    finish, usage = None, None
    for each in chunks:
        usage = each.get("usage") or usage
        for one in each["choices"]:
            finish = one["finish_reason"] or finish
            for name in ("content", "reasoning_content", "refusal"):
                if one["delta"].get(name):
                    message[name] = (message.get(name) or "") + one["delta"][name]
            for entry in one["delta"].get("tool_calls", ()):
                call = calls.setdefault(entry["index"], {"function": {"name": "", "arguments": ""}})
                call |= {name: entry[name] for name in ("id", "type") if name in entry}
                for name, piece in entry["function"].items():
                    call["function"][name] += piece
    if calls:
        message["tool_calls"] = list(calls.values())
    about = {name: chunks[0][name] for name in ("id", "created", "model")}
    whole = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return {**about, "object": "chat.completion", "choices": [whole], "usage": usage}


# Items


def text(*pieces: str) -> Deltas:
    """A text, in these pieces."""
    return [{"content": piece} for piece in pieces]


def reasoning(*pieces: str, member: str = "reasoning_content") -> Deltas:
    """Thoughts, in these pieces."""
    return [{member: piece} for piece in pieces]


def refusing(*pieces: str) -> Deltas:
    """The model declines, in these pieces."""
    return [{"refusal": piece} for piece in pieces]


def call(name: str, *pieces: str, call_id: str | None = None) -> Deltas:
    """A call whose arguments come in these pieces."""
    first = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    return [{"tool_calls": [first]}, *({"tool_calls": [{"function": {"arguments": piece}}]} for piece in pieces)]


def _numbered(items: Iterable[Deltas], tag: str) -> Iterable[Json]:
    number = -1
    for item in items:
        number += "tool_calls" in item[0]
        for delta in item:
            if "tool_calls" not in delta:
                yield delta
                continue
            (entry,) = delta["tool_calls"]
            named = {"id": entry["id"] or f"call_{tag}_{number}"} if "id" in entry else {}
            yield {"tool_calls": [{"index": number, **entry, **named}]}
