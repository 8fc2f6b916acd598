"""The packets of a stream that are kept for whoever comes back. Pure."""

from __future__ import annotations

RING_BYTES = 1024 * 1024


class Ring:
    """The last packets of a stream, numbered from 1. Of those that have been `read` about `limit` bytes are kept."""

    def __init__(self, limit: int = RING_BYTES) -> None:
        self.last = 0
        """The number of the last packet."""
        self.read = 0
        """The number up to which nobody needs the packets for the first time."""
        self.size = 0
        """Bytes that are kept."""
        self._limit = limit
        self._packets: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Ring {self.first}..{self.last} size={self.size}>"

    @property
    def first(self) -> int:
        """The number of the oldest packet that is kept; when there is none, of the next."""
        return self.last - len(self._packets) + 1

    @property
    def is_full(self) -> bool:
        """Whether what nobody has read yet is as much as is to be kept."""
        unread = self._packets[max(0, self.read - self.first + 1) :]
        return self.size >= self._limit and sum(map(len, unread)) >= self._limit

    def add(self, packets: list[bytes]) -> None:
        """Append packets, and forget the oldest that are too many and have been read."""
        self._packets += packets
        self.last += len(packets)
        self.size += sum(map(len, packets))
        # Not for every packet: what stays is moved each time.
        if self.size > self._limit + self._limit // 4:
            self._forget()

    def after(self, number: int) -> list[bytes] | None:
        """All packets after this one; None when the next of them has been forgotten."""
        index = number - self.first + 1
        return None if index < 0 else self._packets[index:]

    def _forget(self) -> None:
        gone = 0
        for packet in self._packets[: max(0, self.read - self.first + 1)]:
            if self.size <= self._limit:
                break
            self.size -= len(packet)
            gone += 1
        del self._packets[:gone]
