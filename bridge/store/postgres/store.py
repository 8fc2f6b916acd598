"""A store in PostgreSQL: what one bridge stores, every other finds at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from bridge.errors import NotReady
from bridge.store.base import Conversation, StoredResponse
from bridge.store.changes import Batch, ConversationEntry, Key, ResponseEntry
from bridge.store.engine import Bounds, Database, Unavailable, Uncertain
from bridge.store.postgres import statements
from bridge.store.postgres.migrations import migrate
from bridge.store.postgres.server import CONNECTIONS, LIMIT, Connection, Server
from bridge.store.queued import CLEANUP, UNAVAILABLE, QueuedStore

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that a request waits for the database before it continues without it."""
CLEANED_EVERY = 16
"""A sixteenth of what may be stored is written before old responses are looked for; it may be exceeded by as much."""


class PostgresStore(QueuedStore):
    """See `QueuedStore`. The constructor connects and blocks: call it before the event loop is busy.

    It raises `ConfigError` for tables of a newer version, and if it may not create any. A server that does not answer
    is a `fault`.

    A change is committed before the call returns, so that another bridge finds it; `put` gives up after `patience`
    seconds, and the response stays queued. A change that has not been committed is shown to no one but while the
    database fails: then what is queued here is all that can be read. Everything else raises `NotReady` without
    waiting, until the task that writes has reached the database again.
    """

    backoff = (0.1, 2.0)

    def __init__(self, url: str, *, patience: float = PATIENCE, limit: float = LIMIT, **options: Any) -> None:
        server = Server(url, migrate, limit=limit)
        self._patience = patience
        super().__init__(PostgresDatabase(server), trio.CapacityLimiter(CONNECTIONS), **options)
        try:
            server.do(lambda connection: None)
        except Unavailable as error:
            self._fail(str(error))

    # Responses

    async def put(self, scope: str, response: StoredResponse) -> bool:
        return await super().put(scope, response) and await self._commit_response((scope, response.id))

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        await self._commit_response((scope, id))
        return await super().get(scope, id)

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        await self._commit_response((scope, id))
        return await super().chain(scope, id)

    async def delete(self, scope: str, id: str) -> bool:
        await self._commit_response((scope, id))
        found = await super().delete(scope, id)
        if found and not await self._commit_response((scope, id)):
            raise _uncertain()
        return found

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for entry in self._queue.holders(scope, item_id):
            await self._commit_response((scope, entry.response.id))
        return await super().find_item(scope, item_id)

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        self._require_database()
        await super().create_conversation(scope, conversation, items)
        await self._require_commit((scope, conversation.id))

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        self._require_database()
        updated = await super().update_conversation(scope, id, metadata)
        await self._require_commit((scope, id))
        return updated

    async def delete_conversation(self, scope: str, id: str) -> bool:
        self._require_database()
        found = await super().delete_conversation(scope, id)
        await self._require_commit((scope, id))
        return found

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        self._require_database()
        found = await super().add_items(scope, id, items)
        await self._require_commit((scope, id))
        return found

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        self._require_database()
        found = await super().delete_item(scope, id, item_id)
        await self._require_commit((scope, id))
        return found

    async def _conversation(self, scope: str, id: str, **what: Any) -> ConversationEntry | None:
        await self._commit_conversation((scope, id))
        return await super()._conversation(scope, id, **what)

    # What is committed

    async def _commit_response(self, key: Key) -> bool:
        return await self._commit(lambda: not self._queue.needs_response(key))

    async def _commit_conversation(self, key: Key) -> bool:
        return await self._commit(lambda: self._queue.changes_conversation(key))

    async def _require_commit(self, key: Key) -> None:
        if not await self._commit_conversation(key):
            raise _uncertain()

    async def _commit(self, is_waiting: Callable[[], bool]) -> bool:
        """Wait until a change has been written; False while the database fails, or if that takes too long."""
        dropped = self._queue.dropped
        with trio.move_on_after(self._patience):
            while is_waiting() and self.fault is None:
                self._wakeup.set()
                self._hurry.set()
                await self._tried.wait()
            return not is_waiting() and self._queue.dropped == dropped
        self._fail(f"PostgreSQL has not stored anything for {self._patience:g} s")
        return False

    def _require_database(self) -> None:
        if self.fault is not None:
            raise NotReady("The store cannot be written. Try again later.", code=UNAVAILABLE)

    async def _read(self, work: Callable[[], T]) -> T:
        if self.fault is None:
            try:
                # This limits the wait for a connection. With one, `limit` does.
                with trio.move_on_after(self._patience):
                    return await self._in_thread(work)
                self._fail(f"no connection to PostgreSQL was free for {self._patience:g} s")
            except Unavailable as error:
                self._fail(str(error))
            # The task that writes finds out when this is over.
            self._unclean = True
            self._wakeup.set()
            self._hurry.set()
        raise NotReady("The store cannot be read. Try again later.", code=UNAVAILABLE)


def _uncertain() -> NotReady:
    return NotReady(
        "The store does not answer; the change may be made later. Check before you repeat it.", code=UNAVAILABLE
    )


class PostgresDatabase(Database):
    """The tables on a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(statements)
        self._server = server
        self._writer = os.urandom(16)
        self._number = 0
        self._sent: Batch | None = None
        """The batch of that number."""
        self._cleaned = -CLEANUP
        self._written = 0

    def do(self, work: Callable[[Connection], T]) -> T:
        return self._server.do(work)

    def write(self, batch: Batch, bounds: Bounds, *, clean: bool) -> bool:
        if batch is not self._sent:
            self._number += 1
            self._sent = batch
        try:
            if batch:
                self.do(lambda connection: statements.write(connection, self._writer, self._number, batch))
                self._written += sum(
                    entry.size for entry in batch.responses.values() if isinstance(entry, ResponseEntry)
                )
            # To find the oldest responses is not free here, and every bridge would do it.
            is_due = time.monotonic() - self._cleaned > CLEANUP or self._written > bounds.max_bytes // CLEANED_EVERY
            if not (clean or is_due):
                return False
            more = self.do(lambda connection: statements.clean(connection, bounds, statements.CLEANED + len(batch)))
        except Unavailable as error:
            raise Uncertain(str(error)) from error
        self._cleaned, self._written = time.monotonic(), 0
        return more

    def shrink(self) -> None:
        """PostgreSQL does so by itself."""

    def close(self) -> None:
        self._server.close()
