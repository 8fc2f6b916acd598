"""Server-sent events, as bytes."""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from bridge.errors import BridgeError, UpstreamError
from bridge.turn.events import Restarted, TurnEvent, Usage

KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"


_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def join_events(events: list[bytes]) -> bytes:
    """A piece of a stream. What some clients take for the end of a line, within a JSON string, is escaped."""
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


def restart_error(event: Restarted) -> UpstreamError:
    """The upstream begins anew after part of its answer has been shown: that cannot be taken back."""
    return UpstreamError(
        f"The model's stream broke after part of the answer had been sent ({event.message}). Try again.",
        code="stream_interrupted",
        severity="transient",
    )


class Encoder(Protocol):
    """TurnEvents in, one protocol's bytes out; exactly one terminal event.

    `feed` may be called until `finished`; what comes after the end is ignored. `body` is the non-streamed answer: the
    same events, collected.
    """

    finished: bool
    failure: BridgeError | None

    @property
    def visible(self) -> bool:
        """Something of the answer itself has been encoded; from then on a failure cannot be a status code any more."""

    @property
    def usage(self) -> Usage | None:
        """The turn's usage so far."""

    def begin(self) -> bytes:
        """What comes before the first piece of the answer."""

    def feed(self, events: list[TurnEvent]) -> bytes:
        """The bytes for a batch of events, in order."""

    def body(self) -> bytes:
        """The non-streamed answer. Only after the end, and only when it did not fail."""
