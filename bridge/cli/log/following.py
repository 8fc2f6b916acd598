"""A log while it is written: its last lines, and then each new one."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bridge.cli.log.frames import show_record
from bridge.cli.log.options import chosen
from bridge.cli.log.table import Table, local_time
from bridge.cli.log.terminal import Screen
from bridge.errors import ConfigError
from bridge.protolog.filters import Filters
from bridge.protolog.log import Log, timed
from bridge.protolog.read import log_files, parse_record
from bridge.protolog.scan import Scanner
from bridge.protolog.summary import Summary

PAUSE = 0.2
"""Seconds between two looks at a file that nothing was written to."""
_READ = 1024 * 1024
_LOOK_BACK = 4 * 1024 * 1024
"""How far before a file's end its last records are looked for."""


def tail_requests(screen: Screen, log: Log, filters: Filters, count: int, *, follow: bool, json: bool) -> None:
    """The last `count` requests that ended, then those that end."""
    table = Table.on(screen)
    follower = Follower(log.path, log.files[-1])
    last: deque[Summary] = deque(maxlen=count)
    for summary in chosen(log, filters):
        if summary.outcome != "unfinished" or not follow:
            last.append(summary)
    screen.progress.clear()
    if not json:
        screen.line(table.head)
    for summary in last:
        _show_request(screen, table, summary, json)
    if not follow:
        return
    scan = log.last
    assert scan is not None
    following = Requests(scan.scanner, log.pending)
    follower.begin(scan.position)
    screen.flush()
    for path, offset, block in follower.lines():
        for summary in following.feed(path, offset, block):
            if filters.accepts(summary, lambda found: _records_now(log, found)):
                _show_request(screen, table, summary, json)
        screen.flush()


class Requests:
    """The requests that end, over the files that a log goes through. What has begun may end in the next one."""

    def __init__(self, scanner: Scanner, begun: dict[str, Summary]) -> None:
        self._scanner = scanner
        self._begun = {name: summary for name, summary in begun.items() if name not in scanner.open}
        """What began in a file before."""
        self._end = 0

    def feed(self, path: Path, offset: int, block: bytes) -> Iterator[Summary]:
        """The next lines; those that ended in them."""
        if path.name != self._scanner.name or offset == 0:
            self._begin(path)
        for summary in self._scanner.feed(offset, block):
            before = self._begun.pop(summary.id, None)
            yield before.joined(summary) if before is not None and not summary.begun else timed(summary)
        self._end = offset + len(block)

    def _begin(self, path: Path) -> None:
        for name, summary in self._scanner.open.items():
            summary.spans[-1].end = max(self._end, summary.spans[-1].end)
            if path.name == self._scanner.name:  # its lines are in a file of another name now, or gone
                summary.spans = []
            before = self._begun.pop(name, None)
            self._begun[name] = before.joined(summary) if before is not None and not summary.begun else summary
        self._scanner = Scanner(path.name)


def tail_events(screen: Screen, log: Log, filters: Filters, count: int, *, follow: bool, json: bool) -> None:
    """The last `count` records, then those that come. Of the filters, those count that a record can answer."""
    path = log.files[-1]
    follower = Follower(log.path, path)
    start = max(0, path.stat().st_size - _LOOK_BACK)
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    if start:
        begin = data.find(b"\n") + 1
        start, data = start + begin, data[begin:]
    whole = data.rfind(b"\n") + 1
    last: deque[dict[str, Any]] = deque(maxlen=count)
    for line in data[:whole].split(b"\n"):
        record = parse_record(line)
        if record is not None and _wants(filters, record):
            last.append(record)
    for record in last:
        _show_event(screen, record, json)
    if not follow:
        return
    follower.begin(start + whole)
    screen.flush()
    for _, _, block in follower.lines():
        for line in block.split(b"\n")[:-1]:
            record = parse_record(line)
            if record is not None and _wants(filters, record):
                _show_event(screen, record, json)
        screen.flush()


class Follower:
    """(file, offset, whole lines) of what is written to a log, for ever.

    A file that is shorter than before is read from its beginning. When the log's name leads to another file, or the
    directory has a newer one, the rest of the old one comes first. The file is opened at once: it may be renamed before
    it has been looked through.
    """

    def __init__(self, log: Path, path: Path) -> None:
        self._log, self._path, self._offset = log, path, 0
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error

    def begin(self, offset: int) -> None:
        """The file that has the name now was read up to here."""
        if self._is_another(self._path):
            self._open(self._path)
        self._offset = offset

    def lines(self) -> Iterator[tuple[Path, int, bytes]]:
        """What is written from now on."""
        while True:
            yield from self._new_lines()
            following = self._following()
            if following is None:
                time.sleep(PAUSE)
                continue
            yield from self._new_lines()
            self._open(following)

    def _open(self, path: Path) -> None:
        with suppress(OSError):  # gone again: the next look tells
            file = path.open("rb")
            self._file.close()
            self._file, self._path, self._offset = file, path, 0

    def _new_lines(self) -> Iterator[tuple[Path, int, bytes]]:
        file, kept = self._file, b""
        file.seek(0, 2)
        if file.tell() < self._offset:
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
        """The file to go on with, when there is another by now."""
        try:
            files = log_files(self._log)
        except ConfigError:
            return None  # between two: the next one is not there yet
        newer = [each for each in files if each.name > self._path.name] if self._log.is_dir() else []
        if newer:
            return newer[0]
        return self._path if self._is_another(self._path) else None

    def _is_another(self, path: Path) -> bool:
        try:
            now, then = path.stat(), os.fstat(self._file.fileno())
        except OSError:
            return False
        return (now.st_ino, now.st_dev) != (then.st_ino, then.st_dev)


def _records_now(log: Log, summary: Summary) -> Iterator[dict[str, Any]]:
    """A request's records in a log that may have got files since it was opened."""
    log.files = log_files(log.path)
    return log.records(summary)


def _show_request(screen: Screen, table: Table, summary: Summary, json: bool) -> None:
    if json:
        screen.json(summary)
    else:
        screen.line(table.line(summary))


def _show_event(screen: Screen, record: dict[str, Any], json: bool) -> None:
    if json:
        screen.json(record)
        return
    time = local_time(record["ts"])
    name = str(record["req_id"] or "").removeprefix("req_")[:8]
    when = f"{time:%H:%M:%S}.{time.microsecond // 1000:03}" if time else "-"
    screen.line(show_record(screen, record, f"{when:12} {name if name.isalnum() else '-':8}"))


def _wants(filters: Filters, record: dict[str, Any]) -> bool:
    if filters.req is not None and not filters.wants_id(str(record["req_id"] or "")):
        return False
    if filters.grep is not None and filters.grep.casefold() not in str(record.get("payload")).casefold():
        return False
    time = local_time(record["ts"])
    if filters.since is not None and (time is None or time < filters.since):
        return False
    return not (filters.until is not None and (time is None or time > filters.until))
