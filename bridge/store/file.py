"""The file of a store: made private, opened, watched, and moved aside when it is broken. Blocks; runs in a thread."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from bridge.errors import ConfigError
from bridge.store.schema import prepare

log = logging.getLogger("bridge.store")

P = ParamSpec("P")
T = TypeVar("T")

BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What may be over in a while. Anything else about a path is a mistake in the settings."""


class Refused(Exception):
    """The disk does not do it at the moment; the message says why, in words for the operator."""


class StoreFile:
    """One connection to one file, which may be used by other processes too. One caller at a time."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self.path = path
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the file, or begin it. `ConfigError` when it can never be used, `Refused` when it cannot now."""
        try:
            with self._alone():
                self._open()
        except OSError as error:
            if error.errno in PASSING:
                raise _refused(error) from error
            raise ConfigError(f"The store {self.path} cannot be used: {error.strerror or error}") from error
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise _refused(error) from error

    def close(self) -> None:
        """Let go of the file. The last one to do so leaves a single file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def do(self, function: Callable[Concatenate[sqlite3.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` with the connection. `Refused` when the disk is to blame.

        A file that is gone, or no longer the one that was opened, is opened anew; a broken one is moved aside first.
        """
        if self._connection is not None and self._is_moved():
            log.warning("store %s: the file was moved or removed; it is opened anew", self.path)
            self.close()
        try:
            try:
                return function(self._opened(), *args, **kwargs)
            except sqlite3.DatabaseError as error:
                if not _is_broken(error):
                    raise
                self.close()
                with self._alone():
                    self._move_aside(error)
                return function(self._opened(), *args, **kwargs)
        except ConfigError as error:
            raise Refused(error.message) from error
        except (sqlite3.OperationalError, OSError, MemoryError) as error:
            raise _refused(error) from error
        except sqlite3.DatabaseError as error:
            if _is_broken(error):
                raise _refused(error) from error
            raise

    def _is_moved(self) -> bool:
        try:
            return _identity(self.path) != self._identity
        except OSError:
            return False

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.open()
        assert self._connection is not None
        return self._connection

    def _open(self) -> None:
        self._create()
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_broken(error):
                raise
            self._move_aside(error)
            self._create()
            self._connect()

    def _connect(self) -> None:
        self._identity = _identity(self.path)
        # Worker threads come and go; the caller sees to it that there is one at a time.
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            prepare(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _create(self) -> None:
        """A private file, there before SQLite opens it: what SQLite puts beside it has the same mode.

        One that is there is never opened here: closing it would end the locks that this process has on it.
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if not self.path.is_file():
                raise OSError(errno.EINVAL, "it is not a file") from None
            if not os.access(self.path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, "it may not be read and written") from None
        os.chmod(self.path, 0o600)

    def _move_aside(self, why: Exception) -> None:
        """Give the file another name, unless another process has done so already."""
        if _identity(self.path) != self._identity:
            return
        aside = f"{self.path}.corrupt-{int(self._now())}"
        # The database last: a log without its database would be applied to the next one.
        for part in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{self.path}{part}", f"{aside}{part}")
        log.warning("store %s is broken (%s): it was moved to %s and a new one begun", self.path, why, aside)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process opens or moves the file meanwhile."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _refused(error: Exception) -> Refused:
    return Refused(getattr(error, "strerror", None) or str(error) or "out of memory")


def _is_broken(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN
