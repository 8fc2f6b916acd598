"""Server-sent events, as bytes."""

from __future__ import annotations

import codecs
from typing import Any

import orjson

from bridge.core.events import CANCELLED, Restarted
from bridge.errors import UpstreamError

MAX_EVENT = 64 * 1024 * 1024
"""The largest event, in bytes."""
MARK = codecs.BOM_UTF8
"""A byte-order mark. A stream may begin with one; it is not part of the first line."""


class SseReader:
    """Bytes in, the data of each complete event out, without comments, names, ids and `[DONE]`.

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
        """The last event if only its blank line is missing."""
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


KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def join_events(events: list[bytes]) -> bytes:
    """A piece of a stream. Characters in JSON strings that some clients take for line ends are escaped."""
    stream = b"".join(events)
    if stream.isascii():
        return stream
    for character, escaped in _LINE_ENDS:
        if character in stream:
            stream = stream.replace(character, escaped)
    return stream


def data_event(payload: Any) -> bytes:
    """An event without a name."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def interrupted() -> UpstreamError:
    """The error of a turn that ended without a reason."""
    return UpstreamError("The turn was interrupted.", code="interrupted")


_INCOMPLETE = {
    "max_output_tokens": "The answer is incomplete: the model reached its limit of tokens.",
    "content_filter": "The answer is incomplete: the provider's content filter stopped it.",
    CANCELLED: "The answer is incomplete: it was cancelled.",
}


def incomplete_message(reason: str) -> str:
    """What a client reads about an incomplete answer, in protocols that say it in words."""
    return _INCOMPLETE.get(reason, f"The answer is incomplete ({reason}).")


def restart_error(event: Restarted) -> UpstreamError:
    """The upstream starts again after part of its answer was sent, which cannot be taken back."""
    return UpstreamError(
        f"The model's stream broke after part of the answer had been sent ({event.message}). Try again.",
        code="stream_interrupted",
        severity="transient",
    )


class JsonOrSseReader(SseReader):
    """Reads a stream, or one JSON object, which some servers of the chat API send although a stream was asked for.

    The first byte decides: the headers of such a server cannot be relied on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun = False
        self._body: list[bytes] | None = None
        self._body_size = 0

    def _split(self, chunk: bytes) -> list[bytes]:
        if not self._begun:
            head = chunk.lstrip()
            if not head:
                return []
            self._begun = True
            self._body = [] if head[:1] in (b"{", b"[") else None
        if self._body is None:
            return super()._split(chunk)
        self._body.append(chunk)
        self._body_size += len(chunk)
        self._check(self._body_size)
        return []

    def finish(self) -> list[bytes]:
        if self._body is None:
            return super().finish()
        self.done = True
        return [b"".join(self._body)]
