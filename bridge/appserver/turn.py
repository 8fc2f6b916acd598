"""A turn in a child, without I/O: the calls that start it, the events that it has brought, and how these find it."""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from bridge.appserver.dialect import PROMPTS, Dialect
from bridge.core.buffer import EventBuffer
from bridge.core.events import TurnEvent, Usage
from bridge.core.turn import Turn
from bridge.errors import BridgeError, SlowClient

if TYPE_CHECKING:
    from bridge.appserver.thread_cache import AnswerDigest, KeptThread

MAX_BUFFERED = 8 * 1024 * 1024
"""Characters that may wait for one slow client."""

MAX_EARLY = 512
"""Notifications kept for threads that no turn has claimed yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds."""

    rpc: float = 30
    first_event: float = 120
    idle: float = 300
    turn: float = 3600
    tail: float = 10
    """After the last message. Now and then Codex 0.107 does not report the end of a turn."""
    after_error: float = 2
    """After an error that Codex does not retry. Codex 0.121 to 0.132 do not end a turn whose input they reject."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What the operator decides about turns in the child, under the names of seed 003. A client can set none of it."""

    workdir: str = "/tmp/codex-work"  # noqa: S108 — the document's default; made private at start
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] = "never"
    sandbox_mode: Literal["read-only", "workspace-write", "danger-full-access"] = "read-only"
    include_apply_patch_tool: bool = False
    skip_turn: bool = False
    omit_tool_manifest: bool = False
    ignore_system_prompt: bool | None = None
    """None: the document's default, which drops chat's system messages in the legacy dialect alone."""
    legacy_calls: Literal["auto", "both", "turn", "message"] = "auto"
    native_tools: bool = False
    tool_mode: Literal["auto", "text", "native"] = "auto"
    web_search: Literal["off", "cached", "live"] = "off"
    enforce_max_tokens: bool = True
    """End an answer at the client's limit of tokens, because Codex has no limit."""
    kept_threads: int = 0
    """Conversations whose threads are kept for their next turns."""
    warm_threads: int = 0
    """Threads that are started ahead for new conversations."""

    def narrowed(self, wishes: Mapping[str, str]) -> ChildSettings:
        """These settings for a turn that wants less than they allow (`Turn.narrowed`).

        It gets a thread of its own: what a thread may do is settled at its beginning.
        """
        if not wishes:
            return self
        names = {"sandbox": "sandbox_mode", "approval_policy": "approval_policy", "cwd": "workdir"}
        wanted: dict[str, Any] = {names[name]: value for name, value in wishes.items()}
        return replace(self, kept_threads=0, **wanted)

    def drops_system_prompt(self, turn: Turn, dialect: Dialect) -> bool:
        """Whether a turn's system and developer messages are left out. Those of responses are kept (seed 003)."""
        return turn.system_messages_are_prompt and self.ignores_system_prompt(dialect)

    def ignores_system_prompt(self, dialect: Dialect) -> bool:
        """Whether messages that are the client's system prompt are left out."""
        return dialect == "legacy" if self.ignore_system_prompt is None else self.ignore_system_prompt


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC of a turn's flow."""

    method: str
    params: dict[str, Any]
    claim: Callable[[Any], str] | None = None
    """Reads the key of the turn's notifications out of the result. The turn is registered at that moment, before the
    next line is read, so that no notification is early."""
    waits: bool = True
    """False: the next call is sent at once, and the flow continues when both are answered. Its own result is unused."""
    warm: bytes | None = None
    """The digest of its parameters, where a thread that was started ahead with the same ones will do."""

    @property
    def prompts(self) -> bool:
        """With this call the model begins to work: from now on there is something to interrupt."""
        return self.method in PROMPTS


@dataclass(frozen=True, slots=True)
class Resume:
    """A step of a turn's flow: answer the open tool calls of the thread `key`."""

    key: str


Flow = Generator[Call | Resume, Any, None]
"""The calls that start a turn, in order: yields a Call, is sent its result. A generator, so that the calls read from
top to bottom, and tests and replays run them without a child."""


def _nothing() -> None:
    pass


class RunningTurn(EventBuffer, ABC):
    """The events of one turn while it runs; the dialects build on it."""

    # As few members as possible: with more than thirty, a Python object takes twice the memory.
    max_buffered = MAX_BUFFERED
    displaced: Sequence[KeptThread] | None = None
    """The threads to release because this turn's own is kept; None where it is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.key: str | None = None
        self.req_id: str | None = None
        self.dirty = False
        self.prompted = False
        self.wake: Callable[[], None] = _nothing
        self.on_overflow: Callable[[], None] = _nothing
        self._checked: list[TurnEvent] | None = None
        """What was waiting at the last check: `take` puts another list in its place."""

    def __repr__(self) -> str:
        state = "finished" if self.finished else "running"
        return f"<{type(self).__name__} {self.key} {state} events={len(self._events)}>"

    @abstractmethod
    def begin(self) -> Flow:
        """The calls that start the turn."""

    @abstractmethod
    def interrupt(self) -> Call | None:
        """The call that stops it, once it can be stopped."""

    @abstractmethod
    def end(self) -> list[Call]:
        """The calls that make the child release its thread."""

    @abstractmethod
    def receive(self, method: str, params: dict[str, Any]) -> None:
        """Read one notification. Raises KeyError, TypeError, AttributeError or ValueError for an unknown shape."""

    @property
    def ends_with_usage(self) -> bool:
        """Whether nothing can come after the message and its usage but the end of the turn."""
        return False

    # What only some turns of the current dialect have.

    @property
    def parks_tool_calls(self) -> bool:
        """Whether requests for the results of its calls stay without an answer until it is interrupted."""
        return False

    @property
    def begins_with(self) -> bytes | None:
        """The digest of the parameters of its thread's start, where it has a new thread."""
        return None

    @property
    def resumes(self) -> str | None:
        """The thread whose waiting turn this one continues."""
        return None

    def kept(self, answer: AnswerDigest, until: float) -> KeptThread | None:
        """Its thread for the next turn of the conversation, after this `answer`; None where that cannot be."""
        return None

    def give_up_thread(self) -> None:
        """The thread holds something that the client does not know of: it must not be kept."""

    def output_of(self, call_id: str) -> dict[str, Any] | None:
        """The result of `item/tool/call`, where the client has sent the output of that call."""
        return None

    def let_go(self) -> None:
        """No one listens any more.

        The stream that it would wake holds it: together they would stay in memory, with the whole prompt and answer,
        until the garbage collector runs, which may be hundreds of requests later.
        """
        self.wake = self.on_overflow = _nothing

    def check_bound(self) -> None:
        """Called once per read: fail this turn alone when its client is too slow.

        A client is too slow if it has left what the read before brought. However much a single read brings, there was
        no time yet to take it.
        """
        untaken, self._checked = self._events is self._checked, self._events
        if untaken and self._size > self.max_buffered and not self.finished:
            self._events.clear()
            self.on_overflow()
            self.fail(
                SlowClient(f"The client read too slowly: more than {self.max_buffered:,} characters were waiting.")
            )


def usage_from(*counts: Any, cache_write: Any = 0) -> Usage:
    """Usage from the child's numbers: input, cached, output, reasoning. Raises TypeError for anything else."""
    if not all(type(count) is int for count in (*counts, cache_write)):
        raise TypeError(counts)
    tokens, cached, output, reasoning = counts
    return Usage(tokens, cached, output, reasoning, cache_write=cache_write)


class Routes:
    """Finds the turn that a notification belongs to. Early ones are kept, bounded, until their turn is registered.

    One read may hold hundreds of deltas for many turns. Each is appended to the list of its turn, and each touched turn
    is woken once. Nothing here waits for a client: a turn whose list grows beyond its bound fails alone.
    """

    def __init__(self) -> None:
        self.touched: list[RunningTurn] = []
        self.unclaimed = 0
        """Notifications of threads that no turn owns (any more)."""
        self._turns: dict[str, RunningTurn] = {}
        self._early: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        self._early_count = 0
        self._over: collections.deque[str] = collections.deque(maxlen=256)
        """Keys of turns that have just ended: their notifications are late, not early."""

    def __repr__(self) -> str:
        return f"<Routes turns={len(self._turns)} early={self._early_count}>"

    def __len__(self) -> int:
        return len(self._turns)

    def register(self, key: str, turn: RunningTurn) -> None:
        """Route `key` to this turn alone, and deliver the notifications that came early."""
        if turn.key != key:
            self.unregister(turn)
        turn.key = key
        self._turns[key] = turn
        for method, params in self._early.pop(key, ()):
            self._early_count -= 1
            self._deliver(turn, method, params)

    def unregister(self, turn: RunningTurn) -> None:
        if turn.key is not None and self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
            self._over.append(turn.key)

    def get(self, key: str) -> RunningTurn | None:
        return self._turns.get(key)

    def notify(self, key: str | None, method: str, params: dict[str, Any]) -> None:
        if key is None:
            return
        turn = self._turns.get(key)
        if turn is not None:
            self._deliver(turn, method, params)
        elif self._early_count < MAX_EARLY and key not in self._over:
            self._early.setdefault(key, []).append((method, params))
            self._early_count += 1
        else:
            self.unclaimed += 1

    def forget_early(self) -> None:
        """Drop early notifications: no turn is about to claim them."""
        self.unclaimed += self._early_count
        self._early.clear()
        self._early_count = 0

    def touch_named(self, head: bytes, error: BridgeError | None = None) -> None:
        """Note a sign of life of the turns whose key is in these first bytes of a line; an `error` fails them."""
        for key, turn in self._turns.items():
            if key.encode() in head:
                if error is not None:
                    turn.fail(error)
                self._touch(turn)

    def wake_touched(self) -> None:
        touched, self.touched = self.touched, []
        for turn in touched:
            turn.dirty = False
            turn.check_bound()
            turn.wake()

    def fail_all(self, error: BridgeError) -> None:
        for turn in list(self._turns.values()):
            turn.ended = True
            turn.fail(error)
            turn.wake()

    def _touch(self, turn: RunningTurn) -> None:
        if not turn.dirty:
            turn.dirty = True
            self.touched.append(turn)

    def _deliver(self, turn: RunningTurn, method: str, params: dict[str, Any]) -> None:
        try:
            turn.receive(method, params)
        except (KeyError, TypeError, AttributeError, ValueError):
            # A notification of an unexpected shape is the child's mistake. It must not stop the reader, on which all
            # other turns depend.
            self.unclaimed += 1
        self._touch(turn)
