"""What a consumer holds of a running turn: its events as they come, within time limits."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from bridge.appserver.lateness import overslept
from bridge.appserver.routes import RunningTurn
from bridge.errors import BackendTimeout
from bridge.turn.events import TextDone, TurnEvent, UsageUpdate

log = logging.getLogger("bridge.child")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds."""

    rpc: float = 30
    first_event: float = 120
    idle: float = 300
    turn: float = 3600
    tail: float = 10
    """After all has been said. Now and then a Codex 0.107 forgets to tell that a turn is over."""
    after_error: float = 2
    """After an error that Codex does not retry. Codex 0.121 to 0.132 do not end a turn whose input they refuse."""


class TurnStream:
    """What a consumer holds of a running turn: `next` until the batch that ends with Finished, then `close`."""

    __slots__ = (
        "_end_of_turn",
        "_heard",
        "_is_said",
        "_is_whole",
        "_last",
        "_limits",
        "_wakeup",
        "released",
        "running",
    )

    def __init__(self, running: RunningTurn, limits: Limits) -> None:
        self.running = running
        self.released = trio.Event()
        """The consumer has let go, or has to: the owner task cleans up."""
        self._limits = limits
        self._wakeup = trio.Event()
        self._heard = False
        self._is_said = False
        self._is_whole = False
        self._last = trio.current_time()
        self._end_of_turn = self._last + limits.turn
        running.wake = self._wake
        # The consumer may be stuck in its socket: the owner task must not wait for it to let go.
        running.on_overflow = self.released.set

    async def next(self) -> list[TurnEvent]:
        """The events since the last call, waiting for at least one; safe to cancel. Silence ends the turn as failed."""
        while not (events := self.running.take()):
            wait = self._patience()
            deadline = min(self._last + wait, self._end_of_turn)
            with trio.move_on_at(deadline) as waiting:
                await self._wakeup.wait()
            if waiting.cancelled_caught and (deadline == self._end_of_turn or not overslept(deadline)):
                if self._is_whole or self.running.will_fail:
                    log.warning("the child does not say that turn %s is over: it is taken as over", self.running.req_id)
                    self.running.conclude()
                else:
                    self.running.fail(self._silence(wait))
                self.released.set()
            # Also a notification that says nothing to a client is a sign of life.
            self._last = trio.current_time()
            self._wakeup = trio.Event()
        self._heard = True
        self._look_for_end(events)
        self._last = trio.current_time()
        if self._last >= self._end_of_turn and not self.running.finished:
            # On a busy machine there may be something new each time.
            self.running.fail(self._silence(0))
            self.released.set()
            events += self.running.take()
        return events

    def _look_for_end(self, events: list[TurnEvent]) -> None:
        """Notice when a message is complete, and right after it its usage."""
        before = isinstance(events[-2], TextDone) if len(events) > 1 else self._is_said
        self._is_said = isinstance(events[-1], TextDone)
        self._is_whole = before and isinstance(events[-1], UsageUpdate) and self.running.ends_with_usage

    def _patience(self) -> float:
        if self.running.will_fail:
            return min(self._limits.after_error, self._limits.idle)
        if self._is_whole:
            return min(self._limits.tail, self._limits.idle)
        return self._limits.idle if self._heard else self._limits.first_event

    def close(self) -> None:
        """The consumer is done, or gone. A turn that still runs is interrupted."""
        self.released.set()

    def _wake(self) -> None:
        self._wakeup.set()

    def _silence(self, wait: float) -> BackendTimeout:
        if trio.current_time() >= self._end_of_turn:
            return BackendTimeout(f"The turn took longer than {self._limits.turn:g} s and was stopped.")
        what = "nothing more came" if self._heard else "the model did not begin to answer"
        return BackendTimeout(f"After {wait:g} s {what}; the turn was stopped.")
