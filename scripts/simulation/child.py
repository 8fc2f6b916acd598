"""A child in memory: the stand-in's own code between two pipes, and what the bridge has read of each of its turns.

The oracle trusts nothing that the bridge says of itself: it knows what the child has sent, and when the bridge read it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import trio
from choices import Choices
from memory_pipes import MemoryPipe, PipeEnd

from bridge.appserver.connection import LineSplitter
from bridge.appserver.dialect import Dialect
from bridge.appserver.standin import Prompt
from bridge.appserver.standin.server import Pipes, Standin, Thread

FIRST_PID = 1 << 30
"""Above the largest process id of any system: a signal that goes astray meets no process."""
MARK = re.compile(r"q\d+;")
_DELTAS = {"current": "item/agentMessage/delta", "legacy": "codex/event/agent_message_content_delta"}
_ENDS = {
    "codex/event/task_complete": "completed",
    "codex/event/turn_aborted": "interrupted",
}


@dataclass(eq=False)
class Attempt:
    """A turn in a child."""

    mark: str
    child: Process
    began: float
    text: str = ""
    """The deltas that the bridge has read."""
    deltas: list[float] = field(default_factory=list)
    """When it has read each of them."""
    last_read: float = 0.0
    end: str = ""
    """How it ended, as the bridge has read it."""
    ended: float | None = None
    """When the bridge read that."""
    over: float | None = None
    """When the child had nothing more to do for it."""
    error_read: float | None = None
    interrupts_itself: bool = False

    @property
    def was_stopped(self) -> bool:
        """Whether it ended because the bridge had interrupted it."""
        return self.end == "interrupted" and not self.interrupts_itself

    @property
    def lost(self) -> float | None:
        """When its child went away with it."""
        died = self.child.died
        return died if died is not None and (self.ended is None or self.ended >= died) else None


@dataclass(frozen=True)
class Habits:
    """What is wrong with one child."""

    fails_to_start: bool = False
    dies_at: float | None = None
    """Seconds after its start."""
    silent_at: float | None = None
    """From then on it neither reads nor writes."""
    is_deaf: bool = False
    """It ignores SIGTERM and the end of its stdin."""
    keeps_stdout: bool = False
    """A process that it has started keeps its stdout open."""
    room: int = 65536
    """The capacity of its stdin."""


class Process:
    """What the bridge takes for a process: `bridge.appserver.process.Process`, without a system."""

    def __init__(
        self, number: int, habits: Habits, dialect: Dialect, choices: Choices, note: Callable[[str], None]
    ) -> None:
        self.number = number
        self.dialect: Dialect = dialect
        self.pid = FIRST_PID + number
        self.returncode: int | None = None
        self.began = trio.current_time()
        self.died: float | None = None
        self.silent_since: float | None = None
        self.habits = habits
        self.attempts: dict[str, Attempt] = {}
        """By the id of the turn."""
        self.note = note
        self.incoming = MemoryPipe(f"child{number}.in", choices, habits.room)
        self.stdin = PipeEnd(self.incoming)
        self.stdout = MemoryPipe(f"child{number}.out", choices)
        self.stderr = MemoryPipe(f"child{number}.err", choices)
        self._standin: Child | None = None
        self._dead = trio.Event()
        self._scope = trio.CancelScope()

    # For the bridge

    def write_at_once(self, data: bytes) -> int:
        return self.incoming.write_now(data)

    async def wait(self) -> int:
        await self._dead.wait()
        assert self.returncode is not None
        return self.returncode

    def signal(self, number: int) -> None:
        if number == signal.SIGKILL or not self.habits.is_deaf:
            self.die(-number)

    # For the simulation

    @property
    def is_alive(self) -> bool:
        return self.returncode is None

    @property
    def threads(self) -> int:
        """How many threads it keeps; those of the legacy dialect are not counted."""
        return 0 if self._standin is None or self.dialect == "legacy" else len(self._standin._threads)

    def die(self, code: int) -> None:
        """End, with everything that is half done."""
        if self.returncode is None:
            self.returncode, self.died = code, trio.current_time()
            self.note(f"child {self.number} ends with {code}")
            self._scope.cancel()
            self.incoming.break_off()
            self.stderr.end()
            if not self.habits.keeps_stdout:
                self.stdout.end()
            self._dead.set()

    async def live(self, steps_of: Callable[[str], list[dict[str, Any]]]) -> None:
        """Run until it ends by itself or is killed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._suffer)
                self._standin = Child(self, steps_of)
                await self._standin.run()
                if self.habits.is_deaf:
                    await trio.sleep_forever()
                nursery.cancel_scope.cancel()
        self.die(0)

    async def _suffer(self) -> None:
        habits = self.habits
        if habits.silent_at is not None:
            await trio.sleep(habits.silent_at)
            self.silent_since = trio.current_time()
            self.note(f"child {self.number} falls silent")
        if habits.dies_at is not None:
            await trio.sleep_until(self.began + habits.dies_at)
            self.die(-9)


class Child(Standin):
    """The stand-in, whose turns are known by the mark in their prompt."""

    def __init__(self, process: Process, steps_of: Callable[[str], list[dict[str, Any]]]) -> None:
        super().__init__(dialect=process.dialect, pipes=ChildPipes(process), steps=self._steps_of)
        self._process = process
        self._find = steps_of
        self._mark = ""
        process.note(f"child {process.number} starts")

    def _steps_of(self, mode: str, prompt: Prompt) -> list[dict[str, Any]]:
        found = MARK.findall(prompt.user)
        self._mark = found[-1] if found else "?"
        return self._find(self._mark)

    def _begin(self, thread: Thread, sent: list[dict[str, Any]]) -> str:
        self._mark = ""
        turn = super()._begin(thread, sent)
        if self._mark:
            now = trio.current_time()
            self._process.attempts[turn] = Attempt(self._mark, self._process, now, last_read=now)
            self._process.note(f"child {self._process.number} is asked {self._mark}")
        return turn

    async def _perform(self, thread: Thread, notifications: Any, steps: list[dict[str, Any]]) -> None:
        attempt = self._process.attempts[notifications._turn]
        try:
            attempt.interrupts_itself = {"interrupted": True} in steps
            await super()._perform(thread, notifications, steps)
        finally:
            attempt.over = trio.current_time()


class ChildPipes(Pipes):
    """The stand-in's side of the pipes."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._opt_out = frozenset()
        self._lock = trio.Lock()

    async def lines(self) -> AsyncIterator[bytes]:
        splitter = LineSplitter()
        while data := await self._process.incoming.receive_some():
            await self._silence()
            for line in splitter.feed(data):
                yield line

    async def write(self, data: bytes) -> None:
        await self._silence()
        with trio.CancelScope(shield=True):
            async with self._lock:
                for line in data.splitlines(keepends=True):
                    await self._process.stdout.write(line, partial(self._was_read, line))

    async def _silence(self) -> None:
        if self._process.silent_since is not None:
            await trio.sleep_forever()

    async def write_stderr(self, data: bytes) -> None:
        await self._process.stderr.write(data)

    async def close_stdout(self) -> None:
        self._process.stdout.end()

    async def exit(self, code: int) -> None:
        self._process.die(code)
        await trio.sleep_forever()

    async def kill(self, number: int) -> None:
        await self.exit(-number)

    def _was_read(self, line: bytes) -> None:
        """The bridge has read this line to its end."""
        try:
            message = orjson.loads(line)
            method, params = message["method"], message["params"]
            turn = params.get("turnId") or params.get("id") or params["turn"]["id"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        attempt = self._process.attempts.get(turn)
        if attempt is None:
            return
        now = trio.current_time()
        if method == _DELTAS[self._process.dialect]:
            attempt.text += params["delta"] if "delta" in params else params["msg"]["delta"]
            attempt.deltas.append(now)
        elif method == "error" or method == "codex/event/error":
            attempt.error_read = now
        elif method == "turn/completed" or method in _ENDS:
            status = params["turn"]["status"] if method == "turn/completed" else _ENDS[method]
            attempt.end = "failed" if attempt.error_read is not None else status
            attempt.ended = now
            self._process.note(f"the bridge reads the end of {attempt.mark} ({attempt.end})")
            return
        attempt.last_read = now


def attempts_of(children: Iterable[Process], mark: str) -> list[Attempt]:
    """All turns of a request."""
    return [attempt for child in children for attempt in child.attempts.values() if attempt.mark == mark]
