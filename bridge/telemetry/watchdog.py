"""Watches the event loop: measures its lag, and logs the stack if it is blocked.

A task wakes twice a second and records how late it was woken. A thread checks that this still happens; if not, it logs
the stack of the loop's thread. Nothing in the loop waits for the thread.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from types import FrameType

import trio

from bridge.counts import Histogram

log = logging.getLogger("bridge.watchdog")

INTERVAL = 0.5
LIMIT = 1.0
"""Seconds for which the loop may be blocked before its stack is logged."""
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Watchdog:
    """`run` is its task, and starts the thread. `lag` and `stalls` can be read at any time."""

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
