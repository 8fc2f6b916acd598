"""The texts in a record, each with what tells which longer text it is a piece of. Pure.

Texts at the same place in records of the same kind and request, for the same item, follow each other: so deltas are put
together whoever's protocol they are in. A piece of an event stream is looked into: its events have places of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from bridge import exact_json

Key = tuple[Any, ...]

_IDENTITY = frozenset(
    {
        "item_id", "itemId", "output_index", "content_index", "summary_index", "index", "threadId", "conversationId",
        "turnId",
    }
)  # fmt: skip
"""Members that tell one of several texts from the others."""


class EventStream:
    """A piece of an event stream, or of lines that are events, with their data parsed.

    What was not changed stays as it was.
    """

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self.events: dict[int, Any] = {}
        self.changed: set[int] = set()
        for number, line in enumerate(self._lines):
            if line.startswith(("data:", "{")):
                try:
                    event = exact_json.loads(line.removeprefix("data:"))
                except orjson.JSONDecodeError:
                    continue
                if isinstance(event, dict | list):
                    self.events[number] = event

    def render(self) -> str:
        """The text again."""
        for number in self.changed:
            field = "" if self._lines[number].startswith("{") else "data: "
            self._lines[number] = field + exact_json.dumps(self.events[number]).decode()
        return "\n".join(self._lines)


class Leaf:
    """One text of a record, which can be put back changed."""

    __slots__ = ("_holder", "_name", "_stream", "key")

    def __init__(self, key: Key, holder: Any, name: Any, stream: tuple[EventStream, int] | None) -> None:
        self.key = key
        self._holder = holder
        self._name = name
        self._stream = stream

    @property
    def text(self) -> str:
        """The text."""
        text: str = self._holder[self._name]
        return text

    def put(self, text: str) -> None:
        """Another text in its place."""
        self._holder[self._name] = text
        if self._stream is not None:
            stream, number = self._stream
            stream.changed.add(number)


def leaves(record: dict[str, Any], stream: EventStream | None = None) -> Iterator[Leaf]:
    """The texts of a record's payload (of a transcript's message), in order. `stream` is that payload, parsed."""
    place: Key = (record.get("req_id"), record.get("kind"), record.get("method"))
    if stream is not None:
        for number, event in stream.events.items():
            told = event.get("type") if isinstance(event, dict) else None
            yield from _within(event, (*place, "event", told if isinstance(told, str) else None), (stream, number))
        return
    for name in ("payload", "msg"):
        value = record.get(name)
        if isinstance(value, str):
            yield Leaf((*place, name), record, name, None)
        elif isinstance(value, dict | list):
            yield from _within(value, (*place, name), None)


def stream_of(record: dict[str, Any]) -> EventStream | None:
    """The piece of an event stream that a record holds."""
    payload = record.get("payload")
    return EventStream(payload) if record.get("kind") == "client_sse" and isinstance(payload, str) else None


def _within(value: Any, place: Key, stream: tuple[EventStream, int] | None) -> Iterator[Leaf]:
    stack = [(value, place)]
    while stack:
        node, place = stack.pop()
        deeper = []
        if isinstance(node, dict):
            if not _IDENTITY.isdisjoint(node):
                place += tuple(member for name, member in node.items() if name in _IDENTITY and _is_word(member))
            for name, member in node.items():
                if isinstance(member, str):
                    yield Leaf((*place, name), node, name, stream)
                elif isinstance(member, dict | list):
                    deeper.append((member, (*place, name)))
        else:
            for index, member in enumerate(node):
                if isinstance(member, str):
                    yield Leaf(place, node, index, stream)
                elif isinstance(member, dict | list):
                    deeper.append((member, place))
        stack += reversed(deeper)


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int)
