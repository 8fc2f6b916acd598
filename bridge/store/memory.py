"""A store in memory: for as long as the process lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.items import find_item
from bridge.store.kept import (
    AddItems,
    DeleteItem,
    Drop,
    KeptConversation,
    KeptResponse,
    SetMetadata,
    Step,
    apply,
    create,
    keep_response,
    response_size,
    with_ids,
)
from bridge.store.usage import UsageTable, oldest_day

CLEANUP = 60.0


def _exact(data: bytes) -> bytes:
    """The same bytes, in no more memory than they need.

    Those of orjson keep the buffer that they were written into, which may be ten times as large.
    """
    return bytes(memoryview(data))


Key = tuple[str, str]
"""Scope and id."""


class MemoryStore:
    """See `Store`. Never at fault.

    Both dicts are in the order of use: what expires or has to go is always at their beginning.
    """

    def __init__(self, *, ttl: float, max_bytes: int, now: Callable[[], float]) -> None:
        self.fault: str | None = None
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._now = now
        self._responses: dict[Key, KeptResponse] = {}
        self._conversations: dict[Key, KeptConversation] = {}
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
        response = replace(response, body=_exact(response.body), input=_exact(response.input))
        kept = self._responses[key] = keep_response(response, self._now())
        self._size += kept.size
        for item_id in kept.item_ids:
            self._holders.setdefault((scope, item_id), {})[response.id] = None
        self._clean()

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        kept = self._response(scope, id)
        return kept.response if kept else None

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        links: dict[str, KeptResponse] = {}
        cursor: str | None = id
        while cursor is not None:
            kept = self._response(scope, cursor)
            if kept is None or cursor in links:
                return None
            links[cursor] = kept
            cursor = kept.response.previous
        now = self._now()
        for link in reversed(links.values()):
            key = scope, link.response.id
            del self._responses[key]
            self._responses[key] = KeptResponse(link.response, now, link.item_ids)
        return [link.response for link in reversed(links.values())]

    async def delete(self, scope: str, id: str) -> bool:
        found = self._response(scope, id) is not None
        self._forget((scope, id))
        return found

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for id in reversed(self._holders.get((scope, item_id), {})):
            if kept := self._response(scope, id):
                return find_item(kept.response, item_id)
        return None

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        self._step(scope, conversation.id, create(conversation, [_exact(item) for item in items]))
        self._clean()

    async def get_conversation(self, scope: str, id: str) -> Conversation | None:
        kept = self._conversation(scope, id)
        return kept.conversation if kept else None

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        kept = self._conversation(scope, id) and self._step(scope, id, SetMetadata(dict(metadata)))
        return kept.conversation if kept else None

    async def delete_conversation(self, scope: str, id: str) -> bool:
        found = self._conversation(scope, id) is not None
        self._step(scope, id, Drop())
        return found

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        step = AddItems(with_ids([_exact(item) for item in items]))
        if self._conversation(scope, id) is None:
            return False
        self._step(scope, id, step)
        self._clean()
        return True

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        kept = self._conversation(scope, id)
        return list(kept.items.values()) if kept else None

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        kept = self._conversation(scope, id)
        if kept is None or item_id not in kept.items:
            return False
        self._step(scope, id, DeleteItem(item_id))
        return True

    # Usage

    def count(self, row: UsageRow) -> None:
        self._usage.add(row)

    async def usage(self, *, since: str) -> list[UsageRow]:
        return self._usage.rows(max(since, oldest_day(self._now())))

    # The rest

    def _response(self, scope: str, id: str) -> KeptResponse | None:
        kept = self._responses.get((scope, id))
        return kept if kept and not self._expired(kept) else None

    def _conversation(self, scope: str, id: str) -> KeptConversation | None:
        """The conversation, which counts as used by this."""
        key = scope, id
        kept = self._conversations.get(key)
        if kept is None or self._expired(kept):
            return None
        kept.used = self._now()
        self._conversations[key] = self._conversations.pop(key)
        return kept

    def _step(self, scope: str, id: str, step: Step) -> KeptConversation | None:
        key = scope, id
        before = self._conversations.pop(key, None)
        self._size -= before.size if before else 0
        after = apply(step, before, self._now())
        if after is not None:
            self._conversations[key] = after
            self._size += after.size
        return after

    def _expired(self, kept: KeptResponse | KeptConversation) -> bool:
        return kept.used <= self._now() - self._ttl

    def _clean(self) -> None:
        """Let go of what has expired, then of what is too much."""
        while (key := next(iter(self._conversations), None)) and self._expired(self._conversations[key]):
            self._step(*key, Drop())
        while (key := next(iter(self._responses), None)) and (self._full() or self._expired(self._responses[key])):
            self._forget(key)
        while (key := next(iter(self._conversations), None)) and self._full():
            self._step(*key, Drop())

    def _full(self) -> bool:
        return self._size > self._max_bytes

    def _forget(self, key: Key) -> None:
        kept = self._responses.pop(key, None)
        if kept is None:
            return
        self._size -= kept.size
        for item_id in kept.item_ids:
            holders = self._holders[key[0], item_id]
            del holders[key[1]]
            if not holders:
                del self._holders[key[0], item_id]
