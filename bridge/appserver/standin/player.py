"""Replays the recorded calls of threads, with their timing, and copes with a client that behaves differently."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import trio

from bridge.appserver.dialect import ENDS, PROMPTS, STOPS, Dialect
from bridge.appserver.standin import messages
from bridge.appserver.standin.matching import Candidates, Position
from bridge.appserver.standin.recorded import IdMap, Message, RecordedCall, RecordedThread, Step, is_refusal

if TYPE_CHECKING:
    from bridge.appserver.standin.replay import ReplayServer

log = logging.getLogger("bridge.playback")

PATIENCE = 3.0
"""How many seconds a turn waits for a call that the recorded client made during it."""

ENDS_HERE = "The recording ends here: the log holds no more of this turn."
STOPPED_HERE = "The recording ends here: the recorded client interrupted this turn."


class CallReplay:
    """A recorded call that is being replayed: how far it is, which calls wait for a reply, when steps are due."""

    def __init__(self, entry: RecordedCall, asker: Any, speed: float, *, answered: bool = False) -> None:
        self.entry = entry
        self.index = 0
        self.askers: dict[int, Any] = {} if answered else {0: asker}
        """Client calls without a reply yet, by their number in the recorded call."""
        self.stopped: Any = None
        """The id of the call that interrupted it."""
        self._speed = speed
        self._from = trio.current_time()
        self._at = 0.0

    @property
    def step(self) -> Step | None:
        return self.entry.steps[self.index] if self.index < len(self.entry.steps) else None

    def due(self, step: Step) -> float:
        """When a step is due; at once without a speed."""
        return self._from + (step.at - self._at) / self._speed if self._speed else 0.0

    def resume(self, at: float) -> None:
        """The client has done its recorded part: continue the clock from here."""
        self._from, self._at = trio.current_time(), at
        self.index += 1

    def next_stop(self) -> int | None:
        """Where the recorded client interrupted it, from here on."""
        steps = enumerate(self.entry.steps[self.index :], self.index)
        return next((index for index, step in steps if step.kind == "call" and step.method in STOPS), None)

    def take_group(self) -> list[Step]:
        """The steps that the child sent at the same time, from here on."""
        rest = self.entry.steps[self.index :]
        sent = ("notification", "reply", "ask")
        group = list(itertools.takewhile(lambda step: step.at == rest[0].at and step.kind in sent, rest))
        self.index += len(group)
        return group


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
        """The id of the call that interrupts the running turn, until it is answered or the turn ends here."""
        self.stopping = False
        """Whether the running turn has been interrupted: another interrupt is refused."""
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
            await self.play_call(self._start_call(position, asker))
            while self.running and not self.pending:
                following = await self._continue_turn(position)
                if following is None:
                    break
                position = following
                await self.play_call(self._start_call(position, None, answered=True))

    def _start_call(self, position: Position, asker: Any, *, answered: bool = False) -> CallReplay:
        self.id_map.begin(position, position.thread.id)
        return CallReplay(position.call, asker, self._server.speed, answered=answered)

    async def _continue_turn(self, position: Position) -> Position | None:
        """The turn is not over, but its recorded call is: wait for the call that continued it. None where it ends."""
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

    async def play_call(self, replay: CallReplay) -> None:
        """Replay a recorded call to its end, or to the end of its turn."""
        patience = math.inf
        while (step := replay.step) is not None:
            now = trio.current_time()
            if self.stop is not None and not self.pending:
                if not self.running:
                    await self._refuse_stop()
                elif not await self._cut_short(replay):
                    return
            elif step.kind == "answer":
                if step.message.get("id") in self.open:
                    await self._change()
                else:
                    self._compare_answers(step)
                    replay.resume(step.at)
            elif step.kind == "call" and step.method in STOPS and self.running:
                if self.pending:
                    break
                if self.open:
                    # A client may think about a request for as long as it likes.
                    patience = math.inf
                elif patience == math.inf:
                    patience = now + PATIENCE
                if now >= patience:
                    await self._reply_late(replay)
                    await self._fail(STOPPED_HERE)
                    return
                await self._change(patience)
            elif step.kind == "call":
                if self.running or self.pending:
                    replay.index += 1
                elif await self._called(step):
                    replay.askers[step.call] = self.called.popleft()
                    replay.resume(step.at)
            elif replay.due(step) > now and not self.pending:
                await self._change(replay.due(step))
            elif step.kind == "exit":
                leave(step.code)
            else:
                await self._send_steps(replay, replay.take_group())
        await self._reply_late(replay)
        if replay.stopped is not None and self.running:
            await self._interrupt(replay.stopped, answered=replay.stopped not in replay.askers.values())

    async def _called(self, step: Step) -> bool:
        """Wait for a call that the recorded client made; this client may not make it."""
        self.waits_for = step.method
        if not self.called:
            await self._change()
        if self.called or self.pending:
            self.waits_for = None
        return bool(self.called)

    async def _cut_short(self, replay: CallReplay) -> bool:
        """The turn is interrupted: skip to where the recorded client did so; False if it never did."""
        index = replay.next_stop()
        early = replay.entry.steps[replay.index : index]
        await self._send_steps(replay, [step for step in early if step.kind == "reply" and not step.call])
        asker = self._take_stop()
        if index is None:
            await self._reply_late(replay)
            await self._interrupt(asker)
            return False
        stop = replay.entry.steps[index]
        replay.index, replay.stopped, replay.askers[stop.call] = index, asker, asker
        replay.resume(stop.at)
        return True

    async def _refuse_stop(self) -> None:
        """Reject the interrupt of a turn that is over already."""
        if self.stop is not None:
            await self._server.pipes.send([{"id": self._take_stop(), **messages.error(messages.NO_TURN)}])
            self.stopping = False

    def _take_stop(self) -> Any:
        stop, self.stop = self.stop, None
        return stop

    async def _send_steps(self, replay: CallReplay, steps: list[Step]) -> None:
        sent = [message for step in steps if (message := self._outgoing(replay, step)) is not None]
        await self._server.pipes.send(sent)
        if any(message.get("method") in ENDS for message in sent):
            self._ended()

    def _outgoing(self, replay: CallReplay, step: Step) -> Message | None:
        """A step as it is sent; None for the reply to a call that this client did not make."""
        if step.kind == "reply" and step.call not in replay.askers:
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
            if is_refusal(message) and not step.call and replay.entry.method in PROMPTS:
                self._ended()
            return {"id": replay.askers.pop(step.call), **message}
        if message.get("method") in ("turn/started", "codex/event/task_started"):
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

    async def _reply_late(self, replay: CallReplay) -> None:
        """Reply to the call although the log was cut before its reply."""
        if 0 in replay.askers:
            entry = replay.entry
            reply = messages.reply_to(entry.method, entry.params, self.id, self._server.ids.fresh())
            reply = self.note_ids(reply or {"result": {}})
            await self._server.pipes.send([{"id": replay.askers.pop(0), **reply}])

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
        self.stopping = self.stop is not None
        self.turn = None
        self.open.clear()

    def _compare_answers(self, step: Step) -> None:
        given = self.answers.pop(step.message.get("id"), None)
        if given is not None and _answer_in(given) != _answer_in(step.message):
            log.warning("thread %s: an answer differs from the recorded one; the turn continues as recorded", self.id)


def _answer_in(message: Message) -> Any:
    return None if is_refusal(message) else message.get("result")


def leave(code: int) -> NoReturn:
    """End this process as the recorded one has ended."""
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
