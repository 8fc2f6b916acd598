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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import orjson
import trio
from jsonrpcserver import Error, Result, Success, dispatch_to_serializable

from bridge import __version__, exact_json
from bridge.appserver.connection import LineSplitter
from bridge.appserver.dialect import BEGINS, PARTS, PROMPTS, STOPS, Dialect
from bridge.appserver.standin import MODES, Prompt, Script, mode_of, read_items, steps_for_mode
from bridge.appserver.standin.messages import (
    NO_TURN,
    REFUSED,
    CurrentNotifications,
    LegacyNotifications,
    Message,
    Notifications,
    methods_of,
    model_list,
    refusal,
    reply_to,
)
from bridge.appserver.standin.recorded import key_in


class Pipes:
    """The stand-in's process: whole lines from stdin, whole lines to stdout, and its end.

    `split` cuts every write into pieces of that many bytes.
    """

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
        await self._out.aclose()
        os.close(1)

    async def write_stderr(self, data: bytes) -> None:
        os.write(2, data)

    async def exit(self, code: int) -> None:
        """End at once, without cleaning up."""
        os._exit(code)

    async def kill(self, number: int) -> None:
        """End by a signal."""
        os.kill(os.getpid(), number)
        await trio.sleep_forever()


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
    dialect: Dialect
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
        return lambda *_, **__: _refused(refusal(name, self))


class Standin:
    """One connection. `run` serves `pipes` until stdin ends. `steps` chooses the steps of a turn without a script."""

    def __init__(
        self,
        *,
        mode: str = "echo",
        dialect: StandinDialect = "both",
        script: Script | None = None,
        pipes: Pipes | None = None,
        steps: Callable[[str, Prompt], list[dict[str, Any]]] = steps_for_mode,
    ) -> None:
        self._mode = mode
        self._script = script = script or Script(())
        self._threads: dict[str, Thread] = {}
        self._ids = itertools.count(1)
        self._turns = itertools.count()
        self._pipes = pipes or Pipes(split=script.split)
        self._choose_steps = steps
        self._nursery: trio.Nursery | None = None
        self._later: list[Callable[[], None]] = []
        methods = methods_of(
            ("current", "legacy") if dialect == "both" else (dialect,), () if dialect == "legacy" else PARTS
        )
        self._methods = Methods({name: partial(self._call, name) for name in methods})

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

    def _call(self, method: str, /, **params: Any) -> Result:
        if method == "initialize":
            self._pipes.read_capabilities(params.get("capabilities"))
            agent = f"turnbridge-standin/{__version__} (stand-in)"
            return Success({"userAgent": self._script.user_agent or agent})
        if method == "model/list":
            return Success(model_list([f"mock-{mode}" for mode in MODES], f"mock-{self._mode}")["result"])
        key = key_in(params) or ""
        if method in BEGINS:
            key = f"00000000-0000-4000-8000-{next(self._ids):012x}"
            developer = params.get("developerInstructions") or ""
            self._threads[key] = Thread(key, BEGINS[method], params.get("model"), developer)
        thread = self._threads.get(key)
        fresh = f"sub-{key}"
        if method in STOPS:
            if thread is None or thread.scope is None:
                return _refused(NO_TURN)
            thread.scope.cancel()
        elif method in PARTS | PROMPTS:
            if thread is None:
                return _refused(f"thread not found: {key}")
            if method in PARTS:
                thread.items.extend(params["items"])
            else:
                fresh = self._begin(thread, params.get("input") or params.get("items") or [])
        elif method == "thread/unsubscribe":
            self._threads.pop(key, None)
        reply = reply_to(method, params, key, fresh)
        assert reply is not None
        return Success(reply["result"])

    # Turns

    def _begin(self, thread: Thread, sent: list[dict[str, Any]]) -> str:
        """Start a turn once the reply to its call was sent; its id."""
        turn = f"turn-{next(self._ids)}"
        if thread.scope is not None and thread.dialect == "legacy" and thread.sent == sent:
            return turn
        thread.sent = sent
        number = next(self._turns)
        if self._script.turns:
            steps = list(self._script.steps(number))
        else:
            texts = [part.get("text", part.get("data", {}).get("text")) for part in sent]
            prompt = read_prompt(thread, "\n".join(text for text in texts if text))
            steps = self._choose_steps(mode_of(thread.model, self._mode), prompt)
        thread.scope = trio.CancelScope()
        made = CurrentNotifications if thread.dialect == "current" else LegacyNotifications
        notifications = made(thread.id, turn, thread.used)
        assert self._nursery is not None
        self._later.append(partial(self._nursery.start_soon, self._perform, thread, notifications, steps))
        return turn

    async def _perform(self, thread: Thread, notifications: Notifications, steps: list[dict[str, Any]]) -> None:
        scope = thread.scope
        assert scope is not None
        with scope:
            await self._pipes.send(notifications.started())
            if not await self._steps(notifications, steps):
                await self._pipes.send(notifications.completed())
        if scope.cancelled_caught:
            await self._pipes.send(notifications.interrupted())
        thread.scope = None

    async def _steps(self, notifications: Notifications, steps: list[dict[str, Any]]) -> bool:
        """Perform the steps; True when one of them has ended the turn."""
        send = self._pipes.send
        item = f"msg-{next(self._ids)}"
        texts: list[str] = []
        for step in steps:
            if not {"deltas", "text", "flood"}.isdisjoint(step):
                for delta in _deltas(step):
                    texts.append(delta)
                    await send(notifications.delta(item, delta))
            elif "no_delta" in step:
                texts.append(step["no_delta"])
            elif "reasoning" in step or "raw_reasoning" in step:
                await self._reason(notifications, step)
            elif "usage" in step:
                if texts:
                    await send(notifications.message_done(item, "".join(texts)))
                    texts, item = [], f"msg-{next(self._ids)}"
                await send(notifications.usage(step["usage"]))
            elif "retry" in step:
                texts, item = [], f"msg-{next(self._ids)}"
                await send(notifications.retry(step["retry"]))
            elif "error" in step:
                error, *end = notifications.failed(step["error"]["message"], step["error"].get("info"))
                if step["error"].get("ends", True):
                    await send([error, *end])
                    return True
                await send([error])
            elif "interrupted" in step:
                await send(notifications.interrupted())
                return True
            elif "request" in step:
                await send([{"id": f"ask-{next(self._ids)}", **step["request"]}])
            else:
                await self._fault(step)
        if texts:
            await send(notifications.message_done(item, "".join(texts)))
        return False

    async def _reason(self, notifications: Notifications, step: dict[str, Any]) -> None:
        item = f"rs-{next(self._ids)}"
        summary, content = step.get("reasoning", []), step.get("raw_reasoning", [])
        for raw, parts in ((False, summary), (True, content)):
            for index, part in enumerate(parts):
                await self._pipes.send(notifications.reasoning(item, index, part, raw=raw))
        await self._pipes.send(notifications.reasoning_done(item, summary, content))

    async def _fault(self, step: dict[str, Any]) -> None:
        if "sleep" in step:
            await trio.sleep(step["sleep"])
        elif "garbage" in step or "unended" in step:
            text = step["garbage"] + "\n" if "garbage" in step else step["unended"] * step.get("times", 1)
            await self._pipes.write(text.encode("utf-8", "surrogateescape"))
        elif "exit" in step:
            await self._pipes.exit(step["exit"])
        elif "signal" in step:
            await self._pipes.kill(step["signal"])
        elif "hang" in step:
            await trio.sleep_forever()
        elif "stderr" in step:
            await self._pipes.write_stderr(
                b"x" * 1023 + b"\n" if step["stderr"] is True else step["stderr"].encode() + b"\n"
            )
        elif "close_stdout" in step:
            await self._pipes.close_stdout()


def read_prompt(thread: Thread, text: str) -> Prompt:
    """What a model would see of the thread: injected items, or the labelled transcript of the legacy dialect."""
    if thread.items:
        user, outputs = read_items(thread.items)
        return Prompt(thread.developer, user or text, outputs)
    last = text.rpartition("[user] ")[2]
    user = last.partition("\n[")[0] if "[user] " in text else text
    return Prompt(thread.developer, user, tuple(_OUTPUT.findall(last)))


def _deltas(step: dict[str, Any]) -> Iterable[str]:
    if "flood" in step:
        return itertools.repeat(FLOOD_DELTA, step["flood"])
    if "deltas" in step:
        return list(step["deltas"])
    text, chunk = step["text"], step.get("chunk") or len(step["text"]) or 1
    return [text[start : start + chunk] for start in range(0, len(text), chunk)]


def _refused(message: str) -> Result:
    return Error(code=REFUSED, message=message)


async def _ignore_sigterm(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            pass
