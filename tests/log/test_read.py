"""Files, whole lines and records of a log; what is none of these is counted and told."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.log.log import Log
from bridge.log.read import (
    MAX_DEPTH,
    RecordReader,
    Trouble,
    log_files,
    parse_line,
    parse_record,
    read_blocks,
    read_lines,
    request_of,
)

Json = dict[str, Any]


def record(seq: int = 0, **members: Any) -> Json:
    base = {"ts": "2026-01-01T00:00:00Z", "mono": 1.5, "run": "0123abcd", "seq": seq, "phase": "turn", "kind": "x"}
    return base | {"req_id": None} | members


def write(path: Path, *records: Json | bytes) -> Path:
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_log_is_a_file_or_a_directory_of_files(tmp_path: Path) -> None:
    for name in ("b.ndjson", "a.ndjson", "notes.txt", ".c.ndjson.new"):
        (tmp_path / name).touch()
    (tmp_path / "d.ndjson").mkdir()
    assert [path.name for path in log_files(tmp_path)] == ["a.ndjson", "b.ndjson"]
    assert log_files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


def test_what_is_no_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        log_files(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no file ending in \.ndjson"):
        log_files(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_lines(tmp_path, Trouble()))


@given(
    st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line and line.strip()), max_size=8),
    st.integers(1, 9),
)
def test_lines_are_whole_however_the_file_is_cut_into_blocks(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    blocks = list(read_blocks(path, Trouble(), size=size))
    assert b"".join(block for _, block in blocks) == path.read_bytes()
    assert all(block.endswith(b"\n") for _, block in blocks)
    found = list(read_lines(path, Trouble()))
    assert [line for _, line in found] == lines
    data = path.read_bytes()
    assert all(data[at : at + len(line)] == line for at, line in found)


def test_a_last_line_without_its_newline_counts_only_when_it_is_whole(tmp_path: Path) -> None:
    path, trouble = tmp_path / "log", Trouble()
    path.write_bytes(b'{"a": 1}\n{"b": 2}')
    assert [line for _, line in read_lines(path, trouble)] == [b'{"a": 1}', b'{"b": 2}']
    path.write_bytes(b'{"a": 1}\n{"b": ')
    assert [line for _, line in read_lines(path, trouble)] == [b'{"a": 1}']
    assert trouble.sentences() == ["the last line of 1 file(s) is torn and was skipped"]


def test_foreign_lines_gaps_and_newer_formats_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.ndjson",
        record(0, kind="header", format=99),
        record(1),
        b"not ours",
        record(5),
        record(0, run="ffffffff"),
        record(1, run="ffffffff"),
        b'{"json": "but no record"}',
        record(6),
    )
    reader = RecordReader([path])
    assert [found["seq"] for _, found in reader] == [0, 1, 5, 0, 1, 6]
    told = reader.trouble.sentences()
    assert told[0].startswith("2 line(s) are not event log records and were skipped; first at byte ")
    assert "log.ndjson" in told[0]
    assert told[1] == "1 file(s) were written by a newer version (format > 2)"
    assert told[2].startswith("3 record(s) are missing")


@pytest.mark.parametrize("name", ["ts", "mono", "run", "seq", "phase", "kind", "req_id", "method", "conversation_id"])
def test_a_member_of_another_type_makes_a_line_foreign(name: str) -> None:
    wrong: Json = {name: [1]}
    assert parse_record(json.dumps(record(**wrong)).encode()) is None
    assert parse_record(json.dumps(record()).encode()) == record()


def test_a_record_without_a_request_says_so() -> None:
    without = record()
    del without["req_id"]
    assert parse_record(json.dumps(without).encode()) is None


def test_what_is_nested_deeper_than_a_bridge_writes_is_foreign() -> None:
    assert parse_line(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None
    assert parse_line(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)) is None
    assert parse_line(b"[" + b"[1]," * 1000 + b"1]") is not None
    assert parse_line(b"[" * 100_000) is None


@pytest.mark.parametrize(
    ("req_id", "found"),
    [
        ("req_1", ("req_1", 0)),
        ("req_1#2", ("req_1", 2)),
        ("req_1#x", ("req_1", 0)),
        ("req_1#999999999", ("req_1", 0)),
        ("#", ("", 0)),
    ],
)
def test_a_request_and_the_number_of_its_attempt(req_id: str, found: tuple[str, int]) -> None:
    assert request_of(req_id) == found


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "log.ndjson", record())
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        list(RecordReader([path]))


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_without_its_beginning_says_so(tmp_path: Path, whole: bool) -> None:
    """Unless its first file goes on where another ended; with and without an index."""
    header = {"ts": "", "mono": 0.0, "run": "0badcafe", "seq": 5, "phase": "header", "direction": "none"}
    header |= {"kind": "header", "req_id": None, "format": 2} | ({"continues": "before.ndjson"} if whole else {})
    path = tmp_path / "log.ndjson"
    path.write_text(json.dumps(header) + "\n")
    reader, log = RecordReader([path]), Log(path)
    assert (len(list(reader)), list(log.summaries())) == (1, [])
    assert (reader.trouble.gaps, log.trouble.gaps) == ((0, 0) if whole else (5, 5))


def test_a_packed_log_is_to_be_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson.gz"
    path.write_bytes(gzip.compress(b"{}\n"))
    with pytest.raises(ConfigError, match="gunzip"):
        log_files(path)
