"""Files that hold a login: read with care, replaced whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bridge.api.reading import check_depth
from bridge.errors import InvalidRequest

MAX_FILE = 1024 * 1024


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises OSError, and ValueError for what is no JSON.

    Whatever stands in it, a number of a hundred digits too, can be written back as it was.
    """
    try:
        return json.loads(_read_whole(path).decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def encode_json(data: Mapping[str, Any]) -> bytes:
    """The text of such a file. Raises ValueError for what could not be read again."""
    try:
        check_depth(data)
    except InvalidRequest:
        raise ValueError("nested too deep") from None
    content = json.dumps(data, indent=2).encode() + b"\n"
    if len(content) > MAX_FILE:
        raise ValueError("too large")
    return content


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace such a file. Raises OSError, and ValueError for what could not be read again."""
    _replace(path, encode_json(data))


def _replace(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all, readable by its owner alone. Raises OSError.

    Writers hold a lock (see `bridge.auth.flight`), so that the temporary file has one name, and what a killed one left
    behind is used up by the next.
    """
    target = path.resolve()  # it may be a link, which stays one
    temporary = target.with_name(f".{target.name}.new")
    try:
        write_beside(temporary, target, content)
        temporary.replace(target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno not in (errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS) or not target.exists():
            raise
        # The file alone is ours (a mount of its own, a directory that cannot be written): better than losing a login.
        _write_in_place(target, content)
        return
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read_whole(path: Path) -> bytes:
    """A file's content, if it is one: a pipe would be waited for, and a device has no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise OSError(errno.EFBIG, "it is too large")
    return content


def write_beside(temporary: Path, target: Path, content: bytes) -> None:
    """A new file with the owner of `target`, readable by that owner alone, and on the disk. Raises OSError."""
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        with suppress(OSError):  # the superuser keeps somebody's file that somebody's
            owner = target.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _write_in_place(target: Path, content: bytes) -> None:
    """Over the old content: room is made first, with blanks, so that at no moment is it no JSON."""
    with target.open("r+b", buffering=0) as file:
        descriptor = file.fileno()
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
        size = os.fstat(descriptor).st_size
        missing = len(content) - size
        if missing > 0:
            if os.pwrite(descriptor, b" " * missing, size) != missing:
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, "there is no room for it")
            os.fsync(descriptor)
        os.pwrite(descriptor, content.ljust(size), 0)
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
