"""The event log of one run: its recorder, and the writer that appends its lines to files.

No turn waits for the disk: lines wait in a bounded queue, and a thread appends the whole queue with one write. When the
disk is too slow or fails, records are dropped and counted, and `on_drop` is called. A file that is deleted while it is
written is replaced by a new one. Every file begins with a header. Where a full file ends is decided when lines are
queued, not when they are written, so that the order of the records is their order in the files.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import trio

from bridge.errors import ConfigError, LogFailed
from bridge.log.record import Recorder
from bridge.log.rotation import LogDirectory, LogFile, Part, files_at
from bridge.redact import Redactor
from bridge.threads import in_thread

if TYPE_CHECKING:
    from bridge.settings import Settings

log = logging.getLogger("bridge.log")

MAX_QUEUED = 64 * 1024 * 1024
MOST_AT_ONCE = 1000
"""Chunks in one system call; Linux and macOS accept up to 1024."""
RETRY = 5.0
"""Seconds until opening a new file is tried again after a failure; the old one is used until then."""

LAST_WRITES = 5.0
"""Seconds that a disk that does not answer can delay the end of the program."""

Head = Callable[[str | None], bytes]
"""Makes the first line of a file from the name of the file that it continues."""
OnError = Literal["drop", "stop"]


class EventLog:
    """A recorder with its files. Raises ConfigError when they cannot be written.

    `target` is a file or a directory, `about` has the members of each header. When records are lost, the policy `drop`
    writes a line to the program's log; with `stop`, `failed` is called instead, and `check` raises.
    """

    def __init__(
        self,
        target: str,
        redactor: Redactor,
        about: Mapping[str, Any],
        *,
        max_bytes: int | None = None,
        max_age: float = 0,
        keep: int = 0,
        on_error: OnError = "drop",
    ) -> None:
        run = secrets.token_hex(4)
        files = files_at(target, run)
        self._about = about
        self.redactor = redactor
        self._stops = on_error == "stop"
        self.writer = LogWriter(
            files,
            max_bytes=files.default_max_bytes if max_bytes is None else max_bytes,
            max_age=max_age,
            keep=keep,
        )
        self.recorder = Recorder(self.writer.write, now, redactor, run)

    async def run(
        self,
        failed: Callable[[], None] = lambda: None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Write records until cancelled, then the remaining ones. Reports started when the header has been written."""
        if self._stops:
            self.writer.on_drop = failed
        await self.writer.run(self._head, task_status)

    def check(self) -> None:
        """Raise LogFailed when the policy is to stop and a record has been lost."""
        if self._stops and self.writer.failure is not None:
            raise LogFailed(
                f"The event log {self.writer.shown} could not be written: {self.writer.failure}. Nothing may go "
                "unrecorded, so the program stopped. Free disk space, or write the log elsewhere (--log-events)."
            )
        if self._stops and self.writer.deleted:
            raise LogFailed(
                f"The event log {self.writer.shown} was deleted while it was written. What was recorded before is lost."
            )

    def _head(self, continues: str | None) -> bytes:
        later = {} if continues is None else {"continues": continues}
        return self.recorder.header(**self._about, **later)


def about(settings: Settings) -> dict[str, Any]:
    """The members of a header: the settings that shape answers. A replay needs them."""
    shape = settings.model_dump(include={"reasoning", "status_hold", "stream_default", "unsupported"})
    return {"dialect": settings.dialect, "settings": {**shape, "store": settings.store_kind}}


def now() -> tuple[str, float]:
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_iso(seconds)}.{microseconds:06}Z", time.monotonic()


@lru_cache(1)
def _iso(seconds: int) -> str:
    # The records of one second share it.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LogWriter:
    """Appends lines to the files of a log. `run` is its task; `write` never waits.

    A file ends with the lines that bring it to `max_bytes`, or `max_age` seconds after its first record (0: never);
    `keep` files are kept (0: all). `on_drop` is called each time records are lost; without it the program's log has a
    line about that.
    """

    def __init__(
        self,
        files: LogFile | LogDirectory,
        *,
        max_bytes: int = 0,
        max_age: float = 0,
        keep: int = 0,
        max_queued: int = MAX_QUEUED,
        on_drop: Callable[[], None] | None = None,
    ) -> None:
        self.dropped = 0
        self.fault: str | None = None
        """The current problem."""
        self.failure: str | None = None
        """The problem that lost the first record."""
        self.deleted = False
        """Whether a file was deleted while it was written, with all of its records."""
        self._opened = 0
        self._files = files
        self._max_bytes = max_bytes or inf
        self._max_age = max_age or inf
        self._keep = keep
        self._max_queued = max_queued
        self.on_drop = on_drop
        self._queue: list[bytes | Part] = []
        self._size = 0
        self._wakeup = trio.Event()
        self._head: Head | None = None
        self._ending = False
        self._first_record: float | None = None
        self._wanted: Callable[[Part], Part | None] | None = None
        """How to open the next file, after a failure."""
        self._not_before = -inf
        try:
            self._last = files.begin()
        except OSError as error:
            raise ConfigError(f"The event log {files.shown} cannot be written: {error.strerror}") from error
        self._current = self._last

    @property
    def shown(self) -> str:
        """The path of the log: its file, or the directory of several."""
        return str(self._last.path) if self._opened <= 1 else self._files.shown

    @property
    def exists(self) -> bool:
        return self._last.path.exists()

    def write(self, lines: bytes) -> None:
        """Queue whole lines."""
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
        """Write the next lines to the file that has the log's name now, or in a directory to a new file."""
        self._not_before = -inf
        self._begin_next(self._files.reopen)

    async def run(
        self, head: Head | None = None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Append queued lines until cancelled; those queued by then are still written, within `LAST_WRITES` seconds.

        `head` is called for each file. Reports started when the first line has been written.
        """
        self._head = head
        self._make_head(self._last)
        # Shielded, because a write must not be lost when this task is cancelled, unless it takes too long.
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

    # Opening files

    def _deadline(self) -> float:
        """When to open a new file although no line comes: this one is old, or the last attempt has failed."""
        if self._wanted is not None:
            return self._not_before
        if self._first_record is None or not self._last.can_rotate:
            return inf
        return max(self._first_record + self._max_age, self._not_before)

    def _begin_next(self, begin: Callable[[Part], Part | None]) -> None:
        """Open another file for the lines that are queued from now on."""
        if trio.current_time() < self._not_before or (begin == self._files.rotate and not self._last.can_rotate):
            return
        try:
            part = begin(self._last)
        except OSError as error:
            # Nothing is lost as long as the old file can be written.
            self._wanted, self._not_before = begin, trio.current_time() + RETRY
            self._wakeup.set()
            log.error(
                "event log %s: cannot open a new file, still writing to the old one: %s",
                self._files.shown,
                error.strerror,
            )
            return
        self._wanted = None
        if part is not None:
            self._last, self._first_record = part, None
            self._enqueue(part)
            self._make_head(part)

    def _make_head(self, part: Part) -> None:
        self._opened += 1
        if self._head is not None:
            part.header = self._head(part.continues)
            part.size += len(part.header)

    def _begin_again(self, lines: list[bytes]) -> OSError | None:
        """Open a file that replaces a deleted one, for these lines and those after them."""
        gone, self.deleted = self._current, True
        try:
            part = self._files.begin()
        except OSError as error:
            return error
        self._note_deleted()
        if gone is self._last:
            part.size += sum(map(len, lines))
            self._last = part
            self._make_head(part)
        os.close(gone.descriptor)
        self._current = part
        return None

    def _note_deleted(self) -> None:
        self.deleted = True
        log.error("event log %s: %s was deleted with all of its records", self._files.shown, self._current.path.name)

    def _enqueue(self, entry: bytes | Part) -> None:
        if not self._queue:
            self._wakeup.set()
        self._queue.append(entry)

    # Writing

    async def _append(self) -> None:
        """Write the queue, each line to its file."""
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
            why = f"the file was deleted, and no other can be opened: {error.strerror}"
            self._drop(sum(line.count(b"\n") for line in lines), why)
            return
        part = self._current
        if not lines and not part.header:
            return
        # Part of a line may have been written; the next one must not continue it.
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
            part.header = b""  # else it is written before the next lines
        self._drop(data.count(b"\n", max(written, len(first))), error.strerror or str(error))

    async def _prune(self) -> None:
        if self._keep:
            try:
                await in_thread(self._files.prune, self._keep, abandon_on_cancel=True)
            except OSError as error:
                log.error("event log %s: cannot delete old files: %s", self._files.shown, error.strerror)

    def _drop(self, count: int, why: str) -> None:
        if self.on_drop is None and self.fault != why:
            log.error("event log %s: records are being dropped: %s", self._files.shown, why)
        self.fault = why
        self.failure = self.failure or why
        self.dropped += count
        if self.on_drop is not None:
            self.on_drop()


def _is_deleted(part: Part) -> bool:
    """Whether a file has no name any more, so that no one will read it."""
    return part.can_rotate and os.fstat(part.descriptor).st_nlink == 0


def _write_all(descriptor: int, chunks: list[bytes]) -> tuple[int, OSError | None]:
    """Append all chunks. Returns how many bytes were written, and the error if that is not all.

    The file is open for appending, so the lines of a chunk stay together. One call writes many chunks: after each call
    this thread waits for the interpreter lock, which the event loop may hold.
    """
    written = 0
    try:
        for first in range(0, len(chunks), MOST_AT_ONCE):
            views = [memoryview(chunk) for chunk in chunks[first : first + MOST_AT_ONCE]]
            while views:
                size = os.writev(descriptor, views)
                written += size
                while views and size >= len(views[0]):
                    size -= len(views.pop(0))
                if views:
                    views[0] = views[0][size:]
    except OSError as error:
        return written, error
    return written, None
