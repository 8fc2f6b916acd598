"""A turn in a running child: the calls that start and release it, and the stream of its events within time limits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from bridge.appserver.calls import Batch, slept_through
from bridge.appserver.connection import Reply
from bridge.appserver.failures import RpcError, refusal
from bridge.appserver.turn import Call, Flow, Limits, Resume, RunningTurn
from bridge.core.events import TextDone, TurnEvent, UsageUpdate
from bridge.errors import BackendProtocolError, BackendTimeout, BridgeError

if TYPE_CHECKING:
    from bridge.appserver.child import Child

log = logging.getLogger("bridge.child")


class Clock:
    """One task for many deadlines, each reported with `due`. `check(now)` is called when the earliest has come.

    It returns the next deadline. Deadlines that are not reached cost nothing: the clock wakes when the earliest that it
    knew of has come, and finds that it has moved.
    """

    def __init__(self, check: Callable[[float], float]) -> None:
        self._check = check
        self._sleep = trio.CancelScope()

    def due(self, deadline: float) -> None:
        if deadline < self._sleep.deadline:
            self._sleep.deadline = deadline

    async def run(self) -> None:
        while True:
            with self._sleep:
                await trio.sleep_forever()
            self._sleep = trio.CancelScope()
            self.due(self._check(trio.current_time()))


class TurnStream:
    """A turn from its first call to the release of its thread, and the stream of its events within time limits.

    The consumer calls `next` until the batch that ends with Finished, then `close`.
    """

    __slots__ = (
        "_child", "_end_of_turn", "_flow", "_is_over", "_is_whole", "_last", "_limits", "_message_done", "_silent_at",
        "_started", "_unsent", "_waiting", "released", "running",
    )  # fmt: skip

    def __init__(self, child: Child, running: RunningTurn, limits: Limits) -> None:
        self.running = running
        self.released = False
        """The consumer has closed it, or must."""
        self._child = child
        self._limits = limits
        self._flow: Flow | None = None
        """The calls that start it; None before and after."""
        self._unsent: list[Call] = []
        self._is_over = False
        self._waiting: trio.lowlevel.Task | None = None
        """The task that waits in `next`."""
        self._started = False
        self._message_done = False
        self._is_whole = False
        self._last = trio.current_time()
        self._end_of_turn = self._last + limits.turn
        self._silent_at = math.inf
        """When the silence becomes a failure, while the consumer waits."""
        running.wake = self._wake
        # The consumer may be blocked on its socket: the child must not wait for it.
        running.on_overflow = self.close

    def start(self) -> None:
        """Begin the turn. Every failure is an event of the turn."""
        self._flow = self.running.begin()
        self._continue(self._flow.send, None)

    def close(self) -> None:
        """The consumer is done, or gone. A turn that still runs is interrupted."""
        if not self.released:
            self.released = True
            if self._flow is None and not self._is_over:
                self._release()

    def abandon(self, error: BridgeError) -> None:
        """The child is gone; nothing is left to release."""
        if not self._is_over:
            self._fail(error)
            self._end()

    # The calls that start it

    def _continue(self, resume: Callable[[Any], Call | Resume], value: Any) -> None:
        """Run the flow up to a call whose reply it needs, and send that call with those before it."""
        assert self._flow is not None
        running = self.running
        try:
            call = resume(value)
            while not self.released:
                if isinstance(call, Resume):
                    self._child.answer_open_calls(running, call.key)
                else:
                    self._unsent.append(call)
                    if call.waits:
                        self._send(call)
                        return
                call = self._flow.send(None)
        except StopIteration:
            pass
        except BridgeError as error:
            self._fail(refusal(error))
        except Exception:
            # It must fail this turn alone: the reader and the other turns continue.
            log.exception("turn %s could not be started", running.req_id)
            self._fail(BackendProtocolError("The turn could not be started. See the bridge's log."))
        self._begun()

    def _send(self, call: Call) -> None:
        """Make a call, and those before it that it did not wait for."""
        calls, self._unsent = self._unsent, []
        if self._child.warm.take(call, partial(self._warmed, call)):
            return
        running = self.running
        running.prompted = running.prompted or any(each.prompts for each in calls)
        self._child.calls.send(Batch(calls, self._replied, self._limits.rpc, running.req_id, on_result=self._learn_key))

    def _warmed(self, call: Call, reply: Reply) -> None:
        """The reply to a call that was made ahead."""
        if not self._is_over:
            if reply.error is None:
                self._learn_key(call, reply.result)
            self._replied(reply)

    def _learn_key(self, call: Call, result: Any) -> None:
        if call.claim is not None:
            self._child.routes.register(call.claim(result), self.running)

    def _replied(self, reply: Reply) -> None:
        if self._flow is None:
            return  # abandoned
        if reply.error is None:
            self._continue(self._flow.send, reply.result)
        elif isinstance(reply.error, RpcError):
            # The flow may have another path.
            self._continue(self._flow.throw, reply.error)
        else:
            self._fail(reply.error)
            self._begun()

    def _begun(self) -> None:
        self._flow = None
        if self.released and not self._is_over:
            self._release()

    def _fail(self, error: BridgeError) -> None:
        if not self.running.finished:
            self.running.fail(error)
            self._wake()

    # Its end

    def _release(self) -> None:
        """Interrupt a turn that still runs in the child, then release its thread."""
        running = self.running
        if running.displaced is not None:
            calls = self._child.calls_to_release(running.displaced)
        else:
            stop = None if running.ended else running.interrupt()
            calls = [*([stop] if stop is not None else []), *running.end()]
        self._child.calls.release(calls, self._end, running.req_id)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = self.released = True
            self._flow = None
            self.running.let_go()
            self._child.turn_over(self)

    # Its events

    async def next(self) -> list[TurnEvent]:
        """The events since the last call, waiting for at least one; safe to cancel. Silence ends the turn as failed."""
        while not (events := self.running.take_some()):
            self._silent_at = min(self._last + self._patience(), self._end_of_turn)
            self._child.clock.due(self._silent_at)
            # Not an Event: it would cost each waiting stream 900 bytes.
            self._waiting = trio.lowlevel.current_task()
            try:
                await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
            finally:
                self._silent_at = math.inf
            # A notification without events for the client is a sign of life, too.
            self._last = trio.current_time()
        self._started = True
        self._note_completeness(events)
        self._last = trio.current_time()
        if self._last >= self._end_of_turn and not self.running.finished:
            # On a busy machine there may be something new each time.
            self.running.fail(self._silence(0))
            self.close()
            events += self.running.take()
        return events

    def check(self, now: float) -> float:
        """End the turn when it has been silent for too long; its next deadline."""
        if now < self._silent_at:
            return self._silent_at
        if self._silent_at != self._end_of_turn and slept_through(self._silent_at, now):
            self._last = now
            self._silent_at = min(now + self._patience(), self._end_of_turn)
            return self._silent_at
        if self._is_whole or self.running.will_fail:
            log.warning("the child did not report the end of turn %s: it is treated as complete", self.running.req_id)
            self.running.conclude()
        else:
            self.running.fail(self._silence(self._patience()))
        self._wake()
        self.close()
        return math.inf

    def _note_completeness(self, events: list[TurnEvent]) -> None:
        """Notice when a message is complete, and right after it its usage."""
        before = isinstance(events[-2], TextDone) if len(events) > 1 else self._message_done
        self._message_done = isinstance(events[-1], TextDone)
        self._is_whole = before and isinstance(events[-1], UsageUpdate) and self.running.ends_with_usage

    def _patience(self) -> float:
        limits = self._limits
        if self.running.will_fail:
            return min(limits.after_error, limits.idle)
        if self._is_whole:
            return min(limits.tail, limits.idle)
        return limits.idle if self._started else limits.first_event

    def _stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        # Now, not when the task runs: a task that has been scheduled must not be scheduled again.
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def _silence(self, wait: float) -> BackendTimeout:
        if trio.current_time() >= self._end_of_turn:
            return BackendTimeout(f"The turn took longer than {self._limits.turn:g} s and was stopped.")
        what = "sent nothing more" if self._started else "did not begin to answer"
        return BackendTimeout(f"The model {what} for {wait:g} s. The turn was stopped.")
