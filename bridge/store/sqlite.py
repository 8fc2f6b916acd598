"""A store in one SQLite database: a file, or in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import trio

from bridge.store import statements
from bridge.store.changes import Batch
from bridge.store.database import StoreFile
from bridge.store.engine import Bounds, Database, Unavailable
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


class SqliteDatabase(Database):
    """The tables in a file."""

    def __init__(self, file: StoreFile) -> None:
        super().__init__(statements)
        self._file = file
        self.in_memory = file.path is None

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self._file.do(work)

    def write(self, batch: Batch, bounds: Bounds, *, clean: bool) -> bool:
        # Every transaction cleans: with an index, looking for the oldest row costs nothing.
        return self.do(lambda connection: statements.write(connection, batch, bounds))

    def shrink(self) -> None:
        self.do(statements.shrink)

    def close(self) -> None:
        self._file.close()
