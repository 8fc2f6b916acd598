"""The report for programs."""

from __future__ import annotations

import json
from pathlib import Path

from lab.report.golden import check_golden
from lab.report.making import answer, small_summary

from bridge import __version__
from bridge.lab.report.exports import json_report
from bridge.lab.report.summary import summarise
from bridge.lab.result import Cell


def test_the_golden_report(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    check_golden("report.json", json_report(summary).replace(__version__.encode(), b"VERSION", 1))


def test_the_members_of_the_report(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    report = json.loads(json_report(summary))
    assert list(report) == [
        *("report", "program", "suite", "repeats", "asked", "planned", "columns", "cases", "comparisons", "effects")
    ]
    assert (report["asked"], report["planned"]) == (90, None)
    spec = report["columns"][0]
    assert (spec["scored"], spec["passed"], spec["pass_rate"], spec["pass_hat"]) == (15, 14, 0.933333, 0.8)
    assert (spec["clean"], spec["called"], spec["repairs"]) == (6, 8, {"code_fence": 2, "trailing_comma": 2})
    by_force = next(case for case in report["cases"] if case["id"] == "weather-by-force")
    assert [cell["word"] for cell in by_force["cells"]] == ["MIXED", "MIXED", "PASS", "MIXED", "FAIL", "PASS"]
    assert report["comparisons"][0]["distinguishable"] is False
    cell = by_force["cells"][0]
    assert (cell["passed"], cell["scored"], cell["pass_at"], cell["pass_hat"]) == (2, 3, 1.0, 0.0)
    assert cell["interval"] == [0.207660, 0.938508]


def test_a_case_that_a_column_has_no_result_for_has_no_cell_there() -> None:
    results = [answer(Cell("m", "spec", "a", 0), "clean"), answer(Cell("m", "short", "b", 0), "clean")]
    report = json.loads(json_report(summarise(results, {})))
    assert [[cell["variant"] for cell in case["cells"]] for case in report["cases"]] == [["spec"], ["short"]]
    assert report["comparisons"][0]["interval"] is None
