"""A store in memory: it is lost with the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.entries import (
    Change,
    ConversationEntry,
    ResponseEntry,
    UsageTable,
    create,
    find_item,
    make_entry,
    oldest_day,
    response_size,
    with_ids,
)

CLEANUP = 60.0

Key = tuple[str, str]
"""Scope and id."""


class MemoryStore:
    """See `Store`. Never at fault.

    Both dicts are in the order of use: what expires or is evicted is always at their beginning.
    """

    def __init__(self, *, ttl: float, max_bytes: int, now: Callable[[], float]) -> None:
        self.fault: str | None = None
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._now = now
        self._responses: dict[Key, ResponseEntry] = {}
        self._conversations: dict[Key, ConversationEntry] = {}
        self._holders: dict[Key, dict[str, None]] = {}
        """By scope and item id: the responses that hold the item, in the order in which they were put."""
        self._usage = UsageTable()
        self._size = 0

    def __repr__(self) -> str:
        return (
            f"<MemoryStore responses={len(self._responses)} conversations={len(self._conversations)} "
            f"bytes={self._size} items={len(self._holders)}>"
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(CLEANUP)
            self._clean()
            self._usage.forget(oldest_day(self._now()))

    # Responses

    async def put(self, scope: str, response: StoredResponse) -> None:
        key = scope, response.id
        self._forget(key)
        if response_size(response) > self._max_bytes:
            return
        entry = self._responses[key] = make_entry(response, self._now())
        self._size += entry.size
        for item_id in entry.item_ids:
            self._holders.setdefault((scope, item_id), {})[response.id] = None
        self._clean()

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        entry = self._response(scope, id)
        return entry.response if entry else None

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        links: dict[str, ResponseEntry] = {}
        cursor: str | None = id
        while cursor is not None:
            entry = self._response(scope, cursor)
            if entry is None or cursor in links:
                return None
            links[cursor] = entry
            cursor = entry.response.previous
        now = self._now()
        for link in reversed(links.values()):
            key = scope, link.response.id
            del self._responses[key]
            self._responses[key] = ResponseEntry(link.response, now, link.item_ids)
        return [link.response for link in reversed(links.values())]

    async def delete(self, scope: str, id: str) -> bool:
        found = self._response(scope, id) is not None
        self._forget((scope, id))
        return found

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for id in reversed(self._holders.get((scope, item_id), {})):
            if entry := self._response(scope, id):
                return find_item(entry.response, item_id)
        return None

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        self._change((scope, conversation.id), create(conversation, items, self._now()))
        self._clean()

    async def get_conversation(self, scope: str, id: str) -> Conversation | None:
        entry = self._conversation(scope, id)
        return entry.conversation if entry else None

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        entry = self._conversation(scope, id, metadata=dict(metadata))
        return entry.conversation if entry else None

    async def delete_conversation(self, scope: str, id: str) -> bool:
        return self._conversation(scope, id, delete=True) is not None

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        found = self._conversation(scope, id, items=with_ids(items)) is not None
        self._clean()
        return found

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        entry = self._conversation(scope, id)
        return list(entry.items.values()) if entry else None

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        entry = self._conversation(scope, id)
        if entry is None or item_id not in entry.items:
            return False
        self._conversation(scope, id, delete_item=item_id)
        return True

    # Usage

    def count(self, row: UsageRow) -> None:
        self._usage.add(row)

    async def usage(self, *, since: str) -> list[UsageRow]:
        return self._usage.rows(max(since, oldest_day(self._now())))

    def _response(self, scope: str, id: str) -> ResponseEntry | None:
        entry = self._responses.get((scope, id))
        return entry if entry and not self._expired(entry) else None

    def _conversation(self, scope: str, id: str, **change: Any) -> ConversationEntry | None:
        """The conversation, changed if it exists; this counts as a use. The arguments are those of `Change`."""
        entry = self._conversations.get((scope, id))
        if entry is None or self._expired(entry):
            return None
        self._change((scope, id), Change(self._now(), **change))
        return entry

    def _change(self, key: Key, change: Change) -> None:
        before = self._conversations.pop(key, None)
        self._size -= before.size if before else 0
        after = change.apply(before)
        if after is not None:
            self._conversations[key] = after
            self._size += after.size

    def _expired(self, entry: ResponseEntry | ConversationEntry) -> bool:
        return entry.used <= self._now() - self._ttl

    def _clean(self) -> None:
        """Remove what has expired, then the oldest beyond the bound of bytes."""
        while (key := next(iter(self._conversations), None)) and self._expired(self._conversations[key]):
            self._change(key, Change(0, delete=True))
        while (key := next(iter(self._responses), None)) and (self._full() or self._expired(self._responses[key])):
            self._forget(key)
        while (key := next(iter(self._conversations), None)) and self._full():
            self._change(key, Change(0, delete=True))

    def _full(self) -> bool:
        return self._size > self._max_bytes

    def _forget(self, key: Key) -> None:
        entry = self._responses.pop(key, None)
        if entry is None:
            return
        self._size -= entry.size
        for item_id in entry.item_ids:
            holders = self._holders[key[0], item_id]
            del holders[key[1]]
            if not holders:
                del self._holders[key[0], item_id]
