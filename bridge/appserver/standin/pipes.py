"""Stdin and stdout of an app-server that is played here: whole lines in, whole lines out."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import trio

from bridge.appserver.framing import LineSplitter


class Pipes:
    """One connection. With `split` every write is cut into pieces of that many bytes."""

    def __init__(self, *, split: int = 0) -> None:
        self._split = split
        self._lock = trio.Lock()
        self._out = trio.lowlevel.FdStream(os.dup(sys.stdout.fileno()))

    async def lines(self) -> AsyncIterator[bytes]:
        """What comes on stdin, until its end."""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stdin:
            splitter = LineSplitter()
            async for data in stdin:
                for line in splitter.feed(bytes(data)):
                    yield line

    async def send(self, data: bytes) -> None:
        """Write whole lines. What was begun is written to its end, and a reader that has gone is nobody's failure."""
        size = self._split or len(data)
        with trio.CancelScope(shield=True):
            async with self._lock:
                try:
                    for start in range(0, len(data), size):
                        await self._out.send_all(data[start : start + size])
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    async def close_stdout(self) -> None:
        """Go on without a voice."""
        await self._out.aclose()
        os.close(1)
