"""How much memory is in use, and no new turns above a limit: better a few refusals than the end of all turns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from bridge.errors import Overloaded

CODE = "memory_pressure"
RETRY_AFTER = 5.0
"""Seconds. Turns that run now must end before there is room."""

ReadBytes = Callable[[], int | None]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """The memory of this process that is in RAM; None where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class MemoryLimit:
    """Refuses turns while more than `limit` bytes are in use. A limit of 0 is none, and then nothing is read."""

    def __init__(self, limit: int, read: ReadBytes = resident_bytes) -> None:
        self.limit = limit
        self.shed = 0
        """Turns that have been refused."""
        self._read = read

    @property
    def is_exceeded(self) -> bool:
        """Whether too much is in use now."""
        return bool(self.limit) and (self._read() or 0) > self.limit

    def check(self) -> None:
        """Raise Overloaded while too much is in use."""
        if self.is_exceeded:
            self.shed += 1
            raise Overloaded(
                "The bridge uses more memory than it may (PROXY_MAX_RSS); try again in a moment.",
                code=CODE,
                retry_after=RETRY_AFTER,
            )
