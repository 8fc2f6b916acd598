"""Copies a whole store to another one, of the same kind or of the other. Everything here blocks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from bridge.errors import ConfigError, UsageError
from bridge.settings import Settings, key_store_file, store_file
from bridge.store import statements
from bridge.store.base import UsageRow
from bridge.store.changes import Batch, by_day
from bridge.store.database import StoreFile, prepare
from bridge.store.engine import Tables, Unavailable
from bridge.store.key_store import KeyFile, KeyStore

GATHERED = 4 * 1024 * 1024
"""About how many bytes are written together."""
Counts = dict[str, int]
"""How many rows each table has, by the table's name."""


class Contents:
    """What a store holds, in one transaction that ends with the context that gave it."""

    def __init__(self, connection: Any, tables: Tables) -> None:
        self._connection = connection
        self._tables = tables

    def count(self) -> Counts:
        return self._tables.count_rows(self._connection)

    def read(self) -> Iterator[Batch]:
        """Everything, oldest first."""
        return self._tables.read_all(self._connection)

    def usage(self, since: str, *, hours: bool = False) -> list[UsageRow]:
        """The rows from that day or hour on. Unless `hours`, one for each day, key and model."""
        rows = self._tables.read_usage(self._connection, since)
        return rows if hours else by_day(rows)

    def clear(self) -> None:
        self._tables.delete_all(self._connection)

    def add(self, batch: Batch) -> None:
        self._tables.add(self._connection, batch)

    def commit(self) -> None:
        """Keep what was written. Without it the store stays as it was."""
        self._connection.execute("COMMIT")


class Place(Protocol):
    """A store to copy from or to."""

    name: str
    keys: KeyStore

    def exists(self) -> bool:
        """Whether there may be something in it."""

    def contents(self, *, create: bool) -> AbstractContextManager[Contents]:
        """Its contents. `create`: as the target of a copy."""


def copy(source: Place, target: Place, *, replace: bool, report: Callable[[Counts], None]) -> Counts:
    """Copy everything in one transaction of the target; how much there was. `report` gets the counts so far.

    Raises UsageError for a target that is not empty, unless `replace`: then it holds nothing else afterwards.
    """
    with source.contents(create=False) as old, target.contents(create=True) as new:
        present = {**new.count(), "key": len(target.keys.read())}
        if any(present.values()) and not replace:
            raise UsageError(f"{target.name} is not empty ({describe(present)}). Add --replace to delete that first.")
        new.clear()
        copied = dict.fromkeys(new.count(), 0)
        for batch in _gathered(old.read()):
            new.add(batch)
            copied["response"] += len(batch.responses)
            copied["conversation"] += len(batch.conversations)
            copied["usage"] += len(batch.usage)
            report(copied)
        new.commit()
    # Last: a client whose key is known should find what it has stored.
    keys = source.keys.read()
    target.keys.write(keys)
    return {**copied, "key": len(keys)}


def describe(counts: Counts) -> str:
    """Counts in words."""
    names = {"response": "responses", "conversation": "conversations", "usage": "rows of usage", "key": "keys"}
    return ", ".join(f"{count:,} {names[name]}" for name, count in counts.items())


def _gathered(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Fewer and larger batches."""
    gathered, size = Batch(), 0
    for batch in batches:
        gathered.responses.update(batch.responses)
        gathered.conversations.update(batch.conversations)
        gathered.usage.extend(batch.usage)
        size += batch.size
        if size > GATHERED:
            yield gathered
            gathered, size = Batch(), 0
    yield gathered


class SqlitePlace:
    """The SQLite file at a path, and a file with keys."""

    def __init__(self, path: Path, keys: Path) -> None:
        self.path = path
        self.name = str(path)
        self.keys: KeyStore = KeyFile(keys)

    def exists(self) -> bool:
        return self.path.is_file()

    @contextmanager
    def contents(self, *, create: bool) -> Iterator[Contents]:
        if create:
            file = StoreFile(self.path, time.time)  # makes it private to this user
            try:
                file.open()
            except Unavailable as error:
                raise ConfigError(f"The store {self.path} cannot be used: {error}") from None
            file.close()
        elif not self.exists():
            raise UsageError(f"There is no store at {self.path}.")
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            try:
                prepare(connection, self.name)
                connection.execute("BEGIN IMMEDIATE" if create else "BEGIN")
                yield Contents(connection, statements)
            except sqlite3.Error as error:
                raise ConfigError(f"The store {self.path} cannot be used: {error}") from None


def configured_place(settings: Settings) -> Place:
    """The database of PROXY_STORE, or the file, which outlives a bridge that does not use it."""
    if (url := settings.database_url) is not None:
        return postgres_place(url)
    return SqlitePlace(store_file(), key_store_file())


def postgres_place(url: str) -> Place:
    """The database of a URL."""
    from bridge.store.postgres.copying import PostgresPlace  # with its driver

    return PostgresPlace(url)
