"""The files of an event log: one that is renamed when it is full, or a directory with new ones for each run.

The names made here sort in the order of time. Only files with such names are ever deleted.
"""

from __future__ import annotations

import datetime
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.log.read import SUFFIX

log = logging.getLogger("bridge.log")

_STAMP = r"[0-9]{8}T[0-9]{6}"
_LATER = r"(?:_[0-9]{4,})?"

LOCK_TRIES, LOCK_PAUSE = 100, 0.001
"""Another bridge that renames a file needs less than a tenth of a second."""

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class FileNames:
    """Names that each sort after the one before, also within a second, and when the clock is set back.

    `make` gets the time, and a suffix for later names of the same second: nothing, then `_0002`, `_0003`. (`_`, because
    it sorts after the dot of a file extension; `-` would not.)
    """

    def __init__(self, make: Callable[[str, str], str], now: Now = utc_now) -> None:
        self._make = make
        self._now = now
        self._stamp = ""
        self._number = 1

    def next(self) -> str:
        stamp = self._now().strftime("%Y%m%dT%H%M%S")
        if stamp > self._stamp:
            self._stamp, self._number = stamp, 1
        else:
            self._number += 1
        return self._make(self._stamp, "" if self._number == 1 else f"_{self._number:04}")


@dataclass(slots=True)
class Part:
    """A file that is open for appending. `size` includes the lines that are queued for it."""

    path: Path
    descriptor: int
    size: int = 0
    torn: bool = False
    """Whether its last line has no newline."""
    can_rotate: bool = True
    """Whether it is a plain file, not a device or a pipe."""
    continues: str | None = None
    """The name of the file that it continues."""
    header: bytes = b""
    """Its first line until it is written."""


class LogFile:
    """One file that is appended to. When it is full it is renamed to `STEM-TIME.SUFFIX`. Methods may raise OSError."""

    default_max_bytes = 0

    def __init__(self, path: Path, now: Now = utc_now) -> None:
        self.shown = str(path)
        self._path = path
        self._names = FileNames(lambda stamp, later: f"{path.stem}-{stamp}{later}{path.suffix}", now)

    def begin(self) -> Part:
        return open_part(self._path)

    def rotate(self, part: Part) -> Part:
        # Through a link: it then points to the new file.
        real = self._path.resolve()
        with _alone_in(real.parent):
            if not _is_at(part, self._path):
                return open_part(self._path, continues=_name_of(part))  # another process has moved it
            aside = reserve(real.parent, self._names)
            try:
                real.rename(aside)
            except FileNotFoundError:  # just now
                aside.unlink()
                return open_part(self._path, continues=_name_of(part))
            except OSError:
                aside.unlink()
                raise
            return open_part(self._path, continues=aside.name)

    def reopen(self, part: Part) -> Part | None:
        """Open the file of this name after something may have moved this one; None if nothing has."""
        if _is_at(part, self._path):
            return None
        return open_part(self._path, continues=_name_of(part) if part.can_rotate else None)

    def prune(self, keep: int) -> None:
        """Delete the oldest files until `keep` are left, including the one that is being written."""
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        _prune(self._path.resolve().parent, re.compile(f"{stem}-{_STAMP}{_LATER}{suffix}"), keep - 1)


class LogDirectory:
    """A directory in which each run writes its own files, `TIME-RUN.ndjson`; created with mode 0700. See `LogFile`."""

    default_max_bytes = 256 * 1024 * 1024

    def __init__(self, path: Path, run: str, now: Now = utc_now) -> None:
        self.shown = str(path)
        self._path = path
        self._names = FileNames(lambda stamp, later: f"{stamp}-{run}{later}{SUFFIX}", now)

    def begin(self) -> Part:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._new(None)

    def rotate(self, part: Part) -> Part:
        return self._new(part.path.name)

    def reopen(self, part: Part) -> Part | None:
        return self.rotate(part)

    def prune(self, keep: int) -> None:
        _prune(self._path, re.compile(f"{_STAMP}-[0-9a-f]{{8}}{_LATER}{re.escape(SUFFIX)}"), keep)

    def _new(self, continues: str | None) -> Part:
        while True:
            with suppress(FileExistsError):
                return open_part(self._path / self._names.next(), os.O_EXCL, continues=continues)


def reserve(directory: Path, names: FileNames) -> Path:
    """Create a new, empty file that no other process has. Raises OSError."""
    while True:
        path = directory / names.next()
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path


def files_at(target: str, run: str) -> LogFile | LogDirectory:
    """The files of a log: `target` is a directory if it is one or ends with a slash, else a file."""
    path = Path(target)
    return LogDirectory(path, run) if target.endswith(os.sep) or path.is_dir() else LogFile(path)


def open_part(path: Path, how: int = 0, *, continues: str | None = None) -> Part:
    """Open a file for appending, with mode 0600. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        status = os.fstat(descriptor)
        plain = stat.S_ISREG(status.st_mode)
        torn = False
        if plain:
            os.fchmod(descriptor, 0o600)
            # A file that another bridge writes to may end within a line for a moment: the rest of it follows.
            if _lock(descriptor, fcntl.LOCK_EX):
                torn = status.st_size > 0 and _last_byte(path) != b"\n"
            _lock(descriptor, fcntl.LOCK_SH, LOCK_TRIES)  # so that no other bridge prunes it
    except OSError:
        os.close(descriptor)
        raise
    return Part(path, descriptor, status.st_size, torn, plain, continues)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep other bridges from renaming files here. A lock that is held for long, or is not supported, is ignored:
    at worst a file with few records is renamed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, fcntl.LOCK_EX, LOCK_TRIES)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int, tries: int = 1) -> bool:
    """Lock an open file; False while another process holds the lock. True if the file system has no locks."""
    for attempt in range(tries):
        if attempt:
            time.sleep(LOCK_PAUSE)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:
            pass  # not every file system has locks
        return True
    return False


def _last_byte(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError:  # another bridge has just renamed it, and its lines are whole
        return b"\n"


def _is_at(part: Part, path: Path) -> bool:
    """Whether the path still names this file."""
    try:
        return os.path.samestat(os.fstat(part.descriptor), path.stat())
    except FileNotFoundError:
        return False


def _name_of(part: Part) -> str:
    """The current name of a file if the system knows it, else its former name."""
    with suppress(OSError):
        if os.fstat(part.descriptor).st_nlink:
            return Path(os.readlink(f"/proc/self/fd/{part.descriptor}")).name
    return part.path.name


def _prune(directory: Path, names: re.Pattern[str], keep: int) -> None:
    named = (entry for entry in directory.iterdir() if names.fullmatch(entry.name))
    ours = sorted(entry for entry in named if entry.is_file() and not entry.is_symlink())
    for path in ours[: max(0, len(ours) - keep)]:
        with suppress(FileNotFoundError):
            if not _is_in_use(path):
                path.unlink()
                log.info("event log: %s is deleted; PROXY_LOG_KEEP sets how many files are kept", path)


def _is_in_use(path: Path) -> bool:
    """Whether a bridge is writing to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)
