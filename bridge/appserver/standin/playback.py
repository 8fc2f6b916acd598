"""A recorded child, played again: an app-server over stdio that says what a log says it said.

Calls are matched with the recorded ones (`matching`), ids are made this process's own (`naming`), and what the log
does not hold is made up as a Codex would say it (`fallback`). Each thread has a task that plays its scenes.
"""

from __future__ import annotations

import collections
import json
import logging
import re
from typing import Any, Literal

import orjson
import trio

from bridge import __version__, exact_json
from bridge.appserver.dialect import parse_methods
from bridge.appserver.standin import fallback
from bridge.appserver.standin.matching import Asked, Place, Repertoire, Trail, compared
from bridge.appserver.standin.naming import Names
from bridge.appserver.standin.performance import Performance, Thread
from bridge.appserver.standin.pipes import Pipes
from bridge.appserver.standin.player import Player
from bridge.appserver.standin.tape import BEGINS, PARTS, PROMPTS, STOPS, Message, RecordedChild, Scene, key_in

log = logging.getLogger("bridge.playback")

OnMiss = Literal["error", "nearest"]


class Playback:
    """One connection. `run` serves stdin and stdout until stdin ends.

    `speed` 0 plays as fast as the pipe takes it, 1 as it was recorded, n so many times as fast.
    """

    def __init__(self, child: RecordedChild, *, speed: float = 0.0, on_miss: OnMiss = "error") -> None:
        self._child = child
        self._speed = speed
        self._on_miss = on_miss
        self._repertoire = Repertoire(child.tapes)
        self._names = Names()
        self._pipes = Pipes()
        self._threads: dict[str, Thread] = {}
        self._player = Player(child.tapes, self._repertoire, self._names, self._send, speed)
        self._served: collections.Counter[tuple[str, bytes]] = collections.Counter()
        self._opt_out: frozenset[str] = frozenset()
        self._initialized = False
        self._known = _methods(child)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve until the end of stdin, as Codex does; what runs then is dropped."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            async for line in self._pipes.lines():
                await self._receive(line)
            nursery.cancel_scope.cancel()

    async def _receive(self, line: bytes) -> None:
        try:
            message = exact_json.loads(line)
        except orjson.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            # Codex answers nothing to what is no message.
            log.warning("a line that is no message was passed over")
            return
        method, rpc_id = message.get("method"), message.get("id")
        if type(rpc_id) not in (int, str):
            return
        if not isinstance(method, str):
            self._player.answered(rpc_id, message)
            return
        params = message.get("params")
        reply = self._call(method, params if isinstance(params, dict) else {}, rpc_id)
        if reply is not None:
            await self._send([{"id": rpc_id, **reply}])

    # Calls. Each gives its reply, or None where a player will give it.

    def _call(self, method: str, params: Message, rpc_id: Any) -> Message | None:
        if method == "initialize":
            return self._initialize(params)
        if not self._initialized:
            return fallback.error("Not initialized")
        if method not in self._known:
            return fallback.error(self._refusal(method))
        if method in BEGINS:
            return self._begin(method, params, rpc_id)
        key = key_in(params)
        subscription = params.get("subscriptionId")
        thread = self._threads.get(key or "") or self._player.subscriptions.get(str(subscription))
        if thread is not None:
            return self._call_thread(thread, method, params, rpc_id)
        if key is not None or subscription is not None or method in PARTS | PROMPTS | STOPS:
            return fallback.error(f"thread not found: {key or subscription}")
        return self._known_answer(method, params)

    def _call_thread(self, thread: Thread, method: str, params: Message, rpc_id: Any) -> Message | None:
        if method in PARTS or method in PROMPTS:
            return self._continue(thread, method, params, rpc_id)
        if method in STOPS and thread.running:
            return self._stop(thread, params, rpc_id)
        if thread.waits_for == method:
            thread.called.append(rpc_id)
            thread.tell()
            return None
        if method in STOPS:
            return fallback.error("no active turn to interrupt")
        return self._serve(thread, method, params)

    def _initialize(self, params: Message) -> Message:
        if self._initialized:
            return fallback.error("Already initialized")
        self._initialized = True
        capabilities = params.get("capabilities")
        names = capabilities.get("optOutNotificationMethods") if isinstance(capabilities, dict) else None
        if isinstance(names, list):
            self._opt_out = frozenset(name for name in names if isinstance(name, str))
        if self._child.greeting:
            scene = Scene("initialize", {}, self._child.greeting)
            thread = Thread(self._names, "", "current", ())
            assert self._nursery is not None
            self._nursery.start_soon(
                self._player.perform, thread, Performance((-1, -1), scene, None, self._speed, answered=True)
            )
        return self._child.initialize or {"result": {"userAgent": f"codex-bridge-replay/{__version__}"}}

    def _refusal(self, method: str) -> str:
        recorded = self._child.refusal
        if recorded is None:
            return fallback.refusal(method, self._known)
        return re.sub("`[^`]*`", lambda _: f"`{method}`", recorded, count=1)

    def _begin(self, method: str, params: Message, rpc_id: Any) -> Message | None:
        call = compared(method, params)
        trail = self._repertoire.follow(None, call)
        place = self._repertoire.choose(trail, None)
        if not trail:
            place = self._missed(None, call)
            if place is None:
                return fallback.error(self._repertoire.explain(None, call))
            trail = self._repertoire.trail_of(place)
        if place is None:
            key = self._names.fresh()
            self._threads[key] = thread = Thread(self._names, key, BEGINS[method], trail)
            self._start(thread)
            return fallback.reply_to(method, params, key, key)
        tape = self._child.tapes[place[0]]
        refused = tape.scenes[place[1]].refused
        key = "" if refused else self._names.give(tape.id) if tape.id else self._names.fresh()
        thread = Thread(self._names, key, tape.dialect, trail)
        if not refused:
            self._threads[key] = thread
        self._queue(thread, place, rpc_id)
        self._start(thread)
        return None

    def _continue(self, thread: Thread, method: str, params: Message, rpc_id: Any) -> Message | None:
        call = compared(method, params)
        trail = self._repertoire.follow(thread.trail, call)
        # All threads begin alike: which tape it began with says nothing yet.
        place = self._repertoire.choose(trail, thread.own if thread.asked else None)
        if place is None:
            place = self._missed(thread.trail, call)
            if place is None:
                return fallback.error(self._repertoire.explain(thread.trail, call))
            trail = self._repertoire.trail_of(place)
        thread.trail, thread.asked = trail, True
        # From here on it can be interrupted, although nothing has been said yet.
        thread.running = thread.running or method in PROMPTS
        self._queue(thread, place, rpc_id)
        return None

    def _missed(self, trail: Trail | None, call: Asked) -> Place | None:
        """The place to be played although nothing matches; None where that is an error."""
        if self._on_miss == "error":
            return None
        found = self._repertoire.nearest(trail, call) or self._repertoire.nearest(trail, call, anywhere=True)
        if found is None:
            return None
        place, _ = found
        scene = self._child.tapes[place[0]].scenes[place[1]]
        log.warning("%s; played is %s", self._repertoire.explain(trail, call), scene)
        return place

    def _stop(self, thread: Thread, params: Message, rpc_id: Any) -> Message | None:
        wanted, active = params.get("turnId"), thread.turn.get("id")
        if wanted and active and wanted != active:
            return fallback.error(f"expected active turn id {wanted} but found {active}")
        if thread.stopping:
            return fallback.error("no active turn to interrupt")
        thread.stopping = True
        thread.stops.append(rpc_id)
        thread.tell()
        return None

    def _serve(self, thread: Thread, method: str, params: Message) -> Message:
        """Answer a call that changes nothing in what is played, as it was answered in the recorded thread."""
        recorded = self._child.tapes[thread.own].replies_to(method) if thread.own is not None else []
        if recorded:
            reply = recorded[min(thread.served[method], len(recorded) - 1)]
            thread.served[method] += 1
            return self._player.noted(thread, thread.naming.message(reply))
        made_up = fallback.reply_to(method, params, thread.id, self._names.fresh())
        return self._player.noted(thread, made_up) if made_up is not None else self._known_answer(method, params)

    def _known_answer(self, method: str, params: Message) -> Message:
        """Answer a call that is about no thread: as recorded, for the same parameters where they are on record."""
        recorded = self._child.answers.get(method, [])
        digest = compared(method, params).digest
        same = [answer for answer in recorded if compared(method, answer.params, redacted=True).digest == digest]
        if same or recorded:
            number = self._served[method, digest]
            self._served[method, digest] += 1
            answers = same or recorded
            return answers[min(number, len(answers) - 1)].reply
        if method == "model/list":
            calls = (scene.params.get("model") for tape in self._child.tapes for scene in tape.scenes)
            return fallback.model_list(model for model in calls if isinstance(model, str))
        if method == "account/read":
            return {"result": {"account": None, "requiresOpenaiAuth": False}}
        return fallback.error(f"the recording holds no answer to {method}")

    def _queue(self, thread: Thread, place: Place, rpc_id: Any) -> None:
        thread.own = place[0]
        thread.scenes.append((place, rpc_id))
        thread.tell()

    def _start(self, thread: Thread) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._player.play, thread)

    async def _send(self, messages: list[Message]) -> None:
        wanted = (message for message in messages if "id" in message or message["method"] not in self._opt_out)
        lines = [encode(message) for message in wanted]
        if lines:
            await self._pipes.send(b"".join(lines))


def encode(message: Message) -> bytes:
    """A line for the wire."""
    try:
        return exact_json.dumps(message) + b"\n"
    except TypeError:
        # Nested deeper than orjson writes, though not deeper than it reads.
        return json.dumps(message).encode() + b"\n"


def _methods(child: RecordedChild) -> frozenset[str] | list[str]:
    if child.refusal is not None:
        listed = parse_methods(child.refusal.partition("expected one of")[2])
        if listed:
            return listed | frozenset(child.methods)
    dialects = dict.fromkeys(tape.dialect for tape in child.tapes)
    return fallback.methods_of(dialects, child.methods)
