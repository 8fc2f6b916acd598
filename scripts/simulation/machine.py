"""What a program gets from its machine, made repeatable: the order of tasks, time, randomness and threads.

trio runs the tasks that are ready in one pass in any order, and has a hook for the order. Each pass with several tasks
is a decision of the history (`order.N`). The clock stands still while any task can run, and jumps to the next deadline.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
import trio.testing
from choices import Choices
from trio._core import _run

from bridge import ids

EPOCH = 1_800_000_000.0
"""The time of day at which every history begins."""
ORDERS = ("arrival", "random", "random", "priority")
_real = {name: getattr(time, name) for name in ("time", "time_ns", "monotonic")}
_urandom = os.urandom
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

MOST_PASSES = 5000
"""Passes of the event loop at the same time after which it counts as spinning."""


current: Machine | None = None
"""The machine of the history that runs."""


class Machine:
    """The machine of one history."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.errors: list[str] = []
        """What the bridge has logged as an error."""
        self.noise = random.Random(choices.seed)
        self._kind = choices.choose("order", *ORDERS)
        self._salt = choices.number("order.salt")
        self._first: int | None = None
        self._pass = 0
        self._changes = {choices.number(f"order.change.{n}") % 2000 for n in range(3)}
        self._lowered: dict[int, int] = {}
        self._threads = 0
        self._planted = 0
        self._passes, self._at, self._spins = 0, 0.0, False
        self._clock = trio.testing.MockClock(autojump_threshold=0)

    def planted(self, one_in: int) -> bool:
        """Whether a planted fault strikes now."""
        self._planted += 1
        return self.choices.number(f"planted.{self._planted}") % one_in == 0

    def shuffle(self, batch: list[Any]) -> None:
        """trio's hook: put the tasks of one pass into the order in which they run. trio takes them from the end."""
        if self._first is None:
            self._first = min(task._counter for task in batch)
        self._passes = self._passes + 1 if self.now() == self._at else 0
        self._at = self.now()
        if self._passes > (MOST_PASSES if not self._spins else MOST_PASSES // 20):
            if not self._spins:
                self.errors.append(f"the event loop has made {MOST_PASSES} passes without a pause")
            # Time goes on, or the history would not.
            self._spins = True
            self._passes = 0
            self._clock.jump(1.0)
        if len(batch) < 2 or self._kind == "arrival":
            return
        self._pass += 1
        name = f"order.{self._pass}"
        if not self.choices.keeps(name):
            return
        before = [task._counter for task in batch]
        if self._kind == "random":
            salt = self._salt + self._pass * 0xD1B54A32D192ED03
        else:
            salt = self._salt
            if self._pass in self._changes:
                # The task that would run first runs last from now on.
                last = max(batch, key=lambda task: self._priority(task._counter, salt))
                self._lowered[last._counter] = -self._pass
        batch.sort(key=lambda task: self._priority(task._counter, salt))
        if before != [task._counter for task in batch]:
            self.choices.taken[name] = self._kind

    def _priority(self, counter: int, salt: int) -> int:
        assert self._first is not None
        if counter in self._lowered:
            return self._lowered[counter]
        mixed = ((counter - self._first) * _MIX + salt) & _MASK
        mixed ^= mixed >> 29
        return (mixed * 0xBF58476D1CE4E5B9 & _MASK) >> 16

    def now(self) -> float:
        """Seconds since the beginning of the history."""
        return self._clock.current_time()

    def random(self) -> float:
        """trio's hook: it asks for nothing else."""
        return 0.0

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run a history on this machine."""
        global current
        install()
        state = random.getstate()
        random.seed(self.choices.seed)
        ids._drawn.clear()
        vars(_run).update(_ALLOW_DETERMINISTIC_SCHEDULING=True, _r=self)
        current = self
        try:
            trio.run(main, clock=self._clock)
        finally:
            current = None
            random.setstate(state)
            ids._drawn.clear()

    async def in_thread(self, function: Callable[..., Any], args: Sequence[Any], *, abandon: bool) -> Any:
        """Run blocking work at a moment of the seed's choice. Nothing else runs meanwhile."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._threads += 1
        delay = self.choices.rarely(f"thread.{self._threads}", 8, 0.0, 0.001, 0.02, 0.2)
        with trio.CancelScope(shield=not abandon):
            if delay:
                await trio.sleep(delay)
            else:
                await trio.lowlevel.checkpoint()
        return function(*args)


class _Errors(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if current is not None:
            text = record.getMessage()
            if record.exc_info:
                text += f" ({record.exc_info[1]!r})"
            current.errors.append(f"{record.name}: {text}")


async def _in_thread(
    function: Callable[..., Any],
    *args: Any,
    abandon_on_cancel: bool = False,
    cancellable: bool = False,
    limiter: Any = None,
) -> Any:
    assert current is not None
    return await current.in_thread(function, args, abandon=abandon_on_cancel or cancellable)


def _time() -> float:
    return _real["time"]() if current is None else EPOCH + current.now()


def _time_ns() -> int:
    return _real["time_ns"]() if current is None else round((EPOCH + current.now()) * 1e9)


def _monotonic() -> float:
    return _real["monotonic"]() if current is None else current.now()


def _random_bytes(size: int) -> bytes:
    return _urandom(size) if current is None else current.noise.randbytes(size)


def install() -> None:
    """Replace the sources of time and randomness. Outside of a history they are the real ones.

    Call it before the bridge's modules are imported: some keep a reference to `time.time`.
    """
    if time.time is _time:
        return
    vars(time).update(time=_time, time_ns=_time_ns, monotonic=_monotonic)
    os.urandom = _random_bytes
    vars(random)["_urandom"] = _random_bytes
    vars(trio.to_thread)["run_sync"] = _in_thread
    handler = _Errors(level=logging.ERROR)
    logging.getLogger("bridge").addHandler(handler)
    logging.getLogger("bridge").propagate = False
    logging.getLogger("trio").addHandler(handler)
    logging.disable(logging.WARNING)


install()
