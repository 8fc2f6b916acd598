"""The stream of a turn over HTTP: an owner task reads it, the consumer takes its events.

The consumer does not read by itself: httpx2 closes the connection when a read is cancelled, and a consumer may cancel
its wait at any time, for a keepalive for example.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from bridge.core.events import TurnEvent
from bridge.errors import BackendTimeout
from bridge.protocols.upstream import UpstreamBuffer

MAX_WAITING = 4 * 1024 * 1024
"""Characters that may wait for the consumer before reading pauses."""


class UpstreamStream:
    """The consumer calls `next` until the batch that ends with Finished, then `close`.

    The owner task calls `read` and `wait_for_room`; it runs within `scope`, which `close` cancels.
    """

    def __init__(self, buffer: UpstreamBuffer, *, trace: Callable[[bytes], None] | None = None) -> None:
        self.buffer = buffer
        self.scope = trio.CancelScope()
        self.started = False
        """An event has arrived: from now on nothing is retried."""
        self._trace = trace
        self._changed = trio.Event()
        self._taken = trio.Event()

    def __repr__(self) -> str:
        return f"<UpstreamStream started={self.started} finished={self.buffer.finished}>"

    async def next(self) -> list[TurnEvent]:
        """The events since the last call, waiting for at least one; safe to cancel."""
        while not (events := self.buffer.take()):
            self._changed = trio.Event()
            await self._changed.wait()
        self._taken.set()
        return events

    def close(self) -> None:
        """The consumer is done or gone. An unfinished response is cancelled."""
        if not self.buffer.ended:
            self.scope.cancel()

    # For the owner task

    def read(self, events: list[bytes]) -> None:
        for data in events:
            self.started = True
            if self._trace is not None:
                self._trace(data)
            self.buffer.receive(data)
        self.wake()

    def over(self, *, told: bool) -> None:
        """The upstream's response has ended; `told` if the stream itself said so."""
        self.buffer.over(told=told)
        self.wake()

    def wake(self) -> None:
        """Wake the consumer to take new events."""
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Wait for a slow consumer: it slows down its own upstream, and nothing is lost."""
        while self.buffer.size > MAX_WAITING and not self.buffer.finished:
            self._taken = trio.Event()
            await self._taken.wait()


def silence(started: bool, wait: float) -> BackendTimeout:
    """The error for an upstream that is silent for too long."""
    what = "sent nothing more" if started else "did not begin to answer"
    return BackendTimeout(f"The model {what} for {wait:g} s. The turn was stopped.")
