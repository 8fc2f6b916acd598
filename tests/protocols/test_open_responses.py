"""The shapes of the Open Responses specification: what we send has them, and the check sees what has not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from protocols.cases import CASES, encode, read_frames, responses_encoder
from protocols.open_responses import EVENT, EVENTS, OPENAI_EVENTS, RESPONSE, Shape, Tagged, faults

EVENTS_SENT = [payload for events in CASES.values() for payload in read_frames(encode(responses_encoder(), events))]
NULLABLE = {
    "completed_at",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "usage",
}
"""The members of a response that may be null."""


def required_places(value: Any, shape: Shape, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all members of a value that its shape requires."""
    if isinstance(shape, tuple):
        shape = next(each for each in shape if not list(faults(value, each)))
    if isinstance(shape, Tagged):
        yield (*place, "type")
        shape = shape.shapes.get(value["type"], shape.others)
    if isinstance(shape, list):
        for index, entry in enumerate(value):
            yield from required_places(entry, shape[0], (*place, index))
    elif isinstance(shape, Mapping):
        for name, inner in shape.items():
            bare = name.removesuffix("?")
            if bare == name:
                yield (*place, name)
            if bare in value:
                yield from required_places(value[bare], inner, (*place, bare))


def without(payload: Any, place: tuple[Any, ...]) -> Any:
    """A copy without one member."""
    payload = deepcopy(payload)
    inner = payload
    for step in place[:-1]:
        inner = inner[step]
    del inner[place[-1]]
    return payload


@pytest.mark.parametrize("case", CASES)
def test_every_event_has_its_shape(case: str) -> None:
    """Of every kind of answer."""
    for payload in read_frames(encode(responses_encoder(), CASES[case])):
        assert list(faults(payload, EVENT, payload["type"])) == []


def test_every_kind_of_event_is_checked() -> None:
    """The cases have all of them; none is unknown to the check, and the check knows no others."""
    assert {payload["type"] for payload in EVENTS_SENT} == EVENTS.keys() | OPENAI_EVENTS.keys()


def test_a_missing_member_is_seen() -> None:
    """Of any event, at any depth."""
    for payload in {payload["type"]: payload for payload in EVENTS_SENT}.values():
        places = list(required_places(payload, EVENT))
        assert ("sequence_number",) in places
        for place in places:
            assert list(faults(without(payload, place), EVENT)), (payload["type"], place)


def test_null_is_seen() -> None:
    """In every member of a response that may not be null, and in no other."""
    response = next(payload["response"] for payload in EVENTS_SENT if payload["type"] == "response.completed")
    assert {name for name in RESPONSE if not list(faults(response | {name: None}, RESPONSE))} == NULLABLE


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("created_at", 1.5),
        ("store", 0),
        ("status", "done"),
        ("truncation", None),
        ("tools", [{"type": "function", "name": "f", "description": None, "parameters": True, "strict": False}]),
        ("tools", [{"name": "f"}]),
        ("tool_choice", "any"),
        ("tool_choice", {"type": "allowed_tools", "tools": []}),
        ("text", {"format": {"type": "json_schema", "name": "n", "schema": {}}}),
        ("text", {"format": {"type": "yaml"}}),
        ("reasoning", {"effort": "much", "summary": None}),
        ("usage", {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}),
        ("output", [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": "text"}]),
        ("output", [{"type": "thought", "id": "m"}]),
        ("output", None),
        ("metadata", []),
    ],
)
def test_a_wrong_value_is_seen(member: str, wrong: Any) -> None:
    """And named by its place."""
    response = EVENTS_SENT[0]["response"]
    assert list(faults(response, RESPONSE)) == []
    found = list(faults(response | {member: wrong}, RESPONSE, "response"))
    assert found
    assert all(fault.startswith(f"response.{member}") for fault in found)
