"""From the child's notifications to each turn's own list of events.

One read of the child's output may hold hundreds of deltas for many turns. They are appended to each turn's list, and
each touched turn is named once, so that it is woken once. Nothing here waits for a consumer: a turn whose list grows
beyond its bound fails alone, as `slow_client`.
"""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.appserver.affinity import AnswerDigest, KeptThread
from bridge.errors import BridgeError, SlowClient
from bridge.turn.buffer import EventBuffer
from bridge.turn.events import TurnEvent, Usage

MAX_BUFFERED = 8 * 1024 * 1024
"""Characters that may wait for one slow client."""

MAX_EARLY = 512
"""Notifications kept for threads that nobody has claimed yet."""


@dataclass(frozen=True, slots=True)
class Call:
    """One RPC of a turn's flow."""

    method: str
    params: dict[str, Any]
    claim: Callable[[Any], str] | None = None
    """Reads the key of the turn's notifications out of the result; the turn is registered in that very moment."""
    prompts: bool = False
    """With this call the model begins to work: from now on there is something to interrupt."""
    waits: bool = True
    """False: the next call is sent at once, and the flow continues when both are answered. Its own result is unused."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A step of a turn's flow: answer what the waiting turn of the thread `key` has asked for."""

    key: str


Flow = Generator[Call | Resume, Any, None]
"""The calls that start a turn, in order: yields a Call, is sent its result."""


class Waitable(Protocol):
    """Something that happens once; a `trio.Event`, for one."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    async def wait(self) -> object:
        """Until it happens."""


def _nothing() -> None:
    pass


class RunningTurn(EventBuffer, ABC):
    """The events of one turn while it runs; the dialects' decoders build on it."""

    # As few members as can be: with more than thirty, an object of Python's takes twice the memory.
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
        self.over: Waitable | None = None
        """Set when its consumer has let go of it."""
        self._checked: list[TurnEvent] | None = None
        """What was waiting at the last look: `take` puts another list in its place."""

    def __repr__(self) -> str:
        state = "finished" if self.finished else "running"
        return f"<{type(self).__name__} {self.key} {state} events={len(self._events)}>"

    # What a dialect adds.

    @abstractmethod
    def begin(self) -> Flow:
        """The calls that start the turn."""

    @abstractmethod
    def interrupt(self) -> Call | None:
        """The call that stops it, once it can be stopped."""

    @abstractmethod
    def end(self) -> list[Call]:
        """The calls that free what the child keeps for it."""

    def kept(self, answer: AnswerDigest, until: float) -> KeptThread | None:
        """Its thread for the next turn of the conversation, after this `answer`; None where that cannot be."""
        return None

    def let_go(self) -> None:
        """Nobody listens any more.

        Whom it would wake holds it: together they would stay in memory, with all that was asked and said, until the
        collector comes by, which may be hundreds of requests later.
        """
        self.wake = self.on_overflow = _nothing

    @property
    def ends_with_usage(self) -> bool:
        """Whether nothing can come after the message and its usage but the end of the turn."""
        return False

    @property
    def parks_tool_calls(self) -> bool:
        """Whether requests for the results of its calls stay without an answer until it is interrupted."""
        return False

    @property
    def resumes(self) -> str | None:
        """The thread whose waiting turn this one continues."""
        return None

    def give_up_thread(self) -> None:
        """The thread holds something that the client does not know of: it must not be kept."""

    def output_of(self, call_id: str) -> dict[str, Any] | None:
        """The result of `item/tool/call`, where the client has sent the output of that call."""
        return None

    @abstractmethod
    def receive(self, method: str, params: dict[str, Any]) -> None:
        """Take one notification in."""

    def check_bound(self) -> None:
        """Called once per read: fail this turn alone when its consumer is too slow.

        Too slow is who has left what the read before brought. What one read brings, however much, nobody had the time
        to take.
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


class Decoder(Protocol):
    """How one dialect is read from the wire."""

    @property
    def skip(self) -> tuple[bytes, ...]:
        """Beginnings of lines that repeat what another line says; they are dropped unparsed."""

    @property
    def delta(self) -> bytes:
        """The beginning of a text delta's line."""

    def read_delta(self, line: bytes) -> tuple[str, str, str]:
        """(key, item, delta) of such a line. Raises for one of another shape."""


class Routes:
    """Finds the turn that a notification belongs to. Early ones are kept, bounded, until their turn is registered."""

    def __init__(self) -> None:
        self.touched: list[RunningTurn] = []
        self.unclaimed = 0
        """Notifications of threads that no turn owns (any more)."""
        self._turns: dict[str, RunningTurn] = {}
        self._early: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        self._early_count = 0
        self._over: collections.deque[str] = collections.deque(maxlen=256)
        """Keys of turns that have just ended: what still comes for them is late, not early."""

    def __repr__(self) -> str:
        return f"<Routes turns={len(self._turns)} early={self._early_count}>"

    def __len__(self) -> int:
        return len(self._turns)

    def register(self, key: str, turn: RunningTurn) -> None:
        """From now on `key` is this turn's; what came early for it is delivered."""
        turn.key = key
        self._turns[key] = turn
        for method, params in self._early.pop(key, ()):
            self._early_count -= 1
            self._deliver(turn, method, params)

    def unregister(self, turn: RunningTurn) -> None:
        """Its notifications are nobody's any more."""
        if turn.key is not None and self._turns.get(turn.key) is turn:
            del self._turns[turn.key]
            self._over.append(turn.key)

    def get(self, key: str) -> RunningTurn | None:
        """The turn that owns `key`."""
        return self._turns.get(key)

    def notify(self, key: str | None, method: str, params: dict[str, Any]) -> None:
        """Deliver one notification."""
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
        """Nobody is about to register: what is still unclaimed never will be."""
        self.unclaimed += self._early_count
        self._early.clear()
        self._early_count = 0

    def named_in(self, head: bytes) -> list[RunningTurn]:
        """The turns whose key stands in the first bytes of a line."""
        return [turn for key, turn in self._turns.items() if key.encode() in head]

    def touch(self, turn: RunningTurn) -> None:
        """This turn has something new."""
        if not turn.dirty:
            turn.dirty = True
            self.touched.append(turn)

    def wake_touched(self) -> None:
        """Wake every touched turn once."""
        touched, self.touched = self.touched, []
        for turn in touched:
            turn.dirty = False
            turn.check_bound()
            turn.wake()

    def fail_all(self, error: BridgeError) -> None:
        """The child is gone."""
        for turn in list(self._turns.values()):
            turn.ended = True
            turn.fail(error)
            turn.wake()

    def _deliver(self, turn: RunningTurn, method: str, params: dict[str, Any]) -> None:
        try:
            turn.receive(method, params)
        except (KeyError, TypeError, AttributeError, ValueError):
            # A notification of an unexpected shape is the child's mistake. It must not stop the reader, on which all
            # other turns depend.
            self.unclaimed += 1
        self.touch(turn)
