"""Several choices in one completion: chunks of all of them in one stream, each with its index."""

from __future__ import annotations

from collections.abc import Sequence

from orjson import dumps

from bridge.api.chat.events import ChatEncoder
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.events import Choice, Finished, TurnEvent, Usage


class ChoicesEncoder:
    """An encoder over one ChatEncoder for each choice. They share an id; none of them ends the stream."""

    def __init__(self, encoders: Sequence[ChatEncoder]) -> None:
        self._encoders = encoders
        self.finished = False
        self.failure: BridgeError | None = None

    @property
    def id(self) -> str:
        """The completion's id."""
        return self._encoders[0].id

    @property
    def visible(self) -> bool:
        """Whether any choice has said something."""
        return any(encoder.visible for encoder in self._encoders)

    @property
    def usage(self) -> Usage | None:
        """The usage of all choices together."""
        known = [encoder.usage for encoder in self._encoders if encoder.usage is not None]
        return sum(known[1:], known[0]) if known else None

    def begin(self) -> bytes:
        return b"".join(encoder.begin() for encoder in self._encoders)

    def feed(self, events: list[TurnEvent]) -> bytes:
        out = []
        for event in events:
            if self.finished:
                break
            if isinstance(event, Choice):
                encoder = self._encoders[event.index]
                out.append(encoder.feed(event.events))
                if encoder.failure is not None:
                    out.append(self._finish(encoder.failure))
            elif isinstance(event, Finished):
                failed = event.outcome in ("failed", "cancelled")
                interrupted = UpstreamError("The turn was interrupted.", code="interrupted")
                out.append(self._finish((event.error or interrupted) if failed else None))
        return b"".join(out)

    def _finish(self, failure: BridgeError | None) -> bytes:
        """One choice that fails fails them all: a client cannot be told of it otherwise."""
        self.finished = True
        self.failure = failure
        return self._encoders[0].end_stream(failure, self.usage)

    def body(self) -> bytes:
        choices = [encoder.choice() for encoder in self._encoders]
        return dumps(self._encoders[0].completion(choices, self.usage or Usage()))
