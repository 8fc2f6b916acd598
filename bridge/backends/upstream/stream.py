"""A turn that an upstream answers over HTTP: an owner task reads, the consumer takes."""

from __future__ import annotations

from collections.abc import Callable

import trio

from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.errors import BackendTimeout
from bridge.turn.events import TurnEvent

MAX_WAITING = 4 * 1024 * 1024
"""Characters that may wait for the consumer before the upstream is read no further."""


class UpstreamStream:
    """What a consumer holds of it: `next` until the batch that ends with Finished, then `close`.

    The owner task calls `read` and `wait_for_room`; it runs within `scope`, which `close` cancels.
    """

    def __init__(self, buffer: UpstreamBuffer, *, trace: Callable[[bytes], None] | None = None) -> None:
        self.buffer = buffer
        self.scope = trio.CancelScope()
        self.heard = False
        """An event has come: from now on nothing can be tried again."""
        self._trace = trace
        self._changed = trio.Event()
        self._taken = trio.Event()

    def __repr__(self) -> str:
        return f"<UpstreamStream heard={self.heard} finished={self.buffer.finished}>"

    async def next(self) -> list[TurnEvent]:
        """The events since the last call, waiting for at least one; safe to cancel."""
        while not (events := self.buffer.take()):
            self._changed = trio.Event()
            await self._changed.wait()
        self._taken.set()
        return events

    def close(self) -> None:
        """The consumer is done, or gone. The connection of an answer that still comes is closed."""
        if not self.buffer.ended:
            self.scope.cancel()

    # What the owner calls.

    def read(self, events: list[bytes]) -> None:
        """The upstream's next events."""
        for data in events:
            self.heard = True
            if self._trace is not None:
                self._trace(data)
            self.buffer.receive(data)
        self.wake()

    def over(self, *, told: bool) -> None:
        """The upstream has nothing more to say."""
        self.buffer.over(told=told)
        self.wake()

    def wake(self) -> None:
        """There may be something new for the consumer."""
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Until the consumer has taken enough: a slow one slows its own upstream down, and nothing is lost."""
        while self.buffer.size > MAX_WAITING and not self.buffer.finished:
            self._taken = trio.Event()
            await self._taken.wait()


def silence(heard: bool, wait: float) -> BackendTimeout:
    """The error for an upstream that says nothing (any more)."""
    what = "nothing more came" if heard else "the model did not begin to answer"
    return BackendTimeout(f"After {wait:g} s {what}; the turn was stopped.")
