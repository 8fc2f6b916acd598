"""A stream of packets as server-sent events, read as it comes. Pure."""

from __future__ import annotations

from bridge.api.cap.stream import StreamPacket, read_packet

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event; more is no packet any more."""


class PacketReader:
    """Bytes in, each complete packet with its event's id out. Comments are left out, and names do not matter.

    Linear in the input, however it is cut. Raises ValueError for what is no packet, or larger than MAX_EVENT.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max = max_event
        self._tail: list[bytes] = []
        self._size = 0
        self._data: list[bytes] = []
        self._id = ""

    def feed(self, chunk: bytes) -> list[tuple[str, StreamPacket]]:
        """(id, packet) of the events that are complete now."""
        *lines, rest = chunk.split(b"\n")
        found: list[tuple[str, StreamPacket]] = []
        for line in lines:
            if self._tail:
                line = b"".join([*self._tail, line])
                self._tail = []
            self._line(line.removesuffix(b"\r"), found)
        if rest:
            self._tail.append(rest)
            self._grow(len(rest))
        return found

    def _line(self, line: bytes, found: list[tuple[str, StreamPacket]]) -> None:
        if not line:
            if self._data:
                found.append((self._id, read_packet(b"\n".join(self._data))))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._grow(len(value))
        elif name == b"id":
            self._id = value.decode("latin-1")

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._max:
            raise ValueError("an event that is too large")
