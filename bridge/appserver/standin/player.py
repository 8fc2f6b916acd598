"""Plays the scenes of threads: what was said, when it was said, and what happens where the client does otherwise."""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import trio

from bridge.appserver.standin import fallback
from bridge.appserver.standin.matching import Place, Repertoire
from bridge.appserver.standin.naming import Names
from bridge.appserver.standin.performance import Performance, Thread
from bridge.appserver.standin.tape import ENDS, PROMPTS, STOPS, Message, Step, Tape, is_refusal

log = logging.getLogger("bridge.playback")

PATIENCE = 3.0
"""Seconds for which a turn waits for a call that the recorded client made in its middle."""

ENDS_HERE = "The recording ends here: the log holds no more of this turn."
STOPPED_HERE = "The recording ends here: the recorded client interrupted this turn."


class Player:
    """Each thread has a task that runs `play`; everything is said through `send`. `speed` is as for `Playback`."""

    def __init__(
        self,
        tapes: tuple[Tape, ...],
        repertoire: Repertoire,
        names: Names,
        send: Callable[[list[Message]], Awaitable[None]],
        speed: float,
    ) -> None:
        self.subscriptions: dict[str, Thread] = {}
        self._tapes = tapes
        self._repertoire = repertoire
        self._names = names
        self._send = send
        self._speed = speed
        self._asked: dict[Any, tuple[Thread, Any]] = {}
        self._ask_ids = itertools.count()

    def answered(self, rpc_id: Any, message: Message) -> None:
        """The client has answered a request of ours."""
        thread, recorded = self._asked.pop(rpc_id, (None, None))
        if thread is not None:
            thread.open.discard(recorded)
            thread.answers[recorded] = message
            thread.tell()

    async def play(self, thread: Thread) -> None:
        """Play the scenes of a thread as they are asked for."""
        while True:
            while not thread.scenes:
                await self._refuse_stops(thread)
                await thread.news()
            place, asker = thread.scenes.popleft()
            await self.perform(thread, self._performance(thread, place, asker))
            while thread.running and not thread.scenes:
                following = await self._go_on(thread, place)
                if following is None:
                    break
                place = following.place
                await self.perform(thread, following)

    def _performance(self, thread: Thread, place: Place, asker: Any, *, answered: bool = False) -> Performance:
        tape = self._tapes[place[0]]
        thread.naming.begin(place, tape.id)
        return Performance(place, tape.scenes[place[1]], asker, self._speed, answered=answered)

    async def _go_on(self, thread: Thread, place: Place) -> Performance | None:
        """The turn is not over, but its scene is: wait for the call with which it went on; None where it ends."""
        scenes = self._tapes[place[0]].scenes
        following = place[0], place[1] + 1
        if following[1] < len(scenes) and scenes[following[1]].method in PROMPTS:
            deadline = trio.current_time() + PATIENCE
            while not thread.scenes and not thread.stops and trio.current_time() < deadline:
                await thread.news(deadline)
            if thread.scenes:
                return None
            if not thread.stops:
                # The recorded client repeated its prompt; this one does not.
                thread.trail = self._repertoire.trail_of(following)
                return self._performance(thread, following, None, answered=True)
        if thread.stops:
            await self._interrupt(thread, thread.stops.popleft())
        else:
            await self._fail(thread, ENDS_HERE)
        return None

    async def perform(self, thread: Thread, show: Performance) -> None:
        """Play a scene to its end, or to the end of its turn."""
        patience = math.inf
        while (step := show.step) is not None:
            now = trio.current_time()
            if thread.stops and not thread.scenes:
                if not thread.running:
                    await self._refuse_stops(thread)
                elif not await self._cut_short(thread, show):
                    return
                continue
            if step.kind == "answer":
                if step.message.get("id") in thread.open:
                    await thread.news()
                else:
                    self._compare_answers(thread, step)
                    show.resume(step.at)
            elif step.kind == "call":
                if step.method in STOPS and thread.running:
                    if thread.scenes:
                        break
                    if thread.open:
                        # A client may think about a request for as long as it likes.
                        patience = math.inf
                    elif patience == math.inf:
                        patience = now + PATIENCE
                    if now >= patience:
                        await self._reply_late(thread, show)
                        await self._fail(thread, STOPPED_HERE)
                        return
                    await thread.news(patience)
                elif thread.running or thread.scenes:
                    show.index += 1
                elif await self._called(thread, step):
                    show.askers[step.call] = thread.called.popleft()
                    show.resume(step.at)
            elif show.due(step) > now and not thread.scenes:
                await thread.news(show.due(step))
            elif step.kind == "exit":
                leave(step.code)
            else:
                await self._say(thread, show, show.take_group())
        await self._reply_late(thread, show)
        if show.stopped is not None and thread.running:
            await self._interrupt(thread, show.stopped, answered=show.stopped not in show.askers.values())

    async def _called(self, thread: Thread, step: Step) -> bool:
        """Wait for a call of the recorded client's that this one may make too."""
        thread.waits_for = step.method
        if not thread.called:
            await thread.news()
        if thread.called or thread.scenes:
            thread.waits_for = None
        return bool(thread.called)

    async def _cut_short(self, thread: Thread, show: Performance) -> bool:
        """The turn is interrupted: go to where the recorded client has done it; False where it never did."""
        index = show.next_stop()
        end = len(show.scene.steps) if index is None else index
        early = [step for step in show.scene.steps[show.index : end] if step.kind == "reply" and not step.call]
        await self._say(thread, show, early)
        asker = thread.stops.popleft()
        if index is None:
            await self._reply_late(thread, show)
            await self._interrupt(thread, asker)
            return False
        stop = show.scene.steps[index]
        show.index, show.stopped, show.askers[stop.call] = index, asker, asker
        show.resume(stop.at)
        return True

    async def _refuse_stops(self, thread: Thread) -> None:
        """The turn was over before it could be interrupted."""
        while thread.stops:
            await self._send([{"id": thread.stops.popleft(), **fallback.error("no active turn to interrupt")}])
            thread.stopping = False

    async def _say(self, thread: Thread, show: Performance, steps: list[Step]) -> None:
        messages = [message for step in steps if (message := self._spoken(thread, show, step)) is not None]
        await self._send(messages)
        if any(message.get("method") in ENDS for message in messages):
            self._ended(thread)

    def _spoken(self, thread: Thread, show: Performance, step: Step) -> Message | None:
        """A step as it goes out; None for the reply to a call that nobody made here."""
        if step.kind == "reply":
            if step.call not in show.askers:
                return None
            reply = self.noted(thread, thread.naming.message(step.message))
            if is_refusal(reply) and not step.call and show.scene.method in PROMPTS:
                self._ended(thread)
            return {"id": show.askers.pop(step.call), **reply}
        if step.kind == "ask":
            number, recorded = next(self._ask_ids), step.message.get("id")
            self._asked[number] = thread, recorded
            thread.open.add(recorded)
            thread.naming.requests[recorded] = number
            return {**thread.naming.message(step.message), "id": number}
        message = thread.naming.message(step.message)
        if message.get("method") in ("turn/started", "codex/event/task_started"):
            params = message["params"]
            thread.turn = params.get("turn") or {"id": params.get("id")}
        return message

    def noted(self, thread: Thread, reply: Message) -> Message:
        """Remember what a reply says that later calls will name."""
        result = reply.get("result")
        if isinstance(result, dict):
            if isinstance(result.get("turn"), dict):
                thread.turn = result["turn"]
            if isinstance(result.get("subscriptionId"), str):
                self.subscriptions[result["subscriptionId"]] = thread
        return reply

    async def _reply_late(self, thread: Thread, show: Performance) -> None:
        """The log has been cut before the reply to the scene's call: it gets one nevertheless."""
        if 0 in show.askers:
            scene = show.scene
            reply = fallback.reply_to(scene.method, scene.params, thread.id, self._names.fresh())
            await self._send([{"id": show.askers.pop(0), **self.noted(thread, reply or {"result": {}})}])

    async def _interrupt(self, thread: Thread, asker: Any, *, answered: bool = False) -> None:
        messages = fallback.interrupted(thread.dialect, thread.id, self._turn(thread), asker)
        await self._send([message for message in messages if "method" in message or not answered])
        self._ended(thread)

    async def _fail(self, thread: Thread, message: str) -> None:
        log.warning("thread %s: %s", thread.id, message)
        await self._send(fallback.failed(thread.dialect, thread.id, self._turn(thread), message))
        self._ended(thread)

    def _turn(self, thread: Thread) -> Message:
        return thread.turn if isinstance(thread.turn.get("id"), str) else {"id": self._names.fresh()}

    def _ended(self, thread: Thread) -> None:
        # The next turn may have been asked for already.
        prompts = (self._tapes[tape].scenes[scene].method in PROMPTS for (tape, scene), _ in thread.scenes)
        thread.running, thread.stopping = any(prompts), bool(thread.stops)
        thread.turn = {}
        thread.open.clear()

    def _compare_answers(self, thread: Thread, step: Step) -> None:
        given = thread.answers.pop(step.message.get("id"), None)
        if given is not None and _answer_in(given) != _answer_in(step.message):
            log.warning("thread %s: a request was answered otherwise than recorded; it goes on as recorded", thread.id)


def leave(code: int) -> NoReturn:
    """End this process as the recorded one has ended."""
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


def _answer_in(message: Message) -> Any:
    return None if is_refusal(message) else message.get("result")
