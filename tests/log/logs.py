"""How tests look at the files of a log: every line is a record, none is missing, every file begins with a header."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def records_of(path: Path) -> list[Json]:
    """The records of one file; fails on a line that is torn, or is none."""
    text = path.read_bytes()
    assert text == b"" or text.endswith(b"\n"), f"{path} ends within a line"
    return [json.loads(line) for line in text.splitlines()]


def whole_log(files: Iterable[Path]) -> list[Json]:
    """The records of one run's files, in order; fails when one is missing, or a file does not name the one before."""
    files = list(files)
    parts = [records_of(path) for path in files]
    for part in parts:
        assert part[0]["kind"] == "header"
        assert [record["kind"] for record in part].count("header") == 1
    assert "continues" not in parts[0][0]
    assert [part[0]["continues"] for part in parts[1:]] == [path.name for path in files[:-1]]
    records = [record for part in parts for record in part]
    assert {record["run"] for record in records} == {records[0]["run"]}
    assert [record["seq"] for record in records] == list(range(len(records)))
    for before, after in pairwise(parts):
        assert after[0]["format"] == before[0]["format"]
        assert after[0]["settings"] == before[0]["settings"]
    return records


def turns_in(records: Iterable[Json]) -> dict[str, list[str]]:
    """The kinds of the records of each request, in order."""
    found: dict[str, list[str]] = {}
    for record in records:
        if record["req_id"] is not None:
            found.setdefault(record["req_id"], []).append(record["kind"])
    return found
