"""Who uses a CODEX_HOME: two bridges on one login can take each other's one-time refresh token."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def claim_home(path: Path) -> Iterator[str | None]:
    """Mark a CODEX_HOME as ours for as long as the block runs. Gives who has it already, None where nobody has.

    The mark is a lock on the directory itself: nothing is written there, and the system takes it back when we die.
    Where the directory is not there, or cannot be locked, nobody has it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield None if _take(descriptor) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system knows no locks
        return True
    return True


def _holder(descriptor: int) -> str:
    """Who holds the lock, as far as the system tells."""
    about = os.fstat(descriptor)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:131073 0 EOF
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and int(words[4]) > 0:
                return f"another bridge (process {words[4]})"
    return "another bridge"
