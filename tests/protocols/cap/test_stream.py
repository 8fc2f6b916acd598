"""Packets: their models, their framing, and what a whole stream amounts to."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from protocols.cap.samples import OTHER_ID, REQUEST_ID, presented
from pydantic import ValidationError

from bridge.protocols.cap.models import EVENT
from bridge.protocols.cap.stream import (
    CLOSE_PACKET,
    ClosePacket,
    DeltaPacket,
    ErrorPacket,
    EventPacket,
    LineWriter,
    SseWriter,
    StreamError,
    fold_packets,
    parse_packet,
    resume_point,
)

ERROR = {"code": "x", "message": "y", "severity": "fatal"}


def read(op: Any, *payload: Any) -> Any:
    """The packet as it is written again."""
    return parse_packet(json.dumps({"op": op, **({"p": payload[0]} if payload else {})})).dump()


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


WRONG: dict[str, list[Any]] = {
    "delta": [None, {}, 1, [], ERROR],
    "event": [1, [], True],
    "error": ["x", None, {}, {"code": "x", "message": "y"}],
}


@pytest.mark.parametrize(
    ("op", "payload"),
    [
        *((op, payload) for op, payloads in WRONG.items() for payload in payloads),
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
def test_invalid_payloads(op: Any, payload: Any) -> None:
    with pytest.raises(ValidationError):
        read(op, payload)


@pytest.mark.parametrize("op", ["delta", "event", "error"])
def test_a_payload_is_required(op: str) -> None:
    with pytest.raises(ValidationError):
        read(op)


@pytest.mark.parametrize("payload", [(), (None,), ("because",), ({"reason": 1},)])
def test_the_payload_of_a_close_packet_is_dropped(payload: tuple[Any, ...]) -> None:
    assert read("close", *payload) == {"op": "close", "p": None}
    assert ClosePacket(op="close").to_json() == '{"op":"close","p":null}'


def test_unknown_members_of_an_error_are_dropped() -> None:
    assert read("error", ERROR | {"more": 1}) == {"op": "error", "p": ERROR}


def test_packets_are_made_of_their_payloads() -> None:
    assert DeltaPacket(op="delta", p="x").to_json() == '{"op":"delta","p":"x"}'
    shown = presented("markdown_block", {"content": "x"})
    for payload in (shown, EVENT.validate_python(shown)):
        assert EventPacket(op="event", p=payload).dump() == {"op": "event", "p": shown}
    failed = StreamError(code="x", message="y", severity="fatal")
    assert ErrorPacket(op="error", p=failed).to_json() == (
        '{"op":"error","p":{"code":"x","message":"y","severity":"fatal"}}'
    )


def test_events_are_numbered_from_where_they_are() -> None:
    assert SseWriter(UUID(REQUEST_ID)).write([b'{"op":"delta","p":"x"}', CLOSE_PACKET], 7) == (
        b"event: stream.packet\nid: 550e8400-e29b-41d4-a716-446655440000:7\n"
        b'data: {"op":"delta","p":"x"}\n\n'
        b"event: stream.packet\nid: 550e8400-e29b-41d4-a716-446655440000:8\n"
        b'data: {"op":"close","p":null}\n\n'
    )


def test_lines() -> None:
    assert LineWriter().write([b'{"op":"delta","p":"x"}', CLOSE_PACKET], 7) == (
        b'{"op":"delta","p":"x"}\n{"op":"close","p":null}\n'
    )


@pytest.mark.parametrize("number", [0, 1, 12345])
def test_a_client_resumes_where_it_was(number: int) -> None:
    assert resume_point(f"{REQUEST_ID}:{number}", UUID(REQUEST_ID)) == (1, number)
    assert resume_point(f"{REQUEST_ID.upper()}:{number}", UUID(REQUEST_ID)) == (1, number)


def test_a_second_attempt_has_ids_of_its_own() -> None:
    written = SseWriter(UUID(REQUEST_ID), 2).write([CLOSE_PACKET], 7)
    name = f"{REQUEST_ID}:2:7"
    assert f"\nid: {name}\n".encode() in written
    assert resume_point(name, UUID(REQUEST_ID)) == (2, 7)


@pytest.mark.parametrize(
    "last",
    [
        "",
        "7",
        REQUEST_ID,
        f"{REQUEST_ID}:",
        f"{REQUEST_ID}:-1",
        f"{REQUEST_ID}:٣",
        f"{REQUEST_ID}::1",
        f"{REQUEST_ID}:1:2:3",
        f"{OTHER_ID}:1",
        f"{REQUEST_ID}:{'9' * 5000}",
    ],
)
def test_invalid_last_event_ids(last: str) -> None:
    assert resume_point(last, UUID(REQUEST_ID)) is None


def delta(text: str) -> bytes:
    return json.dumps({"op": "delta", "p": text}).encode()


def notice(code: int) -> bytes:
    return json.dumps({"op": "event", "p": presented("user_error", {"message": "a", "code": code})}).encode()


def test_texts_are_joined() -> None:
    packets = [delta("a"), delta(""), delta("b"), CLOSE_PACKET]
    assert fold_packets(packets, ("c", "new")) == (
        {"text": "ab", "conversation_id": "c", "conversation": "new", "status": "completed"},
        None,
    )
    assert fold_packets(packets, None) == ({"text": "ab", "status": "completed"}, None)


def test_notices() -> None:
    plain, cut = {"message": "a", "code": 503}, {"message": "a", "code": 206}
    output, _ = fold_packets([notice(503)], None)
    assert output == {"text": "", "status": "completed", "notices": [plain]}
    output, _ = fold_packets([notice(503), notice(206)], None)
    assert output == {"text": "", "status": "incomplete", "notices": [plain, cut]}
