"""Responses, conversations and usage as a store holds them, and the changes of a conversation. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from bridge import exact_json
from bridge.store.base import USAGE_DAYS, Conversation, StoredResponse, UsageRow

ROW_SIZE = 256
"""What a conversation counts for besides its texts, so that empty ones are not free."""
CHANGE_SIZE = 256
"""About how much memory a change takes besides its texts."""

Items = tuple[tuple[str, bytes], ...]
"""Pairs of an item's id and its JSON."""


@dataclass(frozen=True, slots=True)
class ResponseEntry:
    """A response and when it was last used."""

    response: StoredResponse
    used: float
    item_ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return response_size(self.response)


@dataclass(slots=True)
class ConversationEntry:
    """A conversation, when it was last used, and its items (or some of them) by id, in order."""

    conversation: Conversation
    used: float
    items: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        metadata = orjson.dumps(dict(self.conversation.metadata))
        return ROW_SIZE + len(metadata) + sum(map(len, self.items.values()))


@dataclass(frozen=True, slots=True)
class Change:
    """One use of a conversation, and what it changes. Without a conversation, only `create` has an effect."""

    used: float
    create: Conversation | None = None
    """Begin it without items, replacing one with the same id."""
    delete: bool = False
    metadata: Mapping[str, str] | None = None
    items: Items = ()
    """Items to append; one whose id is there already is replaced where it stands."""
    delete_item: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the conversation before it does not matter."""
        return self.delete or self.create is not None

    @property
    def is_use(self) -> bool:
        """Whether it changes nothing."""
        return not (self.is_whole or self.items) and self.metadata is None and self.delete_item is None

    @property
    def size(self) -> int:
        texts = sum(len(item) for _, item in self.items)
        return CHANGE_SIZE + texts + (ConversationEntry(self.create, 0).size if self.create is not None else 0)

    def apply(self, entry: ConversationEntry | None) -> ConversationEntry | None:
        """The conversation after this change; `entry` may be changed in place."""
        if self.create is not None:
            entry = ConversationEntry(self.create, self.used)
        if entry is None or self.delete:
            return None
        if self.metadata is not None:
            entry.conversation = replace(entry.conversation, metadata=self.metadata)
        entry.items.update(self.items)
        if self.delete_item is not None:
            entry.items.pop(self.delete_item, None)
        entry.used = max(entry.used, self.used)
        return entry


def create(conversation: Conversation, items: Sequence[bytes], used: float) -> Change:
    """The change that begins a conversation. It has a copy of the caller's metadata."""
    return Change(used, create=replace(conversation, metadata=dict(conversation.metadata)), items=with_ids(items))


def response_size(response: StoredResponse) -> int:
    return len(response.body) + len(response.input)


def make_entry(response: StoredResponse, used: float) -> ResponseEntry:
    """The entry of a new response."""
    ids = response.item_ids
    if ids is None:
        ids = tuple({item["id"]: None for item in _items(response)})
    return ResponseEntry(replace(response, body=_exact(response.body), input=_exact(response.input)), used, ids)


def find_item(response: StoredResponse, id: str) -> bytes | None:
    """The item with that id, from the output or else the input."""
    return next((exact_json.dumps(item) for item in _items(response) if item["id"] == id), None)


def with_ids(items: Sequence[bytes]) -> Items:
    """Items with their ids. Raises `ValueError` for anything but JSON objects with an `id`."""
    pairs = []
    for item in items:
        members = exact_json.loads(item)
        if not isinstance(members, dict) or not isinstance(members.get("id"), str):
            raise ValueError("a conversation's item needs an id")
        pairs.append((members["id"], _exact(item)))
    return tuple(pairs)


def _exact(data: bytes) -> bytes:
    """A copy that takes no more memory than it needs.

    The bytes that orjson returns keep the buffer they were written into, which may be ten times as large.
    """
    return bytes(memoryview(data))


def _items(response: StoredResponse) -> Iterator[dict[str, Any]]:
    """All items that have an id. Never fails: a response whose items cannot be read is still a response."""
    body = _loads(response.body)
    output = body.get("output") if isinstance(body, dict) else None
    for items in (output, _loads(response.input)):
        if isinstance(items, list):
            yield from (item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))


def _loads(text: bytes) -> Any:
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError:
        return None


# Usage


def oldest_day(now: float) -> str:
    """The first day whose usage is still kept."""
    day = datetime.datetime.fromtimestamp(now, datetime.UTC).date() - datetime.timedelta(days=USAGE_DAYS)
    return day.isoformat()


class UsageTable:
    """Usage added up: at most one row for each day, key and model."""

    def __init__(self, rows: Iterable[UsageRow] = ()) -> None:
        self._counts: dict[tuple[str, str, str], tuple[int, ...]] = {}
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, row: UsageRow, sign: int = 1) -> None:
        """Add the counts of a row, or subtract them with a `sign` of -1. A row of zeros is removed."""
        key, counts = row[:3], row[3:]
        old = self._counts.get(key, (0,) * len(counts))
        new = tuple(before + sign * count for before, count in zip(old, counts, strict=True))
        if any(new):
            self._counts[key] = new
        else:
            self._counts.pop(key, None)

    def rows(self, since: str = "") -> list[UsageRow]:
        """The rows from that day on, sorted by day, key and model."""
        return sorted(UsageRow(*key, *counts) for key, counts in self._counts.items() if key[0] >= since)

    def forget(self, before: str) -> None:
        """Drop the rows of earlier days."""
        if any(key[0] < before for key in self._counts):
            self._counts = {key: counts for key, counts in self._counts.items() if key[0] >= before}
