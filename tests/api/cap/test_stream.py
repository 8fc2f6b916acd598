"""Packets: the op decides what the payload is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api.cap.samples import PAYLOADS, presented
from pydantic import ValidationError

from bridge.api.cap.presentation import EVENT
from bridge.api.cap.stream import (
    CLOSE,
    ErrorSeverity,
    EventPacket,
    StreamError,
    StreamOpCode,
    delta,
    error,
    event,
    read_packet,
)

ERROR = {"code": "x", "message": "y", "severity": "fatal"}


def read(op: Any, *payload: Any) -> Any:
    """The packet as it is written again."""
    return read_packet(json.dumps({"op": op, **({"p": payload[0]} if payload else {})})).dump()


def test_the_words_of_the_protocol() -> None:
    assert list(StreamOpCode) == ["delta", "event", "error", "close"]
    assert list(ErrorSeverity) == ["transient", "fatal"]


@pytest.mark.parametrize(
    ("op", "payload"),
    [
        ("delta", "x"),
        ("delta", ""),
        ("event", {}),
        ("event", "x"),
        ("event", None),
        ("event", ERROR | {"more": [None]}),  # an event that looks like an error stays what it is
        ("error", ERROR),
        ("error", ERROR | {"details": {"retry_after": 1}}),
        ("close", None),
    ],
)
def test_payloads_that_are_kept(op: str, payload: Any) -> None:
    assert read(op, payload) == {"op": op, "p": payload}


@pytest.mark.parametrize(
    ("op", "payload"),
    [
        *(("delta", payload) for payload in (None, {}, 1, [], ERROR)),
        *(("event", payload) for payload in (1, [], True)),
        *(("error", payload) for payload in ("x", None, {}, {"code": "x", "message": "y"})),
        ("error", ERROR | {"severity": "FATAL"}),
        ("error", ERROR | {"severity": "warning"}),
        ("error", ERROR | {"code": 1}),
        ("error", ERROR | {"details": []}),
        ("close", 1),
        ("close", []),
        ("DELTA", "x"),
        ("open", None),
        (None, None),
        (1, None),
    ],
)
def test_payloads_that_are_none(op: Any, payload: Any) -> None:
    with pytest.raises(ValidationError):
        read(op, payload)


@pytest.mark.parametrize("op", ["delta", "event", "error"])
def test_a_payload_must_be_there(op: str) -> None:
    with pytest.raises(ValidationError):
        read(op)


@pytest.mark.parametrize("payload", [(), (None,), ("because",), ({"reason": 1},)])
def test_a_close_packet_says_nothing_however_it_comes(payload: tuple[Any, ...]) -> None:
    assert read("close", *payload) == {"op": "close", "p": None}
    assert CLOSE.to_json() == '{"op":"close","p":null}'


def test_members_of_an_error_that_nobody_knows_are_dropped() -> None:
    assert read("error", ERROR | {"more": 1}) == {"op": "error", "p": ERROR}


def test_packets_are_made_of_their_payloads() -> None:
    assert delta("x").to_json() == '{"op":"delta","p":"x"}'
    shown = presented("markdown_block", {"content": "x"})
    assert event(shown).dump() == event(EVENT.validate_python(shown)).dump() == {"op": "event", "p": shown}
    failed = StreamError(code="x", message="y", severity=ErrorSeverity.FATAL)
    assert error(failed).to_json() == '{"op":"error","p":{"code":"x","message":"y","severity":"fatal"}}'


@pytest.mark.parametrize("kind", PAYLOADS)
def test_an_event_as_one_of_the_six(kind: str) -> None:
    shown = presented(kind, PAYLOADS[kind])
    found = event(shown).presentation()
    assert found is not None
    assert found.dump() == shown


@pytest.mark.parametrize("payload", [None, "x", {}, {"type": "tool_call", "data": {}}, {"type": "markdown_block"}])
def test_an_event_of_another_kind(payload: Any) -> None:
    packet = read_packet(json.dumps({"op": "event", "p": payload}))
    assert isinstance(packet, EventPacket)
    assert packet.presentation() is None
