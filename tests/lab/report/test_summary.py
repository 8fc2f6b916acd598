"""What all reports are made from."""

from __future__ import annotations

from pathlib import Path

from lab.report.making import CASES, answer, small_summary, trouble, write_results

from bridge.lab.report.counted import CountedResults
from bridge.lab.report.summary import NO_CATEGORY, Column, summarise
from bridge.lab.result import Cell

SPEC, NATIVE = Column("gpt-5.2-codex", "spec"), Column("mini", "native")


def test_columns_stand_by_model_and_rows_by_category(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    assert [column.variant for column in summary.columns] == ["spec", "short", "native"] * 2
    assert summary.models == ["gpt-5.2-codex", "mini"]
    assert summary.categories == ["single", "parallel", "no-tool-needed"]
    assert [row.case for row in summary.rows][:2] == ["weather-bern", "weather-by-force"]
    assert [row.due for row in summary.rows] == [True, True, True, False, False]
    assert summary.repeats == 3


def test_errors_of_the_machinery_are_in_no_other_figure(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    count, rates = summary.column(NATIVE), summary.rates[NATIVE]
    assert (count.passed, count.scored, count.errors) == (9, 12, 3)
    assert rates.seconds == 1.25, "although each error took 180 s"
    # Of four cases that were answered three times: three always right, one never.
    assert (rates.pass_at, rates.pass_hat) == (0.75, 0.75)


def test_the_rates_of_a_column(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    rates = summary.rates[SPEC]
    assert (rates.pass_at, rates.pass_hat) == (1.0, 0.8)
    assert rates.clean == (6, 8), "answers without a call are neither clean nor not"
    assert 0.70 < rates.interval[0] < 14 / 15 < rates.interval[1] < 1


def test_each_other_variant_is_compared_with_the_first_of_its_model(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    assert [(each.model, each.variant, each.first) for each in summary.compared] == [
        ("gpt-5.2-codex", "short", "spec"),
        ("gpt-5.2-codex", "native", "spec"),
        ("mini", "short", "spec"),
        ("mini", "native", "spec"),
    ]
    assert round(summary.compared[0].comparison.difference, 4) == -0.3333


def test_the_variant_that_was_named_first_comes_first(tmp_path: Path) -> None:
    results = [answer(Cell("m", variant, "weather-bern", 0), "clean") for variant in ("spec", "mine", "short")]
    summary = summarise(CountedResults(write_results(tmp_path / "r", results)), CASES, ["short"])
    assert [column.variant for column in summary.columns] == ["short", "spec", "mine"]
    assert {each.first for each in summary.compared} == {"short"}


def test_without_the_suite_a_case_tells_itself_whether_a_call_is_due(tmp_path: Path) -> None:
    results = [
        answer(Cell("m", "spec", name, 0), "absent", failed=["count"] * due) for name, due in (("a", 1), ("b", 0))
    ]
    summary = summarise(CountedResults(write_results(tmp_path / "r", results)), {})
    assert summary.rows == (("a", NO_CATEGORY, True), ("b", NO_CATEGORY, False))


def test_nothing_but_errors(tmp_path: Path) -> None:
    summary = summarise(CountedResults(write_results(tmp_path / "r", [trouble(Cell("m", "spec", "a", 0))])), {})
    rates = summary.rates[Column("m", "spec")]
    assert (rates.pass_at, rates.pass_hat, rates.seconds, rates.clean.percent) == (None, None, None, None)


def test_no_results_at_all(tmp_path: Path) -> None:
    summary = summarise(CountedResults(write_results(tmp_path / "r", [])), CASES)
    assert (summary.columns, summary.rows, summary.compared) == ((), (), ())
