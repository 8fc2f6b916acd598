"""Reading event logs: files, whole lines, records. No content of a file raises an error here.

A log is a file, or a directory of files that continue each other. What cannot be read is counted in `Trouble` and
reported, never skipped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge import exact_json
from bridge.errors import ConfigError
from bridge.log.record import FORMAT

SUFFIX = ".ndjson"
BLOCK = 4 * 1024 * 1024
MAX_LINE = 256 * 1024 * 1024
"""A longer line is refused."""
MAX_PLAYED = 256 * 1024 * 1024
"""The largest log, in bytes, that is loaded into memory to be played."""
MAX_DEPTH = 128
"""Twice the nesting of a request, and shallow enough for everything recursive."""

Line = tuple[int, bytes]
"""The offset of a line in its file, and the line without its newline."""


@dataclass(slots=True)
class Trouble:
    """What is wrong with a log."""

    foreign: int = 0
    """Lines that are not records, or broken in the middle."""
    torn: int = 0
    """Last lines without their end: their writer was stopped, or is writing at this moment."""
    newer: int = 0
    """Files of a format that this program does not know."""
    first: str | None = None
    """Where the first foreign line is."""
    gaps: int = 0
    """Records that their writer counted but that are missing."""

    def note_foreign(self, file: str, offset: int) -> None:
        self.foreign += 1
        self.first = self.first or f"at byte {offset} of {file}"

    def note_format(self, record: dict[str, Any]) -> None:
        if record["kind"] == "header" and isinstance(record.get("format"), int) and record["format"] > FORMAT:
            self.newer += 1

    def add(self, other: Trouble) -> None:
        self.foreign += other.foreign
        self.torn += other.torn
        self.newer += other.newer
        self.first = self.first or other.first
        self.gaps += other.gaps

    def sentences(self) -> list[str]:
        found = []
        if self.foreign:
            found.append(f"{self.foreign} line(s) are not event log records and were skipped; first {self.first}")
        if self.torn:
            found.append(f"the last line of {self.torn} file(s) is torn and was skipped")
        if self.newer:
            found.append(f"{self.newer} file(s) were written by a newer version (format > {FORMAT})")
        if self.gaps:
            found.append(f"{self.gaps} record(s) are missing: dropped while the log was written, or removed")
        return found


def log_files(path: Path) -> list[Path]:
    """The files of a log, in order. Raises ConfigError if the path is not a log."""
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix == SUFFIX and entry.is_file())
        if not files:
            raise ConfigError(f"{path} contains no event log (no file ending in {SUFFIX}).")
        return files
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Record one with `serve --log-events` or `record`.")
    if path.is_file() and _first_bytes(path, 2) == b"\x1f\x8b":
        raise ConfigError(f"{path} is compressed. Decompress it first (gunzip).")
    return [path]


def refuse_other_files(path: Path, files: list[Path], trouble: Trouble) -> None:
    """Raise ConfigError for files without a record that contain something else. A torn first line may be a record."""
    if trouble.foreign or any(_first_bytes(file, 1) not in (b"", b"{") for file in files if file.is_file()):
        what = "is not an event log: none of its lines is a record"
        raise ConfigError(f"{path} {what}. Record one with `serve --log-events` or `record`.")


def played_files(path: Path) -> list[Path]:
    """The files of a log that is loaded into memory to be played. Raises ConfigError for none, or a log too large."""
    files = log_files(path)
    size = sum(file.stat().st_size for file in files)
    if size > MAX_PLAYED:
        raise ConfigError(
            f"{path} has {size:,} bytes, more than the {MAX_PLAYED:,} that can be played. "
            "Play a part of it: one file of a directory, or what `log redact --since TIME --output FILE` copies."
        )
    return files


def read_blocks(
    path: Path, trouble: Trouble, *, start: int = 0, end: int | None = None, size: int = BLOCK
) -> Iterator[tuple[int, bytes]]:
    """(offset, whole lines with their newlines) from `start`, which is the beginning of a line, up to `end`.

    A last line without a newline is returned if it is a whole JSON object, else it counts as torn.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        if start:  # not for a pipe, which has no positions
            file.seek(start)
        offset, kept = start, [b""]
        while end is None or offset < end:
            data = file.read(size if end is None else min(size, end - offset - sum(map(len, kept))))
            if not data:
                break
            cut = data.rfind(b"\n") + 1
            if not cut:
                kept.append(data)
                if sum(map(len, kept)) > MAX_LINE:
                    raise ConfigError(f"{path}: the line at byte {offset} is longer than {MAX_LINE:,} bytes.")
                continue
            block = b"".join([*kept, data[:cut]])
            kept = [data[cut:]]
            yield offset, block
            offset += len(block)
        rest = b"".join(kept)
        if rest.strip() and (end is None or offset < end):
            try:
                is_whole = isinstance(orjson.loads(rest), dict)
            except orjson.JSONDecodeError:
                is_whole = False
            if is_whole:
                yield offset, rest + b"\n"
            else:
                trouble.torn += 1


def read_lines(path: Path, trouble: Trouble, *, start: int = 0, end: int | None = None) -> Iterator[Line]:
    for offset, block in read_blocks(path, trouble, start=start, end=end):
        at = offset
        for line in block.split(b"\n")[:-1]:
            if line.strip():
                yield at, line
            at += len(line) + 1


@dataclass(slots=True)
class RecordReader:
    """The records of a log, in order. `trouble` collects its faults; `on_read` is called with the bytes read."""

    files: list[Path]
    trouble: Trouble = field(default_factory=Trouble)
    on_read: Callable[[int], None] = lambda size: None
    _next: dict[str, int] = field(default_factory=dict)

    @property
    def found_nothing(self) -> bool:
        return not self._next

    def __iter__(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        from bridge.log.transcript import TranscriptReader

        for path in self.files:
            transcript = TranscriptReader(path.stem)
            for offset, line in read_lines(path, self.trouble):
                self.on_read(len(line) + 1)
                record = parse_record(line) or transcript.record(line)
                if record is None:
                    self.trouble.note_foreign(path.name, offset)
                    continue
                self.check(record)
                yield path, record

    def check(self, record: dict[str, Any]) -> None:
        """Count the records that are missing before this one, and headers of the future."""
        self.trouble.note_format(record)
        run, seq = record.get("run", ""), record["seq"]
        expected = self._next.get(run, seq if continues(record) else 0)
        if run:
            self.trouble.gaps += max(0, seq - expected)
        self._next[run] = seq + 1


def parse_record(line: bytes) -> dict[str, Any] | None:
    """A line as a record; None if it is not one."""
    record = parse_line(line)
    return record if is_record(record) else None


def parse_line(line: bytes) -> Any:
    """The JSON of a line; None for anything else, and for JSON that is nested deeper than anything a bridge writes."""
    try:
        value = exact_json.loads(line)
    except orjson.JSONDecodeError:
        return None
    deep = line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deep(value)
    return None if deep else value


def is_record(record: Any) -> bool:
    """Whether it has the members of every record, and each of its type."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("kind"), str)
        and isinstance(record.get("phase"), str)
        and isinstance(record.get("ts"), str)
        and isinstance(record.get("mono"), int | float)
        and isinstance(record.get("seq"), int)
        and isinstance(record.get("req_id", 0), str | None)
        and isinstance(record.get("run", ""), str)
        and isinstance(record.get("method"), str | None)
        and isinstance(record.get("conversation_id"), str | None)
    )


def continues(record: Any) -> bool:
    """Whether it is the header of a file that continues another."""
    return isinstance(record, dict) and record.get("kind") == "header" and "continues" in record


def request_of(req_id: str) -> tuple[str, int]:
    """(the request, the number of its attempt) of a record's `req_id`."""
    request, _, attempt = req_id.partition("#")
    return request, int(attempt) if attempt.isdecimal() and len(attempt) < 6 else 0


def _first_bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""  # reading the file reports the error


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            member
            for node in level
            for member in (node.values() if isinstance(node, dict) else node)
            if isinstance(member, dict | list)
        ]
        if not level:
            return False
    return True
