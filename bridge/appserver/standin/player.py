"""Replays the recorded calls of threads, with their timing, and copes with a client that behaves differently."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from bridge.appserver.dialect import ENDS, PROMPTS, STARTS, STOPS, Dialect
from bridge.appserver.standin import messages
from bridge.appserver.standin.messages import IdMap, Message
from bridge.appserver.standin.recorded import Candidates, Position, RecordedCall, RecordedThread, Step, is_refusal

if TYPE_CHECKING:
    from bridge.appserver.standin.replay import ReplayServer

log = logging.getLogger("bridge.playback")

PATIENCE = 3.0
"""How many seconds a turn waits for a call that the recorded client made during it."""

ENDS_HERE = "The recording ends here: the log holds no more of this turn."
STOPPED_HERE = "The recording ends here: the recorded client interrupted this turn."


class Thread:
    """A live thread. Its task runs `play`."""

    def __init__(self, server: ReplayServer, key: str, dialect: Dialect, candidates: Candidates) -> None:
        self.id = key
        self.dialect: Dialect = dialect
        self.candidates = candidates
        self.own: RecordedThread | None = None
        """The recorded thread that was replayed last."""
        self.asked = False
        """Whether it has had any input yet."""
        self.id_map = IdMap(server.ids, key)
        self.pending: deque[tuple[Position, Any]] = deque()
        """The recorded calls to replay next, and the ids of the client's calls."""
        self.running = False
        self.turn: str | None = None
        """The id of the running turn, once it was sent."""
        self.stop: Any = None
        """The id of the call that interrupts the running turn, until the replay takes it into account."""
        self.waits_for: str | None = None
        """The method that the recorded client called next, when the replay has come to it."""
        self.called: deque[Any] = deque()
        """Ids of calls of that method."""
        self.open: set[Any] = set()
        """Recorded ids of the child's requests that wait for their answer."""
        self.answers: dict[Any, Message] = {}
        self.served: Counter[str] = Counter()
        self._server = server
        self._changed = trio.Event()
        # The recorded call that is being replayed
        self._call = RecordedCall("", {}, ())
        self._index = 0
        """Of its next step."""
        self._askers: dict[int, Any] = {}
        """Client calls without a reply yet, by their number in the recorded call."""
        self._stopped: Any = None
        """The id of the call that interrupted it, where the recorded client interrupted it, too."""
        self._from = self._at = 0.0
        """A time, and the recorded one that corresponds to it."""

    @property
    def is_stopping(self) -> bool:
        """Whether the running turn has been interrupted: another interrupt is refused."""
        return self.stop is not None or self._stopped is not None

    def notify(self) -> None:
        """Wake the task."""
        self._changed.set()

    def answered(self, recorded: Any, message: Message) -> None:
        """The client has answered our request with this recorded id."""
        self.open.discard(recorded)
        self.answers[recorded] = message
        self.notify()

    async def _change(self, deadline: float = math.inf) -> None:
        """Wait until something has changed."""
        with trio.move_on_at(deadline):
            await self._changed.wait()
        self._changed = trio.Event()

    def queue(self, position: Position, rpc_id: Any) -> None:
        """Replay this call next."""
        self.own = position.thread
        self.pending.append((position, rpc_id))
        self.notify()

    async def play(self) -> None:
        """Replay the recorded calls as the client makes them."""
        while True:
            while not self.pending:
                await self._refuse_stop()
                await self._change()
            position, asker = self.pending.popleft()
            following: Position | None = position
            askers = {0: asker}
            while following is not None:
                position = following
                self.id_map.begin(position, position.thread.id)
                await self.play_call(position.call, askers)
                following, askers = await self._continue_turn(position), {}

    async def _continue_turn(self, position: Position) -> Position | None:
        """The recorded call is over. If its turn is not, wait for the call that continued it; None if the turn ends."""
        if not self.running or self.pending:
            return None
        following = self._server.matcher.next_of(position)
        if following is not None and following.call.method in PROMPTS:
            deadline = trio.current_time() + PATIENCE
            while not self.pending and self.stop is None and trio.current_time() < deadline:
                await self._change(deadline)
            if self.pending:
                return None
            if self.stop is None:
                # The recorded client repeated its prompt; this one does not.
                self.candidates = (following.chain,)
                return following
        if self.stop is not None:
            await self._interrupt(self._take_stop())
        else:
            await self._fail(ENDS_HERE)
        return None

    async def play_call(self, call: RecordedCall, askers: dict[int, Any]) -> None:
        """Replay a recorded call to its end, or to the end of its turn."""
        self._call, self._index, self._askers, self._stopped = call, 0, askers, None
        self._from, self._at = trio.current_time(), 0.0
        patience = math.inf
        while self._index < len(call.steps):
            step, now = call.steps[self._index], trio.current_time()
            if self.stop is not None and not self.pending:
                if not self.running:
                    await self._refuse_stop()
                elif not await self._cut_short():
                    return
            elif step.kind == "answer":
                if step.message.get("id") in self.open:
                    await self._change()
                else:
                    self._compare_answers(step)
                    self._resume(step)
            elif step.kind == "call" and step.method in STOPS and self.running:
                if self.pending:
                    break
                if self.open:
                    # A client may think about a request for as long as it likes.
                    patience = math.inf
                elif patience == math.inf:
                    patience = now + PATIENCE
                if now >= patience:
                    await self._reply_late()
                    await self._fail(STOPPED_HERE)
                    return
                await self._change(patience)
            elif step.kind == "call":
                if self.running or self.pending:
                    self._index += 1
                elif await self._called(step):
                    self._askers[step.call] = self.called.popleft()
                    self._resume(step)
            elif (due := self._due(step)) > now and not self.pending:
                await self._change(due)
            elif step.kind == "exit":
                leave(step.code)
            else:
                # All that the child sent at the same time.
                start = self._index
                while self._index < len(call.steps) and _is_sent(call.steps[self._index], step.at):
                    self._index += 1
                await self._send_steps(call.steps[start : self._index])
        await self._reply_late()
        if self._stopped is not None and self.running:
            await self._interrupt(self._stopped, answered=self._stopped not in self._askers.values())

    def _due(self, step: Step) -> float:
        """When a step is due; at once without a speed."""
        speed = self._server.speed
        return self._from + (step.at - self._at) / speed if speed else 0.0

    def _resume(self, step: Step) -> None:
        """The client has done its recorded part, this step: continue the clock after it."""
        self._from, self._at = trio.current_time(), step.at
        self._index += 1

    async def _called(self, step: Step) -> bool:
        """Wait for a call that the recorded client made; this client may not make it."""
        self.waits_for = step.method
        if not self.called:
            await self._change()
        if self.called or self.pending:
            self.waits_for = None
        return bool(self.called)

    async def _cut_short(self) -> bool:
        """The turn is interrupted: skip to where the recorded client did so; False if it never did."""
        rest = self._call.steps[self._index :]
        early = list(itertools.takewhile(lambda step: step.kind != "call" or step.method not in STOPS, rest))
        await self._send_steps([step for step in early if step.kind == "reply" and not step.call])
        asker = self._take_stop()
        if len(early) == len(rest):
            await self._reply_late()
            await self._interrupt(asker)
            return False
        self._index += len(early)
        stop = self._call.steps[self._index]
        self._stopped = self._askers[stop.call] = asker
        self._resume(stop)
        return True

    async def _refuse_stop(self) -> None:
        """Reject the interrupt of a turn that is over already."""
        if self.stop is not None:
            await self._server.pipes.send([{"id": self._take_stop(), **messages.error(messages.NO_TURN)}])

    def _take_stop(self) -> Any:
        stop, self.stop = self.stop, None
        return stop

    async def _send_steps(self, steps: Sequence[Step]) -> None:
        sent = [message for step in steps if (message := self._outgoing(step)) is not None]
        await self._server.pipes.send(sent)
        if any(message.get("method") in ENDS for message in sent):
            self._ended()

    def _outgoing(self, step: Step) -> Message | None:
        """A step as it is sent; None for the reply to a call that this client did not make."""
        if step.kind == "reply" and step.call not in self._askers:
            return None
        if step.kind == "ask":
            number, recorded = next(self._server.ask_ids), step.message.get("id")
            self._server.asked[number] = self, recorded
            self.open.add(recorded)
            self.id_map.requests[recorded] = number
            return self.id_map.message(step.message) | {"id": number}
        message = self.id_map.message(step.message)
        if step.kind == "reply":
            self.note_ids(message)
            if is_refusal(message) and not step.call and self._call.method in PROMPTS:
                self._ended()
            return {"id": self._askers.pop(step.call), **message}
        if message.get("method") in STARTS:
            self.note_ids({"result": {"turn": message["params"].get("turn") or message["params"]}})
        return message

    def note_ids(self, reply: Message) -> Message:
        """Remember the ids in a reply that later calls will use."""
        result = reply.get("result")
        if isinstance(result, dict):
            turn, subscription = result.get("turn"), result.get("subscriptionId")
            if isinstance(turn, dict) and isinstance(turn.get("id"), str):
                self.turn = turn["id"]
            if isinstance(subscription, str):
                self._server.subscriptions[subscription] = self
        return reply

    async def _reply_late(self) -> None:
        """Reply to the call although the log was cut before its reply."""
        if 0 in self._askers:
            call = self._call
            reply = messages.reply_to(call.method, call.params, self.id, self._server.ids.fresh()) or {"result": {}}
            await self._server.pipes.send([{"id": self._askers.pop(0), **self.note_ids(reply)}])

    async def _interrupt(self, asker: Any, *, answered: bool = False) -> None:
        sent = messages.interrupted(self.dialect, self.id, self._turn_id(), asker)
        await self._server.pipes.send([message for message in sent if "method" in message or not answered])
        self._ended()

    async def _fail(self, message: str) -> None:
        log.warning("thread %s: %s", self.id, message)
        await self._server.pipes.send(messages.failed(self.dialect, self.id, self._turn_id(), message))
        self._ended()

    def _turn_id(self) -> str:
        return self.turn or self._server.ids.fresh()

    def _ended(self) -> None:
        # The next turn may have been requested already.
        self.running = any(position.call.method in PROMPTS for position, _ in self.pending)
        self._stopped = self.turn = None
        self.open.clear()

    def _compare_answers(self, step: Step) -> None:
        given = self.answers.pop(step.message.get("id"), None)
        if given is not None and _answer_in(given) != _answer_in(step.message):
            log.warning("thread %s: an answer differs from the recorded one; the turn continues as recorded", self.id)


def _is_sent(step: Step, at: float) -> bool:
    """Whether the child sent this at that time."""
    return step.at == at and step.kind in ("notification", "reply", "ask")


def _answer_in(message: Message) -> Any:
    return None if is_refusal(message) else message.get("result")


def leave(code: int) -> NoReturn:
    """End this process as the recorded one has ended."""
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
