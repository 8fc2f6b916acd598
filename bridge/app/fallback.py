"""Fallback: another model answers if the backend of the requested one fails before it begins to answer.

A backend that keeps failing is skipped for a while. Requests without a fallback do not come here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from bridge.app.rate_limits import add_reset_time
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Choice, Finished, Rerouted, Restarted, TurnEvent, UsageUpdate
from bridge.core.models import ModelChoice, best_rule, make_rule
from bridge.core.turn import Turn
from bridge.errors import (
    BackendTimeout,
    BridgeError,
    BudgetExceeded,
    Forbidden,
    InvalidRequest,
    KeyLimitReached,
    NotReady,
    SlowClient,
    Unauthorized,
)
from bridge.store.queued import UNAVAILABLE

ANSWERED_BY = b"x-bridge-answered-by"
PATIENCE = 30.0
"""Seconds within which a fallback model must accept a turn."""
FAILURES, COOL_DOWN, LONGEST = 3, 30.0, 3600.0
"""The failures in a row after which a backend rests; for how many seconds; and the most, if it says when to retry."""

_THE_CLIENTS = (InvalidRequest, BudgetExceeded, KeyLimitReached, Unauthorized, Forbidden, SlowClient)
_NOT_ELSEWHERE = ("shutdown_initiated", "backend_error", UNAVAILABLE)
"""The bridge itself is stopping; its store cannot be read; the child refused a call, which may be because of what the
client sent."""
_SILENT = (UsageUpdate, Rerouted, Restarted, Finished)
"""Events without a piece of the answer."""


def is_worth(error: BridgeError) -> bool:
    """Whether another model may do better: overload, quota, and a backend that is down, unreachable or silent."""
    if isinstance(error, _THE_CLIENTS) or error.side_effects or error.code in _NOT_ELSEWHERE:
        return False
    return error.http_status in (429, 502, 503, 504)


class Breakers:
    """Which backends rest after failures. After its rest, one request tries a backend before others may."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._rests_until: dict[str, float] = {}
        self._tried: set[str] = set()

    def admits(self, backend: str) -> bool:
        """Whether a request may go to this backend. Report how it ends with `failed`, `works` or `undecided`."""
        until = self._rests_until.get(backend)
        if until is None:
            return True
        if trio.current_time() < until or backend in self._tried:
            return False
        self._tried.add(backend)
        return True

    def failed(self, backend: str, wait: float | None) -> None:
        """A failure worth a fallback. `wait` is for how long the provider says that it will fail, if it does."""
        self._tried.discard(backend)
        count = self._failures[backend] = self._failures.get(backend, 0) + 1
        if count >= FAILURES:
            rest = COOL_DOWN if wait is None else min(max(wait, COOL_DOWN), LONGEST)
            self._rests_until[backend] = trio.current_time() + rest

    def works(self, backend: str) -> None:
        """The backend has begun to answer, or refused a request for a reason of its own."""
        self._failures.pop(backend, None)
        self._rests_until.pop(backend, None)
        self._tried.discard(backend)

    def undecided(self, backend: str) -> None:
        """The request has ended before its backend could answer."""
        self._tried.discard(backend)

    def resting(self) -> dict[str, bool]:
        """Whether each backend that has failed rests now."""
        if not self._failures:
            return {}
        now = trio.current_time()
        return {name: self._rests_until.get(name, now) > now for name in self._failures}


class Fallbacks:
    """The models that answer instead of others, by patterns as in routing."""

    def __init__(self, chains: Mapping[str, Sequence[str]] | None = None) -> None:
        self.chains = {pattern: tuple(names) for pattern, names in (chains or {}).items()}
        self.breakers = Breakers()
        self._rules = [make_rule(pattern, pattern) for pattern in self.chains]

    def names_model(self, name: str) -> bool:
        """Whether the operator has named this model in a chain."""
        return any(name == pattern or name in chain for pattern, chain in self.chains.items())

    def of(self, *names: str) -> tuple[str, ...]:
        """The chain of the first of these names that has one, without the names themselves."""
        for name in names if self._rules else ():
            rule = best_rule(name, self._rules)
            if rule is not None:
                taken = {each.lower() for each in names}
                return tuple(each for each in self.chains[rule.target] if each.lower() not in taken)
        return ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may answer, under the name that the request or the chain gives it."""

    name: str
    turn: Turn
    backend: Backend

    @classmethod
    def of(cls, name: str, turn: Turn, choice: ModelChoice, backend: Backend) -> Candidate:
        """A model in place of the one that `turn` is for. The client still gets the name that it sent."""
        stand_in = ModelChoice(turn.requested_model, choice.effective, choice.effort, choice.backend, choice.provider)
        return cls(name, turn.for_model(stand_in), backend)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate did not answer."""

    candidate: Candidate
    error: BridgeError


class Runner(Protocol):
    """The exchange whose answer this is."""

    def candidate(self, name: str) -> Candidate | None:
        """The model of this name; None if the client's key must not use it, or no backend serves it."""

    async def admit(self, candidate: Candidate, failure: Failure | None = None) -> None:
        """Take a slot for the candidate and report the start of its turn. `failure` is that of the one before it."""

    async def begin(self) -> EventStream:
        """Start the turn of the admitted candidate."""

    def settle(self, stream: EventStream) -> None:
        """The answer is that of this stream from now on."""


class FallbackStream:
    """The answer of the first candidate that begins one. Safe to cancel: the next call continues."""

    __slots__ = (
        "_admitted", "_breakers", "_current", "_failure", "_give_up", "_held", "_left", "_now", "_runner", "_skipped",
        "_stream", "_tried",
    )  # fmt: skip

    def __init__(
        self, runner: Runner, breakers: Breakers, first: Candidate, others: Sequence[str], now: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._breakers = breakers
        self._left: deque[Candidate | str] = deque([first, *others])
        self._now = now
        self._skipped: Candidate | None = None
        """The first candidate whose backend rests: if no other can answer, it is tried after all."""
        self._current: Candidate | None = None
        self._tried = False
        """Whether any candidate has been admitted."""
        self._admitted = False
        """Whether the present one has."""
        self._give_up = 0.0
        self._failure: Failure | None = None
        self._stream: EventStream | None = None
        self._held: list[TurnEvent] = []
        """Events of the present candidate that show nothing of its answer."""

    async def open(self) -> None:
        """Start the turn of a candidate. Raises the error of the last one if none can begin."""
        while self._stream is None:
            await self._advance()

    async def next(self) -> list[TurnEvent]:
        while True:
            if self._stream is None:
                try:
                    await self._advance()
                except BridgeError as error:
                    return self._held or [Finished("failed", error=error)]
                continue
            stream, candidate = self._stream, self._current
            assert candidate is not None
            self._held += await stream.next()
            end = self._held[-1]
            if all(map(_is_silent, self._held)):
                if not isinstance(end, Finished):
                    continue
                if end.error is not None and is_worth(end.error):
                    stream.close()
                    self._stream = None
                    self._fail(end.error)
                    continue
            self._breakers.works(candidate.backend.name)
            self._current = None
            self._runner.settle(stream)
            return self._held

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._current is not None:
            self._breakers.undecided(self._current.backend.name)

    async def _advance(self) -> None:
        """Try to start the present candidate, or else the next one. Raises the last error when none is left."""
        candidate = self._current
        if candidate is None:
            candidate = self._current = self._choose()
            self._admitted = False
            self._give_up = trio.current_time() + PATIENCE
        is_first = self._failure is None
        try:
            with trio.CancelScope() as scope:
                if not is_first:
                    scope.deadline = self._give_up
                if not self._admitted:
                    await self._runner.admit(candidate, self._failure)
                    self._admitted = self._tried = True
                    self._held = []
                self._stream = await self._runner.begin()
            if scope.cancelled_caught:
                raise BackendTimeout(f"{candidate.name} did not accept the turn within {PATIENCE:g} s.")
        except BridgeError as error:
            if not is_worth(error) and (is_first or self._admitted):
                raise
            self._fail(error)

    def _choose(self) -> Candidate:
        while self._left:
            named = self._left.popleft()
            candidate = self._runner.candidate(named) if isinstance(named, str) else named
            if candidate is None:
                continue
            if self._breakers.admits(candidate.backend.name):
                return candidate
            resting = NotReady(f"The backend {candidate.backend.name} rests after failures.", code="circuit_open")
            self._skipped = self._skipped or candidate
            self._failure = self._failure or Failure(candidate, resting)
        if self._skipped is not None and not self._tried:
            candidate, self._skipped, self._failure = self._skipped, None, None
            return candidate
        assert self._failure is not None
        raise self._failure.error

    def _fail(self, error: BridgeError) -> None:
        """The present candidate does not answer."""
        candidate, self._current = self._current, None
        assert candidate is not None
        name = candidate.backend.name
        if is_worth(error):
            add_reset_time(error, candidate.backend.rate_limits(), self._now())
            self._breakers.failed(name, error.retry_after)
        else:
            self._breakers.works(name)
        if self._admitted or self._failure is None:
            error.__traceback__ = None  # it refers to this request: a reference cycle
            self._failure = Failure(candidate, error)


def _is_silent(event: TurnEvent) -> bool:
    return all(map(_is_silent, event.events)) if isinstance(event, Choice) else isinstance(event, _SILENT)
