"""What a store holds, and the changes that are not in the file yet. Pure.

Readers apply the changes to what the file holds. The writer takes a batch, writes it in one transaction and then
removes it; until then, its changes still count for readers.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import orjson

from bridge import exact_json
from bridge.store.base import USAGE_DAYS, Conversation, StoredResponse, UsageRow

ROW_SIZE = 256
"""Bytes that a conversation counts for besides its texts, so that empty ones are not free."""
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

    def as_change(self) -> Change:
        """The change that makes this conversation."""
        return Change(self.used, create=self.conversation, items=tuple(self.items.items()))


@dataclass(frozen=True, slots=True)
class Change:
    """One use of a conversation, and what it changes. Without a conversation, only `create` has an effect."""

    used: float
    create: Conversation | None = None
    """Begin it without items, replacing one with the same id."""
    delete: bool = False
    metadata: Mapping[str, str] | None = None
    items: Items = ()
    """Items to append; one with an existing id replaces that item in its position."""
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


def by_day(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """The same with the hours of each day added up."""
    return UsageTable(row._replace(day=row.day[:10]) for row in rows).rows()


# The queue

Key = tuple[str, str]
"""Scope and id."""
ResponseChange = ResponseEntry | float | None
"""A response to store, when one was used, or None for one to delete."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one transaction."""

    responses: dict[Key, ResponseChange] = field(default_factory=dict)
    conversations: dict[Key, list[Change]] = field(default_factory=dict)
    usage: list[UsageRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.responses) + _count(self.conversations) + len(self.usage)

    @property
    def size(self) -> int:
        """About how many bytes of memory its texts take."""
        changes = (change for changes in self.conversations.values() for change in changes)
        return sum(map(_size, self.responses.values())) + sum(change.size for change in changes)


class Changes:
    """The changes that wait to be written, oldest first.

    A response has at most one, which is complete. A conversation has a list: another process may change it too, so that
    it cannot be written as a whole.
    """

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes of memory they take."""
        self.dropped = 0
        """How many responses have been dropped so far."""
        self._responses: dict[Key, ResponseChange] = {}
        self._conversations: dict[Key, list[Change]] = {}
        self._usage = UsageTable()

    def __len__(self) -> int:
        return len(self._responses) + _count(self._conversations) + len(self._usage)

    def __repr__(self) -> str:
        changes = len(self._responses) + _count(self._conversations)
        return f"<Changes changes={changes} usage={len(self._usage)} bytes={self.size}>"

    def set_response(self, key: Key, change: ResponseChange) -> None:
        if isinstance(change, float) and key in self._responses:
            earlier = self._responses[key]
            # Being used makes a response no newer, so it stays where it is; a deleted one stays deleted.
            if isinstance(earlier, ResponseEntry):
                self._responses[key] = replace(earlier, used=max(earlier.used, change))
            elif earlier is not None:
                self._responses[key] = max(earlier, change)
            return
        self._drop_response(key)
        self._responses[key] = change
        self.size += _size(change)

    def change_conversation(self, key: Key, change: Change) -> None:
        changes = self._conversations.setdefault(key, [])
        # What a later change makes pointless is dropped, also while a batch with it is being written.
        while changes and (change.is_whole or (change.is_use and changes[-1].is_use)):
            self.size -= changes.pop().size
        changes.append(change)
        self.size += change.size

    def add_usage(self, row: UsageRow) -> None:
        self._usage.add(row)

    # What is true now: the content of the file with the changes applied

    def needs_response(self, key: Key) -> bool:
        """Whether the file must be read to tell what a response is now."""
        return isinstance(self._responses.get(key, 0.0), float)

    def response(self, key: Key, in_file: ResponseEntry | None) -> ResponseEntry | None:
        change = self._responses.get(key, 0.0)
        if not isinstance(change, float):
            return change
        return in_file and replace(in_file, used=max(in_file.used, change))

    def needs_conversation(self, key: Key) -> bool:
        """Whether the file must be read to tell what a conversation is now."""
        return key not in self._conversations or not self._conversations[key][0].is_whole

    def changes_conversation(self, key: Key) -> bool:
        """Whether a change of a conversation waits to be written, and not only its use."""
        return any(not change.is_use for change in self._conversations.get(key, ()))

    def conversation(self, key: Key, in_file: ConversationEntry | None) -> ConversationEntry | None:
        for change in self._conversations.get(key, ()):
            in_file = change.apply(in_file)
        return in_file

    def usage(self, in_file: list[UsageRow], since: str) -> list[UsageRow]:
        return UsageTable([*in_file, *self._usage.rows(since)]).rows()

    def holders(self, scope: str, item_id: str) -> list[ResponseEntry]:
        """The responses that hold an item, newest first."""
        return [
            change
            for key, change in reversed(self._responses.items())
            if isinstance(change, ResponseEntry) and key[0] == scope and item_id in change.item_ids
        ]

    # Writing

    def take(self, limit: int, most: int | None = None) -> Batch:
        """The oldest changes, about `limit` bytes of each kind and at most `most` in all. They stay until `written`."""
        batch, left = Batch(), limit
        for key, change in self._responses.items():
            if left <= 0 or len(batch.responses) == most:
                break
            batch.responses[key] = change
            left -= _size(change)
        left, room = limit, None if most is None else most - len(batch)
        steps = ((key, change) for key, changes in self._conversations.items() for change in changes)
        for key, step in islice(steps, room):
            if left <= 0:
                break
            batch.conversations.setdefault(key, []).append(step)
            left -= step.size
        batch.usage.extend(self._usage.rows()[: None if most is None else most - len(batch)])
        return batch

    def written(self, batch: Batch) -> None:
        """Remove the changes of a batch, except those that have been replaced meanwhile."""
        for key, change in batch.responses.items():
            now = self._responses.get(key)
            if now is change:
                self._drop_response(key)
            elif (
                isinstance(now, ResponseEntry) and isinstance(change, ResponseEntry) and now.response is change.response
            ):
                self._drop_response(key)
                self.set_response(key, now.used)
        for key, changes in batch.conversations.items():
            # Later changes replace only those at the end, so the written ones are still at the front.
            waiting = self._conversations[key]
            written = [now for now, change in zip(waiting, changes, strict=False) if now is change]
            self.size -= sum(change.size for change in written)
            del waiting[: len(written)]
            if not waiting:
                del self._conversations[key]
        for row in batch.usage:
            self._usage.add(row, -1)

    def drop_oldest(self, limit: int) -> int:
        """Drop responses, oldest first, until no more than `limit` bytes wait; how many were dropped."""
        dropped = 0
        if self.size > limit:
            for key, change in list(self._responses.items()):
                if isinstance(change, ResponseEntry) and self.size > limit:
                    self._drop_response(key)
                    dropped += 1
        self.dropped += dropped
        return dropped

    def _drop_response(self, key: Key) -> None:
        if key in self._responses:
            self.size -= _size(self._responses.pop(key))


def _count(conversations: Mapping[Key, list[Change]]) -> int:
    return sum(map(len, conversations.values()))


def _size(change: ResponseChange) -> int:
    return CHANGE_SIZE + (change.size if isinstance(change, ResponseEntry) else 0)
