"""The files of an event log: one that is moved aside when it is full, or a directory with new ones for each run.

Names that are given here sort in the order of time. Nothing but files with such names is ever deleted.
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
from typing import Protocol

from bridge.protolog.read import SUFFIX

log = logging.getLogger("bridge.protolog")

_STAMP = r"[0-9]{8}T[0-9]{6}"
_LATER = r"(?:_[0-9]{4,})?"

LOCK_TRIES, LOCK_PAUSE = 100, 0.001
"""Whoever else moves a file is done in less than a tenth of a second."""

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """The time of this moment."""
    return datetime.datetime.now(datetime.UTC)


class Names:
    """Names that each sort after the one before, also within a second, and when the clock is set back.

    `make` gets the time, and what tells a later name of the same second: nothing, then `_0002`, `_0003`. (`_`, because
    it sorts after the dot of a suffix; `-` would not.)
    """

    def __init__(self, make: Callable[[str, str], str], now: Now = utc_now) -> None:
        self._make = make
        self._now = now
        self._stamp = ""
        self._number = 1

    def next(self) -> str:
        """One that was not given before."""
        stamp = self._now().strftime("%Y%m%dT%H%M%S")
        if stamp > self._stamp:
            self._stamp, self._number = stamp, 1
        else:
            self._number += 1
        return self._make(self._stamp, "" if self._number == 1 else f"_{self._number:04}")


@dataclass(slots=True)
class Part:
    """A file that is open to be appended to. `size` grows with what is on its way to it."""

    path: Path
    descriptor: int
    size: int = 0
    torn: bool = False
    """Its last line has no end."""
    can_rotate: bool = True
    """It is a plain file, not a device or a pipe."""
    continues: str | None = None
    """The name of the file before it."""
    header: bytes = b""
    """Its first line, until that is written."""


class LogFiles(Protocol):
    """Where a log is written. All but `prune` are quick; all may raise OSError."""

    @property
    def shown(self) -> str:
        """As a person knows it."""

    def begin(self) -> Part:
        """The first file."""

    def rotate(self, part: Part) -> Part:
        """A new file, after this one."""

    def reopen(self, part: Part) -> Part | None:
        """The file to go on with after somebody may have moved this one away; None to go on as before."""

    def prune(self, keep: int) -> None:
        """Delete the oldest files until there are `keep`, the one that is being written among them."""


class LogFile:
    """One file under one name; it is appended to. When it is full it becomes `STEM-TIME.SUFFIX`."""

    def __init__(self, path: Path, now: Now = utc_now) -> None:
        self.shown = str(path)
        self._path = path
        self._names = Names(lambda stamp, later: f"{path.stem}-{stamp}{later}{path.suffix}", now)

    def begin(self) -> Part:
        return open_part(self._path)

    def rotate(self, part: Part) -> Part:
        # Through a link: it goes on pointing to the new file.
        real = self._path.resolve()
        with _alone_in(real.parent):
            if not _is_at(part, self._path):
                return open_part(self._path, continues=_name_of(part))  # somebody else has moved it
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
        if _is_at(part, self._path):
            return None
        return open_part(self._path, continues=_name_of(part) if part.can_rotate else None)

    def prune(self, keep: int) -> None:
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        _prune(self._path.resolve().parent, re.compile(f"{stem}-{_STAMP}{_LATER}{suffix}"), keep - 1)


class LogDirectory:
    """A directory in which each run writes its own files, `TIME-RUN.ndjson`. It is made, 0700."""

    def __init__(self, path: Path, run: str, now: Now = utc_now) -> None:
        self.shown = str(path)
        self._path = path
        self._names = Names(lambda stamp, later: f"{stamp}-{run}{later}{SUFFIX}", now)

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


def reserve(directory: Path, names: Names) -> Path:
    """A new, empty file: whatever others do at the same time, it is nobody else's. Raises OSError."""
    while True:
        path = directory / names.next()
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path


def files_at(target: str, run: str) -> LogFile | LogDirectory:
    """What was typed: a directory when it is one, or has a slash at its end; else a file."""
    path = Path(target)
    return LogDirectory(path, run) if is_directory(target) else LogFile(path)


def is_directory(target: str) -> bool:
    """Whether the files of several runs lie there side by side."""
    return target.endswith(os.sep) or Path(target).is_dir()


def open_part(path: Path, how: int = 0, *, continues: str | None = None) -> Part:
    """Open a file to append to it, private (0600). Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        status = os.fstat(descriptor)
        plain = stat.S_ISREG(status.st_mode)
        if plain:
            os.fchmod(descriptor, 0o600)
            with suppress(OSError):  # not every file system can; it tells others who prune that it is in use
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        torn = plain and status.st_size > 0 and _last_byte(path) != b"\n"
    except OSError:
        os.close(descriptor)
        raise
    return Part(path, descriptor, status.st_size, torn, plain, continues)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Keep other bridges from moving files here meanwhile. Who holds it for long, or where it does not exist, is not
    waited for: it could only be that a file with few records is moved aside."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOCK_PAUSE)
                continue
            except OSError:
                pass
            break
        yield
    finally:
        os.close(descriptor)


def _last_byte(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError:  # another bridge has just moved it away, and its lines are whole
        return b"\n"


def _is_at(part: Part, path: Path) -> bool:
    """Whether the path still leads to this file."""
    try:
        return os.path.samestat(os.fstat(part.descriptor), path.stat())
    except FileNotFoundError:
        return False


def _name_of(part: Part) -> str:
    """What a file is called now, where the system tells; else what it was called."""
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
                log.info("event log: %s is deleted; PROXY_LOG_KEEP says how many files are kept", path)


def _is_in_use(path: Path) -> bool:
    """Whether a bridge still writes to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # locks do not exist here
    finally:
        os.close(descriptor)
    return False
