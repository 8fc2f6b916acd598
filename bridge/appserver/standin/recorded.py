"""A recorded child as data: its threads, their calls and what followed; and which of them match live calls. Pure.

A thread (or conversation) is a list of recorded calls. Each has a call that the answer depends on, and everything
that the child sent until the next one. `bridge.log.child_side` reads them from a log.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, Literal

import orjson

from bridge import exact_json
from bridge.appserver.dialect import BEGINS, Dialect, key_of
from bridge.appserver.standin.messages import Message
from bridge.redact import Redactor

StepKind = Literal["notification", "reply", "ask", "answer", "call", "exit"]


@dataclass(frozen=True, slots=True)
class Step:
    """One message or event within a recorded call.

    The child sends `notification`, `reply` and `ask` (a request of its own). The client sends `answer` (to an ask) and
    `call` (another call). `exit` is the end of the child.
    """

    at: float
    """Seconds after the call that begins the recorded call."""
    kind: StepKind
    message: Message = field(default_factory=dict)
    method: str = ""
    """Of a call."""
    call: int = 0
    """The call that a reply belongs to: 0 is the recorded call itself, others count from 1. For a call, its number."""
    code: int = 0
    """What the child ended with; negative for a signal."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call and what followed it. `label` and `when` show a person where it is in the log."""

    method: str
    params: Message
    steps: tuple[Step, ...]
    label: str = ""
    when: str = ""
    order: int = 0
    """Where in the log its call stands."""

    @property
    def refused(self) -> bool:
        return any(step.kind == "reply" and not step.call and is_refusal(step.message) for step in self.steps)

    def __str__(self) -> str:
        return f"{self.label}, {self.when}" if self.when else self.label


@dataclass(frozen=True, slots=True)
class RecordedThread:
    """A thread's calls in order. `id` is None if the log was cut before it."""

    id: str | None
    dialect: Dialect
    calls: tuple[RecordedCall, ...]

    @property
    def headless(self) -> bool:
        """Whether the call that made the thread is not in the log."""
        return self.calls[0].method not in BEGINS

    def replies_to(self, method: str) -> list[Message]:
        """The replies to other calls of a method, which begin no recorded call."""
        found = []
        for entry in self.calls:
            numbers = {step.call for step in entry.steps if step.kind == "call" and step.method == method}
            found += [step.message for step in entry.steps if step.kind == "reply" and step.call in numbers]
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call that is about no thread was answered: `reply` has `result` or `error`."""

    params: Message
    reply: Message


@dataclass(frozen=True, slots=True)
class RecordedChild:
    """Everything that a log holds about a child."""

    threads: tuple[RecordedThread, ...]
    initialize: Message | None = None
    """The reply."""
    greeting: tuple[Step, ...] = ()
    """What the child sent before any thread."""
    refusal: str | None = None
    """The error message for an unknown method; it lists the known ones."""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    """What was called, in order."""


def is_refusal(message: Message) -> bool:
    """Whether a reply is an error."""
    return message.get("error") is not None


def key_in(params: Any) -> str | None:
    """The thread that a message is about, in either dialect; also from a whole thread object."""
    thread = params.get("thread") if isinstance(params, dict) else None
    named = thread.get("id") if isinstance(thread, dict) else None
    return key_of(params) or (named if isinstance(named, str) else None)


# Which recorded turn matches: the calls of a thread, compared with those of recorded threads
#
# The input of a turn is the chain of calls that led to it. Two chains are equal when their calls are, without what
# differs between runs: ids, the directory, members that are null. Each call of a thread narrows its candidates among
# the recorded chains; equal ones are used in their recorded order, the last one repeatedly.
#
# A thread cannot simply follow one recorded thread: `thread/start` must be answered before the prompt is known.

Candidates = tuple[bytes, ...]
"""The recorded chains that equal a thread's calls so far: the whole one, and one whose beginning was cut off."""

_VOLATILE = frozenset(
    {"threadId", "conversationId", "turnId", "expectedTurnId", "cwd", "path", "rolloutPath", "clientUserMessageId"}
)
_ITEMS = frozenset({"items", "input", "history"})
_CALL_IDS = frozenset({"call_id", "callId"})
_CALL_ID = re.compile(r"(?<=\[function_call call_id=)\S+|(?<=\[function_call_output call_id=)\S+|\bcall_\w{16,}")
"""Ids of calls in a text: in a conversation that was given as text, and generated ones."""

_SHOWN = 3
_WINDOW = 40
_ROOT = b""
_redactor = Redactor()


@dataclass(frozen=True, slots=True)
class ComparedCall:
    method: str
    params: Any
    digest: bytes


@dataclass(slots=True, eq=False)
class Position:
    """A call of a recorded thread."""

    thread: RecordedThread
    index: int
    chain: bytes = b""
    """Identifies the calls up to this one. No two positions of a thread have the same."""

    @property
    def call(self) -> RecordedCall:
        return self.thread.calls[self.index]

    @property
    def compared(self) -> ComparedCall:
        return compared(self.call.method, self.call.params, redacted=True)


class CallMatcher:
    """Finds recorded calls by their chain."""

    def __init__(self, threads: tuple[RecordedThread, ...]) -> None:
        self._equal: dict[bytes, list[Position]] = {}
        """Positions with equal chains, in recorded order."""
        self._following: dict[bytes, dict[int, Position]] = {}
        """Positions by the chain before them and the identity of their thread."""
        self._headless = {thread.dialect for thread in threads if thread.headless}
        for thread in threads:
            chain = _headless(thread.dialect) if thread.headless else _ROOT
            for index in range(len(thread.calls)):
                position = Position(thread, index)
                self._following.setdefault(chain, {})[id(thread)] = position
                chain = position.chain = _extend(chain, position.compared)
                self._equal.setdefault(chain, []).append(position)
        for positions in self._equal.values():
            positions.sort(key=lambda position: position.call.order)
        # A log may hold thousands of equal calls, so no search may look at those that are taken already. An ordered
        # dictionary, because the first item of a plain one is found behind all that were deleted before it.
        self._free = {
            chain: OrderedDict((id(position.thread), position) for position in positions)
            for chain, positions in self._equal.items()
        }
        """The positions that are not taken, by the identity of their thread."""

    def follow(self, candidates: Candidates | None, call: ComparedCall) -> Candidates:
        """The candidates after one more call (`None`: the call that creates a thread); empty if nothing matches."""
        if candidates is not None:
            return tuple(chain for before in candidates if (chain := _extend(before, call)) in self._equal)
        begun = _extend(_ROOT, call)
        found = (begun,) if begun in self._equal else ()
        dialect = BEGINS[call.method]
        return (*found, _headless(dialect)) if dialect in self._headless else found

    def choose(self, candidates: Candidates, own: RecordedThread | None) -> Position | None:
        """Take the position to replay: in the recorded thread `own` if it is free, else the first free one.

        When all are taken, it is the last that was not refused. None for a thread whose beginning is not recorded.
        """
        chain = next((chain for chain in candidates if chain in self._equal), None)
        if chain is None:
            return None
        free, equal = self._free[chain], self._equal[chain]
        if free:
            return free.pop(id(own)) if id(own) in free else free.popitem(last=False)[1]
        return next((position for position in reversed(equal) if not position.call.refused), equal[-1])

    def next_of(self, position: Position) -> Position | None:
        """The position after this one in its recorded thread."""
        return self._following.get(position.chain, {}).get(id(position.thread))

    def nearest(self, candidates: Candidates | None, call: ComparedCall, *, anywhere: bool = False) -> Position | None:
        """The position with the most similar call of this method among those that may follow, or `anywhere`."""
        everywhere = (each for positions in self._equal.values() for each in positions)
        same_method = (
            each for each in (everywhere if anywhere else self._after(candidates)) if each.call.method == call.method
        )
        return min(same_method, key=lambda each: distance(each.compared.params, call.params), default=None)

    def explain(self, candidates: Candidates | None, call: ComparedCall) -> str:
        """Why nothing matches."""
        why = "no recorded turn matches: "
        found = self.nearest(candidates, call)
        if found is not None:
            how = describe(differences(found.compared.params, call.params)) or "its position alone"
            return f"{why}{call.method} differs from the nearest recording ({found.call}) in {how}"
        expected = " or ".join(sorted({position.call.method for position in self._after(candidates)}))
        if candidates is None:
            return f"{why}the recording begins with {expected}, not {call.method}"
        if expected:
            return f"{why}the recording continues with {expected}, not {call.method}"
        return f"{why}the recording has no further call in this thread, but received {call.method}"

    def _after(self, candidates: Candidates | None) -> Iterator[Position]:
        for chain in (_ROOT,) if candidates is None else candidates:
            yield from self._following.get(chain, {}).values()


def compared(method: str, params: Message, *, redacted: bool = False) -> ComparedCall:
    """A call as it is compared. Secrets are redacted, as they were in the log (`redacted`)."""
    try:
        return _compared(method, params, redacted=redacted)
    except (TypeError, RecursionError):
        return _compared(method, {"params": "nested too deeply to be compared"}, redacted=True)


def _compared(method: str, params: Message, *, redacted: bool) -> ComparedCall:
    kept = {name: value for name, value in params.items() if name not in _VOLATILE and value is not None}
    for name in _ITEMS & kept.keys():
        if isinstance(kept[name], list):
            kept[name] = [_without_id(item) for item in kept[name]]
    # Ids of calls differ between runs: each becomes the number of its first mention.
    plain = _rename_calls(kept, {})
    data = exact_json.dumps(plain, option=orjson.OPT_SORT_KEYS)
    if not redacted and (clean := _redactor.json(data)) != data:
        plain = exact_json.loads(clean)
        data = exact_json.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return ComparedCall(method, plain, blake2b(method.encode() + b"\0" + data, digest_size=16).digest())


def _without_id(item: Any) -> Any:
    return {name: value for name, value in item.items() if name != "id"} if isinstance(item, dict) else item


def _rename_calls(value: Any, known: dict[str, str]) -> Any:
    def name(found: str) -> str:
        return known.setdefault(found, f"call#{len(known) + 1}")

    if isinstance(value, dict):
        return {
            member: name(inner) if member in _CALL_IDS and isinstance(inner, str) else _rename_calls(inner, known)
            for member, inner in value.items()
        }
    if isinstance(value, list):
        return [_rename_calls(inner, known) for inner in value]
    return _CALL_ID.sub(lambda found: name(found[0]), value) if isinstance(value, str) else value


# How two values differ; requests to the bridge are compared like this, too (`bridge.playback.player`)


@dataclass(frozen=True, slots=True)
class Difference:
    """A member with another value than recorded; None where there is no such member."""

    path: str
    recorded: Any
    received: Any

    def __str__(self) -> str:
        start = 0
        if isinstance(self.recorded, str) and isinstance(self.received, str):
            # Of long texts, the piece around their first difference.
            start = max(0, _common(self.recorded, self.received) - _WINDOW // 2)
        return f"{self.path}: recorded {_show(self.recorded, start)}, received {_show(self.received, start)}"


def differences(recorded: Any, received: Any, path: str = "") -> Iterator[Difference]:
    """The innermost members in which two values differ."""
    if isinstance(recorded, dict) and isinstance(received, dict):
        for name in dict.fromkeys((*recorded, *received)):
            yield from differences(recorded.get(name), received.get(name), f"{path}.{name}" if path else name)
    elif isinstance(recorded, list) and isinstance(received, list):
        for index, (one, other) in enumerate(zip_longest(recorded, received)):
            yield from differences(one, other, f"{path}.{index}")
    elif recorded != received or type(recorded) is not type(received):
        yield Difference(path, recorded, received)


def describe(found: Iterable[Difference]) -> str:
    """The first differences, for a message."""
    every = list(found)
    rest = f" (and {len(every) - _SHOWN} more)" if len(every) > _SHOWN else ""
    return "; ".join(map(str, every[:_SHOWN])) + rest


def distance(recorded: Any, received: Any) -> float:
    """How much two values differ; 0 if they are equal."""
    return sum(map(_distance, differences(recorded, received)))


def _distance(difference: Difference) -> float:
    """1, or less for texts that begin or end alike."""
    one, other = difference.recorded, difference.received
    if not isinstance(one, str) or not isinstance(other, str):
        return 1.0
    head = _common(one, other)
    tail = min(_common(one[::-1], other[::-1]), min(len(one), len(other)) - head)
    return 1 - (head + tail) / max(len(one), len(other)) * 0.9


def _common(one: str, other: str) -> int:
    """The length of the common beginning of two texts: a binary search, because comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _show(value: Any, start: int) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        piece = value[start : start + _WINDOW]
        before, after = "…" if start else "", "…" if start + _WINDOW < len(value) else ""
        return before + orjson.dumps(piece.encode("utf-8", "replace").decode()).decode() + after
    text = exact_json.dumps(value).decode()
    return text if len(text) <= _WINDOW else f"{text[:_WINDOW]}…"


def _extend(chain: bytes, call: ComparedCall) -> bytes:
    return blake2b(chain + call.digest, digest_size=16).digest()


def _headless(dialect: Dialect) -> bytes:
    return b"headless " + dialect.encode()
