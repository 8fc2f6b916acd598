"""Server-sent events from an upstream, read as they come."""

from __future__ import annotations

import codecs

from bridge.errors import UpstreamError

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event; more is no answer any more."""
MARK = codecs.BOM_UTF8
"""A byte-order mark: a stream may begin with one, and it is no part of the first line."""


class SseReader:
    """Bytes in, the data of each complete event out. Comments, names and ids are left out; so is `[DONE]`.

    Linear in the input, however it is cut: the unfinished end is kept in pieces. Raises UpstreamError for an event
    larger than MAX_EVENT.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.done = False
        """Whether `[DONE]` has come."""
        self._head: bytes | None = b""
        """The first bytes, until it is known whether they are a byte-order mark."""
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._data: list[bytes] = []
        self._size = 0
        self._max = max_event

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that are complete now."""
        if self._head is not None:
            chunk = self._head + chunk
            if len(chunk) < len(MARK) and MARK.startswith(chunk):
                self._head = chunk
                return []
            self._head = None
            chunk = chunk.removeprefix(MARK)
        return self._split(chunk)

    def _split(self, chunk: bytes) -> list[bytes]:
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._line(self._whole(line), events)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            self._check(self._tail_size)
        return events

    def finish(self) -> list[bytes]:
        """What was complete but for its blank line."""
        events: list[bytes] = []
        self._line(self._whole(b""), events)
        self._line(b"", events)
        return events

    def _whole(self, line: bytes) -> bytes:
        if self._tail:
            line = b"".join([*self._tail, line])
            self._tail, self._tail_size = [], 0
        self._check(len(line))
        return line.removesuffix(b"\r")

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            data, self._data, self._size = b"\n".join(self._data), [], 0
            if data == b"[DONE]":
                self.done = True
            elif data:
                events.append(data)
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value) + 1
            self._check(self._size)

    def _check(self, size: int) -> None:
        if size > self._max:
            raise UpstreamError("The provider sent an event that is too large.", code="message_too_large")
