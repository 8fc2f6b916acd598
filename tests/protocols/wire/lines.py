"""What wire protocol v0 allows on stdout: each line by its JSON Schema, together in the order of docs/exec-wire.md."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from harness import ROOT

Event = dict[str, Any]

SCHEMA = jsonschema_rs.Draft202012Validator(json.loads((ROOT / "fixtures/wire/v0.schema.json").read_text()))

CREATED, COMPLETED, ERROR = "response.created", "response.completed", "error"
ADDED, DONE = "response.output_item.added", "response.output_item.done"

INSIDE = {
    "message": {"response.content_part.added", "response.output_text.delta"},
    "function_call": {"response.function_call_arguments.delta"},
    "custom_tool_call": {"response.custom_tool_call_input.delta"},
    "reasoning": {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"},
    "web_search_call": {f"response.web_search_call.{state}" for state in ("in_progress", "searching", "completed")},
}
"""The events that may come between the two ends of an item."""


def read_events(stdout: bytes) -> list[Event]:
    """The events of a whole run. Fails when anything about them breaks the protocol."""
    assert stdout.endswith(b"\n"), f"the last line has no end: {stdout[-200:]!r}"
    return check_events(read_lines(stdout))


def read_lines(stdout: bytes) -> list[Event]:
    """The whole lines, each of them valid; also of a run whose end is not there yet."""
    events = [json.loads(line) for line in stdout.split(b"\n")[:-1]]
    for event in events:
        SCHEMA.validate(event)
    return events


def check_events(events: list[Event]) -> list[Event]:
    """The same events. Fails when they are not in order."""
    kinds = [event["type"] for event in events]
    assert kinds[-1] != ERROR or events[-1]["code"], events[-1]
    assert kinds[-1] in (COMPLETED, ERROR), kinds
    assert not {COMPLETED, ERROR} & set(kinds[:-1]), kinds
    if kinds == [ERROR]:
        return events
    assert kinds[0] == CREATED, kinds
    assert kinds.count(CREATED) == 1, kinds
    is_open = _check_items(events[1:-1])
    if kinds[-1] == COMPLETED:
        assert not is_open, kinds
        told, ended = events[0]["response"], events[-1]["response"]
        assert (ended["id"], ended["model"]) == (told["id"], told["model"])
    return events


def _check_items(events: list[Event]) -> bool:
    """One item after the other, each as its deltas said; whether the last one has no end."""
    item: Event | None = None
    inside: list[Event] = []
    for event in events:
        if event["type"] == ADDED:
            assert item is None, f"{event} begins before the end of {item}"
            item, inside = event["item"], []
        elif event["type"] == DONE:
            assert item is not None, event
            whole = event["item"]
            assert {name: whole[name] for name in item} == item
            _check_sum(whole, inside)
            item = None
        else:
            assert item is not None, event
            assert event["type"] in INSIDE[item["type"]], event
            assert event["item_id"] == item["id"], event
            inside.append(event)
    return item is not None


def _check_sum(item: Event, inside: list[Event]) -> None:
    """What was said piece by piece is what the whole item says."""
    kinds = [event["type"] for event in inside]
    pieces = [event["delta"] for event in inside if "delta" in event]
    match item["type"]:
        case "message":
            assert kinds.index("response.content_part.added") == 0
            assert kinds.count("response.content_part.added") == 1
            assert inside[0]["part"]["text"] == "", inside[0]
            assert "".join(pieces) == "".join(part["text"] for part in item["content"])
        case "function_call":
            assert "".join(pieces) == item["arguments"]
        case "custom_tool_call":
            assert "".join(pieces) == item["input"]
        case "reasoning":
            assert _parts(inside, "summary_index") == [part["text"] for part in item["summary"]]
            assert _parts(inside, "content_index") == [part["text"] for part in item.get("content", ())]


def _parts(events: list[Event], place: str) -> list[str]:
    parts: dict[int, str] = {}
    for event in events:
        if place in event:
            parts[event[place]] = parts.get(event[place], "") + event["delta"]
    return [parts[index] for index in sorted(parts)]


# Reading


def items_of(events: list[Event]) -> list[Event]:
    """The items that are complete, in order."""
    return [event["item"] for event in events if event["type"] == DONE]


def text_of(events: list[Event]) -> str:
    """All text that was said, from its deltas."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def calls_of(events: list[Event]) -> list[tuple[str, str]]:
    """The functions that were called, with their arguments."""
    return [(item["name"], item["arguments"]) for item in items_of(events) if item["type"] == "function_call"]


def usage_of(events: list[Event]) -> tuple[int, int, int]:
    """Input, output and cached tokens of a run that succeeded."""
    usage = events[-1]["response"]["usage"]
    assert usage["cached_tokens"] <= usage["input_tokens"]
    return usage["input_tokens"], usage["output_tokens"], usage["cached_tokens"]
