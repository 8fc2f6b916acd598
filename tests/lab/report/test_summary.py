"""What all reports are made from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lab.report.making import CASES, answer, small_summary, trouble, write_results

from bridge.lab.report.exports import json_report, junit_pieces
from bridge.lab.report.summary import NO_CATEGORY, Column, summarise
from bridge.lab.report.text import markdown_lines
from bridge.lab.result import Cell, CountedResults
from bridge.lab.stats import wilson

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC, NATIVE = Column("gpt-5.2-codex", "spec"), Column("mini", "native")


def test_columns_are_ordered_by_model_and_rows_by_category(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    assert [column.variant for column in summary.columns] == ["spec", "short", "native"] * 2
    assert summary.models == ["gpt-5.2-codex", "mini"]
    categories = dict.fromkeys(row.category for row in summary.rows)
    assert list(categories) == ["single", "parallel", "no-tool-needed"]
    assert [row.case for row in summary.rows][:2] == ["weather-bern", "weather-by-force"]
    assert [row.due for row in summary.rows] == [True, True, True, False, False]
    assert summary.repeats == 3


def test_request_errors_are_in_no_other_figure(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    count = summary.counts[NATIVE]
    assert (count.passed, count.scored, count.errors) == (9, 12, 3)
    assert count.mean_seconds == 1.25, "although each error took 180 s"
    # Of four cases that were answered three times: three always right, one never.
    assert (count.pass_at, count.pass_hat) == (0.75, 0.75)


def test_the_rates_of_a_column(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    count = summary.counts[SPEC]
    assert (count.pass_at, count.pass_hat) == (1.0, 0.8)
    assert count.clean_share == (6, 8), "answers without a call are neither clean nor not"
    # Four cases are always right, one is twice of three times: drawn three times it makes 12 of 15, drawn never 15.
    assert count.interval == pytest.approx((12 / 15, 1.0))


def test_the_rates_of_a_cell(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    found = {
        word: (count.interval, count.pass_at, count.pass_hat)
        for row in summary.rows
        for column in summary.columns
        if (count := summary.cell(row, column)).scored == 3 and (word := f"{count.passed}/{count.scored}")
    }
    assert found == {
        "3/3": (wilson(3, 3), 1, 1),
        "2/3": (wilson(2, 3), 1, 0),
        "1/3": (wilson(1, 3), 1, 0),
        "0/3": (wilson(0, 3), 0, 0),
    }
    unsure = summary.cell(summary.rows[0], Column("mini", "spec"))
    assert (unsure.interval, unsure.pass_at, unsure.pass_hat) == (wilson(1, 2), None, None), (
        "one of its three tries never came"
    )


def test_each_other_variant_is_compared_with_the_first_of_its_model(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    assert [(each.model, each.variant, each.first) for each in summary.compared] == [
        ("gpt-5.2-codex", "short", "spec"),
        ("gpt-5.2-codex", "native", "spec"),
        ("mini", "short", "spec"),
        ("mini", "native", "spec"),
    ]
    assert round(summary.compared[0].comparison.difference, 4) == -0.3333


def test_variants_keep_the_order_of_the_options(tmp_path: Path) -> None:
    results = [answer(Cell("m", variant, "weather-bern", 0), "clean") for variant in ("spec", "mine", "short")]
    summary = summarise(CountedResults(write_results(tmp_path / "r", results)), CASES, ["short"])
    assert [column.variant for column in summary.columns] == ["short", "spec", "mine"]
    assert {each.first for each in summary.compared} == {"short"}


def test_without_the_suite_results_say_whether_a_call_is_expected(tmp_path: Path) -> None:
    results = [
        answer(Cell("m", "spec", name, 0), "absent", failed=["count"] * due) for name, due in (("a", 1), ("b", 0))
    ]
    summary = summarise(CountedResults(write_results(tmp_path / "r", results)), {})
    assert summary.rows == (("a", NO_CATEGORY, True), ("b", NO_CATEGORY, False))


def test_nothing_but_errors(tmp_path: Path) -> None:
    summary = summarise(CountedResults(write_results(tmp_path / "r", [trouble(Cell("m", "spec", "a", 0))])), {})
    count = summary.counts[Column("m", "spec")]
    assert (count.pass_at, count.pass_hat, count.mean_seconds, count.clean_share.percent) == (None, None, None, None)


def test_an_incomplete_run_says_how_far_it_came(tmp_path: Path) -> None:
    results = [answer(Cell("m", "spec", "a", 0), "clean"), trouble(Cell("m", "short", "a", 0))]
    summary = summarise(results, {}, planned=1_000)
    assert summary.notes == ("The run is incomplete: 2 of 1,000 requests were sent.",)
    assert json.loads(json_report(summary))["planned"] == 1000
    assert 'name="asked" value="2 of 1000"' in b"".join(junit_pieces(summary, results, {}, {}, when=NOW)).decode()
    assert summary.notes[0] in "\n".join(markdown_lines(summary))
    assert summarise(results, {}, planned=2).notes == summarise(results, {}).notes == ()


def test_no_results_at_all(tmp_path: Path) -> None:
    summary = summarise(CountedResults(write_results(tmp_path / "r", [])), CASES)
    assert (summary.columns, summary.rows, summary.compared) == ((), (), ())
