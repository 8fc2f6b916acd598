"""Files that hold secrets: locked between processes, read with care, replaced whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bridge.errors import InvalidRequest, UpstreamError
from bridge.protocols.reading import check_depth

MAX_FILE = 1024 * 1024


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError, and ValueError for anything but JSON.

    All of it, even a number of a hundred digits, can be written back unchanged.
    """
    try:
        return json.loads(read_whole(path).decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def encode_json(data: Mapping[str, Any]) -> bytes:
    """The bytes of such a file. Raises ValueError for data that `read_json` would not accept."""
    try:
        check_depth(data)
    except InvalidRequest:
        raise ValueError("nested too deep") from None
    content = json.dumps(data, indent=2).encode() + b"\n"
    if len(content) > MAX_FILE:
        raise ValueError("too large")
    return content


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace such a file. Raises OSError, and ValueError for data that `read_json` would not accept."""
    content = encode_json(data)
    target = path.resolve()  # a link stays a link
    try:
        replace_file(target, content)
    except OSError as error:
        with suppress(OSError):
            _temporary(target).unlink(missing_ok=True)
        if error.errno not in (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS) or not target.exists():
            raise
        # Only the file can be written (it is a mount point, or its directory is read-only): better than losing a login.
        _write_in_place(target, content)


def read_whole(path: Path, *, limit: int = MAX_FILE, trusted: bool = False) -> bytes:
    """The content of a regular file: reading a pipe would block, and a device has no end. Raises OSError.

    `trusted`: only its owner or root can have written it, and it is not a link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if trusted else 0)
    descriptor = os.open(path, flags)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if trusted and (about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022):
            raise OSError(errno.EPERM, "others can write to it, or you do not own it (chmod 600 fixes the first)")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OSError(errno.EFBIG, "it is too large")
    return content


def replace_file(target: Path, content: bytes) -> None:
    """Replace a file, whole or not at all, with the same owner and readable by that owner alone. Raises OSError.

    Writers hold a lock, so the temporary file always has the same name, and the next writer reuses what a killed
    one left behind.
    """
    temporary = _temporary(target)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with suppress(OSError):  # root keeps the file's owner
            owner = target.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.new")


def _write_in_place(target: Path, content: bytes) -> None:
    """Overwrite the old content. Space is reserved first, with blanks, so that the file is JSON at every moment."""
    with target.open("r+b", buffering=0) as file:
        descriptor = file.fileno()
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        missing = len(content) - size
        if missing > 0:
            if os.pwrite(descriptor, b" " * missing, size) != missing:
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, "no space left")
            os.fsync(descriptor)
        os.pwrite(descriptor, content.ljust(size), 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)


# Locks


def open_lock(path: Path) -> int:
    """Open the lock of a file: a file beside it, or where none can be made, the file itself. Raises UpstreamError."""
    try:
        path = path.resolve()  # two links to one file share its lock
        try:
            beside = path.with_name(f"{path.name}.lock")
            return os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise UpstreamError(
            f"Cannot refresh the login: its lock file {path.name}.lock cannot be opened ({reason}).",
            code="refresh_failed",
        ) from None


def take_lock(descriptor: int) -> bool:
    """Try to take a lock. The system releases it when the process ends or closes the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
