"""Faults planted in the bridge, one at a time: the share that the simulation finds is the measure of its oracle.

Each replaces one function of a class. `sometimes` decides by the seed of the history, as everything does.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import machine
import trio
from history import run_history
from shrink import kind_of

from bridge.app import admission, exchange, keys
from bridge.appserver import calls, child, connection, current, legacy, stream, supervisor, turn
from bridge.core import buffer
from bridge.errors import BackendCrashed
from bridge.http import connection as edge
from bridge.http import listener, wire

PATIENCE = 120.0
"""Seconds for one fault."""

Function = Callable[..., Any]


def sometimes(one_in: int) -> bool:
    """True once in `one_in` times, on average."""
    now = machine.current
    assert now is not None
    return now.planted(one_in)


@dataclass(frozen=True)
class Mutant:
    """A fault: `change` makes the faulty function from the right one."""

    name: str
    owner: Any
    attribute: str
    change: Callable[[Function], Function]

    @contextmanager
    def planted(self) -> Iterator[None]:
        before = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.change(before))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, before)


def skips(one_in: int = 1, result: Any = None) -> Callable[[Function], Function]:
    """Does nothing, always or sometimes."""

    def change(right: Function) -> Function:
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return result if sometimes(one_in) else right(*args, **kwargs)

        return wrong

    return change


def skips_async(one_in: int = 1) -> Callable[[Function], Function]:
    """The same for a function that waits."""

    def change(right: Function) -> Function:
        async def wrong(*args: Any, **kwargs: Any) -> Any:
            if sometimes(one_in):
                await trio.lowlevel.checkpoint()
                return None
            return await right(*args, **kwargs)

        return wrong

    return change


def always(result: Any) -> Callable[[Function], Function]:
    """A constant instead of the result."""
    return lambda right: lambda *args, **kwargs: result


def _another_turn(right: Function) -> Function:
    last: list[Any] = []

    def wrong(self: Any, item: str, delta: str) -> None:
        meant = last[0] if last and last[0] is not self and not last[0].finished and sometimes(10) else self
        last[:] = [self]
        right(meant, item, delta)

    return wrong


def _end_twice(right: Function) -> Function:
    def wrong(self: Any, events: list[Any]) -> bytes:
        out: bytes = right(self, events)
        return out + out if self.encoder.finished and self.turn.stream else out

    return wrong


def _drops_tail(right: Function) -> Function:
    def wrong(self: Any, end: bytes) -> bytes:
        whole: bytes = right(self, end)
        return b"" if b"elta" in whole and sometimes(10) else whole

    return wrong


def _reorders(right: Function) -> Function:
    def wrong(self: Any, item: str, delta: str) -> None:
        right(self, item, delta)
        if len(self._pieces) > 1 and sometimes(10):
            self._pieces[-2:] = self._pieces[:-3:-1]

    return wrong


def _repeats_delta(right: Function) -> Function:
    def wrong(self: Any, item: str, delta: str) -> None:
        right(self, item, delta)
        if sometimes(30):
            right(self, item, delta)

    return wrong


def _failure_completes(right: Function) -> Function:
    return lambda self, error: self.conclude() if hasattr(self, "conclude") else right(self, error)


def _loses_end(right: Function) -> Function:
    def wrong(self: Any, data: Any) -> Any:
        return right(self, data[:-1])

    return wrong


def _short_write(right: Function) -> Function:
    def wrong(self: Any, data: bytes) -> int:
        right(self, data)
        return len(data)

    return wrong


def _grants_last(right: Function) -> Function:
    def wrong(self: Any) -> None:
        for slot in reversed(list(self._waiting)):
            if self._exceeded_key_limit(slot) is None and self._of_backends[slot.backend] < self._max_turns:
                del self._waiting[slot]
                self._grant(slot)
                slot.decide()

    return wrong


def _other_reply(right: Function) -> Function:
    def wrong(self: Any, line: bytes, call_id: Any, message: dict[str, Any]) -> None:
        others = [each for each in self._pending if each != call_id]
        right(self, line, others[0] if others and sometimes(6) else call_id, message)

    return wrong


def _slow(seconds: float) -> Callable[[Function], Function]:
    return lambda right: lambda *args, **kwargs: seconds


def _generic_error(right: Function) -> Function:
    def wrong(self: Any, error: Any) -> None:
        right(self, BackendCrashed("Something went wrong.", code="internal_error"))

    return wrong


def _patient(factor: float) -> Callable[[Function], Function]:
    return lambda right: lambda self: right(self) * factor


def _late(right: Function) -> Function:
    def wrong(self: Any) -> None:
        # As if the wake-up came with the next deadline.
        if self._waiting is not None and sometimes(20):
            self._child.clock.due(trio.current_time() + 1.5)
            return
        right(self)

    return wrong


MUTANTS = (
    Mutant("5 % of wake-ups are lost", stream.TurnStream, "_wake", skips(20)),
    Mutant("a wake-up waits for another event", stream.TurnStream, "_wake", _late),
    Mutant("20 % of turns stay registered", turn.Routes, "unregister", skips(5)),
    Mutant("a touched turn is not woken", turn.Routes, "wake_touched", skips(20)),
    Mutant("early notifications are lost", turn.Routes, "notify", skips(30)),
    Mutant("a dead child does not fail its turns", child.Child, "close", skips()),
    Mutant("a dead child fails no registered turn", turn.Routes, "fail_all", skips()),
    Mutant("a dead child abandons no turn", stream.TurnStream, "abandon", skips()),
    Mutant("a dead child leaves its calls waiting", calls.Calls, "close", skips()),
    Mutant("the exit of a process is not noticed", supervisor.Supervisor, "_watch_exit", skips_async()),
    Mutant("a child is not started again", supervisor.Supervisor, "_delay", _slow(1e6)),
    Mutant("a child is started again a minute late", supervisor.Supervisor, "_delay", _slow(60.0)),
    Mutant("those who wait for a child are not told", supervisor.Supervisor, "_become", skips(3)),
    Mutant("a child is not stopped", supervisor, "stop", skips_async()),
    Mutant("5 % of slots leak", admission.Slot, "free", skips(20)),
    Mutant("a free slot wakes no one", admission.Admission, "_grant_waiting", skips()),
    Mutant("a granted request is not woken", admission.Slot, "decide", skips(3)),
    Mutant("the last request gets the slot first", admission.Admission, "_grant_waiting", _grants_last),
    Mutant("no limit of turns", admission.Admission, "_obstacle", always(None)),
    Mutant("a revoked key keeps its turns", admission.Admission, "_revoke", skips()),
    Mutant("an ended key is not noticed", keys.Keyring, "_settle", skips(2)),
    Mutant("a request with an ended key is admitted", admission.Admission, "check_key", skips_async()),
    Mutant("a stop admits new turns", admission.Admission, "close", skips()),
    Mutant("a delta goes to another turn", buffer.EventBuffer, "text", _another_turn),
    Mutant("deltas change places", buffer.EventBuffer, "text", _reorders),
    Mutant("a delta is repeated", buffer.EventBuffer, "text", _repeats_delta),
    Mutant("a delta is lost at the border of two reads", connection.LineSplitter, "_end_tail", _drops_tail),
    Mutant("a message is not completed from its end", buffer.EventBuffer, "text_done", skips(10)),
    Mutant("the end is sent twice", exchange.Exchange, "_encode", _end_twice),
    Mutant("a failure counts as complete", buffer.EventBuffer, "fail", _failure_completes),
    Mutant("a failure has the wrong code", buffer.EventBuffer, "fail", _generic_error),
    Mutant("a cancelled turn is not interrupted", stream.TurnStream, "_release", skips()),
    Mutant("no interrupt (current dialect)", current.CurrentTurn, "interrupt", always(None)),
    Mutant("no interrupt (legacy dialect)", legacy.LegacyTurn, "interrupt", always(None)),
    Mutant("threads are not released", current.CurrentTurn, "end", always([])),
    Mutant("a turn that is over stays counted", stream.TurnStream, "_end", skips(10)),
    Mutant("an exchange does not close its stream", stream.TurnStream, "close", skips(5)),
    Mutant("a client that leaves is not noticed", wire.Wire, "_left", skips()),
    Mutant("no one watches the client", edge.Connection, "on_gone", skips()),
    Mutant("the end of a large write is lost", wire.Wire, "_write_rest", _loses_end),
    Mutant("a full pipe loses what does not fit", child.Child, "_write", skips_async()),
    Mutant("a reply answers another call", connection.Connection, "_receive_reply", _other_reply),
    Mutant("a slot for calls leaks", calls.Calls, "_abandon", skips(3)),
    Mutant("no deadline is kept", stream.Clock, "due", skips()),
    Mutant("patience is half as long", stream.TurnStream, "_patience", _patient(0.5)),
    Mutant("patience is twice as long", stream.TurnStream, "_patience", _patient(2.0)),
    Mutant("a drain does not wait", supervisor.Pool, "drain", skips_async()),
    Mutant("a stop does not fail what still runs", supervisor.Pool, "shut_down", skips()),
    Mutant("a stopping listener continues to accept", listener.Listener, "stop_accepting", skips()),
)


def try_one(number: int, most: int) -> tuple[int, int | None, str]:
    """(the mutant, the number of histories until it was found, what was seen)."""
    gc.collect()
    gc.freeze()
    mutant, began = MUTANTS[number], time.perf_counter()
    for seed in range(most):
        with mutant.planted():
            history = run_history(seed)
        if history.violations:
            return number, seed + 1, kind_of(history.violations[0])
        if time.perf_counter() - began > PATIENCE:
            break
    return number, None, ""


def _try(task: tuple[int, int]) -> tuple[int, int | None, str]:
    return try_one(*task)


def try_all(most: int, processes: int) -> int:
    """Plant each fault, and print the table of docs/simulation.md."""
    found: list[int] = []
    print("| fault | found after | what was seen |\n|---|---:|---|")
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        tasks = [(number, most) for number in range(len(MUTANTS))]
        for number, after, what in pool.imap(_try, tasks):
            print(f"| {MUTANTS[number].name} | {after or 'not found'} | {what} |", flush=True)
            found += [after] if after is not None else []
    print(
        f"\n{len(found)} of {len(MUTANTS)} faults found ({100 * len(found) / len(MUTANTS):.0f} %) in {most} histories"
    )
    return 0 if len(found) >= math.ceil(0.8 * len(MUTANTS)) else 1
