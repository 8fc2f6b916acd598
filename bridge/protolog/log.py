"""A log as a whole: its requests in the order in which they ended, and everything about one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from bridge.errors import ConfigError
from bridge.protolog.crashes import AFTER, EXIT, ends_turn, is_crash
from bridge.protolog.index import FileScan
from bridge.protolog.read import (
    BLOCK,
    RecordReader,
    Trouble,
    continues,
    log_files,
    parse_record,
    read_blocks,
    refuse_other_files,
    request_of,
)
from bridge.protolog.scan import Scanner
from bridge.protolog.summary import Span, Summary

_EXIT = f'"kind":"{EXIT}"'.encode()


@dataclass(slots=True)
class Log:
    """A file, or a directory of files that continue each other.

    `cache` is where indexes are kept, None for none. `told` hears how many bytes are read, of `size`.
    """

    path: Path
    cache: Path | None = None
    trouble: Trouble = field(default_factory=Trouble)
    told: Callable[[int], None] = lambda size: None
    files: list[Path] = field(init=False)
    size: int = 0
    last: FileScan | None = None
    """The scan of the last file, from where one can read on."""
    pending: dict[str, Summary] = field(default_factory=dict)
    """What had not ended when all files were read."""

    def __post_init__(self) -> None:
        self.files = log_files(self.path)
        if not self.files[0].is_file():
            raise ConfigError(f"{self.path} is no file. Write it to one first: a log is read in parts, and again.")
        self.size = sum(file.stat().st_size for file in self.files if file.is_file())

    # All requests

    def summaries(self, wanted: Callable[[str], bool] | None = None) -> Iterator[Summary]:
        """As they ended; last those without an end. `wanted` chooses by id. Raises ConfigError for what is no log."""
        pending: dict[str, Summary] = {}
        runs: dict[str, int] = {}
        turns = False
        for file in self.files:
            scan = self.last = FileScan(file, self.cache, self.trouble, wanted, self.told)
            for summary in scan:
                if not summary.begun and summary.id in pending:
                    yield pending.pop(summary.id).joined(summary)
                else:
                    yield timed(summary)
            yield from self._carry(scan, pending, wanted)
            self._compare_numbers(file, scan.scanner, runs)
            turns = turns or bool(scan.scanner.transcripts)
        if not runs and not turns:
            refuse_other_files(self.path, self.files, self.trouble)
        self.pending = pending
        for summary in pending.values():
            if summary.begun or summary.model:
                yield summary

    def _carry(
        self, scan: FileScan, pending: dict[str, Summary], wanted: Callable[[str], bool] | None
    ) -> Iterator[Summary]:
        """Keep what has not ended, for the next file; what was kept may have lines in this one."""
        opened = {summary.id: summary for summary in scan.opened if wanted is None or wanted(summary.id)}
        for name, summary in pending.items():
            if name not in opened:
                summary.spans.append(Span(scan.path.name, 0, scan.size))
        for name, summary in opened.items():
            before = pending.pop(name, None)
            if before is not None and not summary.begun:
                summary = before.joined(summary)
            elif before is not None:
                yield before
            pending[name] = summary

    def _compare_numbers(self, file: Path, scanner: Scanner, runs: dict[str, int]) -> None:
        for name, run in scanner.runs.items():
            expected = runs.get(name, 0)
            if name and run.first > expected and (name in runs or not _continues_another(file)):
                self.trouble.gaps += run.first - expected
            runs[name] = run.next

    # One request

    def find(self, prefix: str) -> list[Summary]:
        """The requests whose id begins so; `req_` may be left out."""
        return list(self.summaries(lambda name: begins_with(name, prefix)))

    def records(self, summary: Summary) -> Iterator[dict[str, Any]]:
        """Its records, in order; last the exit of the child that took it along. Only its part of the log is read."""
        files = {file.name: file for file in self.files}
        crashed: dict[str, Any] | None = None
        for span in summary.spans:
            file = files[span.file]
            if summary.is_transcript:
                for _, record in RecordReader([file]):
                    if record["req_id"] == summary.id:
                        yield record
                continue
            for record in _records(file, span, summary.id):
                if record["kind"] == "turn_end" and is_crash(record.get("payload")):
                    crashed = record
                yield record
        if crashed is not None and (exit := self._exit(summary, crashed)) is not None:
            yield exit

    def _exit(self, summary: Summary, end: dict[str, Any]) -> dict[str, Any] | None:
        """The exit of the child that took a request along. It may follow its end, in the next file even."""
        last = summary.spans[-1]
        names = [file.name for file in self.files]
        start = last.start
        for file in self.files[names.index(last.file) :]:
            for record in _near(file, start, end):
                if record["kind"] == EXIT and ends_turn(record, summary.id, end.get("run", ""), end["mono"]):
                    return record
            start = 0
        return None


def begins_with(name: str, prefix: str) -> bool:
    """Whether `prefix` is enough to mean the request `name`."""
    return name.startswith((prefix, f"req_{prefix}"))


def timed(summary: Summary) -> Summary:
    """With the time when it came, also where only its end is in the log."""
    if not summary.time and summary.ended and summary.total_s is not None:
        try:
            began = datetime.fromisoformat(summary.ended) - timedelta(seconds=summary.total_s)
        except (ValueError, OverflowError):
            return summary
        summary.time = began.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return summary


def _continues_another(file: Path) -> bool:
    with file.open("rb") as lines:
        return continues(parse_record(lines.readline(BLOCK)))


def _near(file: Path, start: int, end: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The exits in a file, until the log has come too far after a turn's end."""
    for _, block in read_blocks(file, Trouble(), start=start):
        first = parse_record(block[: block.find(b"\n")])
        if first is not None and first.get("run") == end.get("run") and first["mono"] > end["mono"] + AFTER:
            return
        at = block.find(_EXIT)
        while at >= 0:
            stop = block.find(b"\n", at)
            record = parse_record(block[block.rfind(b"\n", 0, at) + 1 : stop])
            if record is not None:
                yield record
            at = block.find(_EXIT, stop)


def _records(file: Path, span: Span, name: str) -> Iterator[dict[str, Any]]:
    # As it stands in a line, but for its end: it may be one of several attempts.
    needle = orjson.dumps(name)[:-1]
    for _, block in read_blocks(file, Trouble(), start=span.start, end=span.end):
        at = block.find(needle)
        while at >= 0:
            begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            record = parse_record(block[begin:end])
            if record is not None and record["req_id"] is not None and request_of(record["req_id"])[0] == name:
                yield record
            at = block.find(needle, end + 1)
