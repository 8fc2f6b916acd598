"""The table for a spreadsheet."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from lab.report.golden import check_golden
from lab.report.making import CASES, answer, small_run, small_summary, trouble

from bridge.lab.case import Called
from bridge.lab.report.exports import COLUMNS, csv_pieces, harmless
from bridge.lab.result import Cell, Result


def read(*results: Result) -> list[dict[str, str]]:
    data = b"".join(csv_pieces(results, CASES))
    return list(csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True))


def test_the_golden_table(tmp_path: Path) -> None:
    _, results = small_summary(tmp_path / "r")
    check_golden("results.csv", b"".join(csv_pieces(results, CASES)))


def test_every_result_is_a_row() -> None:
    rows = read(*small_run())
    assert len(rows) == 90
    assert all(tuple(row) == COLUMNS for row in rows)


def test_the_columns_of_a_row() -> None:
    cell = Cell("m", "spec", "weather-bern", 2)
    called = [Called("get_weather", '{"city": "Bern"}'), Called("find_trains", "{}")]
    row, error = read(answer(cell, "clean", "text", calls=called, failed=["values", "count"]), trouble(cell))
    assert (row["category"], row["repeat"], row["passed"], row["form"]) == ("single", "2", "failed", "clean")
    assert (row["check_values"], row["check_schema"], row["calls"]) == ("failed", "", "get_weather find_trains")
    assert row["arguments"] == '["{\\"city\\": \\"Bern\\"}","{}"]'
    assert "text" not in row.values()
    assert (error["status"], error["passed"], error["error_code"], error["f1"]) == ("error", "", "timeout", "")


def test_lines_end_with_crlf() -> None:
    data = b"".join(csv_pieces(small_run(), CASES))
    assert data.count(b"\r\n") == 91 == data.count(b"\n")


def test_nothing_is_a_formula() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "|calc", "\uff1d1"):
        assert harmless(text).startswith("'"), text
    assert harmless("a=1") == "a=1"


@given(st.text(max_size=60), st.text(max_size=60))
def test_every_text_survives(name: str, message: str) -> None:
    result = replace(trouble(Cell(name, "spec", "a", 0)), error={"code": "x", "message": message})
    (row,) = read(result)
    for text, found in ((name, row["model"]), (message, row["error_message"])):
        assert found == harmless(text)
        assert not found.lstrip(" \u00a0").startswith(("=", "+", "-", "@", "\t", "\r"))
