"""Packets on their way, and where a client resumes."""

from __future__ import annotations

from uuid import UUID

import pytest
from api.cap.samples import OTHER_ID, REQUEST_ID

from bridge.api.cap.writers import CLOSE_PACKET, LineWriter, SseWriter, resume_point


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
def test_what_is_no_place_in_this_stream(last: str) -> None:
    assert resume_point(last, UUID(REQUEST_ID)) is None
