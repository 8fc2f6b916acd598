"""The data that a store keeps, and the interface of every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import trio

USAGE_DAYS = 400
"""How many days back usage is kept."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answered request."""

    id: str
    created_at: int
    """Unix seconds."""
    body: bytes
    """The response object as JSON; the items of its `output` have an `id`."""
    input: bytes
    """The request's own input items, without those of earlier responses: a JSON array of objects with an `id`."""
    previous: str | None = None
    """The id of the response that this one continues."""
    conversation: str | None = None
    item_ids: tuple[str, ...] | None = field(default=None, compare=False)
    """The ids of its items, each once, if the caller knows them."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its items, which are read separately."""

    id: str
    created_at: int
    metadata: Mapping[str, str]


class UsageRow(NamedTuple):
    """What one client key used of one model on one day."""

    day: str
    """Like `2026-11-16`, in UTC; with the hour, like `2026-11-16T09`, where a budget per hour has to see it."""
    key: str
    """The label of the client key, never the key."""
    model: str
    requests: int
    failed: int
    input: int
    cached: int
    output: int
    reasoning: int


class Store(Protocol):
    """Keeps responses and conversations for a time, and usage for `USAGE_DAYS`.

    A `scope` is an opaque string, one for each client key: nothing of one scope is visible in another, and the same id
    in two scopes means two things.

    A response expires when it was neither put nor part of a `chain` for the time to live, a conversation when it was
    not used. Expired entries are invisible at once. Beyond the bound of bytes, the least recently used responses are
    evicted first, then conversations; a response larger than the whole bound is not stored at all.

    Every later call sees a change, even before it is on disk. A store that has to read its database and cannot raises
    `NotReady`; one that several bridges share also does so when it cannot commit a change. `put` and `count` never
    raise.
    """

    fault: str | None
    """Why it cannot write at the moment, or None."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write and clean up until cancelled; then write what is still queued."""

    async def put(self, scope: str, response: StoredResponse) -> bool:
        """Store a response, replacing one with the same id; whether every reader of the store finds it from now on.

        Waits while too much is queued to be written, and for a store of several bridges until it is committed.
        """

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        """One response. Does not renew its time to live."""

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        """The response and all that it continues, oldest first; None when any link is missing.

        Renews the time to live of every link.
        """

    async def delete(self, scope: str, id: str) -> bool:
        """Delete a response; whether there was one. This breaks chains through it."""

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        """The JSON of an input or output item of a stored response; of the newest if several have it."""

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        """Create a conversation, replacing one with the same id. Items are JSON objects with an `id`."""

    async def get_conversation(self, scope: str, id: str) -> Conversation | None: ...

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        """Replace the metadata and return the conversation; None when there is no such conversation."""

    async def delete_conversation(self, scope: str, id: str) -> bool:
        """Delete a conversation and its items; whether there was one. Its responses stay."""

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        """Append items (JSON objects with an `id`); False when there is no such conversation.

        An item with an existing id replaces that one in its position.
        """

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        """All items in order; None when there is no such conversation."""

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        """Delete one item of a conversation; whether it was there."""

    def count(self, row: UsageRow) -> None:
        """Add to the row of that day, key and model. Immediate; never blocks."""

    async def usage(self, *, since: str, hours: bool = False) -> list[UsageRow]:
        """All rows from that day or hour on, sorted by day, key and model. Unless `hours`, one for each day."""
