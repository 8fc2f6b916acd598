"""A recorded child, replayed: an app-server over stdio that sends what a log recorded.

Calls are matched with recorded ones (`matching`), ids become those of this process (`recorded.IdMap`), and what the log
lacks is made up as Codex would send it (`messages`). Each thread has a task that replays its calls (`player`).
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from typing import Any, Literal

import orjson
import trio

from bridge import __version__, exact_json
from bridge.appserver.dialect import BEGINS, PARTS, PROMPTS, STOPS, parse_methods
from bridge.appserver.standin import messages
from bridge.appserver.standin.messages import Message, UniqueIds
from bridge.appserver.standin.player import Thread
from bridge.appserver.standin.recorded import (
    CallMatcher,
    Candidates,
    ComparedCall,
    Position,
    RecordedCall,
    RecordedChild,
    compared,
    key_in,
)
from bridge.appserver.standin.server import Pipes

log = logging.getLogger("bridge.playback")

OnMiss = Literal["error", "nearest"]


class ReplayServer:
    """One connection. `run` serves stdin and stdout until stdin ends."""

    def __init__(self, child: RecordedChild, *, speed: float = 0.0, on_miss: OnMiss = "error") -> None:
        self.matcher = CallMatcher(child.threads)
        self.ids = UniqueIds()
        self.pipes = Pipes()
        self.speed = speed
        """0 replays as fast as possible, 1 as recorded, n times as fast."""
        self.subscriptions: dict[str, Thread] = {}
        self.asked: dict[Any, tuple[Thread, Any]] = {}
        """Our requests to the client that have no answer yet: the thread and the recorded id of each."""
        self.ask_ids = itertools.count()
        self._child = child
        self._on_miss = on_miss
        self._threads: dict[str, Thread] = {}
        self._served: Counter[tuple[str, bytes]] = Counter()
        self._initialized = False
        self._known = _methods(child)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve until the end of stdin, as Codex does; what runs then is dropped."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            async for line in self.pipes.lines():
                await self._receive(line)
            nursery.cancel_scope.cancel()

    async def _receive(self, line: bytes) -> None:
        try:
            message = exact_json.loads(line)
        except orjson.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            # Codex does not answer a line that is not a message.
            log.warning("skipped a line that is not a message")
            return
        method, rpc_id = message.get("method"), message.get("id")
        if type(rpc_id) not in (int, str):
            return
        if not isinstance(method, str):
            thread, recorded = self.asked.pop(rpc_id, (None, None))
            if thread is not None:
                thread.answered(recorded, message)
            return
        params = message.get("params")
        reply = self._call(method, params if isinstance(params, dict) else {}, rpc_id)
        if reply is not None:
            await self.pipes.send([{"id": rpc_id, **reply}])

    # Calls. Each returns its reply, or None if the task of its thread sends it.

    def _call(self, method: str, params: Message, rpc_id: Any) -> Message | None:
        if method == "initialize":
            return self._initialize(params)
        if not self._initialized:
            return messages.error("Not initialized")
        if method not in self._known:
            return messages.error(self._refusal(method))
        if method in BEGINS:
            return self._begin(method, params, rpc_id)
        key = key_in(params)
        subscription = params.get("subscriptionId")
        thread = self._threads.get(key or "") or self.subscriptions.get(str(subscription))
        if thread is not None:
            return self._call_thread(thread, method, params, rpc_id)
        if key is not None or subscription is not None or method in PARTS | PROMPTS | STOPS:
            return messages.error(f"thread not found: {key or subscription}")
        return self._known_answer(method, params)

    def _call_thread(self, thread: Thread, method: str, params: Message, rpc_id: Any) -> Message | None:
        if method in PARTS or method in PROMPTS:
            return self._continue(thread, method, params, rpc_id)
        if method in STOPS and thread.running:
            return self._stop(thread, params, rpc_id)
        if thread.waits_for == method:
            thread.called.append(rpc_id)
            thread.notify()
            return None
        if method in STOPS:
            return messages.error(messages.NO_TURN)
        return self._serve(thread, method, params)

    def _initialize(self, params: Message) -> Message:
        if self._initialized:
            return messages.error("Already initialized")
        self._initialized = True
        self.pipes.read_capabilities(params.get("capabilities"))
        if self._child.greeting:
            assert self._nursery is not None
            greeting = RecordedCall("initialize", {}, self._child.greeting)
            self._nursery.start_soon(Thread(self, "", "current", ()).play_call, greeting, {})
        return self._child.initialize or {"result": {"userAgent": f"turnbridge-replay/{__version__}"}}

    def _refusal(self, method: str) -> str:
        recorded = self._child.refusal
        if recorded is None:
            return messages.refusal(method, self._known)
        return re.sub("`[^`]*`", lambda _: f"`{method}`", recorded, count=1)

    def _begin(self, method: str, params: Message, rpc_id: Any) -> Message | None:
        call = compared(method, params)
        candidates = self.matcher.follow(None, call)
        position = self.matcher.choose(candidates, None)
        if not candidates:
            position = self._missed(None, call)
            if position is None:
                return messages.error(self.matcher.explain(None, call))
            candidates = (position.chain,)
        if position is None:
            thread = Thread(self, self.ids.fresh(), BEGINS[method], candidates)
        elif position.call.refused:
            thread = Thread(self, "", position.thread.dialect, candidates)
        else:
            source = position.thread
            key = self.ids.give(source.id) if source.id else self.ids.fresh()
            thread = Thread(self, key, source.dialect, candidates)
        if thread.id:
            self._threads[thread.id] = thread
        assert self._nursery is not None
        self._nursery.start_soon(thread.play)
        if position is None:
            return messages.reply_to(method, params, thread.id, thread.id)
        thread.queue(position, rpc_id)
        return None

    def _continue(self, thread: Thread, method: str, params: Message, rpc_id: Any) -> Message | None:
        call = compared(method, params)
        candidates = self.matcher.follow(thread.candidates, call)
        # All threads begin alike, so the first recorded thread is only a guess until there is input.
        position = self.matcher.choose(candidates, thread.own if thread.asked else None)
        if position is None:
            position = self._missed(thread.candidates, call)
            if position is None:
                return messages.error(self.matcher.explain(thread.candidates, call))
            candidates = (position.chain,)
        thread.candidates, thread.asked = candidates, True
        # From here on it can be interrupted, although nothing has been sent yet.
        thread.running = thread.running or method in PROMPTS
        thread.queue(position, rpc_id)
        return None

    def _missed(self, candidates: Candidates | None, call: ComparedCall) -> Position | None:
        """The position to replay although nothing matches; None if that is an error."""
        if self._on_miss == "error":
            return None
        found = self.matcher.nearest(candidates, call) or self.matcher.nearest(candidates, call, anywhere=True)
        if found is not None:
            log.warning("%s; replaying %s instead", self.matcher.explain(candidates, call), found.call)
        return found

    def _stop(self, thread: Thread, params: Message, rpc_id: Any) -> Message | None:
        wanted, active = params.get("turnId"), thread.turn
        if wanted and active and wanted != active:
            return messages.error(f"expected active turn id {wanted} but found {active}")
        if thread.is_stopping:
            return messages.error(messages.NO_TURN)
        thread.stop = rpc_id
        thread.notify()
        return None

    def _serve(self, thread: Thread, method: str, params: Message) -> Message:
        """Answer a call that does not affect the replay, as it was answered in the recorded thread."""
        recorded = thread.own.replies_to(method) if thread.own is not None else []
        if recorded:
            reply = recorded[min(thread.served[method], len(recorded) - 1)]
            thread.served[method] += 1
            return thread.note_ids(thread.id_map.message(reply))
        made_up = messages.reply_to(method, params, thread.id, self.ids.fresh())
        return thread.note_ids(made_up) if made_up is not None else self._known_answer(method, params)

    def _known_answer(self, method: str, params: Message) -> Message:
        """Answer a call outside threads as recorded, for the same parameters if there is such a recording."""
        recorded = self._child.answers.get(method, [])
        digest = compared(method, params).digest
        same = [answer for answer in recorded if compared(method, answer.params, redacted=True).digest == digest]
        if answers := same or recorded:
            number = self._served[method, digest]
            self._served[method, digest] += 1
            return answers[min(number, len(answers) - 1)].reply
        if method == "model/list":
            calls = (entry.params.get("model") for source in self._child.threads for entry in source.calls)
            return messages.model_list(model for model in calls if isinstance(model, str))
        made_up = messages.reply_to(method, params, "", "") if method == "account/read" else None
        return made_up or messages.error(f"the recording holds no answer to {method}")


def _methods(child: RecordedChild) -> frozenset[str] | list[str]:
    if child.refusal is not None:
        listed = parse_methods(child.refusal.partition("expected one of")[2])
        if listed:
            return listed | frozenset(child.methods)
    dialects = dict.fromkeys(source.dialect for source in child.threads)
    return messages.methods_of(dialects, child.methods)
