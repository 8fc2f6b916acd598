"""A store in one SQLite file: changes are seen at once and written behind, off the event loop."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import trio

from bridge.errors import NotReady
from bridge.store import statements
from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.file import Refused, StoreFile
from bridge.store.items import find_item
from bridge.store.kept import (
    AddItems,
    DeleteItem,
    Drop,
    KeptConversation,
    KeptResponse,
    SetMetadata,
    Step,
    create,
    keep_response,
    response_size,
    with_ids,
)
from bridge.store.statements import Bounds
from bridge.store.usage import oldest_day
from bridge.store.waiting import Gone, Put, Waiting
from bridge.threads import in_thread

log = logging.getLogger("bridge.store")

P = ParamSpec("P")
T = TypeVar("T")

MAX_WAITING = 64 * 1024 * 1024
"""How many bytes may wait to be written."""
BATCH = 4 * 1024 * 1024
"""About how many bytes one transaction writes: readers wait for it."""
GATHER = 0.02
"""How long changes gather before they are written together."""
CLEANUP = 60.0
"""Seconds between two looks for what has expired, when there is nothing else to do."""
UNAVAILABLE = "store_unavailable"
"""The code of the errors that are raised here."""
BACKOFF = (0.1, 10.0)
"""The first and the longest time before a refused write is tried again."""


class SqliteStore:
    """See `Store`. The file is opened here and now: make the store before the event loop has work to do.

    `ConfigError` for a path that cannot be used, for another program's database and for one of a newer version. Several
    processes may share a file: each sees what the others have written, not what they have yet to write.

    While the disk refuses, `fault` says why, everything goes on in memory, and writing is tried again. When more
    than `max_waiting` bytes wait then, the oldest waiting responses are dropped, and changes of conversations raise
    `NotReady`. A process that is killed loses what it did in the last moments; the file stays whole.
    """

    def __init__(
        self,
        path: Path,
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
        self._waiting = Waiting()
        self._unclean = True
        """Whether the file may hold more than it should."""
        self._one_by_one = False
        self._dropped = 0
        self._closed = False
        self._file = StoreFile(path, now)
        self._turn = trio.Lock()
        """Held by whoever uses the file: one thread at a time."""
        self._wakeup = trio.Event()
        self._hurry = trio.Event()
        self._tried = trio.Event()
        try:
            self._file.open()
        except Refused as error:
            self._fail(str(error))

    def __repr__(self) -> str:
        return f"<SqliteStore fault={self.fault!r} {self._waiting!r}>"

    # The owner

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        pause, longest = BACKOFF
        try:
            while True:
                await self._work()
                if await self._write():
                    pause = BACKOFF[0]
                else:
                    await trio.sleep(pause)
                    pause = min(2 * pause, longest)
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    async def flush(self) -> None:
        """Wait until nothing waits to be written or removed, or the disk refuses. Needs the owner to run."""
        self._unclean = True
        while (self._waiting or self._unclean) and self.fault is None:
            self._wakeup.set()
            self._hurry.set()
            await self._tried.wait()

    async def _work(self) -> None:
        """Wait for something to do."""
        if not self._unclean:
            with trio.move_on_after(self._cleanup) as idle:
                await self._wakeup.wait()
            if idle.cancelled_caught:
                await self._shrink()
            with trio.move_on_after(GATHER):
                await self._hurry.wait()
        self._wakeup, self._hurry = trio.Event(), trio.Event()

    async def _write(self) -> bool:
        """One transaction; whether the disk took it."""
        batch = self._waiting.take(BATCH, 1 if self._one_by_one else None)
        now = self._now()
        bounds = Bounds(now - self._ttl, self._max_bytes, oldest_day(now))
        self._unclean = False
        try:
            more = await self._in_thread(statements.write, batch, bounds)
        except Refused as error:
            self._unclean = True
            self._fail(str(error))
        except Exception:
            # Not the disk's fault: trying again would not help, and must not hold up the other changes for ever.
            self._one_by_one = len(batch) > 1
            if not self._one_by_one:
                log.exception("store: a change cannot be written and is dropped")
                self._waiting.settle(batch)
        else:
            self._waiting.settle(batch)
            self._unclean = self._unclean or more
            self._one_by_one = self._one_by_one and len(self._waiting) > 0
            self._recover()
        if self._waiting:
            self._wakeup.set()
        if self._one_by_one or self._waiting.size > BATCH:
            self._hurry.set()
        self._tried.set()
        self._tried = trio.Event()
        return self.fault is None

    async def _shrink(self) -> None:
        with suppress(Refused):
            await self._in_thread(statements.shrink)

    async def _finish(self) -> None:
        """Write what waits, and close."""
        while self._waiting and await self._write():
            pass
        if self._waiting:
            log.error("store: %d change(s) are lost: %s", len(self._waiting), self.fault)
        await self._turn.acquire()
        await in_thread(self._file.close)
        self._closed = True
        self.fault = "the store is closed"
        self._turn.release()

    def _fail(self, why: str) -> None:
        if self.fault != why:
            log.error("store: nothing can be written: %s", why)
        self.fault = why

    def _recover(self) -> None:
        if self.fault is not None:
            log.warning("store: writing again; %d response(s) were dropped meanwhile", self._dropped)
        self.fault, self._dropped = None, 0

    async def _room(self) -> bool:
        """Wait until more may wait. While the disk refuses, drop waiting responses; False when that is not enough."""
        await trio.lowlevel.checkpoint()
        while self._waiting.size > self._max_waiting and self.fault is None:
            self._hurry.set()
            await self._tried.wait()
        self._dropped += self._waiting.drop_oldest(self._max_waiting)
        return self._waiting.size <= self._max_waiting

    # Responses

    async def put(self, scope: str, response: StoredResponse) -> None:
        if not await self._room():
            self._dropped += 1
        elif response_size(response) > self._max_bytes:
            self._waiting.delete(scope, response.id)
        else:
            self._waiting.put(scope, keep_response(response, self._now()))
        self._wakeup.set()

    async def get(self, scope: str, id: str) -> StoredResponse | None:
        kept = await self._response(scope, id)
        return kept.response if kept else None

    async def chain(self, scope: str, id: str) -> list[StoredResponse] | None:
        links: dict[str, StoredResponse] = {}
        cursor: str | None = id
        while cursor is not None:
            found = await self._links(scope, cursor)
            if not found:
                return None
            for kept in found:
                if kept.response.id in links:
                    return None
                links[kept.response.id] = kept.response
                cursor = kept.response.previous
        now = self._now()
        for link in reversed(links):
            self._waiting.touch(scope, link, now)
        self._wakeup.set()
        return list(reversed(links.values()))

    async def delete(self, scope: str, id: str) -> bool:
        if await self._response(scope, id) is None:
            return False
        self._waiting.delete(scope, id)
        self._wakeup.set()
        return True

    async def find_item(self, scope: str, item_id: str) -> bytes | None:
        for kept in self._waiting.holders(scope, item_id):
            if self._lives(kept):
                return find_item(kept.response, item_id)
        for id in await self._read(statements.read_holders, scope, item_id):
            found = await self._response(scope, id)
            item = find_item(found.response, item_id) if found else None
            if item is not None:
                return item
        return None

    async def _response(self, scope: str, id: str) -> KeptResponse | None:
        """The response as it is now. Between this and a change there must be no checkpoint."""
        on_disk = await self._read(statements.read_response, scope, id) if self._is_on_disk(scope, id) else None
        kept = self._waiting.over_response(scope, id, on_disk)
        return kept if self._lives(kept) else None

    async def _links(self, scope: str, id: str) -> list[KeptResponse]:
        """The response and some that it continues, newest first: all that the file has, or the one that waits."""
        if self._is_on_disk(scope, id):
            found = await self._read(statements.read_links, scope, id)
            unchanged = takewhile(lambda kept: self._is_on_disk(scope, kept.response.id), found)
            links = [self._waiting.over_response(scope, kept.response.id, kept) for kept in unchanged]
            if links:
                return list(takewhile(self._lives, filter(None, links)))
        waiting = self._waiting.over_response(scope, id, None)
        return [waiting] if waiting and self._lives(waiting) else []

    def _is_on_disk(self, scope: str, id: str) -> bool:
        """Whether the file has to be asked for a response."""
        return not isinstance(self._waiting.response(scope, id), Put | Gone)

    # Conversations

    async def create_conversation(self, scope: str, conversation: Conversation, items: Sequence[bytes]) -> None:
        step = create(conversation, items)
        await self._room_or_raise()
        self._record(scope, conversation.id, step)

    async def get_conversation(self, scope: str, id: str) -> Conversation | None:
        kept = await self._conversation(scope, id)
        return kept.conversation if kept else None

    async def update_conversation(self, scope: str, id: str, metadata: Mapping[str, str]) -> Conversation | None:
        step = SetMetadata(dict(metadata))
        await self._room_or_raise()
        kept = await self._conversation(scope, id)
        if kept is None:
            return None
        self._record(scope, id, step)
        return replace(kept.conversation, metadata=step.metadata)

    async def delete_conversation(self, scope: str, id: str) -> bool:
        if await self._conversation(scope, id) is None:
            return False
        self._record(scope, id, Drop())
        return True

    async def add_items(self, scope: str, id: str, items: Sequence[bytes]) -> bool:
        step = AddItems(with_ids(items))
        await self._room_or_raise()
        if await self._conversation(scope, id) is None:
            return False
        self._record(scope, id, step)
        return True

    async def list_items(self, scope: str, id: str) -> list[bytes] | None:
        kept = await self._conversation(scope, id, items=True)
        return list(kept.items.values()) if kept else None

    async def delete_item(self, scope: str, id: str, item_id: str) -> bool:
        kept = await self._conversation(scope, id, item=item_id)
        if kept is None or item_id not in kept.items:
            return False
        self._record(scope, id, DeleteItem(item_id))
        return True

    async def _conversation(
        self, scope: str, id: str, *, items: bool = False, item: str | None = None
    ) -> KeptConversation | None:
        """The conversation as it is now, used by this. Between this and a change there must be no checkpoint."""
        journal = self._waiting.journal(scope, id)
        on_disk = None
        if journal is None or not journal.is_whole:
            on_disk = await self._read(statements.read_conversation, scope, id, items=items, item=item)
        kept = self._waiting.over_conversation(scope, id, on_disk)
        if kept is None or not self._lives(kept):
            return None
        self._record(scope, id)
        return kept

    def _record(self, scope: str, id: str, *steps: Step) -> None:
        self._waiting.record(scope, id, self._now(), *steps)
        self._wakeup.set()

    async def _room_or_raise(self) -> None:
        if not await self._room():
            raise NotReady("Conversations cannot be changed at the moment.", code=UNAVAILABLE)

    # Usage

    def count(self, row: UsageRow) -> None:
        self._waiting.count(row)
        self._wakeup.set()

    async def usage(self, *, since: str) -> list[UsageRow]:
        since = max(since, oldest_day(self._now()))
        return self._waiting.over_usage(await self._read(statements.read_usage, since), since)

    # The file

    def _lives(self, kept: KeptResponse | KeptConversation | None) -> bool:
        return kept is not None and kept.used > self._now() - self._ttl

    async def _read(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the file has. With what waits laid over it before the next checkpoint, it is what is true now."""
        try:
            return await self._in_thread(function, *args, **kwargs)
        except Refused as error:
            raise NotReady("What is stored cannot be read at the moment.", code=UNAVAILABLE) from error

    async def _in_thread(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        await self._turn.acquire()
        try:
            if self._closed:
                raise Refused("the store is closed")
            return await in_thread(partial(self._file.do, function, *args, **kwargs))
        finally:
            self._turn.release()
