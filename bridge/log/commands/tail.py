"""A log while it is written: its last lines, then each new one."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bridge.errors import ConfigError
from bridge.log.commands.requests import Table, local_time
from bridge.log.commands.show import show_record
from bridge.log.filters import Filters, chosen
from bridge.log.log import Log, timed
from bridge.log.read import log_files, parse_record
from bridge.log.summary import Scanner, Summary
from bridge.terminal import Screen

PAUSE = 0.2
"""Seconds until a file that nothing was written to is read again."""
_READ = 1024 * 1024
_LOOK_BACK = 4 * 1024 * 1024
"""How far before a file's end its last records are searched."""


def tail_requests(screen: Screen, log: Log, filters: Filters, count: int, *, follow: bool, json: bool) -> None:
    """Show the last `count` requests that ended, then those that end."""
    table = Table(screen)
    show: Callable[[Summary], None] = screen.json if json else lambda summary: screen.line(table.line(summary))
    # It is opened before the log is read: the file may be renamed meanwhile.
    follower = Follower(log.path, log.files[-1])
    ended = (each for each in chosen(log, filters) if each.outcome != "unfinished" or not follow)
    last = deque(ended, maxlen=count)
    screen.progress.clear()
    if not json:
        screen.line(table.head)
    for summary in last:
        show(summary)
    if not follow:
        return

    def records_now(summary: Summary) -> Iterator[dict[str, Any]]:
        log.files = log_files(log.path)  # there may be new ones
        return log.records(summary)

    assert log.last is not None
    following = _FollowedRequests(log.last.scanner, log.pending)
    follower.begin(log.last.position)
    screen.flush()
    for path, offset, block in follower.blocks():
        for summary in following.feed(path, offset, block):
            if filters.accepts(summary, records_now):
                show(summary)
        screen.flush()


class _FollowedRequests:
    """The requests that end, over the files that a log goes through. What began in one file may end in the next."""

    def __init__(self, scanner: Scanner, begun: dict[str, Summary]) -> None:
        self._scanner = scanner
        self._begun = {name: summary for name, summary in begun.items() if name not in scanner.open}
        """What began in a file before."""
        self._end = 0

    def feed(self, path: Path, offset: int, block: bytes) -> Iterator[Summary]:
        """Read the next lines. Returns the requests that ended in them."""
        if path.name != self._scanner.name or offset == 0:
            for name, summary in self._scanner.open.items():
                summary.spans[-1].end = max(self._end, summary.spans[-1].end)
                if path.name == self._scanner.name:  # its lines are in a file of another name now, or gone
                    summary.spans = []
                self._begun[name] = self._joined(summary)
            self._scanner = Scanner(path.name)
        for summary in self._scanner.feed(offset, block):
            yield timed(self._joined(summary))
        self._end = offset + len(block)

    def _joined(self, summary: Summary) -> Summary:
        before = self._begun.pop(summary.id, None)
        return before.joined(summary) if before is not None and not summary.begun else summary


def tail_events(screen: Screen, log: Log, filters: Filters, count: int, *, follow: bool, json: bool) -> None:
    """Show the last `count` records, then those that come. Only the filters that a record can answer apply."""

    def show(record: dict[str, Any]) -> None:
        if json:
            screen.json(record)
            return
        time = local_time(record["ts"])
        when = f"{time:%H:%M:%S}.{time.microsecond // 1000:03}" if time else "-"
        name = str(record["req_id"] or "").removeprefix("req_")[:8]
        screen.line(show_record(screen, record, f"{when:12} {name if name.isalnum() else '-':8}"))

    def matching(block: bytes) -> Iterator[dict[str, Any]]:
        for record in map(parse_record, block.split(b"\n")[:-1]):
            if record is not None and _accepts(filters, record):
                yield record

    path = log.files[-1]
    follower = Follower(log.path, path)
    start = max(0, path.stat().st_size - _LOOK_BACK)
    with path.open("rb") as file:
        file.seek(start)
        # The first line may be torn, and the last one is still written.
        data = (file.readline() if start else b"", file.read())
    whole = data[1][: data[1].rfind(b"\n") + 1]
    for record in deque(matching(whole), maxlen=count):
        show(record)
    if not follow:
        return
    follower.begin(start + len(data[0]) + len(whole))
    screen.flush()
    for _, _, block in follower.blocks():
        for record in matching(block):
            show(record)
        screen.flush()


def _accepts(filters: Filters, record: dict[str, Any]) -> bool:
    if filters.req is not None and not filters.wants_id(str(record["req_id"] or "")):
        return False
    if filters.grep is not None and filters.grep.casefold() not in str(record.get("payload")).casefold():
        return False
    return filters.fits_time(record["ts"])


class Follower:
    """The whole lines that are written to a log from now on, in blocks with their file and offset.

    A file that is shorter than before is read from its beginning. When the log's name leads to another file, or the
    directory has a newer one, the rest of the old file comes first.
    """

    def __init__(self, log: Path, path: Path) -> None:
        self._log, self._path, self._offset = log, path, 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error

    def begin(self, offset: int) -> None:
        """Start here in the file that has the name now."""
        if self._is_another(self._path):
            self._open(self._path)
        self._offset = offset

    def blocks(self) -> Iterator[tuple[Path, int, bytes]]:
        """What is written from now on, without end."""
        while True:
            yield from self._new_lines()
            following = self._following()
            if following is None:
                time.sleep(PAUSE)
                continue
            yield from self._new_lines()
            self._open(following)

    def _open(self, path: Path) -> None:
        with suppress(OSError):  # gone again: the next round finds another one
            file = path.open("rb")
            self._file.close()
            self._file, self._path, self._offset = file, path, 0

    def _new_lines(self) -> Iterator[tuple[Path, int, bytes]]:
        file, kept = self._file, b""
        if file.seek(0, os.SEEK_END) < self._offset:
            self._offset = 0
        file.seek(self._offset)
        while data := file.read(_READ):
            data = kept + data
            cut = data.rfind(b"\n") + 1
            kept = data[cut:]
            if cut:
                offset, self._offset = self._offset, self._offset + cut
                yield self._path, offset, data[:cut]

    def _following(self) -> Path | None:
        """The file to continue with, if there is another one."""
        try:
            files = log_files(self._log)
        except ConfigError:
            return None  # between two files: the next one is not there yet
        newer = (each for each in files if each.name > self._path.name and self._log.is_dir())
        return next(newer, self._path if self._is_another(self._path) else None)

    def _is_another(self, path: Path) -> bool:
        try:
            now, then = path.stat(), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (now.st_ino, now.st_dev) != (then.st_ino, then.st_dev)
