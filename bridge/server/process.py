"""The server's process: the signals that stop it, and the memory that it gives back."""

from __future__ import annotations

import ctypes
import gc
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

INTERVAL = 30.0
UNTIL_STARTED = 0.01
"""Seconds after which the children have been started; until they are ready, no request can be answered."""


class Stop:
    """`asked` is set by the first signal, `hurried` by the second; `at_once` sets both."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.hurried = trio.Event()

    def at_once(self) -> None:
        """Stop without waiting for running turns: they fail now."""
        self.hurried.set()
        self.asked.set()


@asynccontextmanager
async def stop_on_signals(on_hangup: Callable[[], None]) -> AsyncIterator[Stop]:
    """The first SIGTERM or SIGINT asks for a stop, the second hurries it, the third ends the program immediately."""
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


async def keep_what_is_loaded(delay: float = UNTIL_STARTED) -> None:
    """Exempt all objects that exist now from garbage collection. Call it once, at the start.

    Imported modules stay for the life of the process; traversing them again and again would be a tenth of the work per
    delta.
    """
    await trio.sleep(delay)
    _collect()
    gc.freeze()


async def tidy_up(interval: float = INTERVAL) -> None:
    """Collect garbage and return free memory to the system until cancelled. Blocks the loop for milliseconds.

    Objects of a connection or a turn form reference cycles, and live long enough to reach the oldest generation, which
    Python rarely collects. Without this a busy bridge would grow for half an hour, to twice its size.
    """
    while True:
        await trio.sleep(interval)
        _collect()


def _collect() -> None:
    """What is freed is scattered, so glibc keeps it unless it is asked to return it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
