"""The texts in a record: joined with those of the next records, in which a text continues, and cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from bridge import exact_json

_IDENTITY = frozenset(
    {
        "item_id", "itemId", "output_index", "content_index", "summary_index", "index", "threadId", "conversationId",
        "turnId",
    }
)  # fmt: skip
"""Members that distinguish texts of the same name from each other."""

Key = tuple[Any, ...]
Cut = tuple[int, int, int, str]
"""The number of a text in its record, the start and end of a part of it, and what replaces that part."""


class RecordTexts:
    """The texts of a record's payload, or of a transcript's message, in order.

    Each has a key that says which longer text it is a piece of: texts under the same member names, in records of the
    same kind, request and item, follow each other. So deltas of every protocol can be joined without knowing it. A
    recorded piece of an event stream (SSE, or one JSON event per line) is parsed; its unchanged lines keep their bytes.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.slots: list[tuple[Key, Any, Any, int]] = []
        """The key, the object or list that holds the text, its name there, and the line of the event stream."""
        self._record = record
        self._lines: list[str] = []
        self._events: dict[int, Any] = {}
        key = (record.get("req_id"), record.get("kind"), record.get("method"))
        payload = record.get("payload")
        if record.get("kind") != "client_sse" or not isinstance(payload, str):
            for name in ("payload", "msg"):
                if name in record:
                    self._add(record, name, (*key, name), -1)
            return
        self._lines = payload.split("\n")
        for number, line in enumerate(self._lines):
            if line.startswith(("data:", "{")):
                try:
                    event = self._events[number] = exact_json.loads(line.removeprefix("data:"))
                except orjson.JSONDecodeError:
                    continue
                kind = event.get("type") if isinstance(event, dict) else None
                self._add(self._events, number, (*key, "event", kind if isinstance(kind, str) else None), number)

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Replace parts of the texts. Where parts overlap, all of them are gone."""
        merged: list[Cut] = []
        for cut in sorted(cuts):
            index, start, end, replacement = cut
            if merged and merged[-1][0] == index and start < merged[-1][2]:
                _, first, last, mark_before = merged[-1]
                merged[-1] = index, first, max(end, last), mark_before + replacement
            else:
                merged.append(cut)
        for index, start, end, replacement in reversed(merged):
            _, holder, name, number = self.slots[index]
            text = holder[name]
            holder[name] = text[:start] + replacement + text[end:]
            if number >= 0:
                field = "" if self._lines[number].startswith("{") else "data: "
                self._lines[number] = field + exact_json.dumps(self._events[number]).decode()
        if self._lines:
            self._record["payload"] = "\n".join(self._lines)

    def _add(self, holder: Any, name: Any, key: Key, line: int) -> None:
        """Add the texts of a value. Without recursion: what was recorded may be nested deeper than Python allows."""
        stack = [(holder, name, key)]
        while stack:
            holder, name, key = stack.pop()
            value = holder[name]
            if isinstance(value, str):
                self.slots.append((key, holder, name, line))
            elif isinstance(value, dict):
                if not _IDENTITY.isdisjoint(value):
                    key += tuple(
                        member for name, member in value.items() if name in _IDENTITY and isinstance(member, str | int)
                    )
                stack += [(value, name, (*key, name)) for name in reversed(value)]
            elif isinstance(value, list):
                stack += [(value, index, key) for index in range(len(value) - 1, -1, -1)]
