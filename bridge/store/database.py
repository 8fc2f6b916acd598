"""The SQLite file of a store: created private, opened, watched, moved aside when it is corrupt, and its tables.

Everything here blocks and runs in a worker thread.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from bridge.errors import ConfigError
from bridge.store.engine import Unavailable

log = logging.getLogger("bridge.store")

T = TypeVar("T")

CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Faults that may be temporary. Any other error about a path is a mistake in the settings."""


class StoreFile:
    """One connection to one file, which other processes may use too. One caller at a time.

    Without a path it is a database in memory, which nothing can move or corrupt, and which `close` discards.
    """

    def __init__(self, path: Path | None, now: Callable[[], float]) -> None:
        self.path = path
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def open(self) -> None:
        """Open or create the file. `ConfigError` when it can never be used, `Unavailable` when it cannot be now."""
        try:
            with self._alone():
                self._open()
        except OSError as error:
            if error.errno in TRANSIENT:
                raise _unavailable(error) from error
            raise ConfigError(f"The store {self.path} cannot be used: {error.strerror or error}") from error
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        """Close the file. The last process to do so leaves a single file, without a `-wal` beside it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` with the connection. `Unavailable` when the disk is to blame.

        A file that was removed or replaced is opened again; a corrupt one is moved aside first.
        """
        with suppress(OSError):  # a file that cannot be inspected counts as unchanged
            if self._connection is not None and _identity(self.path) != self._identity:
                log.warning("store %s: the file was moved or removed; opening it again", self.path)
                self.close()
        try:
            try:
                return work(self._opened())
            except sqlite3.DatabaseError as error:
                if not _is_corrupt(error):
                    raise
                self.close()
                with self._alone():
                    self._move_aside(error)
                return work(self._opened())
        except ConfigError as error:
            raise Unavailable(error.message) from error
        except (sqlite3.OperationalError, OSError, MemoryError) as error:
            raise _unavailable(error) from error
        except sqlite3.DatabaseError as error:
            if _is_corrupt(error):
                raise _unavailable(error) from error
            raise

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.open()
        assert self._connection is not None
        return self._connection

    def _open(self) -> None:
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_corrupt(error):
                raise
            self._move_aside(error)
            self._connect()

    def _connect(self) -> None:
        if self.path is not None:
            _create(self.path)
        self._identity = _identity(self.path)
        # Worker threads come and go; the caller runs one at a time.
        connection = sqlite3.connect(self.path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            prepare(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _move_aside(self, why: Exception) -> None:
        """Rename the file, unless another process has done so already."""
        if _identity(self.path) != self._identity:
            return
        aside = f"{self.path}.corrupt-{int(self._now())}"
        # The database last: SQLite would apply a log without its database to the next one.
        for part in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{self.path}{part}", f"{aside}{part}")
        log.warning("store %s is corrupt (%s): moved to %s, starting a new one", self.path, why, aside)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from opening or moving the file meanwhile."""
        if self.path is None:
            yield
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)


def _create(path: Path) -> None:
    """Create a file with mode 0600 before SQLite opens it: SQLite gives the files beside it the same mode.

    An existing file is never opened here: closing it would release the locks that this process has on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise OSError(errno.EINVAL, "it is not a file") from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to read and write it") from None
    os.chmod(path, 0o600)


def _identity(path: Path | None) -> tuple[int, int] | None:
    try:
        status = os.stat(path) if path is not None else None
    except FileNotFoundError:
        return None
    return status and (status.st_dev, status.st_ino)


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(getattr(error, "strerror", None) or str(error) or "out of memory")


def _is_corrupt(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in CORRUPT


# The tables

APPLICATION = 0x63647862
"""Marks the file as ours ("cdxb")."""
VERSION = 1

# Ids are blobs: SQLite's text cannot hold every Python string.
# Contents have a table of their own, so that renewing a response does not write them again.
# Triggers keep the total, so that several processes agree on it; 256 is `changes.ROW_SIZE`.
TABLES = """
CREATE TABLE response (
    number INTEGER PRIMARY KEY,
    scope BLOB NOT NULL,
    id BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    previous BLOB,
    conversation BLOB,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    UNIQUE (scope, id)
);
CREATE INDEX response_by_use ON response (used, number);
CREATE TABLE content (number INTEGER PRIMARY KEY, body BLOB NOT NULL, input BLOB NOT NULL);
CREATE TABLE response_item (
    scope BLOB NOT NULL,
    id BLOB NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (scope, id, number)
) WITHOUT ROWID;
CREATE INDEX response_item_by_response ON response_item (number);
CREATE TABLE conversation (
    number INTEGER PRIMARY KEY,
    scope BLOB NOT NULL,
    id BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    metadata BLOB NOT NULL,
    used REAL NOT NULL,
    UNIQUE (scope, id)
);
CREATE INDEX conversation_by_use ON conversation (used, number);
CREATE TABLE conversation_item (
    number INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL,
    id BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (conversation, id)
);
CREATE TABLE usage (
    day BLOB NOT NULL,
    key BLOB NOT NULL,
    model BLOB NOT NULL,
    requests INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    input INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    output INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    PRIMARY KEY (day, key, model)
) WITHOUT ROWID;
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER response_added AFTER INSERT ON response BEGIN
    UPDATE total SET bytes = bytes + new.size;
END;
CREATE TRIGGER response_removed AFTER DELETE ON response BEGIN
    UPDATE total SET bytes = bytes - old.size;
    DELETE FROM content WHERE number = old.number;
    DELETE FROM response_item WHERE number = old.number;
END;
CREATE TRIGGER conversation_added AFTER INSERT ON conversation BEGIN
    UPDATE total SET bytes = bytes + 256 + length(new.metadata);
END;
CREATE TRIGGER conversation_changed AFTER UPDATE OF metadata ON conversation BEGIN
    UPDATE total SET bytes = bytes + length(new.metadata) - length(old.metadata);
END;
CREATE TRIGGER conversation_removed AFTER DELETE ON conversation BEGIN
    UPDATE total SET bytes = bytes - 256 - length(old.metadata);
    DELETE FROM conversation_item WHERE conversation = old.number;
END;
CREATE TRIGGER item_added AFTER INSERT ON conversation_item BEGIN
    UPDATE total SET bytes = bytes + length(new.body);
END;
CREATE TRIGGER item_changed AFTER UPDATE OF body ON conversation_item BEGIN
    UPDATE total SET bytes = bytes + length(new.body) - length(old.body);
END;
CREATE TRIGGER item_removed AFTER DELETE ON conversation_item BEGIN
    UPDATE total SET bytes = bytes - length(old.body);
END;
"""


def prepare(connection: sqlite3.Connection, name: str) -> None:
    """Configure a new connection and create the tables in an empty file. `ConfigError` for a file that is not ours."""
    connection.execute("PRAGMA busy_timeout = 1000")
    connection.execute("PRAGMA synchronous = NORMAL")
    # Few pages are worth caching: contents are read once.
    connection.execute("PRAGMA cache_size = -1000")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    version = _number(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if version > VERSION:
        raise ConfigError(
            f"The store {name} was written by a newer turnbridge (schema {version}; this version knows {VERSION}). "
            "Use the newer version, or another file."
        )
    if tables and (version < 1 or _number(connection, "application_id") != APPLICATION):
        raise ConfigError(f"The file {name} is the database of another program. Choose another file for the store.")
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    if not tables:
        marks = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
        connection.executescript(f"BEGIN IMMEDIATE; {TABLES} {marks}; COMMIT")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is written, or nothing. Acquires the file's write lock at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # A failed COMMIT may leave the transaction open; other failures have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number
