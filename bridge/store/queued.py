"""A store on a database that blocks: changes are visible at once, and written together later by a worker thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import trio

from bridge.errors import NotReady
from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.changes import (
    Batch,
    Change,
    Changes,
    ConversationEntry,
    ResponseChange,
    ResponseEntry,
    by_day,
    create,
    find_item,
    make_entry,
    oldest_day,
    response_size,
    with_ids,
)
from bridge.store.engine import Bounds, Database, Unavailable, Uncertain
from bridge.threads import in_thread

log = logging.getLogger("bridge.store")

T = TypeVar("T")

MAX_WAITING = 64 * 1024 * 1024
"""How many bytes may be queued."""
BATCH = 4 * 1024 * 1024
"""About how many bytes one transaction writes: readers wait for it."""
GATHER = 0.02
"""For how many seconds changes gather before they are written together."""
CLEANUP = 60.0
"""Seconds between two searches for expired entries while there is nothing else to do."""
UNAVAILABLE = "store_unavailable"
"""The code of the errors that are raised here."""
BACKOFF = (0.1, 10.0)
"""The first and the longest delay before a failed write is retried."""


class QueuedStore:
    """See `Store`. Changes are queued and written together: a statement for each would cost too much under load.

    While the database fails, `fault` says why, everything continues in memory, and writing is retried. When more than
    `max_waiting` bytes are queued by then, the oldest queued responses are dropped, and changes of conversations raise
    `NotReady`. A killed process loses its queue.

    `turnstile` lets as many threads use the database as it can serve.
    """

    backoff = BACKOFF

    def __init__(
        self,
        database: Database,
        turnstile: AbstractAsyncContextManager[object],
        *,
        ttl: float,
        max_bytes: int,
        now: Callable[[], float],
        max_waiting: int = MAX_WAITING,
        cleanup: float = CLEANUP,
    ) -> None:
        self.fault: str | None = None
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._max_waiting = max_waiting
        self._now = now
        self._cleanup = cleanup
        self._queue = Changes()
        self._unclean = True
        """Whether the database may hold something that has to be removed."""
        self._one_by_one = False
        self._uncertain: Batch | None = None
        """A batch that may have been written."""
        self._dropped = 0
        self._closed = False
        self._database = database
        self._turnstile = turnstile
        self._wakeup = trio.Event()
        self._hurry = trio.Event()
        self._tried = trio.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} fault={self.fault!r} {self._queue!r}>"

    # The task that writes

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        pause, longest = self.backoff
        try:
            while True:
                await self._work()
                if await self._write():
                    pause = self.backoff[0]
                else:
                    await trio.sleep(pause)
                    pause = min(2 * pause, longest)
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    async def flush(self) -> None:
        """Wait until everything is written and expired entries are removed, or the database fails. Needs `run`."""
        self._unclean = True
        while (self._queue or self._unclean) and self.fault is None:
            self._wakeup.set()
            self._hurry.set()
            await self._tried.wait()

    async def _work(self) -> None:
        """Wait for something to do."""
        if not self._unclean:
            with trio.move_on_after(self._cleanup) as idle:
                await self._wakeup.wait()
            if idle.cancelled_caught:
                self._unclean = True
                await self._shrink()
            with trio.move_on_after(GATHER):
                await self._hurry.wait()
        self._wakeup, self._hurry = trio.Event(), trio.Event()

    async def _write(self) -> bool:
        """Write one batch; whether the database works."""
        batch, self._uncertain = self._uncertain, None
        if batch is None:
            batch = self._queue.take(BATCH, 1 if self._one_by_one else None)
        now = self._now()
        bounds = Bounds(now - self._ttl, self._max_bytes, oldest_day(now))
        unclean, self._unclean = self._unclean, False
        try:
            more = await self._in_thread(partial(self._database.write, batch, bounds, clean=unclean))
        except Unavailable as error:
            self._unclean = True
            self._uncertain = batch if isinstance(error, Uncertain) else None
            self._fail(str(error))
        except Exception:
            # Not the database's fault: a retry would not help, and must not hold up the other changes for ever.
            self._one_by_one = len(batch) > 1
            if not self._one_by_one:
                log.exception("store: dropped a change that cannot be written")
                self._queue.written(batch)
        else:
            self._queue.written(batch)
            self._unclean = self._unclean or more
            self._one_by_one = self._one_by_one and len(self._queue) > 0
            self._recover()
        if self._queue:
            self._wakeup.set()
        if self._one_by_one or self._queue.size > BATCH:
            self._hurry.set()
        self._tried.set()
        self._tried = trio.Event()
        return self.fault is None

    async def _shrink(self) -> None:
        with suppress(Unavailable):
            await self._in_thread(self._database.shrink)

    async def _finish(self) -> None:
        """Write what is queued, and close the database."""
        while self._queue and await self._write():
            pass
        if self._queue:
            log.error("store: lost %d change(s): %s", len(self._queue), self.fault)
        async with self._turnstile:
            await self._blocking(self._database.close)
            self._closed = True
            self.fault = "the store is closed"

    def _fail(self, why: str) -> None:
        if self.fault != why:
            log.error("store: cannot write: %s", why)
        self.fault = why

    def _recover(self) -> None:
        if self.fault is not None:
            log.warning("store: writing again; dropped %d response(s) meanwhile", self._dropped)
        self.fault, self._dropped = None, 0

    async def _has_room(self) -> bool:
        """Wait until more may be queued; whether it may. While the database fails, queued responses are dropped."""
        await trio.lowlevel.checkpoint()
        while self._queue.size > self._max_waiting and self.fault is None:
            self._hurry.set()
            await self._tried.wait()
        self._dropped += self._queue.drop_oldest(self._max_waiting)
        return self._queue.size <= self._max_waiting

    # Responses

    async def put(self, scope: str, response: StoredResponse) -> bool:
        fits = response_size(response) <= self._max_bytes
        if not await self._has_room():
            self._dropped += 1
            return False
        self._set_response(scope, response.id, make_entry(response, self._now()) if fits else None)
        return fits

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        entry = await self._response(scope, id)
        return entry.response if entry else None

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        links: dict[str, StoredResponse] = {}
        in_file: dict[str, ResponseEntry] = {}
        cursor: str | None = id
        while cursor is not None:
            key = scope, cursor
            if cursor not in in_file and self._queue.needs_response(key):
                # What was read before may be out of date by now, so it is forgotten.
                in_file = await self._read(partial(self._database.read_chain, scope, cursor))
            entry = self._queue.response(key, in_file.get(cursor))
            if entry is None or not self._is_alive(entry) or cursor in links:
                return None
            links[cursor] = entry.response
            cursor = entry.response.previous
        now = float(self._now())
        for link in reversed(links):
            self._set_response(scope, link, now)
        return list(reversed(links.values()))

    async def delete(self, scope: str, id: str) -> bool:
        found = await self._response(scope, id) is not None
        if found:
            self._set_response(scope, id, None)
        return found

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for entry in self._queue.holders(scope, item_id):
            if self._is_alive(entry):
                return find_item(entry.response, item_id)
        for id in await self._read(partial(self._database.read_holders, scope, item_id)):
            found = await self._response(scope, id)
            item = find_item(found.response, item_id) if found else None
            if item is not None:
                return item
        return None

    async def _response(self, scope: str, id: str) -> ResponseEntry | None:
        """The response as it is now. There must be no checkpoint between this and a change."""
        in_file = None
        if self._queue.needs_response((scope, id)):
            in_file = await self._read(partial(self._database.read_response, scope, id))
        entry = self._queue.response((scope, id), in_file)
        return entry if entry and self._is_alive(entry) else None

    def _set_response(self, scope: str, id: str, change: ResponseChange) -> None:
        self._queue.set_response((scope, id), change)
        self._wakeup.set()

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        change = create(conversation, items, self._now())
        await self._require_room()
        self._queue.change_conversation((scope, conversation.id), change)
        self._wakeup.set()

    async def get_conversation(self, scope: str, id: str) -> Conversation | None:
        entry = await self._conversation(scope, id)
        return entry.conversation if entry else None

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        metadata = dict(metadata)
        await self._require_room()
        entry = await self._conversation(scope, id, metadata=metadata)
        return replace(entry.conversation, metadata=metadata) if entry else None

    async def delete_conversation(self, scope: str, id: str) -> bool:
        return await self._conversation(scope, id, delete=True) is not None

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        pairs = with_ids(items)
        await self._require_room()
        return await self._conversation(scope, id, items=pairs) is not None

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        entry = await self._conversation(scope, id, read_items=True)
        return list(entry.items.values()) if entry else None

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        entry = await self._conversation(scope, id, read_item=item_id)
        if entry is None or item_id not in entry.items:
            return False
        self._queue.change_conversation((scope, id), Change(self._now(), delete_item=item_id))
        return True

    async def _conversation(
        self, scope: str, id: str, *, read_items: bool = False, read_item: str | None = None, **change: Any
    ) -> ConversationEntry | None:
        """The conversation as it was, with the items that are to be read. This counts as a use.

        It is changed afterwards, if it exists; `change` are the arguments of `Change`.
        """
        key, in_file = (scope, id), None
        if self._queue.needs_conversation(key):
            in_file = await self._read(
                partial(self._database.read_conversation, *key, items=read_items, item=read_item)
            )
        entry = self._queue.conversation(key, in_file)
        if entry is None or not self._is_alive(entry):
            return None
        self._queue.change_conversation(key, Change(self._now(), **change))
        self._wakeup.set()
        return entry

    async def _require_room(self) -> None:
        if not await self._has_room():
            raise NotReady("The store cannot be written. Try again later.", code=UNAVAILABLE)

    # Usage

    def count(self, row: UsageRow) -> None:
        self._queue.add_usage(row)
        self._wakeup.set()

    async def usage(self, *, since: str, hours: bool = False) -> list[UsageRow]:
        since = max(since, oldest_day(self._now()))
        rows = self._queue.usage(await self._read(partial(self._database.read_usage, since)), since)
        return rows if hours else by_day(rows)

    # The database

    def _is_alive(self, entry: ResponseEntry | ConversationEntry) -> bool:
        return entry.used > self._now() - self._ttl

    async def _read(self, work: Callable[[], T]) -> T:
        """Read the database. The caller must apply the queued changes to the result before the next checkpoint."""
        try:
            return await self._in_thread(work)
        except Unavailable as error:
            raise NotReady("The store cannot be read. Try again later.", code=UNAVAILABLE) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        async with self._turnstile:
            if self._closed:
                raise Unavailable("the store is closed")
            return await self._blocking(work)

    async def _blocking(self, work: Callable[[], T]) -> T:
        return work() if self._database.in_memory else await in_thread(work)
