"""Recorded ids become the ids of this process, in every message of a turn alike. Pure.

Only members that are known to hold ids are looked at, in objects that are known to be Codex's own: what a model, a
client or a tool says is never touched, even where it looks like an id.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Literal

from bridge.appserver.standin.tape import Message

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


class Names:
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


class Naming:
    """The ids of one thread of ours, which may be played from several recorded ones."""

    def __init__(self, names: Names, thread: str) -> None:
        self.requests: dict[Any, int] = {}
        """The child's own requests: recorded ids and ours."""
        self._names = names
        self._thread = thread
        self._threads: set[str] = set()
        self._given: dict[tuple[Kind, str], str] = {}
        self._played: set[tuple[int, int]] = set()

    def begin(self, place: tuple[int, int], thread: str | None) -> None:
        """A scene begins, of a recorded thread. One that is played again gets new ids for its turn and items."""
        if place in self._played:
            self._given.clear()
        self._played.add(place)
        if thread is not None:
            self._threads.add(thread)

    def message(self, message: Message) -> Message:
        """A reply, a notification or a request as we say it."""
        named: Kind | None = "turn" if str(message.get("method")).startswith("codex/event/") else None
        changed = {
            part: self._object(message[part], named)
            for part in ("params", "result")
            if isinstance(message.get(part), dict)
        }
        return message | changed

    def _object(self, node: dict[str, Any], kind: Kind | None, /) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for name, value in node.items():
            if isinstance(value, str):
                said[name] = self._text(kind, name, value)
            elif isinstance(value, dict):
                said[name] = self._object(value, _OBJECTS[name]) if name in _OBJECTS else value
            elif isinstance(value, list) and (inner := _LISTS.get((kind, name))) is not None:
                said[name] = [self._object(entry, inner) if isinstance(entry, dict) else entry for entry in value]
            elif name == "requestId" and isinstance(value, int):
                said[name] = self.requests.get(value, value)
            else:
                said[name] = value
        return said

    def _text(self, kind: Kind | None, name: str, value: str) -> str:
        named = kind if name == "id" else _MEMBERS.get(name)
        if named is not None and value:
            return self._name(named, value)
        if (kind, name) in _PATHS:
            for thread in self._threads:
                value = value.replace(thread, self._thread)
        elif name == "requestId":
            return str(self.requests.get(value, value))
        return value

    def _name(self, kind: Kind, recorded: str) -> str:
        if kind == "thread":
            return self._thread if recorded in self._threads else recorded
        given = self._given.get((kind, recorded))
        if given is None:
            given = self._given[kind, recorded] = self._names.give(recorded)
        return given
