"""What a store does, in the plainest form: dicts. Properties compare the real one with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import trio
from store.stores import TTL, Clock

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.changes import by_day

Key = tuple[str, str]


@dataclass
class Kept:
    """A response, or a conversation with its items, and when it was last used."""

    used: float
    content: Any
    items: dict[str, bytes]


class ModelStore:
    """See `Store`. It has no bound of bytes, and removes nothing that has expired."""

    def __init__(self, clock: Clock) -> None:
        self.fault: str | None = None
        self._now = clock
        self._responses: dict[Key, Kept] = {}
        """In the order in which they were put."""
        self._conversations: dict[Key, Kept] = {}
        self._usage: dict[tuple[str, str, str], UsageRow] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    # Responses

    async def put(self, scope: str, response: StoredResponse) -> bool:
        self._responses.pop((scope, response.id), None)
        items = [*json.loads(response.body)["output"], *json.loads(response.input)]
        found = {item["id"]: json.dumps(item, separators=(",", ":")).encode() for item in reversed(items)}
        self._responses[scope, response.id] = Kept(self._now(), response, found)
        return True

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        kept = self._live(self._responses, scope, id)
        return kept.content if kept else None

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        links: dict[str, Kept] = {}
        cursor: str | None = id
        while cursor is not None:
            kept = self._live(self._responses, scope, cursor)
            if kept is None or cursor in links:
                return None
            links[cursor] = kept
            cursor = kept.content.previous
        for kept in links.values():
            kept.used = self._now()
        return [kept.content for kept in reversed(links.values())]

    async def delete(self, scope: str, id: str) -> bool:
        found = self._live(self._responses, scope, id) is not None
        self._responses.pop((scope, id), None)
        return found

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for owner, id in reversed(self._responses):
            kept = self._live(self._responses, scope, id) if owner == scope else None
            if kept is not None and item_id in kept.items:
                return kept.items[item_id]
        return None

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        self._conversations[scope, conversation.id] = Kept(self._now(), conversation, _by_id(items))

    async def get_conversation(self, scope: str, id: str) -> Conversation | None:
        kept = self._used(scope, id)
        return kept.content if kept else None

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        kept = self._used(scope, id)
        if kept is None:
            return None
        changed: Conversation = replace(kept.content, metadata=metadata)
        kept.content = changed
        return changed

    async def delete_conversation(self, scope: str, id: str) -> bool:
        found = self._used(scope, id) is not None
        self._conversations.pop((scope, id), None)
        return found

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        kept = self._used(scope, id)
        if kept is not None:
            kept.items.update(_by_id(items))
        return kept is not None

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        kept = self._used(scope, id)
        return list(kept.items.values()) if kept else None

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        kept = self._used(scope, id)
        return kept is not None and kept.items.pop(item_id, None) is not None

    # Usage

    def count(self, row: UsageRow) -> None:
        before = self._usage.get(row[:3], (0,) * len(row))
        self._usage[row[:3]] = UsageRow(*row[:3], *(a + b for a, b in zip(before[3:], row[3:], strict=True)))

    async def usage(self, *, since: str, hours: bool = False) -> list[UsageRow]:
        rows = [row for row in self._usage.values() if row.day >= since]
        return sorted(rows) if hours else by_day(rows)

    def _live(self, kind: dict[Key, Kept], scope: str, id: str) -> Kept | None:
        kept = kind.get((scope, id))
        return kept if kept and kept.used > self._now() - TTL else None

    def _used(self, scope: str, id: str) -> Kept | None:
        kept = self._live(self._conversations, scope, id)
        if kept is not None:
            kept.used = self._now()
        return kept


def _by_id(items: Sequence[bytes]) -> dict[str, bytes]:
    return {json.loads(item)["id"]: item for item in items}
