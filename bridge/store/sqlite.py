"""A store in one SQLite database: a file, or in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import trio

from bridge.store import statements
from bridge.store.base import UsageRow
from bridge.store.changes import Batch, ConversationEntry, ResponseEntry
from bridge.store.database import StoreFile
from bridge.store.engine import Bounds, Unavailable
from bridge.store.queued import QueuedStore

T = TypeVar("T")


class SqliteStore(QueuedStore):
    """See `QueuedStore`. The constructor opens the file and blocks: call it before the event loop is busy.

    It raises `ConfigError` for a path that cannot be used, for the database of another program and for one of a newer
    version. Several processes may share a file: each sees what the others have written, not what they have queued.
    Without a path, the database is in memory and lost with the process; no thread is involved then.

    `statements` says what a statement for each change would cost. A killed process leaves a consistent file.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], float], **options: Any) -> None:
        file = StoreFile(path, now)
        # One thread uses the file at a time.
        super().__init__(SqliteDatabase(file), trio.Lock(), now=now, **options)
        self._file = file
        try:
            file.open()
        except Unavailable as error:
            self._fail(str(error))


class SqliteDatabase:
    """The statements on a file. See `Database`."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self.in_memory = file.path is None

    def close(self) -> None:
        self._file.close()

    def read_response(self, scope: str, id: str) -> ResponseEntry | None:
        return self._do(lambda connection: statements.read_response(connection, scope, id))

    def read_chain(self, scope: str, id: str) -> dict[str, ResponseEntry]:
        return self._do(lambda connection: statements.read_chain(connection, scope, id))

    def read_holders(self, scope: str, item_id: str) -> list[str]:
        return self._do(lambda connection: statements.read_holders(connection, scope, item_id))

    def read_conversation(
        self, scope: str, id: str, *, items: bool = False, item: str | None = None
    ) -> ConversationEntry | None:
        return self._do(lambda connection: statements.read_conversation(connection, scope, id, items=items, item=item))

    def read_usage(self, since: str) -> list[UsageRow]:
        return self._do(lambda connection: statements.read_usage(connection, since))

    def write(self, batch: Batch, bounds: Bounds, *, clean: bool) -> bool:
        # Every transaction cleans: looking for the oldest row costs nothing where an index is at hand.
        return self._do(lambda connection: statements.write(connection, batch, bounds))

    def shrink(self) -> None:
        self._do(statements.shrink)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._file.do(work)
