"""A recorded child as data: its threads, their calls and what followed. Pure.

A thread (or conversation) is a list of recorded calls. Each has a call that the answer depends on, and everything
that the child sent until the next one. `bridge.log.child_side` reads them from a log.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.appserver.connection import key_of
from bridge.appserver.dialect import BEGINS, Dialect

# Recorded ids become the ids of this process, in every message of a turn alike. Pure.
#
# Ids are found by the names of members in Codex's own objects, not by searching texts: what a model, a client or a tool
# writes is never changed, even if it looks like an id.

Kind = Literal["thread", "turn", "item", "subscription"]

_MEMBERS: dict[str, Kind] = {
    "threadId": "thread",
    "thread_id": "thread",
    "conversationId": "thread",
    "conversation_id": "thread",
    "sessionId": "thread",
    "session_id": "thread",
    "turnId": "turn",
    "turn_id": "turn",
    "rootTurnId": "turn",
    "itemId": "item",
    "item_id": "item",
    "callId": "item",
    "call_id": "item",
    "subscriptionId": "subscription",
}
_OBJECTS: dict[str, Kind | None] = {
    "thread": "thread",
    "turn": "turn",
    "item": "item",
    "msg": None,
    "readState": None,
    "firstUnread": None,
    "internal_chat_message_metadata_passthrough": None,
}
"""Objects to look into, and what their `id` names."""
_LISTS: dict[tuple[Kind | None, str], Kind] = {("turn", "items"): "item", ("thread", "turns"): "turn"}
_PATHS = frozenset({("thread", "path"), (None, "rolloutPath")})
"""Files that are named after their thread."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class UniqueIds:
    """The ids that this process has given out."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._count = itertools.count(1)

    def give(self, recorded: str) -> str:
        """The recorded id where it is free, else one of the same form."""
        name = recorded
        while name in self._used:
            number = next(self._count)
            name = f"00000000-0000-4000-a000-{number:012x}" if _UUID.fullmatch(recorded) else f"{recorded}-{number}"
        self._used.add(name)
        return name

    def fresh(self) -> str:
        """An id where nothing is recorded."""
        return self.give("00000000-0000-4000-a000-000000000000")


class IdMap:
    """Maps recorded ids to those of one live thread, which may replay several recorded ones."""

    def __init__(self, ids: UniqueIds, thread: str) -> None:
        self.requests: dict[Any, int] = {}
        """The child's own requests: recorded ids and ours."""
        self._ids = ids
        self._thread = thread
        self._threads: set[str] = set()
        self._given: dict[tuple[Kind, str], str] = {}
        self._played: set[object] = set()

    def begin(self, position: object, thread: str | None) -> None:
        """A recorded call begins. One that is replayed again gets new ids for its turn and items."""
        if position in self._played:
            self._given.clear()
        self._played.add(position)
        if thread is not None:
            self._threads.add(thread)

    def message(self, message: Message) -> Message:
        """A reply, a notification or a request with our ids."""
        named: Kind | None = "turn" if str(message.get("method")).startswith("codex/event/") else None
        changed = {
            part: self._object(message[part], named)
            for part in ("params", "result")
            if isinstance(message.get(part), dict)
        }
        return message | changed

    def _object(self, node: dict[str, Any], kind: Kind | None, /) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name, value in node.items():
            named = kind if name == "id" else _MEMBERS.get(name)
            if name == "requestId" and isinstance(value, str | int):
                known = self.requests.get(value, value)
                value = str(known) if isinstance(value, str) else known
            elif isinstance(value, str) and value and named is not None:
                value = self._id(named, value)
            elif isinstance(value, str) and (kind, name) in _PATHS:
                for thread in self._threads:
                    value = value.replace(thread, self._thread)
            elif isinstance(value, dict) and name in _OBJECTS:
                value = self._object(value, _OBJECTS[name])
            elif isinstance(value, list) and (inner := _LISTS.get((kind, name))) is not None:
                value = [self._object(entry, inner) if isinstance(entry, dict) else entry for entry in value]
            changed[name] = value
        return changed

    def _id(self, kind: Kind, recorded: str) -> str:
        if kind == "thread":
            return self._thread if recorded in self._threads else recorded
        if (kind, recorded) not in self._given:
            self._given[kind, recorded] = self._ids.give(recorded)
        return self._given[kind, recorded]


Message = dict[str, Any]

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
        """Whether the call was answered with an error."""
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
