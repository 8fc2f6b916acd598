"""The changes that are not on disk yet. Pure.

For each response there is one change at most, for each conversation the steps since the last write. Readers lay them
over what the disk has; the writer takes some, writes them and then settles, which leaves what has come in meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bridge.store.base import UsageRow
from bridge.store.kept import Create, Drop, KeptConversation, KeptResponse, Step, apply, step_size
from bridge.store.usage import UsageTable

CHANGE_SIZE = 256
"""About how much memory a change holds besides its texts."""

Key = tuple[str, str]
"""Scope and id."""


@dataclass(frozen=True, slots=True)
class Put:
    """A new response."""

    kept: KeptResponse


@dataclass(frozen=True, slots=True)
class Touch:
    """The response on disk was used."""

    used: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The response was deleted."""


ResponseChange = Put | Touch | Gone


@dataclass(frozen=True, slots=True)
class Journal:
    """What happened to a conversation, in order, and when it was last used."""

    used: float
    steps: tuple[Step, ...] = ()

    @property
    def size(self) -> int:
        return CHANGE_SIZE + sum(map(step_size, self.steps))

    @property
    def is_whole(self) -> bool:
        """Whether what the disk has does not matter."""
        return bool(self.steps) and isinstance(self.steps[0], Create | Drop)

    def replay(self, kept: KeptConversation | None) -> KeptConversation | None:
        """The conversation as it is now, from what the disk has of it."""
        for step in self.steps:
            kept = apply(step, kept, self.used)
        if kept is not None:
            kept.used = max(kept.used, self.used)
        return kept


@dataclass(frozen=True, slots=True)
class Batch:
    """Some changes, for one transaction."""

    responses: dict[Key, ResponseChange] = field(default_factory=dict)
    conversations: dict[Key, Journal] = field(default_factory=dict)
    usage: list[UsageRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.responses) + len(self.conversations) + len(self.usage)


class Waiting:
    """All changes that wait, the oldest first."""

    def __init__(self) -> None:
        self.size = 0
        self._responses: dict[Key, ResponseChange] = {}
        self._conversations: dict[Key, Journal] = {}
        self._usage = UsageTable()

    def __len__(self) -> int:
        return len(self._responses) + len(self._conversations) + len(self._usage)

    def __repr__(self) -> str:
        return (
            f"<Waiting responses={len(self._responses)} conversations={len(self._conversations)} "
            f"usage={len(self._usage)} bytes={self.size}>"
        )

    # Responses

    def put(self, scope: str, kept: KeptResponse) -> None:
        self._append((scope, kept.response.id), Put(kept))

    def delete(self, scope: str, id: str) -> None:
        self._append((scope, id), Gone())

    def touch(self, scope: str, id: str, used: float) -> None:
        """The response was used, wherever it is by now."""
        key = scope, id
        match self._responses.get(key):
            case Put(kept):
                # In its place: the order is that of the puts.
                self._responses[key] = Put(replace(kept, used=max(kept.used, used)))
            case Touch(earlier):
                self._responses[key] = Touch(max(earlier, used))
            case None:
                self._append(key, Touch(used))

    def response(self, scope: str, id: str) -> ResponseChange | None:
        return self._responses.get((scope, id))

    def over_response(self, scope: str, id: str, on_disk: KeptResponse | None) -> KeptResponse | None:
        """The response as it is now, from what the disk has of it."""
        match self._responses.get((scope, id)):
            case Put(kept):
                return kept
            case Gone():
                return None
            case Touch(used) if on_disk is not None:
                return replace(on_disk, used=max(on_disk.used, used))
        return on_disk

    def holders(self, scope: str, item_id: str) -> list[KeptResponse]:
        """The waiting responses that hold an item, newest first."""
        return [
            change.kept
            for (owner, _), change in reversed(self._responses.items())
            if owner == scope and isinstance(change, Put) and item_id in change.kept.item_ids
        ]

    # Conversations

    def journal(self, scope: str, id: str) -> Journal | None:
        return self._conversations.get((scope, id))

    def over_conversation(self, scope: str, id: str, on_disk: KeptConversation | None) -> KeptConversation | None:
        """The conversation as it is now, from what the disk has of it."""
        journal = self._conversations.get((scope, id))
        return journal.replay(on_disk) if journal else on_disk

    def record(self, scope: str, id: str, used: float, *steps: Step) -> None:
        """The conversation was used, and changed by these steps."""
        key = scope, id
        old = self._conversations.pop(key, None)
        if old is not None:
            self.size -= old.size
            # What happened before the end or a new beginning matters to nobody.
            anew = any(isinstance(step, Create | Drop) for step in steps)
            steps = steps if anew else old.steps + steps
            used = max(used, old.used)
        new = self._conversations[key] = Journal(used, steps)
        self.size += new.size

    # Usage

    def count(self, row: UsageRow) -> None:
        self._usage.add(row)

    def over_usage(self, on_disk: list[UsageRow], since: str) -> list[UsageRow]:
        """The usage as it is now."""
        return UsageTable([*on_disk, *self._usage.rows(since)]).rows()

    # Writing

    def take(self, limit: int, most: int | None = None) -> Batch:
        """The oldest changes, about `limit` bytes of responses and of conversations, and `most` changes in all.

        They stay until they are settled.
        """
        batch = Batch()
        room = limit
        for key, change in self._responses.items():
            if room <= 0 or len(batch) == most:
                break
            batch.responses[key] = change
            room -= _size(change)
        room = limit
        for key, journal in self._conversations.items():
            if room <= 0 or len(batch) == most:
                break
            batch.conversations[key] = journal
            room -= journal.size
        batch.usage.extend(self._usage.rows()[: None if most is None else most - len(batch)])
        return batch

    def settle(self, batch: Batch) -> None:
        """The batch is on disk: forget it, but for what has come in since it was taken."""
        for key, change in batch.responses.items():
            if self._responses.get(key) is change:
                self.size -= _size(self._responses.pop(key))
        for key, written in batch.conversations.items():
            journal = self._conversations.pop(key)
            self.size -= journal.size
            if journal is not written:
                done = len(written.steps)
                continues = all(map(_same, journal.steps, written.steps)) and len(journal.steps) >= done
                rest = Journal(journal.used, journal.steps[done:] if continues else journal.steps)
                self._conversations[key] = rest
                self.size += rest.size
        for row in batch.usage:
            self._usage.add(row, -1)

    def drop_oldest(self, limit: int) -> int:
        """Forget waiting responses, oldest first, until no more than `limit` bytes wait; how many were forgotten."""
        dropped = 0
        for key in [key for key, change in self._responses.items() if isinstance(change, Put)]:
            if self.size <= limit:
                break
            self.size -= _size(self._responses.pop(key))
            dropped += 1
        return dropped

    def _append(self, key: Key, change: ResponseChange) -> None:
        old = self._responses.pop(key, None)
        self.size += _size(change) - (_size(old) if old else 0)
        self._responses[key] = change


def _size(change: ResponseChange) -> int:
    return CHANGE_SIZE + (change.kept.size if isinstance(change, Put) else 0)


def _same(one: Step, other: Step) -> bool:
    return one is other
