"""Our calls to one child, what follows a reply, and what takes too long; and our answers to its requests.

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
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import trio

from bridge.appserver.connection import Connection, Reply
from bridge.appserver.dialect import TOOL_CALL
from bridge.appserver.failures import RpcError
from bridge.appserver.turn import Call, RunningTurn
from bridge.errors import BackendProtocolError, BackendTimeout, BridgeError

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

    @property
    def is_lost(self) -> bool:
        """Whether a call has failed, and no reply to come is of use: neither to learn what must be stopped, nor to
        decide about another try. To a legacy child its two calls are one prompt: it may not answer the second one then.
        """
        error = self.first_error
        is_final = error is not None and not (isinstance(error, RpcError) and error.is_overload)
        return is_final and all(call.claim is None for call in self.calls if call.method in self.unanswered)


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

    def release(
        self, calls: Iterable[Call], then: Callable[[], None] = lambda: None, req_id: str | None = None
    ) -> None:
        """Make calls one after the other, whatever the replies are: nothing depends on these."""
        self._release_next(iter(calls), then, req_id)

    # Not a function inside `release` that names itself: such a function is a reference cycle, and would keep the turn
    # and its prompt in memory until the next garbage collection.
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
        elif batch.is_lost:
            self._abandon(batch)
            batch.done(Reply(error=batch.first_error))

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


# The requests of the child: approvals and questions, which are declined, and calls of the client's functions

PARKED = 15.0
"""How many seconds a request for an output waits for the end of the answer that contains the call."""


# What we answer when the child asks. A request without a reply stalls its turn for ever, so every one gets a reply:
# approvals are declined, questions to the user stay empty, everything unknown is an error (which Codex treats as a
# refusal and continues).

ANSWERS: dict[str, dict[str, Any] | str] = {
    # the current dialect
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline"},
    TOOL_CALL: {"contentItems": [{"type": "inputText", "text": "this tool is not available"}], "success": False},
    # the legacy dialect
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
    # refused, with an error that says why
    "item/permissions/requestApproval": "permissions are not granted through the bridge",
}
"""What is answered, by method."""


def answer_tool_call(line: bytes, output_of: Callable[[str], dict[str, Any] | None]) -> bytes | None:
    """The reply to `item/tool/call`, where the output of that call is known."""
    message = orjson.loads(line)
    call_id = message["params"].get("callId")
    result = output_of(call_id) if isinstance(call_id, str) else None
    return None if result is None else orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


def answer_request(line: bytes) -> bytes:
    """The reply line (without newline) to one request of the child's.

    jsonrpcserver's synchronous dispatch does the work, with a validator that lets everything pass: the default one
    insists on a `jsonrpc` member, which Codex leaves out. (Its asynchronous dispatch needs asyncio.) It brings five
    megabytes along, so it is loaded when a child first asks.
    """
    from jsonrpcserver import Error, Success, dispatch_to_serializable

    def answer(given: dict[str, Any] | str, /, *_: Any, **__: Any) -> Any:
        return Error(code=-32000, message=given) if isinstance(given, str) else Success(given)

    methods = {method: partial(answer, given) for method, given in ANSWERS.items()}
    reply = dispatch_to_serializable(line, methods=methods, deserializer=orjson.loads, validator=lambda _: None)
    return orjson.dumps(reply)


@dataclass(slots=True, eq=False)
class _Open:
    key: str
    line: bytes
    running: RunningTurn | None
    until: float


class OpenToolCalls:
    """The child's open requests for outputs. `reply` sends the answer to one: (request, answer, thread)."""

    def __init__(self, reply: Callable[[bytes, bytes, str], None]) -> None:
        self._reply = reply
        self._open: list[_Open] = []

    def add(self, key: str, line: bytes) -> None:
        """Leave a request open until the conversation continues."""
        self._open.append(_Open(key, line, None, math.inf))

    def park(self, key: str, line: bytes, running: RunningTurn, now: float) -> float:
        """Leave a request open while the answer that contains the call is not complete; when it is to be declined."""
        self._open.append(_Open(key, line, running, now + PARKED))
        return now + PARKED

    def answer(self, key: str, output_of: Callable[[str], dict[str, Any] | None]) -> None:
        """Answer the requests of a thread whose outputs are known; Codex asks for one after the other."""
        for each in [each for each in self._open if each.key == key]:
            if (reply := answer_tool_call(each.line, output_of)) is not None:
                self._open.remove(each)
                self._reply(each.line, reply, key)

    def forget(self, key: str) -> None:
        self._open = [each for each in self._open if each.key != key]

    def answer_late(self, now: float, waiting: Container[RunningTurn | None]) -> float:
        """Decline what has been open for too long, for turns that still have a consumer; the next deadline.

        If the stream breaks after a call, Codex reports that only once the call is answered.
        """
        for each in [each for each in self._open if each.until <= now]:
            each.until = math.inf
            if each.running is not None and each.running in waiting:
                self._open.remove(each)
                each.running.give_up_thread()
                self._reply(each.line, answer_request(each.line), each.key)
        return min((each.until for each in self._open), default=math.inf)
