"""The proto-event log on disk: appended whole lines, off the event loop, never in the way of a turn.

Lines queue in memory, bounded; a thread appends what has queued with one write. When the disk does not keep up or
fails, records are dropped and counted, and whoever asked to be told is told. A file that is deleted while it is written
is followed by a new one. Every file begins with a header; a full
one is followed by the next at a place between two lines that is chosen when they are queued, so that the order of the
records is their order in the files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from math import inf

import trio

from bridge.errors import ConfigError
from bridge.protolog.rotation import LogFiles, Part
from bridge.threads import in_thread

log = logging.getLogger("bridge.protolog")

MAX_QUEUED = 64 * 1024 * 1024
RETRY = 5.0
"""Seconds until a file that could not be begun is tried again; until then the old one goes on."""

LAST_WRITES = 5.0
"""How long a disk that does not answer can hold up the end of the program."""

Head = Callable[[str | None], None]
"""Writes the first line of a file, with the name of the file that it continues."""


class LogWriter:
    """Appends lines to the files of a log. `run` is its task; `write` never waits.

    A file is ended by the lines that bring it to `max_bytes`, and `max_age` seconds after its first record (0: never);
    `keep` files are kept (0: all). `on_drop` hears each time that records are lost; without it the program's log does.
    """

    def __init__(
        self,
        files: LogFiles,
        *,
        max_bytes: int = 0,
        max_age: float = 0,
        keep: int = 0,
        max_queued: int = MAX_QUEUED,
        on_drop: Callable[[], None] | None = None,
    ) -> None:
        self.dropped = 0
        self.fault: str | None = None
        """What is wrong now."""
        self.failure: str | None = None
        """What was wrong when the first record was lost."""
        self.deleted = False
        """Whether somebody has deleted a file that was being written, and what it held with it."""
        self.begun = 0
        """Files so far."""
        self._files = files
        self._max_bytes = max_bytes or inf
        self._max_age = max_age or inf
        self._keep = keep
        self._max_queued = max_queued
        self._on_drop = on_drop
        self._queue: list[bytes | Part] = []
        self._size = 0
        self._wakeup = trio.Event()
        self._head: Head | None = None
        self._heading = False
        self._ending = False
        self._first_record: float | None = None
        self._wanted: Callable[[Part], Part | None] | None = None
        """How a file is to be begun that could not be."""
        self._not_before = -inf
        try:
            self._last = files.begin()
        except OSError as error:
            raise ConfigError(f"The event log {files.shown} cannot be written: {error.strerror}") from error
        self._current = self._last

    @property
    def shown(self) -> str:
        """Where the log is: its file, or when there are several where they lie."""
        return str(self._last.path) if self.begun <= 1 else self._files.shown

    @property
    def exists(self) -> bool:
        """Whether the file that was written last is there."""
        return self._last.path.exists()

    def write(self, lines: bytes) -> None:
        """Queue whole lines."""
        if self._heading:
            self._last.header = lines
            self._last.size += len(lines)
            return
        if self._size > self._max_queued:
            self._drop(lines.count(b"\n"), "the disk is too slow")
            return
        self._enqueue(lines)
        size = len(lines)
        self._size += size
        self._last.size += size
        if self._first_record is None:
            self._first_record = trio.current_time()
        if self._last.size >= self._max_bytes:
            self._begin_next(self._files.rotate)

    def reopen(self) -> None:
        """From the next lines on, write to the file that has the name then, or in a directory to a new one."""
        self._not_before = -inf
        self._begin_next(self._files.reopen)

    async def run(
        self, head: Head | None = None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Append what is queued, until cancelled; what is queued then is still written, within `LAST_WRITES` seconds.

        `head` is called for each file and calls `write` once. It is started when the first line has been written.
        """
        self._head = head
        self._write_head(self._last)
        # Nothing of a write may get lost, so it is not cancelled with us; unless it takes too long then.
        writing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._append_all, writing, task_status)
            try:
                await trio.sleep_forever()
            finally:
                self._ending = True
                writing.deadline = trio.current_time() + LAST_WRITES
                self._wakeup.set()

    async def _append_all(self, writing: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        with writing:
            await self._append()
            await self._prune()
            task_status.started()
            while self._queue or not self._ending:
                with trio.move_on_at(self._deadline()) as waiting:
                    await self._wakeup.wait()
                if waiting.cancelled_caught:
                    self._begin_next(self._wanted or self._files.rotate)
                self._wakeup = trio.Event()
                await self._append()
            if _is_deleted(self._current):
                self._note_deleted()
            os.close(self._current.descriptor)

    # Beginning files

    def _deadline(self) -> float:
        """When a file is to be begun although nothing comes: this one is old, or the last attempt has failed."""
        if self._wanted is not None:
            return self._not_before
        if self._first_record is None or not self._last.can_rotate:
            return inf
        return max(self._first_record + self._max_age, self._not_before)

    def _begin_next(self, begin: Callable[[Part], Part | None]) -> None:
        """Let what is queued from now on go to another file."""
        if trio.current_time() < self._not_before or (begin == self._files.rotate and not self._last.can_rotate):
            return
        try:
            part = begin(self._last)
        except OSError as error:
            # Nothing is lost as long as the old file can be written.
            self._wanted, self._not_before = begin, trio.current_time() + RETRY
            self._wakeup.set()
            log.error(
                "event log %s: no new file can be begun, the old one goes on: %s", self._files.shown, error.strerror
            )
            return
        self._wanted = None
        if part is None:
            return
        self._last, self._first_record = part, None
        self._enqueue(part)
        self._write_head(part)

    def _write_head(self, part: Part) -> None:
        self.begun += 1
        if self._head is not None:
            self._heading = True
            self._head(part.continues)
            self._heading = False

    def _begin_again(self, lines: list[bytes]) -> OSError | None:
        """Begin a file in the place of one that was deleted, for these lines and what follows them."""
        gone, self.deleted = self._current, True
        try:
            part = self._files.begin()
        except OSError as error:
            return error
        self._note_deleted()
        if gone is self._last:
            part.size += sum(map(len, lines))
            self._last = part
            self._write_head(part)
        os.close(gone.descriptor)
        self._current = part
        return None

    def _note_deleted(self) -> None:
        self.deleted = True
        log.error("event log %s: %s was deleted with all that it held", self._files.shown, self._current.path.name)

    def _enqueue(self, entry: bytes | Part) -> None:
        if not self._queue:
            self._wakeup.set()
        self._queue.append(entry)

    # Writing

    async def _append(self) -> None:
        """Write all that is queued, each piece to its file."""
        queued, self._queue = self._queue, []
        self._size = 0
        lines: list[bytes] = []
        for entry in queued:
            if isinstance(entry, bytes):
                lines.append(entry)
                continue
            await self._write_lines(lines)
            lines = []
            os.close(self._current.descriptor)
            self._current = entry
            await self._prune()
        await self._write_lines(lines)

    async def _write_lines(self, lines: list[bytes]) -> None:
        if _is_deleted(self._current) and (error := self._begin_again(lines)):
            why = f"the file was deleted, and no other can be begun: {error.strerror}"
            self._drop(sum(line.count(b"\n") for line in lines), why)
            return
        part = self._current
        if not lines and not part.header:
            return
        # Part of a line may be out; the next one must not be glued to it.
        first = b"\n" + part.header if part.torn else part.header
        chunks = [first, *lines]
        try:
            written, error = await in_thread(_write_all, part.descriptor, chunks, abandon_on_cancel=True)
        except trio.Cancelled:
            self._drop(sum(chunk.count(b"\n") for chunk in chunks), "the disk does not answer")
            raise
        if error is None:
            self.fault, part.torn, part.header = None, False, b""
            return
        data = b"".join(chunks)
        if written:
            part.torn = data[written - 1] != ord("\n")
        if written >= len(first):
            part.header = b""  # else it goes before whatever can be written next
        self._drop(data.count(b"\n", max(written, len(first))), error.strerror or str(error))

    async def _prune(self) -> None:
        if self._keep:
            try:
                await in_thread(self._files.prune, self._keep, abandon_on_cancel=True)
            except OSError as error:
                log.error("event log %s: old files cannot be deleted: %s", self._files.shown, error.strerror)

    def _drop(self, count: int, why: str) -> None:
        if self._on_drop is None and self.fault != why:
            log.error("event log %s: records are being dropped: %s", self._files.shown, why)
        self.fault = why
        self.failure = self.failure or why
        self.dropped += count
        if self._on_drop is not None:
            self._on_drop()


def _is_deleted(part: Part) -> bool:
    """Whether a file has no name any more: what is written to it nobody reads."""
    return part.can_rotate and os.fstat(part.descriptor).st_nlink == 0


def _write_all(descriptor: int, chunks: list[bytes]) -> tuple[int, OSError | None]:
    """Append all chunks; how many bytes are out, and why not all of them.

    The file is opened to append, so each chunk's lines stay together.
    """
    written = 0
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            while view:
                size = os.write(descriptor, view)
                written += size
                view = view[size:]
    except OSError as error:
        return written, error
    return written, None
