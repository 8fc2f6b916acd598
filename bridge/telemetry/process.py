"""The process itself: a limit of its memory, and a watchdog that measures and reports a blocked event loop."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import trio

from bridge.counts import Histogram
from bridge.errors import Overloaded

log = logging.getLogger("bridge.watchdog")

MEMORY_PRESSURE = "memory_pressure"
RETRY_AFTER = 5.0
"""Seconds. Running turns must end before there is room."""

ReadBytes = Callable[[], int | None]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """The resident memory of this process; None where the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class MemoryLimit:
    """Refuses turns while more than `limit` bytes are in use; 0 means no limit.

    A few refusals are better than the death of all turns.
    """

    def __init__(self, limit: int, read: ReadBytes = resident_bytes) -> None:
        self.limit = limit
        self.shed = 0
        """Turns refused so far."""
        self._read = read

    @property
    def is_exceeded(self) -> bool:
        return bool(self.limit) and (self._read() or 0) > self.limit

    def check(self) -> None:
        """Raise Overloaded while the limit is exceeded."""
        if self.is_exceeded:
            self.shed += 1
            raise Overloaded(
                f"The bridge uses more memory than PROXY_MAX_RSS allows. Retry after {RETRY_AFTER:g} s.",
                code=MEMORY_PRESSURE,
                retry_after=RETRY_AFTER,
            )


INTERVAL = 0.5
LIMIT = 1.0
"""Seconds for which the loop may be blocked before its stack is logged."""
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Watchdog:
    """Its task, `run`, wakes twice a second and records how late it was woken.

    A thread, which nothing in the loop waits for, checks that this still happens; if not, it logs the stack of the
    loop's thread. `lag` and `stalls` can be read at any time.
    """

    def __init__(self, *, interval: float = INTERVAL, limit: float = LIMIT) -> None:
        self.lag = Histogram(BOUNDS)
        """Seconds by which the task was woken late."""
        self.stalls = 0
        """How often the loop was blocked for longer than the limit."""
        self._interval = interval
        self._limit = limit
        self._beats = 0

    def __repr__(self) -> str:
        return f"<Watchdog beats={self._beats} stalls={self.stalls}>"

    async def run(self) -> None:
        """Until cancelled."""
        over = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(threading.get_ident(), over), name="loop watchdog", daemon=True
        )
        try:
            watch.start()
        except RuntimeError:  # a process limit is reached: the rest of the bridge works without threads, too
            log.warning("no thread can be started: a blocked event loop will not be reported")
        try:
            while True:
                due = trio.current_time() + self._interval
                await trio.sleep(self._interval)
                self.lag.observe(max(0.0, trio.current_time() - due))
                self._beats += 1
        finally:
            over.set()

    # In the thread

    def _watch(self, loop: int, over: threading.Event) -> None:
        beats, since, reported = self._beats, time.monotonic(), False
        looked = since
        while not over.wait(self._interval):
            now = time.monotonic()
            # If this thread is late itself, the whole process was stopped (a signal, a debugger, an overloaded
            # machine): that says nothing about the loop.
            if self._beats != beats or now - looked > self._interval + self._limit:
                beats, since, reported = self._beats, now, False
            looked = now
            stuck = now - since - self._interval
            if stuck > self._limit and not reported:
                reported = True
                self.stalls += 1
                _report(stuck, sys._current_frames().get(loop))


def _report(seconds: float, frame: FrameType | None) -> None:
    if not log.isEnabledFor(logging.WARNING):
        return
    stack = "".join(traceback.format_stack(frame)[-40:]).rstrip() if frame is not None else None
    message = "the event loop has been blocked for %.1f s, and no client is served meanwhile. It is here:"
    # The stack of another thread: `log.warning` knows only how to add its own.
    log.handle(log.makeRecord(log.name, logging.WARNING, __file__, 0, message, (seconds,), None, sinfo=stack))
