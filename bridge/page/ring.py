"""The recent turns, in memory: everything that the event log would have of them, as it came.

Often no one is watching, so nothing is encoded, parsed or redacted here. Of the answer's text, which comes by the
thousand pieces, the ring keeps a reference to each read of a child and to each piece that was sent to a client. Which
lines of a read belong to a turn is found out when somebody opens the turn (`bridge.page.records`).

The ring is bounded by bytes. What children sent is shared by the turns that ran at the time. It may fill half of the
ring, and the rest as long as nothing else needs it; the oldest goes first. The other half has requests and answers:
the turns that ended first go first, then the beginnings of the answers of those that run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge.app.recorders import Note
from bridge.core.events import Finished, Usage
from bridge.core.observer import Observer, Owner, TurnFacts
from bridge.core.prices import NO_PRICES, Prices
from bridge.log.record import turn_end, turn_start

PER_TURN, PER_ENTRY = 2048, 192
"""Bytes that a turn, and an entry of it or a read, count beside their contents."""
LARGEST_REQUEST, LONGEST_LINE = 4, 16
"""A request above this part of the ring is not kept (a quarter), and neither is a line of a child (a sixteenth) that
takes several reads."""


class Entry(NamedTuple):
    """One call of a recorder: `kind` names its method, `arguments` are its own."""

    at: float
    kind: str
    arguments: tuple[Any, ...]
    size: int


class Read(NamedTuple):
    """What one read of a child gave."""

    at: float
    feed: Feed
    data: bytes
    is_first: bool
    """Whether a line begins with it."""
    has_gap: bool = False
    """Whether what was read before it was not kept."""

    @property
    def size(self) -> int:
        return len(self.data) + PER_ENTRY


@dataclass(slots=True, eq=False)
class HeldTurn:
    """One request, as far as it is in the ring."""

    id: str
    key: str
    """The label of its key."""
    at: float
    """When it arrived, in monotonic seconds."""
    time: float
    """The same in seconds since 1970."""
    request: dict[str, Any]
    facts: TurnFacts | None
    """None after its end."""
    size: int
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    end_at: float = 0.0
    exit: dict[str, Any] | None = None
    """How its child ended, if that ended the turn."""
    protocol: str = ""
    streams: bool = False
    entries: list[Entry] = field(default_factory=list)
    """Everything but what children sent, in order."""
    dropped: int = 0
    """How many entries were dropped from the beginning."""
    left_out: int = 0
    """Bytes that were not kept, or were dropped."""
    threads: dict[Feed, set[str]] = field(default_factory=dict)
    """The threads of each child that worked for it."""
    base: dict[str, Any] | None = None
    """What its row takes from the request; made once."""
    row: dict[str, Any] | None = None
    """Its row in the list, as long as nothing has changed."""

    @property
    def running(self) -> bool:
        return self.end is None


class _WholeReads:
    """A tap that needs no single lines (`bridge.appserver.connection.Tap`)."""

    wants_lines = False

    def begin_read(self) -> None:
        pass

    def end_read(self) -> None:
        pass

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        pass


class Feed(_WholeReads):
    """One child's reads, and which turns its threads serve. It is the tap of that child."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._owners: dict[str, str] = {}
        self.reads: deque[Read] = deque()
        self.gone = 0
        """How many reads were dropped from the beginning."""
        self._unfinished: list[Read] = []
        """The reads in the middle of a line. They are of no use before it ends."""
        self._unfinished_size = 0
        self._is_lost = False
        """The line that is being read is too long to keep."""

    def connect(self) -> Feed:
        return self

    def read(self, data: bytes, *, is_first: bool) -> None:
        read = Read(time.monotonic(), self, data, is_first, self._is_lost)
        if data.find(b"\n") >= 0:
            for each in (*self._unfinished, read):
                self._ring.keep_read(each)
            self._unfinished, self._unfinished_size, self._is_lost = [], 0, False
        elif not self._is_lost:
            self._unfinished.append(read)
            self._unfinished_size += read.size
            if self._unfinished_size > self._ring.max_bytes // LONGEST_LINE:
                # Such a line would drive everything else out of the ring.
                self._unfinished, self._unfinished_size, self._is_lost = [], 0, True

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        if direction == "in":
            return  # `read` has it
        if key is not None:
            if req_id is None:
                req_id = self._owners.get(key)
            else:
                self._owners[key] = req_id
        if (turn := self._ring.turn_of(req_id)) is not None:
            threads = turn.threads.setdefault(self, set())
            if key is not None:
                threads.add(key)
            about = {"method": method, "rpc_id": rpc_id, "key": key, "req_id": req_id}
            self._ring.keep(turn, "rpc", (direction, kind, line, about, self), len(line))

    def claim(self, key: str, req_id: str | None) -> None:
        if req_id is None:
            self._owners.pop(key, None)
            return
        self._owners[key] = req_id
        if (turn := self._ring.turn_of(req_id)) is not None:
            turn.threads.setdefault(self, set()).add(key)
            self._ring.keep(turn, "claim", (key, req_id, self), 0)

    def forget(self, key: str) -> None:
        self._owners.pop(key, None)

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        self._ring.lifecycle(kind, payload)


class Ring(_WholeReads, Observer):
    """The turns, and a recorder (`bridge.app.recorders.Sink`) and an observer that fill it. `others` observe beside it.

    `on_change` is called with a turn whenever its row may look different, `on_gone` with one that was dropped.
    """

    keeps_answers = True

    def __init__(self, max_bytes: int, *others: Observer) -> None:
        self.max_bytes = max_bytes
        self._others = others
        self._prices = NO_PRICES
        self.size = 0
        self.turns: dict[str, HeldTurn] = {}
        """By id, in the order in which they arrived."""
        self.on_change: Callable[[HeldTurn], None] = lambda turn: None
        self.on_gone: Callable[[HeldTurn], None] = lambda turn: None
        self._ended: deque[HeldTurn] = deque()
        self._all_reads: deque[Read] = deque()
        self._read_size = 0

    def __repr__(self) -> str:
        return f"<Ring turns={len(self.turns)} reads={len(self._all_reads)} size={self.size}>"

    def observers(self, prices: Prices) -> Sequence[Observer]:
        self._prices = prices
        return (self, *self._others)

    def connect(self) -> Feed:
        return Feed(self)

    def read(self, data: bytes, *, is_first: bool) -> None:
        """Each child has a feed."""

    def turn_of(self, req_id: str | None) -> HeldTurn | None:
        """The turn that a record belongs to."""
        if req_id is None:
            return None
        turn = self.turns.get(req_id)
        if turn is not None or "#" not in req_id:
            return turn
        from bridge.log.read import request_of  # with the rest of the reader, for the first of several attempts

        return self.turns.get(request_of(req_id)[0])

    # Steps of a request

    def arrived(self, facts: TurnFacts, request: dict[str, Any]) -> None:
        if facts.id in self.turns:
            return
        largest = self.max_bytes // LARGEST_REQUEST
        size = size_of(request, largest)
        turn = HeldTurn(facts.id, facts.key, time.monotonic(), time.time(), request, facts, PER_TURN + size)
        if size > largest:
            turn.request = {"path": request.get("path"), "not_kept": size}
            turn.size, turn.left_out = PER_TURN, size
        self.turns[turn.id] = turn
        self._grow(turn.size)
        self._changed(turn)

    def starting(self, facts: TurnFacts) -> None:
        if (turn := self.turns.get(facts.id)) is not None:
            turn.start, turn.protocol = turn_start(facts), facts.protocol
            turn.streams = facts.turn is not None and bool(facts.turn.stream)
            self._changed(turn)

    def answering(self, facts: TurnFacts) -> None:
        if (turn := self.turns.get(facts.id)) is not None:
            self._changed(turn)

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        turn = self.turns.get(facts.id)
        if turn is None or not turn.running:
            return
        turn.end, turn.end_at, turn.facts = turn_end(facts, end, usage, now, self._prices), time.monotonic(), None
        self._ended.append(turn)
        self._changed(turn)

    def _changed(self, turn: HeldTurn) -> None:
        turn.row = None
        self.on_change(turn)

    # What is recorded of it

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "backend_exit":
            for name in payload.get("ended_requests", ()):
                if (turn := self.turn_of(name)) is not None:
                    turn.exit = payload
                    self._changed(turn)

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        """A message of a turn that is played: no child is read."""
        if (turn := self.turn_of(req_id)) is not None:
            about = {"method": method, "rpc_id": rpc_id, "key": key, "req_id": req_id}
            self.keep(turn, "rpc", (direction, kind, line, about, None), len(line))

    def claim(self, key: str, req_id: str | None) -> None:
        """Played messages name their requests."""

    def forget(self, key: str) -> None:
        """See `claim`."""

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        if (turn := self.turn_of(req_id)) is not None:
            self.keep(turn, "event", (phase, direction, kind, req_id, payload), size_of(payload))
            if kind == "tool_call":
                self._changed(turn)

    def tool_calls(self, req_id: str) -> Note:
        return lambda kind, payload: self.event("tool_parse", "none", kind, req_id, payload)

    def upstream(self, req_id: str, direction: str, data: bytes) -> None:
        if (turn := self.turn_of(req_id)) is not None:
            self.keep(turn, "upstream", (req_id, direction, data), len(data))

    def client_json(self, req_id: str, body: bytes) -> None:
        if (turn := self.turn_of(req_id)) is not None:
            self.keep(turn, "client_json", (req_id, body), len(body))

    def client_sse(self, req_id: str, chunk: bytes, text: str | None = None) -> None:
        if (turn := self.turn_of(req_id)) is not None:
            self.keep(turn, "client_sse", (req_id, chunk), len(chunk))

    def keep(self, turn: HeldTurn, kind: str, arguments: tuple[Any, ...], size: int) -> None:
        """Add an entry to a turn."""
        size += PER_ENTRY
        turn.entries.append(Entry(time.monotonic(), kind, arguments, size))
        turn.size += size
        self._grow(size)

    def keep_read(self, read: Read) -> None:
        """Add what a child sent."""
        if not self.turns:
            return
        read.feed.reads.append(read)
        self._all_reads.append(read)
        self._read_size += read.size
        self._grow(read.size)

    # The bound

    def _grow(self, size: int) -> None:
        self.size += size
        while self.size > self.max_bytes:
            if self._all_reads and (self._read_size > self.max_bytes // 2 or not self.turns):
                self._drop_read()
            elif self._ended:
                self._drop_turn(self._ended.popleft())
            elif self._all_reads:
                self._drop_read()
            elif not self._shorten():
                return

    def _drop_read(self) -> None:
        read = self._all_reads.popleft()
        read.feed.reads.popleft()
        read.feed.gone += 1
        self.size -= read.size
        self._read_size -= read.size

    def _drop_turn(self, turn: HeldTurn) -> None:
        del self.turns[turn.id]
        self.size -= turn.size
        # What was read before the oldest turn arrived belongs to none.
        oldest = next(iter(self.turns.values()), None)
        while self._all_reads and (oldest is None or self._all_reads[0].at < oldest.at):
            self._drop_read()
        self.on_gone(turn)

    def _shorten(self) -> bool:
        """Drop the first half of the largest answer that is running. False: there is nothing left to drop."""
        turn = max(self.turns.values(), key=lambda turn: turn.size, default=None)
        if turn is None or not turn.entries:
            return False
        count = (len(turn.entries) + 1) // 2
        size = sum(entry.size for entry in turn.entries[:count])
        del turn.entries[:count]
        turn.dropped += count
        turn.left_out += size
        turn.size -= size
        self.size -= size
        return True


def size_of(value: Any, enough: float = math.inf) -> int:
    """About how many bytes a value takes that was made from JSON; beyond `enough` it stops counting.

    Without recursion: it may be nested deeply. A body of a few megabytes may have millions of members, and everyone
    would wait until they are counted.
    """
    total, stack = 0, [value]
    while stack and total <= enough:
        node = stack.pop()
        if isinstance(node, str | bytes):
            total += len(node) + 56
        elif isinstance(node, dict):
            total += 64 + 104 * len(node)
            stack += node.values() if total <= enough else ()
        elif isinstance(node, list | tuple):
            total += 56 + 8 * len(node)
            stack += node if total <= enough else ()
        else:
            total += 32
    return total
