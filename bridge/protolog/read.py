"""Reading event logs: files, whole lines, records. Whatever a file holds, nothing here fails on it.

A log is a file, or a directory of files that continue each other. What cannot be read is counted in `Trouble` and told
to the person, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge import exact_json
from bridge.errors import ConfigError
from bridge.protolog.record import FORMAT

SUFFIX = ".ndjson"
BLOCK = 4 * 1024 * 1024
MAX_LINE = 256 * 1024 * 1024
"""A line without an end is not collected any further than that."""
MAX_PLAYED = 256 * 1024 * 1024
"""Bytes of a log that are held to be played."""
MAX_DEPTH = 128
"""Twice what a request may have: nothing recursive fails on it."""

Line = tuple[int, bytes]
"""Where a line begins in its file, and the line without its newline."""


@dataclass(slots=True)
class Trouble:
    """What was found in a log that is no record."""

    foreign: int = 0
    """Lines that are not ours, or broken in the middle."""
    torn: int = 0
    """Last lines without their end: their writer was stopped, or writes at this moment."""
    newer: int = 0
    """Files of a format that this program does not know."""
    first: str | None = None
    """Where the first foreign line stands."""
    gaps: int = 0
    """Records that their writer counted but that are not there."""

    def sentences(self) -> list[str]:
        """What a person should know."""
        said = []
        if self.foreign:
            said.append(
                f"{self.foreign} line(s) are no records of an event log and were passed over; first {self.first}"
            )
        if self.torn:
            said.append(f"the last line of {self.torn} file(s) is torn and was left out")
        if self.newer:
            said.append(f"{self.newer} file(s) were written by a newer program than this (format > {FORMAT})")
        if self.gaps:
            said.append(f"{self.gaps} record(s) are missing: they were dropped when the log was written, or cut out")
        return said


def log_files(path: Path) -> list[Path]:
    """The files of a log, in order. Raises ConfigError when there is none."""
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix == SUFFIX and entry.is_file())
        if not files:
            raise ConfigError(f"{path} holds no event log (no file that ends in {SUFFIX}).")
        return files
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Make a log with `serve --log-events` or `record`.")
    if path.is_file() and _is_packed(path):
        raise ConfigError(f"{path} is packed. Unpack it first (gunzip).")
    return [path]


def refuse_other_files(path: Path, files: list[Path], trouble: Trouble) -> None:
    """Raise ConfigError for files without a record that hold something else: a torn first line may be one of ours."""
    if trouble.foreign or any(_begins_otherwise(file) for file in files if file.is_file()):
        what = "is not an event log: none of its lines is a record"
        raise ConfigError(f"{path} {what}. Make a log with `serve --log-events` or `record`.")


def played_files(path: Path) -> list[Path]:
    """The files of a log that is held in memory to be played. Raises ConfigError when there is none, or too much."""
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

    A last line without a newline is given out when it is a whole JSON object, else it counts as torn.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
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
            if _is_object(rest):
                yield offset, rest + b"\n"
            else:
                trouble.torn += 1


def read_lines(path: Path, trouble: Trouble, *, start: int = 0, end: int | None = None) -> Iterator[Line]:
    """Each line with its offset."""
    for offset, block in read_blocks(path, trouble, start=start, end=end):
        at = offset
        for line in block.split(b"\n")[:-1]:
            if line.strip():
                yield at, line
            at += len(line) + 1


@dataclass(slots=True)
class RecordReader:
    """The records of a log, in order, with what is wrong with it in `trouble`. `told` hears how many bytes are read."""

    files: list[Path]
    trouble: Trouble = field(default_factory=Trouble)
    told: Callable[[int], None] = lambda size: None
    _next: dict[str, int] = field(default_factory=dict)

    @property
    def found_nothing(self) -> bool:
        """Whether no line was a record."""
        return not self._next

    def __iter__(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        from bridge.protolog.transcript import TranscriptReader

        for path in self.files:
            transcript = TranscriptReader(path.stem)
            for offset, line in read_lines(path, self.trouble):
                self.told(len(line) + 1)
                record = parse_record(line) or transcript.record(line)
                if record is None:
                    self.note_foreign(path, offset)
                    continue
                self.check(record)
                yield path, record

    def check(self, record: dict[str, Any]) -> None:
        """Count what is missing before this record, and headers of the future."""
        if record["kind"] == "header" and isinstance(record.get("format"), int) and record["format"] > FORMAT:
            self.trouble.newer += 1
        run, seq = record.get("run", ""), record["seq"]
        expected = self._next.get(run)
        if expected is None and continues(record):
            expected = seq
        if seq > (expected or 0) and run:
            self.trouble.gaps += seq - (expected or 0)
        self._next[run] = seq + 1

    def note_foreign(self, path: Path, offset: int) -> None:
        """A line that is no record."""
        self.trouble.foreign += 1
        if self.trouble.first is None:
            self.trouble.first = f"at byte {offset} of {path.name}"


def parse_record(line: bytes) -> dict[str, Any] | None:
    """A line as a record with the members that all have; None for anything else."""
    record = parse_line(line)
    return record if is_record(record) else None


def parse_line(line: bytes) -> Any:
    """The JSON of a line; None for anything else, and for what is nested deeper than whatever a bridge writes."""
    try:
        value = exact_json.loads(line)
    except orjson.JSONDecodeError:
        return None
    deep = line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deep(value)
    return None if deep else value


def is_record(record: Any) -> bool:
    """Whether it has what every record has, and nothing of another type than it should be."""
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
    """Whether it is the header of a file that goes on where another ended."""
    return isinstance(record, dict) and record.get("kind") == "header" and "continues" in record


def request_of(req_id: str) -> tuple[str, int]:
    """(the request, the number of its attempt) of a record's `req_id`."""
    request, _, attempt = req_id.partition("#")
    return request, int(attempt) if attempt.isdecimal() and len(attempt) < 6 else 0


def _begins_otherwise(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) not in (b"", b"{")


def _is_packed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError:
        return False  # told when it is read


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


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False
