"""How the bridge is told to stop: by a signal, or because it may not go on."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


class Stop:
    """`asked` for once, and `hurried` by a second signal, or from the beginning."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.hurried = trio.Event()

    def at_once(self) -> None:
        """Nothing may go on: running turns fail now."""
        self.hurried.set()
        self.asked.set()


@asynccontextmanager
async def stop_on_signals(on_hangup: Callable[[], None]) -> AsyncIterator[Stop]:
    """SIGTERM or SIGINT asks for a stop, the second one hurries it, the third ends the program on the spot."""
    stop = Stop()

    async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    on_hangup()
                    continue
                if stop.hurried.is_set():
                    nursery.cancel_scope.cancel()
                elif stop.asked.is_set():
                    stop.hurried.set()
                stop.asked.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        yield stop
        nursery.cancel_scope.cancel()
