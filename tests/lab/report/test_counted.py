"""Which results of a file count."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.report.making import answer, trouble, write_results

from bridge.errors import ConfigError
from bridge.lab.result import Cell, CountedResults, Only, ResultFile

FIRST, SECOND = Cell("m", "spec", "weather-bern", 0), Cell("m", "spec", "weather-bern", 1)
OTHER = Cell("m", "spec", "only-talk", 0)


def test_the_last_result_of_a_repeated_cell_counts(tmp_path: Path) -> None:
    again = answer(FIRST, "repaired", "again")
    results = [trouble(FIRST), answer(SECOND, "clean"), answer(FIRST, "clean", "once"), again]
    assert list(CountedResults(write_results(tmp_path / "r", results))) == [answer(SECOND, "clean"), again]


def test_an_error_counts_only_without_a_score(tmp_path: Path) -> None:
    found = CountedResults(write_results(tmp_path / "r", [answer(FIRST, "clean"), trouble(FIRST), trouble(SECOND)]))
    assert [(result.cell, result.status) for result in found] == [(FIRST, "scored"), (SECOND, "error")]


def test_other_cases_and_torn_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    file = write_results(tmp_path / "r", [answer(OTHER, "absent"), answer(FIRST, "clean")])
    with file.path.open("ab") as appended:
        appended.write(b'{"model": "m", "vari')
    results = CountedResults(file, Only({"weather-bern"}))
    assert [result.cell for result in results] == [FIRST]
    assert (results.left_out, results.unread) == (1, 1)
    assert [result.cell for result in results] == [FIRST], "as often as one likes"
    assert (results.left_out, results.unread) == (1, 1)


def test_other_variants_and_models_are_left_out(tmp_path: Path) -> None:
    cells = [FIRST, FIRST._replace(variant="short"), FIRST._replace(model="other"), OTHER]
    file = write_results(tmp_path / "r", [answer(cell, "clean") for cell in cells])
    for only, left in ((Only(variants=["spec"], models=["m"]), [FIRST, OTHER]), (Only(models=["other"]), cells[2:3])):
        results = CountedResults(file, only)
        assert [result.cell for result in results] == left
        assert results.left_out == 4 - len(left)
    assert len(list(CountedResults(file))) == 4


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("hello\n")
    with pytest.raises(ConfigError, match="does not hold results"):
        CountedResults(ResultFile(tmp_path / "r"))
