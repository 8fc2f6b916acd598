"""Our calls to one child, and the turns that are made of them: what follows a reply, and what takes too long.

No task waits for a reply, and none drives a turn. The reader brings a reply, and what it sets off happens there, before
the next line is read: each reply of a turn sends its next call, and closing the turn sends its release. One clock (a
task of the child's) looks after all time limits. So a short turn costs no more steps of the event loop than the reads
and writes that it needs; a task per turn and a cancel scope per call cost a fifth more.
"""

from __future__ import annotations

import collections
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from bridge.appserver.connection import Connection, Reply, RpcError
from bridge.appserver.failures import refusal
from bridge.appserver.turn import Call, Flow, Limits, Resume, RunningTurn
from bridge.core.events import TextDone, TurnEvent, UsageUpdate
from bridge.errors import BackendProtocolError, BackendTimeout, BridgeError

if TYPE_CHECKING:
    from bridge.appserver.child import Child

log = logging.getLogger("bridge.child")

MAX_CALLS = 64
"""Calls in flight. Codex refuses or even forgets some when 200 come at once."""
MAX_RELEASES = 32
"""Calls in flight that release something. They have slots of their own, because an interrupt may stay unanswered."""
RELEASE_TIMEOUT = 5.0
"""Codex leaves the interruption of an idle thread unanswered."""
TIMEOUTS_ALLOWED = 3
"""Calls in a row without an answer after which the child counts as hung."""
RETRIES = 3
"""How often calls to an overloaded child are retried."""
LATE = 1.0
"""Seconds after which a deadline counts as slept through."""


def slept_through(deadline: float, now: float) -> bool:
    """Whether a deadline that has just passed is long over.

    Then the machine was asleep, or this program was stopped, and the deadline says nothing about the child: its answer
    may wait in the pipe. It gets the same time once more.
    """
    return now - deadline > LATE


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


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that are sent one right after the other, in one slot.

    `done` gets one reply, once, when all are answered: the first error, or the result of the last request.
    """

    calls: Sequence[Call]
    done: Callable[[Reply], None]
    timeout: float
    req_id: str | None = None
    is_release: bool = False
    on_result: Callable[[Call, Any], None] | None = None
    """Runs for every result. What it raises is taken as a result of an unknown form."""
    tries: int = 0
    is_late: bool = False
    """It has got the same time once more."""
    sent_at: float = 0.0
    deadline: float = math.inf
    unanswered: dict[str, int] = field(default_factory=dict)
    """The ids of the calls that have no reply yet, by method."""
    replies: dict[str, Reply] = field(default_factory=dict)

    @property
    def first_error(self) -> BridgeError | None:
        return next((reply.error for reply in self.replies.values() if reply.error is not None), None)


class Calls:
    """Sends batches to a child, and reports to each its replies or their failure.

    `flush` writes what the connection has queued; `on_hung` is called when the child does not answer any more.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        due: Callable[[float], None],
        flush: Callable[[], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._counts = connection.counts
        self._due = due
        self._flush = flush
        self._on_hung = on_hung
        self._in_flight: dict[Batch, None] = {}
        self._slots = {False: MAX_CALLS, True: MAX_RELEASES}
        self._waiting: dict[bool, collections.deque[Batch]] = {False: collections.deque(), True: collections.deque()}
        self._later: list[Batch] = []
        """Batches to send again, each at its deadline."""
        self._timeouts = 0
        self._closed: BridgeError | None = None

    def send(self, batch: Batch) -> None:
        """Send a batch as soon as there is a slot for it."""
        if self._closed is not None:
            batch.done(Reply(error=self._closed))
        elif self._slots[batch.is_release]:
            self._slots[batch.is_release] -= 1
            self._send(batch)
        else:
            self._waiting[batch.is_release].append(batch)

    def release(self, calls: Iterable[Call], then: Callable[[], None], req_id: str | None = None) -> None:
        """Make calls one after the other, whatever the replies are: nothing depends on these."""
        self._release_next(iter(calls), then, req_id)

    def _release_next(
        self, remaining: Iterator[Call], then: Callable[[], None], req_id: str | None, _: Reply | None = None
    ) -> None:
        call = None if self._closed is not None else next(remaining, None)
        if call is None:
            then()
        else:
            follow = partial(self._release_next, remaining, then, req_id)
            self.send(Batch((call,), follow, RELEASE_TIMEOUT, req_id, is_release=True))

    async def call(self, call: Call, timeout: float) -> Any:
        """One call; its result. Raises RpcError, BackendTimeout, or what the child was closed with."""
        answered = trio.Event()
        replies: list[Reply] = []

        def done(reply: Reply) -> None:
            replies.append(reply)
            answered.set()

        batch = Batch((call,), done, timeout)
        self.send(batch)
        try:
            await answered.wait()
        except trio.Cancelled:
            self._abandon(batch)
            raise
        (reply,) = replies
        if reply.error is not None:
            raise reply.error
        return reply.result

    def close(self, error: BridgeError) -> None:
        """The child is gone: calls without a reply fail with `error`."""
        self._closed = error
        unsent = [*self._later, *self._waiting[False], *self._waiting[True]]
        for queue in (self._later, *self._waiting.values()):
            queue.clear()
        self._connection.close(error)
        for batch in unsent:
            batch.done(Reply(error=error))

    def check(self, now: float) -> float:
        """Give up on calls without a reply in time; the next deadline."""
        for batch in [each for each in self._later if each.deadline <= now]:
            self._later.remove(batch)
            self.send(batch)
        for batch in [each for each in self._in_flight if each.deadline <= now]:
            if slept_through(batch.deadline, now) and not batch.is_late:
                batch.is_late = True
                batch.deadline = now + batch.timeout
            elif batch in self._in_flight:
                self._give_up(batch)
        return min((each.deadline for each in (*self._in_flight, *self._later)), default=math.inf)

    def _send(self, batch: Batch) -> None:
        batch.sent_at = trio.current_time()
        batch.deadline = batch.sent_at + batch.timeout
        self._in_flight[batch] = None
        for call in batch.calls:
            on_reply = partial(self._replied, batch, call)
            batch.unanswered[call.method] = self._connection.call(call.method, call.params, on_reply, batch.req_id)
        self._due(batch.deadline)
        self._flush()

    def _replied(self, batch: Batch, call: Call, reply: Reply) -> None:
        del batch.unanswered[call.method]
        if reply.error is None and batch.on_result is not None:
            try:
                batch.on_result(call, reply.result)
            except (KeyError, TypeError) as error:
                fault = f"Unexpected reply to {call.method}: {error!r}"
                reply = Reply(error=BackendProtocolError(fault))
        self._counts.calls.observe(call.method, trio.current_time() - batch.sent_at)
        self._timeouts = 0
        batch.replies[call.method] = reply
        if not batch.unanswered:
            self._abandon(batch)
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        """All is answered. An overloaded child is asked again for what it has refused, unless it has accepted what
        was to come after that."""
        calls = list(batch.calls)
        errors = {call.method: batch.replies[call.method].error for call in calls}
        refused = [call for call in calls if isinstance(e := errors[call.method], RpcError) and e.is_overload]
        is_the_rest = bool(refused) and calls[-len(refused) :] == refused
        if not is_the_rest or batch.tries == RETRIES or self._closed is not None:
            batch.done(Reply(batch.replies[calls[-1].method].result, batch.first_error))
            return
        batch.calls = refused
        batch.replies.clear()
        batch.deadline = trio.current_time() + 0.1 * 2**batch.tries * (1 + random.random())
        batch.tries += 1
        self._later.append(batch)
        self._due(batch.deadline)

    def _give_up(self, batch: Batch) -> None:
        for method in batch.unanswered:
            self._counts.unanswered.add(method)
        what = next(iter(batch.unanswered))
        self._abandon(batch)
        if not batch.is_release:
            self._timeouts += 1
            if self._timeouts >= TIMEOUTS_ALLOWED:
                self._on_hung()
        fault = f"The Codex app-server did not answer {what} within {batch.timeout:g} s."
        batch.done(Reply(error=batch.first_error or BackendTimeout(fault)))

    def _abandon(self, batch: Batch) -> None:
        """No reply of it is waited for any more: its slot is free for the next."""
        for call_id in batch.unanswered.values():
            self._connection.forget(call_id)
        batch.unanswered.clear()
        waiting = self._waiting[batch.is_release]
        if batch not in self._in_flight:
            # Cancelled while it waited for a slot, or for another try.
            for queue in (waiting, self._later):
                if batch in queue:
                    queue.remove(batch)
            return
        del self._in_flight[batch]
        if waiting and self._closed is None:
            self._send(waiting.popleft())
        else:
            self._slots[batch.is_release] += 1


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
        if self._child.take_warm_thread(call, partial(self._warmed, call)):
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
