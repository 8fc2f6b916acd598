"""What the bridge measures of itself: its requests and turns, its memory, and how late the event loop is.

The number of label values is bounded (see `bridge.counts`): routes, methods and protocols are the bridge's own, models
are those that the router lists, keys appear under their labels, and no client can choose a label.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import trio

from bridge.core.events import Finished, Usage
from bridge.counts import MAX_ROWS, OTHER, Histogram, Tally, Timings, as_name
from bridge.errors import BridgeError, Overloaded, SlowClient, UpstreamError
from bridge.store.queued import UNAVAILABLE

if TYPE_CHECKING:
    from bridge.tools.stage import Record


METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
MAX_MODELS = 200

Side = Literal["client", "bridge", "backend"]

_OWN_CODES = ("shutdown_initiated", UNAVAILABLE)


def _rows() -> Tally:
    return Tally(MAX_ROWS)


@dataclass(slots=True)
class Counts:
    """The counters of one bridge."""

    requests: Tally = field(default_factory=_rows)
    """By method, route and status, which is `none` if the client left before the answer."""
    seconds: Timings = field(default_factory=Timings)
    """Time to the last byte, by route."""
    refusals: Tally = field(default_factory=Tally)
    """Requests refused without a turn, by code."""
    open: int = 0
    """Requests being answered."""
    sockets: int = 0
    """Open WebSocket connections."""
    waiting: int = 0
    """Requests whose turn has not begun: they wait for a child, a list of models or a slot."""
    turns: Tally = field(default_factory=_rows)
    """By protocol, model and outcome."""
    keys: Tally = field(default_factory=_rows)
    """Turns by the label of the client's key and outcome."""
    failures: Tally = field(default_factory=Tally)
    """Turns that failed or whose client left, by code and responsible side."""
    tokens: Tally = field(default_factory=_rows)
    """By model and kind."""
    first_event: Timings = field(default_factory=Timings)
    """From the arrival of a request to the first event of its answer, by backend."""
    batches: int = 0
    events: int = 0
    keepalives: int = 0
    ignored: int = 0
    """Fields of requests that had no effect."""
    costs: Tally = field(default_factory=Tally)
    """What models have cost, as `Prices.cost` counts it."""
    fallbacks: Tally = field(default_factory=_rows)
    """By the model that failed, the one asked instead, and the code of the failure."""
    repairs: Tally = field(default_factory=Tally)
    """Repairs of tool calls, by name."""
    rejections: Tally = field(default_factory=Tally)
    """Blocks that looked like a tool call but were not, by reason."""
    invalid_arguments: int = 0
    """Calls whose arguments are not JSON."""
    _models: set[str] = field(default_factory=set)

    def took_batch(self, size: int) -> None:
        """Count the events that one `next` returned."""
        self.batches += 1
        self.events += size

    def entered(self, is_http: bool) -> None:
        self.open += is_http
        self.sockets += not is_http

    def left(self, is_http: bool) -> None:
        self.open -= is_http
        self.sockets -= not is_http

    def refused(self, code: str) -> None:
        self.refusals.add(as_name(code))

    def ended(self, protocol: str, key: str, model: str, end: Finished, usage: Usage) -> None:
        """Count a finished turn; `model` comes from `known_model`."""
        self.turns.add(protocol, model, end.outcome)
        self.keys.add(key or OTHER, end.outcome)
        for kind, tokens in (
            ("input", usage.input),
            ("cached", usage.cached),
            ("output", usage.output),
            ("reasoning", usage.reasoning),
        ):
            if tokens:
                self.tokens.add(model, kind, by=tokens)

    def failed(self, end: Finished) -> None:
        if end.error is not None:
            self.failures.add(as_name(end.error.code), side_of(end.error))
        elif end.outcome == "cancelled":
            self.failures.add(as_name(end.reason or end.outcome), "client")

    def known_model(self, name: str, listed: Callable[[], Iterable[str]]) -> str:
        """The label of a model: its name if the router lists it, otherwise `other`."""
        if name not in self._models:
            if len(self._models) >= MAX_MODELS or name not in listed():
                return OTHER
            self._models.add(name)
        return name

    def tool_calls(self, record: Callable[[str], Record] | None) -> Callable[[str], Record]:
        """A `record` for a request's tool calls that counts repairs and rejections before it passes them on."""

        def counting(req_id: str) -> Record:
            pass_on = record(req_id) if record is not None else None

            def note(kind: str, payload: dict[str, Any]) -> None:
                if kind == "tool_repair":
                    for name in payload["repairs"]:
                        self.repairs.add(as_name(name))
                elif kind == "tool_reject":
                    self.rejections.add(as_name(payload["reason"]))
                if pass_on is not None:
                    pass_on(kind, payload)

            return note

        return counting


def side_of(error: BridgeError) -> Side:
    """The side responsible for a failure: the client, the bridge itself, or the backend."""
    if isinstance(error, UpstreamError):
        return "backend"
    if isinstance(error, SlowClient) or error.http_status < 500:
        return "client"
    own = isinstance(error, Overloaded) or type(error) is BridgeError or error.code in _OWN_CODES
    return "bridge" if own else "backend"


def method_of(method: str) -> str:
    return method if method in METHODS else OTHER


# The process itself: a limit of its memory, and a watchdog of its event loop

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
