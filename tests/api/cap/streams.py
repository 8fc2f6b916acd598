"""Turns as CAP tells them, and how a client reads them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from api.cap.samples import REQUEST_ID

from bridge.api.cap.events import CapEncoder, Form
from bridge.api.cap.fold import TurnFold
from bridge.api.cap.stream import StreamPacket, read_packet
from bridge.turn.events import TurnEvent

STARTED_AT = 1_700_000_000.0
SEVEN = UUID(REQUEST_ID)


def fixed(*seconds: float) -> Callable[[], float]:
    """A clock that shows these times after the start, the last one for ever."""
    times = list(seconds)
    return lambda: STARTED_AT + (times.pop(0) if len(times) > 1 else times[0])


def encoder(*asked: str, form: Form = "sse", now: Callable[[], float] | None = None) -> CapEncoder:
    """An encoder of one turn, with a clock that stands still; `asked` are events that the client wants."""
    return CapEncoder(
        SEVEN,
        now=now or fixed(0.25),
        started_at=STARTED_AT,
        form=form,
        events=frozenset(asked),
        conversation=("c1", "new"),
    )


def feed(made: CapEncoder, *batches: list[TurnEvent]) -> bytes:
    """The whole stream of these batches."""
    return made.begin() + b"".join(made.feed(batch) for batch in batches)


def read_sse(stream: bytes) -> list[StreamPacket]:
    """The packets of server-sent events, each frame checked: its lines, and its number."""
    frames = stream.split(b"\n\n")
    assert frames.pop() == b""
    packets = []
    for number, frame in enumerate(frames, 1):
        name, place, data = frame.split(b"\n")
        assert name == b"event: stream.packet"
        assert place == b"id: %b:%d" % (REQUEST_ID.encode(), number)
        # As some clients split lines.
        assert len(data.decode().splitlines()) == 1
        packets.append(read_packet(data.removeprefix(b"data: ")))
    return packets


def read_lines(stream: bytes) -> list[StreamPacket]:
    """The packets of lines."""
    lines = stream.split(b"\n")
    assert lines.pop() == b""
    assert len(stream.decode().splitlines()) == len(lines)
    return [read_packet(line) for line in lines]


def fold(packets: Iterable[StreamPacket]) -> TurnFold:
    """What a client makes of a whole stream."""
    folded = TurnFold()
    for packet in packets:
        folded.add(packet)
    assert folded.closed
    return folded


def told(*asked: str, events: list[TurnEvent]) -> list[dict[str, Any]]:
    """The packets of a turn without what differs from event to event: ids are checked to differ, times are dropped."""
    packets = [packet.dump() for packet in read_sse(feed(encoder(*asked), events))]
    shown = [packet["p"] for packet in packets if packet["op"] == "event"]
    assert len({event.pop("id") for event in shown}) == len(shown)
    assert all(event.pop("timestamp") for event in shown)
    return packets
