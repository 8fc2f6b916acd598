"""Memory that nobody needs goes back to the system now and then.

What belongs to a connection or a turn refers to itself in circles, and lives for so long that Python looks at it seldom
once it is dead. And what is free lies scattered, where glibc keeps it for later. Without this a busy bridge would grow
for half an hour, to twice its size.
"""

from __future__ import annotations

import ctypes
import gc

import trio

INTERVAL = 30.0


async def tidy_up(interval: float = INTERVAL) -> None:
    """Until cancelled. Takes the loop's time for some milliseconds, twice a minute."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await trio.sleep(interval)
        gc.collect()
        if trim is not None:
            trim(0)
