"""The proto-event log on disk: appended whole lines, off the event loop, never in the way of a turn.

Lines queue in memory, bounded; a thread appends what has queued with one write. When the disk does not keep up or
fails, records are dropped and counted, and `/healthz` and the log of the program say so.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import trio

from bridge.errors import ConfigError

log = logging.getLogger("bridge.protolog")

MAX_QUEUED = 64 * 1024 * 1024


class LogWriter:
    """Appends lines to one file (0600). `run` is its task; `write` never waits."""

    def __init__(self, path: Path, *, max_queued: int = MAX_QUEUED) -> None:
        self.path = path
        self.dropped = 0
        self.fault: str | None = None
        self._max_queued = max_queued
        self._queue: list[bytes] = []
        self._size = 0
        self._wakeup = trio.Event()
        self._reopening = False
        self._torn = False
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise ConfigError(f"The event log {path} cannot be written: {error.strerror}") from error

    def write(self, lines: bytes) -> None:
        """Queue whole lines."""
        if self._size > self._max_queued:
            self._drop(lines.count(b"\n"), "the disk is too slow")
            return
        if not self._queue:
            self._wakeup.set()
        self._queue.append(lines)
        self._size += len(lines)

    def reopen(self) -> None:
        """From the next lines on, write to the file that has the name then."""
        self._reopening = True

    async def run(self) -> None:
        """Append what is queued, until cancelled; what is queued then is still written."""
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup = trio.Event()
                await self._append()
        finally:
            with trio.CancelScope(shield=True):
                await self._append()
            os.close(self._descriptor)

    async def _append(self) -> None:
        queued, self._queue = self._queue, []
        if not queued:
            return
        self._size = 0
        try:
            if self._reopening:
                new = self._open()
                os.close(self._descriptor)
                self._descriptor, self._reopening = new, False
            chunks = [b"\n", *queued] if self._torn else queued
            await trio.to_thread.run_sync(_write_all, self._descriptor, chunks)
            self.fault, self._torn = None, False
        except OSError as error:
            self._drop(sum(lines.count(b"\n") for lines in queued), error.strerror or str(error))
            # Part of a line may be out; the next one must not be glued to it.
            self._torn = True

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        # A torn last line of an earlier run must not swallow our first one.
        if os.fstat(descriptor).st_size:
            with open(self.path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    os.write(descriptor, b"\n")
        return descriptor

    def _drop(self, count: int, why: str) -> None:
        if self.fault != why:
            log.error("event log %s: records are being dropped: %s", self.path, why)
        self.fault = why
        self.dropped += count


def _write_all(descriptor: int, chunks: list[bytes]) -> None:
    """Append all chunks. The file is opened to append, so each chunk's lines stay together."""
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]
