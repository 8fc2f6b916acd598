"""The stand-in: an app-server over stdio that needs no Codex and no account, and speaks both dialects.

It is the mock backend and the tests' fake child in one. Requests go through jsonrpcserver's synchronous dispatch; each
turn is a task that performs its steps.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
import trio
from jsonrpcserver import Error, Result, Success, dispatch_to_serializable

from bridge import __version__, exact_json
from bridge.appserver.connection import LineSplitter
from bridge.appserver.standin.messages import REFUSED, CurrentNotifications, LegacyNotifications, Notifications, refusal
from bridge.appserver.standin.recorded import Message
from bridge.appserver.standin.script import MODES, Prompt, Script, mode_of, read_items, steps_for_mode


class Pipes:
    """Stdin and stdout: whole lines in, whole lines out. `split` cuts every write into pieces of that many bytes."""

    def __init__(self, *, split: int = 0) -> None:
        self._split = split
        self._opt_out: frozenset[str] = frozenset()
        self._lock = trio.Lock()
        self._out = trio.lowlevel.FdStream(os.dup(sys.stdout.fileno()))

    def read_capabilities(self, capabilities: Any) -> None:
        """From now on, leave out the notifications that the client does not want."""
        names = capabilities.get("optOutNotificationMethods") if isinstance(capabilities, dict) else None
        known = names if isinstance(names, list) else []
        self._opt_out = frozenset(name for name in known if isinstance(name, str))

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of stdin, until its end."""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
            splitter = LineSplitter()
            async for data in stdin:
                for line in splitter.feed(bytes(data)):
                    yield line

    async def send(self, messages: list[Message]) -> None:
        """Send replies, requests and the notifications that the client wants."""
        wanted = (message for message in messages if "id" in message or message["method"] not in self._opt_out)
        await self.write(b"".join(map(_encode, wanted)))

    async def write(self, data: bytes) -> None:
        """Write whole lines, even when cancelled. A client that has closed the pipe is not an error."""
        size = self._split or len(data) or 1
        with trio.CancelScope(shield=True):
            async with self._lock:
                try:
                    for start in range(0, len(data), size):
                        await self._out.send_all(data[start : start + size])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    async def close_stdout(self) -> None:
        """Close stdout and keep running."""
        await self._out.aclose()
        os.close(1)


def _encode(message: Message) -> bytes:
    try:
        return exact_json.dumps(message) + b"\n"
    except TypeError:
        # Nested deeper than orjson writes, though not deeper than it reads.
        return json.dumps(message).encode() + b"\n"


StandinDialect = Literal["both", "current", "legacy"]
FLOOD_DELTA = "flood "
_OUTPUT = re.compile(r"^\[function_call_output call_id=\S+ output=(.*?)\]$(?=\n\[|\Z)", re.M | re.S)
"""A tool's output in the transcript of the legacy dialect."""


@dataclass(slots=True)
class Thread:
    """A thread or conversation and its items."""

    id: str
    notifications: type[CurrentNotifications] | type[LegacyNotifications]
    model: str | None
    developer: str
    items: list[dict[str, Any]] = field(default_factory=list)
    sent: Any = None
    """The input of the running turn: a `sendUserMessage` that repeats it is the same prompt, not another one."""
    scope: trio.CancelScope | None = None
    used: Counter[str] = field(default_factory=Counter)
    """All its tokens so far."""


class Methods(dict[str, Callable[..., Result]]):
    """Unknown methods are rejected as Codex does: with the list of the known ones."""

    def __missing__(self, name: str) -> Callable[..., Result]:
        return lambda *_, **__: Error(code=REFUSED, message=refusal(name, self))


class Standin:
    """One connection. `run` serves stdin and stdout until stdin ends."""

    def __init__(self, *, mode: str = "echo", dialect: StandinDialect = "both", script: Script | None = None) -> None:
        self._mode = mode
        self._script = script = script or Script(())
        self._threads: dict[str, Thread] = {}
        self._ids = itertools.count(1)
        self._turns = itertools.count()
        self._pipes = Pipes(split=script.split)
        self._nursery: trio.Nursery | None = None
        self._later: list[Callable[[], None]] = []
        self._methods = Methods(
            {"initialize": self._initialize, "model/list": self._model_list, "account/read": self._account}
        )
        if dialect != "legacy":
            self._methods |= {
                "thread/start": self._thread_start,
                "thread/inject_items": self._inject,
                "turn/start": self._turn_start,
                "turn/interrupt": lambda threadId, **_: self._interrupt(threadId, {}),
                "thread/unsubscribe": self._unsubscribe,
            }
        if dialect != "current":
            stopped = {"abortReason": "interrupted"}
            self._methods |= {
                "newConversation": self._new_conversation,
                "addConversationListener": lambda conversationId, **_: Success(
                    {"subscriptionId": f"sub-{conversationId}"}
                ),
                "sendUserTurn": self._send_user,
                "sendUserMessage": self._send_user,
                "interruptConversation": lambda conversationId, **_: self._interrupt(conversationId, stopped),
                "removeConversationListener": lambda **_: Success({}),
            }

    async def run(self) -> None:
        """Serve until the end of stdin, or forever if the script ignores it."""
        script = self._script
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if script.ignore_sigterm:
                await nursery.start(_ignore_sigterm)
            for step in script.startup:
                await self._fault(step)
            async for line in self._pipes.lines():
                await self._receive(line)
            if script.ignore_eof:
                await trio.sleep_forever()
            nursery.cancel_scope.cancel()

    async def _receive(self, line: bytes) -> None:
        try:
            message = orjson.loads(line)
            method = message["method"]
        except (ValueError, KeyError, TypeError):
            return
        name = method if isinstance(method, str) else ""  # the dispatcher rejects other types
        if "id" not in message or name in self._script.mute:
            return
        if name in self._script.refuse:
            reply: Any = {"id": message["id"], "error": self._script.refuse[name]}
        else:
            reply = dispatch_to_serializable(
                line, methods=self._methods, deserializer=orjson.loads, validator=lambda _: None
            )
        await self._pipes.send([reply])
        # A turn starts after the reply to its call was sent.
        later, self._later = self._later, []
        for start in later:
            start()

    # Methods

    def _initialize(self, capabilities: Any = None, **_: Any) -> Result:
        self._pipes.read_capabilities(capabilities)
        agent = f"turnbridge-standin/{__version__} (stand-in)"
        return Success({"userAgent": self._script.user_agent or agent})

    def _model_list(self, **_: Any) -> Result:
        models = [{"id": f"mock-{mode}", "model": f"mock-{mode}", "isDefault": mode == self._mode} for mode in MODES]
        return Success({"data": models})

    def _account(self, **_: Any) -> Result:
        return Success({"account": None, "requiresOpenaiAuth": False})

    def _thread_start(self, model: Any = None, developerInstructions: Any = None, **_: Any) -> Result:
        thread = self._new_thread(CurrentNotifications, model, developerInstructions)
        return Success({"thread": {"id": thread.id}, "model": model})

    def _new_conversation(self, model: Any = None, developerInstructions: Any = None, **_: Any) -> Result:
        thread = self._new_thread(LegacyNotifications, model, developerInstructions)
        return Success({"conversationId": thread.id, "model": model})

    def _new_thread(self, notifications: Any, model: Any, developer: Any) -> Thread:
        thread = Thread(f"00000000-0000-4000-8000-{next(self._ids):012x}", notifications, model, developer or "")
        self._threads[thread.id] = thread
        return thread

    def _inject(self, threadId: str, items: Any, **_: Any) -> Result:
        thread = self._threads.get(threadId)
        if thread is None:
            return _no_thread(threadId)
        thread.items.extend(items)
        return Success({})

    def _turn_start(self, threadId: str, input: Any = (), **_: Any) -> Result:
        thread = self._threads.get(threadId)
        if thread is None:
            return _no_thread(threadId)
        text = "\n".join(part.get("text", "") for part in input)
        return Success({"turn": {"id": self._begin(thread, text), "items": [], "status": "inProgress"}})

    def _send_user(self, conversationId: str, items: Any = (), **_: Any) -> Result:
        thread = self._threads.get(conversationId)
        if thread is None:
            return _no_thread(conversationId)
        if thread.scope is None or thread.sent != items:
            thread.sent = items
            texts = [item["data"]["text"] for item in items if item["type"] == "text"]
            self._begin(thread, "\n".join(texts))
        return Success({})

    def _interrupt(self, key: str, result: dict[str, Any]) -> Result:
        thread = self._threads.get(key)
        if thread is None or thread.scope is None:
            return Error(code=REFUSED, message="no active turn to interrupt")
        thread.scope.cancel()
        return Success(result)

    def _unsubscribe(self, threadId: str, **_: Any) -> Result:
        self._threads.pop(threadId, None)
        return Success({"status": "unsubscribed"})

    # Turns

    def _begin(self, thread: Thread, text: str) -> str:
        turn = f"turn-{next(self._ids)}"
        number = next(self._turns)
        if self._script.turns:
            steps = list(self._script.steps(number))
        else:
            steps = steps_for_mode(mode_of(thread.model, self._mode), read_prompt(thread, text))
        thread.scope = trio.CancelScope()
        notifications = thread.notifications(thread.id, turn, thread.used)
        assert self._nursery is not None
        nursery = self._nursery
        self._later.append(lambda: nursery.start_soon(self._perform, thread, notifications, steps))
        return turn

    async def _perform(self, thread: Thread, notifications: Notifications, steps: list[dict[str, Any]]) -> None:
        scope = thread.scope
        assert scope is not None
        ended = False
        with scope:
            await self._say(notifications.started())
            ended = await self._steps(notifications, steps)
            if not ended:
                await self._say(notifications.completed())
        if scope.cancelled_caught:
            await self._say(notifications.interrupted())
        thread.scope = None

    async def _steps(self, notifications: Notifications, steps: list[dict[str, Any]]) -> bool:
        """Perform the steps; True when one of them has ended the turn."""
        item = f"msg-{next(self._ids)}"
        said: list[str] = []
        for step in steps:
            if "deltas" in step or "text" in step:
                for delta in _deltas(step):
                    said.append(delta)
                    await self._say(notifications.delta(item, delta))
            elif "flood" in step:
                for _ in range(step["flood"]):
                    said.append(FLOOD_DELTA)
                    await self._say(notifications.delta(item, FLOOD_DELTA))
            elif "no_delta" in step:
                said.append(step["no_delta"])
            elif "reasoning" in step or "raw_reasoning" in step:
                await self._reason(notifications, step)
            elif "usage" in step:
                if said:
                    await self._say(notifications.message_done(item, "".join(said)))
                    said, item = [], f"msg-{next(self._ids)}"
                await self._say(notifications.usage(step["usage"]))
            elif "retry" in step:
                said, item = [], f"msg-{next(self._ids)}"
                await self._say(notifications.retry(step["retry"]))
            elif "error" in step:
                error, *end = notifications.failed(step["error"]["message"], step["error"].get("info"))
                if step["error"].get("ends", True):
                    await self._say([error, *end])
                    return True
                await self._say([error])
            elif "interrupted" in step:
                await self._say(notifications.interrupted())
                return True
            elif "request" in step:
                await self._pipes.send([{"id": f"ask-{next(self._ids)}", **step["request"]}])
            else:
                await self._fault(step)
        if said:
            await self._say(notifications.message_done(item, "".join(said)))
        return False

    async def _reason(self, notifications: Notifications, step: dict[str, Any]) -> None:
        item = f"rs-{next(self._ids)}"
        parts: dict[bool, list[str]] = defaultdict(list)
        for raw, name in ((False, "reasoning"), (True, "raw_reasoning")):
            for index, part in enumerate(step.get(name, ())):
                parts[raw].append(part)
                await self._say(notifications.reasoning(item, index, part, raw=raw))
        await self._say(notifications.reasoning_done(item, parts[False], parts[True]))

    async def _fault(self, step: dict[str, Any]) -> None:
        if "sleep" in step:
            await trio.sleep(step["sleep"])
        elif "garbage" in step:
            await self._pipes.write(step["garbage"].encode("utf-8", "surrogateescape") + b"\n")
        elif "unended" in step:
            await self._pipes.write(step["unended"].encode("utf-8", "surrogateescape") * step.get("times", 1))
        elif "exit" in step:
            os._exit(step["exit"])
        elif "signal" in step:
            os.kill(os.getpid(), step["signal"])
            await trio.sleep_forever()
        elif "hang" in step:
            await trio.sleep_forever()
        elif "stderr" in step:
            os.write(2, b"x" * 1023 + b"\n" if step["stderr"] is True else step["stderr"].encode() + b"\n")
        elif "close_stdout" in step:
            await self._pipes.close_stdout()

    async def _say(self, messages: list[Message]) -> None:
        # An interrupt ends a turn between two lines, never within one.
        await self._pipes.send(messages)


def read_prompt(thread: Thread, text: str) -> Prompt:
    """What a model would see of the thread: injected items, or the labelled transcript of the legacy dialect."""
    if thread.items:
        said, outputs = read_items(thread.items)
        return Prompt(thread.developer, said or text, outputs)
    last = text.rpartition("[user] ")[2]
    user = last.partition("\n[")[0] if "[user] " in text else text
    return Prompt(thread.developer, user, tuple(_OUTPUT.findall(last)))


def _deltas(step: dict[str, Any]) -> list[str]:
    if "deltas" in step:
        return list(step["deltas"])
    text, chunk = step["text"], step.get("chunk") or len(step["text"]) or 1
    return [text[start : start + chunk] for start in range(0, len(text), chunk)]


def _no_thread(key: str) -> Result:
    return Error(code=REFUSED, message=f"thread not found: {key}")


async def _ignore_sigterm(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            pass
