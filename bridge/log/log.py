"""A log as a whole: its requests in the order in which they ended, and all records of one of them.

The summaries of a large file are kept in an index: an SQLite database in the user's cache directory. It holds the
summaries in the order in which the requests ended, and one row about the scan: how far the file was read, how to
recognise it, and what was still open. A file that grew is read from there on; one that changed is read again from its
start. A finished database is never written to: a new one replaces it, so readers need no locks and an interrupted scan
leaves nothing behind. The log is always right: when an index is missing, old, damaged or of another file, the log is
read instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import platformdirs

from bridge import APP, exact_json
from bridge.errors import ConfigError
from bridge.log.read import (
    MAX_LINE,
    RecordReader,
    Trouble,
    log_files,
    parse_record,
    read_blocks,
    refuse_other_files,
    request_of,
)
from bridge.log.recording import AFTER, EXIT, ends_turn, is_crash
from bridge.log.summary import Run, Scanner, Span, Summary, summary_from_json

_EXIT = f'"kind":"{EXIT}"'.encode()
VERSION = 6
WORTH_KEEPING = 4 * 1024 * 1024
"""A smaller file is read again as quickly."""
BLOCK = 1024 * 1024
"""Bytes that are scanned together: larger blocks are not faster and cost memory."""
KEPT = 64
"""How many indexes are kept; the oldest are deleted first."""
_SAMPLE = 4096
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS scan (state BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS request (id TEXT NOT NULL, summary BLOB NOT NULL);
DELETE FROM scan;
"""
_BROKEN = (sqlite3.Error, orjson.JSONDecodeError, TypeError, KeyError, ValueError, OSError)
"""Raised by reading a damaged index, or by writing one where that is impossible."""


@dataclass(slots=True)
class Log:
    """A file, or a directory of files that continue each other.

    `cache` is the directory of indexes, None for none. `on_read` is called with the number of bytes read, of `size`.
    """

    path: Path
    cache: Path | None = None
    trouble: Trouble = field(default_factory=Trouble)
    on_read: Callable[[int], None] = lambda size: None
    files: list[Path] = field(init=False)
    size: int = 0
    last: FileScan | None = None
    """The scan of the last file, which tells where to read on."""
    pending: dict[str, Summary] = field(default_factory=dict)
    """The requests that had not ended when all files were read."""

    def __post_init__(self) -> None:
        self.files = log_files(self.path)
        if not self.files[0].is_file():
            raise ConfigError(f"{self.path} is not a regular file. Save it to one: a log is read in parts.")
        self.size = sum(file.stat().st_size for file in self.files if file.is_file())

    # All requests

    def summaries(self, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Summary]:
        """As they ended; then those without an end. `wanted` chooses by id. Raises ConfigError for other files."""
        self.pending = {}
        runs: dict[str, int] = {}
        is_log = False
        for file in self.files:
            scan = self.last = FileScan(file, self.cache, self.trouble, wanted, self.on_read)
            for summary in scan:
                if not summary.begun and summary.id in self.pending:
                    yield self.pending.pop(summary.id).joined(summary)
                else:
                    yield timed(summary)
            yield from self._carry(scan, wanted)
            for name, run in scan.scanner.runs.items():
                if name and (name in runs or not run.continues):  # else the file before it is not in this log
                    self.trouble.gaps += max(0, run.first - runs.get(name, 0))
                runs[name] = run.next
            is_log = is_log or bool(runs or scan.scanner.turns)
        if not is_log:
            refuse_other_files(self.path, self.files, self.trouble)
        for summary in self.pending.values():
            if summary.begun or summary.model:
                yield summary

    def _carry(self, scan: FileScan, wanted: Callable[[str], bool]) -> Iterator[Summary]:
        """Keep what has not ended for the next file. What was kept before may have lines in this one."""
        opened = {summary.id: summary for summary in scan.opened if wanted(summary.id)}
        for name, summary in self.pending.items():
            if name not in opened:
                summary.spans.append(Span(scan.path.name, 0, scan.size))
        for name, summary in opened.items():
            before = self.pending.pop(name, None)
            if before is not None and not summary.begun:
                summary = before.joined(summary)
            elif before is not None:
                yield before
            self.pending[name] = summary

    # One request

    def find(self, prefix: str) -> list[Summary]:
        """The requests whose id begins with this; `req_` is optional."""
        return list(self.summaries(lambda name: begins_with(name, prefix)))

    def records(self, summary: Summary) -> Iterator[dict[str, Any]]:
        """Its records, in order, then the exit of the child that ended it. Only its part of the log is read."""
        files = {file.name: file for file in self.files}
        crashed: dict[str, Any] | None = None
        # As a line has it, except for its end: it may be one of several attempts.
        needle = orjson.dumps(summary.id)[:-1]
        for span in summary.spans:
            file = files[span.file]
            if summary.is_transcript:
                yield from (record for _, record in RecordReader([file]) if record["req_id"] == summary.id)
                continue
            for _, block in read_blocks(file, Trouble(), start=span.start, end=span.end):
                for record in _records_with(needle, block):
                    name = record["req_id"]
                    if name is None or request_of(name)[0] != summary.id:
                        continue
                    if record["kind"] == "turn_end" and is_crash(record.get("payload")):
                        crashed = record
                    yield record
        if crashed is not None:
            yield from self._exit(summary, crashed)

    def request(self, summary: Summary) -> dict[str, Any] | None:
        """What the client asked: the payload of its `client_request`. Reads one line."""
        span, files = summary.spans[0], {file.name: file for file in self.files}
        if not summary.begun or summary.is_transcript:
            return None
        with files[span.file].open("rb") as file:
            file.seek(span.start)
            record = parse_record(file.readline(MAX_LINE))
        payload = record.get("payload") if record is not None and record["kind"] == "client_request" else None
        return payload if isinstance(payload, dict) else None

    def header(self, summary: Summary) -> dict[str, Any]:
        """The header of its run, if its file begins with that; otherwise one that names the run alone."""
        files = {file.name: file for file in self.files}
        with files[summary.spans[0].file].open("rb") as file:
            record = parse_record(file.readline(MAX_LINE))
        if record is not None and record["kind"] == "header" and record.get("run") == summary.run:
            return record
        about = {"ts": "", "mono": 0.0, "seq": 0, "phase": "header", "req_id": None}
        return {**about, "kind": "header", "run": summary.run}

    def _exit(self, summary: Summary, end: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The exit of the child that ended a request. It may be recorded later, even in the next file."""
        run, mono, last = end.get("run", ""), end["mono"], summary.spans[-1]
        start = last.start
        for file in self.files[[file.name for file in self.files].index(last.file) :]:
            for _, block in read_blocks(file, Trouble(), start=start):
                first = parse_record(block[: block.find(b"\n")])
                if first is not None and first.get("run") == run and first["mono"] > mono + AFTER:
                    break
                for record in _records_with(_EXIT, block):
                    if record["kind"] == EXIT and ends_turn(record, summary.id, run, mono):
                        yield record
                        return
            start = 0


def begins_with(name: str, prefix: str) -> bool:
    """Whether `prefix` selects the request `name`."""
    return name.startswith((prefix, f"req_{prefix}"))


def timed(summary: Summary) -> Summary:
    """The summary with the time of its arrival, computed if only its end is in the log."""
    if not summary.time and summary.ended and summary.total_s is not None:
        try:
            began = datetime.fromisoformat(summary.ended) - timedelta(seconds=summary.total_s)
        except (ValueError, OverflowError):
            return summary
        summary.time = began.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return summary


def _records_with(needle: bytes, block: bytes) -> Iterator[dict[str, Any]]:
    """The records of the lines that contain these bytes."""
    at = block.find(needle)
    while at >= 0:
        begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        if (record := parse_record(block[begin:end])) is not None:
            yield record
        at = block.find(needle, end + 1)


# The index


def cache_dir() -> Path:
    return Path(platformdirs.user_cache_path(APP)) / "log-index"


def index_path(log: Path, cache: Path) -> Path:
    return cache / (hashlib.sha256(os.fsencode(log.resolve())).hexdigest()[:32] + ".index")


@dataclass(slots=True)
class FileScan:
    """The summaries of one file: from its index as far as that reaches, then from the file.

    `wanted` chooses by id; `on_read` is called with the number of bytes done. After the iteration `scanner` has the
    open requests, `position` is where the next line begins, and the index is written.
    """

    path: Path
    cache: Path | None
    trouble: Trouble
    wanted: Callable[[str], bool] = lambda name: True
    on_read: Callable[[int], None] = lambda size: None
    scanner: Scanner = field(init=False)
    position: int = 0
    size: int = 0
    opened: list[Summary] = field(default_factory=list)
    """The requests that had not ended at the end of the file."""

    def __iter__(self) -> Iterator[Summary]:
        self.scanner = Scanner(self.path.name)
        given = 0
        try:
            for summary in self._read_index():
                given += 1
                yield summary
            given = 0
        except _BROKEN:
            # Some were returned already; the file has the same ones, in the same order.
            self.scanner, self.position = Scanner(self.path.name), 0
        self.on_read(self.position)
        yield from islice(self._scan(), given, None)
        self.opened = list(self.scanner.rest(self.size))
        self.trouble.add(self.scanner.trouble)

    def _read_index(self) -> Iterator[Summary]:
        """What the index has, if it describes the file. The scanner then continues where the index ends."""
        if self.cache is None or not (path := index_path(self.path, self.cache)).is_file():
            return
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as index:
            if index.execute("PRAGMA user_version").fetchone() != (VERSION,):
                return
            [[row]] = index.execute("SELECT state FROM scan")
            state = orjson.loads(row)
            if not _describes(state, self.path):
                return
            opened = {summary["id"]: self._summary(summary) for summary in state["open"]}
            runs = {name: Run(**run) for name, run in state["runs"].items()}
            self.scanner = Scanner(self.path.name, opened, runs, Trouble(**state["trouble"]))
            self.position = state["scanned"]
            for name, summary in index.execute("SELECT id, summary FROM request ORDER BY rowid"):
                if self.wanted(name):
                    yield self._summary(orjson.loads(summary))

    def _summary(self, data: dict[str, Any]) -> Summary:
        summary = summary_from_json(data)
        for span in summary.spans:
            span.file = self.path.name  # the log may be read through a link of another name
        return summary

    def _scan(self) -> Iterator[Summary]:
        """What the file has after `position`; writes the index if that is worth it."""
        with suppress(OSError):
            self.size = self.path.stat().st_size
        writer = None
        if self.cache is not None and self.size - self.position >= WORTH_KEEPING:
            writer = _IndexWriter(self.path, self.cache, grown=self.position > 0)
        try:
            for offset, block in read_blocks(self.path, self.trouble, start=self.position, end=self.size, size=BLOCK):
                if offset + len(block) > self.size and writer is not None:
                    # A last line without its newline counts now, but it may still grow: it is not in the index.
                    writer.finish(self.scanner, offset, self.size)
                ended = self.scanner.feed(offset, block)
                if offset + len(block) <= self.size:
                    self.position = offset + len(block)
                if writer is not None:
                    writer.add(ended)
                yield from (summary for summary in ended if self.wanted(summary.id))
                self.on_read(len(block))
            if writer is not None:
                writer.finish(self.scanner, self.position, self.size)
        finally:
            if writer is not None:
                writer.discard()


class _IndexWriter:
    """Writes an index beside the scan. When that fails it gives up silently: an index only saves time."""

    def __init__(self, log: Path, cache: Path, *, grown: bool) -> None:
        """With `grown` the new index begins as a copy of the old one."""
        self._log = log
        self._target = index_path(log, cache)
        self._database: sqlite3.Connection | None = None
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, self._path = tempfile.mkstemp(dir=cache, prefix="new-")  # 0600
            os.close(descriptor)
            self._database = sqlite3.connect(self._path)
            if grown:
                shutil.copyfile(self._target, self._path)
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version = {VERSION}")
        except _BROKEN:
            self.discard()

    def add(self, summaries: list[Summary]) -> None:
        if self._database is not None and summaries:
            try:
                rows = [(summary.id, exact_json.dumps(summary)) for summary in summaries]
                self._database.executemany("INSERT INTO request VALUES (?, ?)", rows)
            except _BROKEN:
                self.discard()

    def finish(self, scanner: Scanner, scanned: int, size: int) -> None:
        """The log was read up to `scanned`: replace the old index. Transcripts have none."""
        if self._database is None:
            return
        if not scanner.turns:
            with suppress(*_BROKEN):
                about = self._log.stat()
                state = {
                    "size": size,
                    "changed": about.st_mtime_ns,
                    "scanned": scanned,
                    "identity": _identity(self._log, scanned),
                    "trouble": scanner.trouble,
                    "runs": scanner.runs,
                    "open": list(scanner.open.values()),
                }
                self._database.execute("INSERT INTO scan VALUES (?)", [exact_json.dumps(state)])
                self._database.commit()
                os.replace(self._path, self._target)
                indexes = sorted(self._target.parent.glob("*.index"), key=os.path.getmtime, reverse=True)
                for old in indexes[KEPT:]:
                    old.unlink()
        self.discard()

    def discard(self) -> None:
        """Close the new index and delete it, unless it has replaced the old one."""
        if self._database is not None:
            self._database.close()
            self._database = None
            with suppress(OSError):
                os.unlink(self._path)


def _describes(state: dict[str, Any], log: Path) -> bool:
    """Whether an index is about this file as it was, or with more lines at its end."""
    about = log.stat()
    grown = state["size"] < about.st_size
    same = state["size"] == about.st_size and state["changed"] == about.st_mtime_ns
    return bool((grown or same) and state["identity"] == _identity(log, state["scanned"]))


def _identity(log: Path, scanned: int) -> list[Any]:
    """What stays the same of a file that only grows: its path, its inode, and the ends of what was read of it."""
    with log.open("rb") as file:
        first = file.read(min(_SAMPLE, scanned))
        file.seek(max(0, scanned - _SAMPLE))
        last = file.read(min(_SAMPLE, scanned))
    return [os.fsdecode(log.resolve()), log.stat().st_ino, hashlib.sha256(first + last).hexdigest()]
