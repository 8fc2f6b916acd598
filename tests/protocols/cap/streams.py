"""CAP packets of a turn, and how a client reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from protocols.cap.samples import REQUEST_ID

from bridge.core.events import TurnEvent
from bridge.protocols.cap import ConversationState
from bridge.protocols.cap.encoder import CapEncoder, Form
from bridge.protocols.cap.stream import (
    DeltaPacket,
    ErrorPacket,
    StreamError,
    StreamPacket,
    fold_packets,
    parse_packet,
)

STARTED_AT = 1_700_000_000.0
SEVEN = UUID(REQUEST_ID)


def fixed(*seconds: float) -> Callable[[], float]:
    """A clock that shows these times after the start, the last one from then on."""
    times = list(seconds)
    return lambda: STARTED_AT + (times.pop(0) if len(times) > 1 else times[0])


def encoder(*wanted: str, form: Form = "sse", now: Callable[[], float] | None = None) -> CapEncoder:
    """An encoder of one turn, with a clock that stands still; `wanted` are events that the client requests."""
    return CapEncoder(
        SEVEN,
        now=now or fixed(0.25),
        started_at=STARTED_AT,
        form=form,
        events=frozenset(wanted),
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
        packets.append(parse_packet(data.removeprefix(b"data: ")))
    return packets


def read_lines(stream: bytes) -> list[StreamPacket]:
    """The packets of lines."""
    lines = stream.split(b"\n")
    assert lines.pop() == b""
    assert len(stream.decode().splitlines()) == len(lines)
    return [parse_packet(line) for line in lines]


class Folded:
    """A stream as a client reads it, packet by packet: `(delta | event)* error? close`."""

    def __init__(self, packets: Iterable[StreamPacket] = ()) -> None:
        self.packets: list[StreamPacket] = []
        for packet in packets:
            self.add(packet)

    def add(self, packet: StreamPacket) -> None:
        last = self.packets[-1].op if self.packets else None
        assert last != "close", "a packet after the close packet"
        assert last != "error" or packet.op == "close", "a packet after an error"
        self.packets.append(packet)

    @property
    def closed(self) -> bool:
        return bool(self.packets) and self.packets[-1].op == "close"

    @property
    def error(self) -> StreamError | None:
        return next((packet.p for packet in self.packets if isinstance(packet, ErrorPacket)), None)

    @property
    def text(self) -> str:
        return "".join(packet.p for packet in self.packets if isinstance(packet, DeltaPacket))

    def output(self, conversation: tuple[str, ConversationState] | None = None) -> dict[str, Any]:
        return fold_packets([packet.to_json().encode() for packet in self.packets], conversation)[0]

    @property
    def metrics(self) -> dict[str, Any] | None:
        return fold_packets([packet.to_json().encode() for packet in self.packets], None)[1]


def fold(packets: Iterable[StreamPacket]) -> Folded:
    """A whole stream."""
    folded = Folded(packets)
    assert folded.closed
    return folded


def packets_of(*wanted: str, events: list[TurnEvent]) -> list[dict[str, Any]]:
    """The packets of a turn without what differs from event to event: ids are checked to differ, times are dropped."""
    packets = [packet.dump() for packet in read_sse(feed(encoder(*wanted), events))]
    shown = [packet["p"] for packet in packets if packet["op"] == "event"]
    assert len({event.pop("id") for event in shown}) == len(shown)
    assert all(event.pop("timestamp") for event in shown)
    return packets
