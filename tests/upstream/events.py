"""Responses events as the ChatGPT backend streams them: items in, a list of events out. No I/O.

    answer(text("hel", "lo"))
    answer(reasoning("thinking"), call("add", '{"a":2}'), call("add", '{"a":3}'), interleaved=True)
    answer(text("hel"), end=failed("server_error"))
    answer(text("hel"), end=NOTHING)

The result is a plain list, so a test may cut it, repeat an event, or put a gate or a fault between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Any

Json = dict[str, Any]

MODEL = "gpt-5.2-codex"
USAGE = {"input": 11, "cached": 3, "output": 7, "reasoning": 2}

_tags = count(1)


@dataclass(frozen=True)
class Item:
    """One output item: how it begins, what is streamed of it, how it ends. Its id is given by `answer`."""

    prefix: str
    begun: Json
    between: list[Json]
    done: Json
    call: bool = False


End = Callable[[Json], list[Json]]
"""Makes the last events of an answer from its response object."""


def answer(
    *items: Item, end: End | None = None, interleaved: bool = False, tag: str | None = None, model: str = MODEL
) -> list[Json]:
    """A whole stream. Without `end` it is completed; `interleaved` mixes the events of all items.

    `tag` is part of every id; without one each answer has its own.
    """
    tag = tag or str(next(_tags))
    response: Json = {"id": f"resp_{tag}", "object": "response", "model": model, "status": "in_progress", "output": []}
    streams = [list(_item_events(item, tag, index)) for index, item in enumerate(items)]
    if interleaved:
        streams = [[event for row in zip_longest(*streams) for event in row if event is not None]]
    body = [event for stream in streams for event in stream]
    output = [event["item"] for event in body if event["type"] == "response.output_item.done"]
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        *body,
        *(end or completed())({**response, "output": output}),
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _item_events(item: Item, tag: str, index: int) -> Iterator[Json]:
    item_id = f"{item.prefix}_{tag}_{index}"
    named = {"id": item_id} | ({"call_id": f"call_{tag}_{index}"} if item.call else {})
    yield {"type": "response.output_item.added", "output_index": index, "item": {**named, **item.begun}}
    for event in item.between:
        yield {**event, "item_id": item_id, "output_index": index}
    yield {"type": "response.output_item.done", "output_index": index, "item": {**named, **item.done}}


# Items


def text(*pieces: str) -> Item:
    """A message, in these pieces."""
    part = {"type": "output_text", "text": "".join(pieces), "annotations": []}
    message = {"type": "message", "role": "assistant"}
    between = [
        _event("content_part.added", content_index=0, part={**part, "text": ""}),
        *(_event("output_text.delta", content_index=0, delta=piece) for piece in pieces),
        _event("output_text.done", content_index=0, text=part["text"]),
        _event("content_part.done", content_index=0, part=part),
    ]
    return Item(
        "msg",
        {**message, "status": "in_progress", "content": []},
        between,
        {**message, "status": "completed", "content": [part]},
    )


def refusal_text(said: str) -> Item:
    """A message in which the model declines."""
    part = {"type": "refusal", "refusal": said}
    message = {"type": "message", "role": "assistant"}
    between = [
        _event("content_part.added", content_index=0, part={**part, "refusal": ""}),
        _event("refusal.delta", content_index=0, delta=said),
        _event("refusal.done", content_index=0, refusal=said),
        _event("content_part.done", content_index=0, part=part),
    ]
    return Item("msg", {**message, "content": []}, between, {**message, "status": "completed", "content": [part]})


def call(name: str, *pieces: str, call_id: str | None = None) -> Item:
    """A function call whose arguments come in these pieces."""
    return _call("function_call", "fc", "function_call_arguments", "arguments", name, pieces, call_id)


def custom_call(name: str, *pieces: str, call_id: str | None = None) -> Item:
    """A call of a custom tool whose text comes in these pieces."""
    return _call("custom_tool_call", "ctc", "custom_tool_call_input", "input", name, pieces, call_id)


def reasoning(*summaries: str, raw: str = "", encrypted: str | None = "ZW5jcnlwdGVk") -> Item:
    """Thoughts: a part for each summary, the raw text, and what a follow-up sends back."""
    parts = [{"type": "summary_text", "text": summary} for summary in summaries]
    between = []
    for index, part in enumerate(parts):
        where = {"summary_index": index}
        between += [
            _event("reasoning_summary_part.added", **where, part={**part, "text": ""}),
            _event("reasoning_summary_text.delta", **where, delta=part["text"]),
            _event("reasoning_summary_text.done", **where, text=part["text"]),
            _event("reasoning_summary_part.done", **where, part=part),
        ]
    done: Json = {"type": "reasoning", "summary": parts}
    if raw:
        between.append(_event("reasoning_text.delta", content_index=0, delta=raw))
        between.append(_event("reasoning_text.done", content_index=0, text=raw))
        done["content"] = [{"type": "reasoning_text", "text": raw}]
    if encrypted is not None:
        done["encrypted_content"] = encrypted
    return Item("rs", {"type": "reasoning", "summary": []}, between, done)


def search(query: str) -> Item:
    """A web search."""
    item = {"type": "web_search_call"}
    states = [_event(f"web_search_call.{state}") for state in ("in_progress", "searching", "completed")]
    action = {"type": "search", "query": query}
    return Item("ws", {**item, "status": "in_progress"}, states, {**item, "status": "completed", "action": action})


def _call(kind: str, prefix: str, stream: str, member: str, name: str, pieces: tuple[str, ...], call_id: Any) -> Item:
    item = {"type": kind, "name": name} | ({"call_id": call_id} if call_id else {})
    whole = "".join(pieces)
    between = [
        *(_event(f"{stream}.delta", delta=piece) for piece in pieces),
        _event(f"{stream}.done", **{member: whole}),
    ]
    begun, done = {**item, member: "", "status": "in_progress"}, {**item, member: whole, "status": "completed"}
    return Item(prefix, begun, between, done, call=True)


# Ends


def completed(*, output: bool = True, **usage: int) -> End:
    """The good end; any of the keys of `USAGE` may be given. Without `output` only the items tell what was said."""

    def end(response: Json) -> list[Json]:
        told = {**response, "status": "completed", "usage": usage_object(**usage)}
        return [_event("completed", response=told if output else {**told, "output": []})]

    return end


def failed(code: str, message: str = "scripted failure") -> End:
    """`response.failed`."""
    error = {"code": code, "message": message}
    return lambda response: [_event("failed", response={**response, "status": "failed", "error": error})]


def incomplete(reason: str = "max_output_tokens") -> End:
    """`response.incomplete`, with what was said until then."""
    details = {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": usage_object()}
    return lambda response: [_event("incomplete", response={**response, **details})]


def error(code: str | None, message: str = "scripted error", *, nested: bool = False) -> End:
    """An `error` event, in either of its forms."""
    told = {"type": "server_error", "code": code, "message": message, "param": None}
    if nested:
        return lambda _: [{"type": "error", "error": told}]
    return lambda _: [{**told, "type": "error"}]


def NOTHING(_: Json) -> list[Json]:
    """No terminal event: the stream just ends."""
    return []


def usage_object(**given: int) -> Json:
    """A response's `usage` from any of the keys of `USAGE`."""
    n = USAGE | given
    return {
        "input_tokens": n["input"],
        "input_tokens_details": {"cached_tokens": n["cached"]},
        "output_tokens": n["output"],
        "output_tokens_details": {"reasoning_tokens": n["reasoning"]},
        "total_tokens": n["input"] + n["output"],
    }


def padding(size: int) -> Json:
    """An event of a kind that nobody knows, in one line of at least so many bytes."""
    return {"type": "response.padding", "padding": "x" * size}


def _event(kind: str, **members: Any) -> Json:
    return {"type": f"response.{kind}", **members}
