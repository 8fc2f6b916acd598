"""The changes that are not in the file yet. Pure.

Readers apply them to what the file holds. The writer takes a batch, writes it in one transaction and then removes it;
until then, its changes still count for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from bridge.store.base import UsageRow
from bridge.store.entries import CHANGE_SIZE, Change, ConversationEntry, ResponseEntry, UsageTable

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


class Changes:
    """The changes that wait to be written, oldest first.

    A response has one at most, which says all. A conversation has a list: another process may change it too, so that
    it cannot be written as a whole.
    """

    def __init__(self) -> None:
        self.size = 0
        """About how many bytes of memory they take."""
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
        """Remove the changes of a batch, but for those that others have replaced meanwhile."""
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
        return dropped

    def _drop_response(self, key: Key) -> None:
        if key in self._responses:
            self.size -= _size(self._responses.pop(key))


def _count(conversations: Mapping[Key, list[Change]]) -> int:
    return sum(map(len, conversations.values()))


def _size(change: ResponseChange) -> int:
    return CHANGE_SIZE + (change.size if isinstance(change, ResponseEntry) else 0)
