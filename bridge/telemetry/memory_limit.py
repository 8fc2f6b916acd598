"""Refuses new turns above a memory limit: a few refusals are better than the death of all turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bridge.errors import Overloaded

CODE = "memory_pressure"
RETRY_AFTER = 5.0
"""Seconds. Running turns must end before there is room."""

ReadBytes = Callable[[], int | None]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """The resident memory of this process; None where the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class MemoryLimit:
    """Refuses turns while more than `limit` bytes are in use; 0 means no limit."""

    def __init__(self, limit: int, read: ReadBytes = resident_bytes) -> None:
        self.limit = limit
        self.shed = 0
        """Turns refused so far."""
        self._read = read

    @property
    def is_exceeded(self) -> bool:
        """Whether more memory than the limit is in use."""
        return bool(self.limit) and (self._read() or 0) > self.limit

    def check(self) -> None:
        """Raise Overloaded while the limit is exceeded."""
        if self.is_exceeded:
            self.shed += 1
            raise Overloaded(
                f"The bridge uses more memory than PROXY_MAX_RSS allows. Retry after {RETRY_AFTER:g} s.",
                code=CODE,
                retry_after=RETRY_AFTER,
            )
