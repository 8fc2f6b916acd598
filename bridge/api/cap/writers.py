"""Packets on their way: as server-sent events with ids, and as lines."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from bridge.api.sse import join_events

CLOSE_PACKET = b'{"op":"close","p":null}'


class SseWriter:
    """Each packet as an event. Its id is the request's and the packet's number, which is where a client can resume.

    From the second `attempt` at a request on it stands between them: who has a part of one cannot go on with another.
    """

    def __init__(self, request_id: UUID, attempt: int = 1) -> None:
        which = f"{request_id}:" if attempt == 1 else f"{request_id}:{attempt}:"
        self._head = b"event: stream.packet\nid: %b" % which.encode()

    def write(self, packets: Sequence[bytes], first: int) -> bytes:
        """The bytes of packets in a row, of which the first has the number `first`."""
        head = self._head
        if len(packets) == 1:
            # A model that speaks slowly: nothing is joined.
            event = b"%b%d\ndata: %b\n\n" % (head, first, packets[0])
            return event if event.isascii() else join_events([event])
        return join_events([b"%b%d\ndata: %b\n\n" % (head, at, packet) for at, packet in enumerate(packets, first)])


class LineWriter:
    """Each packet as a line of JSON."""

    def write(self, packets: Sequence[bytes], first: int) -> bytes:
        """The bytes of packets in a row; their numbers are not told."""
        return join_events([b"%b\n" % packet for packet in packets])


def resume_point(last_event_id: str, request_id: UUID) -> tuple[int, int] | None:
    """(attempt, number) of the last packet that a client has, from its id; None when it is of another request."""
    name, *counts = last_event_id.split(":", 3)
    if name.lower() != str(request_id) or len(counts) not in (1, 2):
        return None
    if not all(count.isascii() and count.isdigit() and len(count) <= 18 for count in counts):
        return None
    return int(counts[0]) if len(counts) == 2 else 1, int(counts[-1])
