"""What all reports show: counts by case and column, rates with intervals, and comparisons of variants. No texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, NamedTuple

from bridge.lab.case import Case
from bridge.lab.checks import CHECKS
from bridge.lab.report.effects import Effect, find_effects
from bridge.lab.result import CountedResults, Result
from bridge.lab.score import FORMS
from bridge.lab.stats import Comparison, compare_paired, describe, pass_at, pass_hat, rate_interval, wilson

SEED = 1
"""Fixed, so that the same results give the same intervals."""
NO_CATEGORY = "other"
"""The category of cases whose suite is unknown."""
DIGITS = 6
MARKS: Mapping[str, str] = {
    "r": "repaired",
    "b": "broken",
    "l": "leaked",
    "a": "no call, but one is expected",
    "e": "errors, not counted",
}


class Column(NamedTuple):
    model: str
    variant: str


class Row(NamedTuple):
    """A case. `due`: a right answer makes a call."""

    case: str
    category: str
    due: bool


class Share(NamedTuple):
    part: int
    whole: int

    @property
    def percent(self) -> float | None:
        return 100 * self.part / self.whole if self.whole else None


@dataclass(slots=True)
class Count:
    """The samples of a cell, of a column or of the whole run."""

    passed: int = 0
    scored: int = 0
    errors: int = 0
    forms: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    failed_checks: Counter[str] = field(default_factory=Counter)
    error_codes: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    answer_seconds: float = 0.0
    """Of scored answers: how long a request took to fail says nothing about the model."""
    interval: tuple[float, float] = (0.0, 1.0)
    """95 % interval of the rate that passes: Wilson's for a cell, from a bootstrap over cases for a column."""
    pass_at: float | None = None
    """How often one of `repeats` tries is right, from 0 to 1; None if no case has that many."""
    pass_hat: float | None = None
    """How often all of them are right."""

    def add(self, result: Result) -> None:
        self.input_tokens += result.input_tokens
        self.output_tokens += result.output_tokens
        self.seconds += result.seconds
        if result.status == "error":
            self.errors += 1
            self.error_codes[(result.error or {}).get("code", "unknown")] += 1
            return
        self.scored += 1
        self.answer_seconds += result.seconds
        self.passed += result.passed
        self.forms[result.form or ""] += 1
        self.repairs.update(result.repairs)
        self.failed_checks.update(result.failed_checks)

    @property
    def asked(self) -> int:
        return self.scored + self.errors

    @property
    def pass_share(self) -> Share:
        return Share(self.passed, self.scored)

    @property
    def clean_share(self) -> Share:
        """Answers with a clean form, of those that call or try to."""
        return Share(self.forms["clean"], self.scored - self.forms["absent"])

    @property
    def error_share(self) -> Share:
        return Share(self.errors, self.asked)

    @property
    def mean_seconds(self) -> float | None:
        return self.answer_seconds / self.scored if self.scored else None

    @property
    def word(self) -> Literal["PASS", "MIXED", "FAIL", "ERROR", "-"]:
        """The result in one word. Errors do not count against the model."""
        if not self.scored:
            return "ERROR" if self.errors else "-"
        if self.passed == self.scored:
            return "PASS"
        return "MIXED" if self.passed else "FAIL"

    def marks(self, row: Row) -> dict[str, int]:
        """How many samples have each of MARKS."""
        found = {"r": self.forms["repaired"], "b": self.forms["broken"], "l": self.forms["leaked"]}
        found |= {"a": self.forms["absent"] if row.due else 0, "e": self.errors}
        return {letter: number for letter, number in found.items() if number}

    def what_is_wrong(self) -> list[str]:
        """What kept samples from passing, the most frequent first."""
        wrong = Counter({name: self.forms[name] for name in ("broken", "leaked") if self.forms[name]})
        wrong.update(self.failed_checks)
        words = {**FORMS, **{name: check.words for name, check in CHECKS.items()}}
        return [f"{name}: {words[name]} ({number} of {self.scored})" for name, number in wrong.most_common()]


class Compared(NamedTuple):
    """A variant compared with the first variant of the same model."""

    model: str
    variant: str
    first: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Summary:
    """A run. Rows are grouped by category, in the order of the suite; columns by model, in that of the variants."""

    suite: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    cells: Mapping[tuple[Column, str], Count]
    counts: Mapping[Column, Count]
    total: Count
    compared: tuple[Compared, ...]
    effects: tuple[Effect, ...]
    """What each dimension of the study changes."""
    repeats: int
    """The largest number of samples of a cell."""
    notes: tuple[str, ...] = ()
    """What a reader should know: what was left out or could not be read."""
    missed: tuple[str, ...] = ()
    """One sentence per missed threshold and per regression."""
    planned: int = 0
    """The number of results of a complete run; 0 if unknown."""

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(column.model for column in self.columns))

    def cell(self, row: Row, column: Column) -> Count:
        return self.cells.get((column, row.case)) or Count()

    def figures(self) -> dict[str, Any]:
        """All figures, as the JSON report and the page have them. A cell without results has the word `-`."""
        return {
            "suite": self.suite,
            "repeats": self.repeats,
            "asked": self.total.asked,
            "planned": self.planned or None,
            "columns": [self._column_figures(column) for column in self.columns],
            "cases": [
                {
                    "id": row.case,
                    "category": row.category,
                    "cells": [_cell_figures(column, self.cell(row, column)) for column in self.columns],
                }
                for row in self.rows
            ],
            "comparisons": [_comparison_figures(compared) for compared in self.compared],
            "effects": [effect.figures() for effect in self.effects],
        }

    def _column_figures(self, column: Column) -> dict[str, Any]:
        count = self.counts[column]
        return {
            **column._asdict(),
            "pass_rate": _rounded(count.passed / count.scored) if count.scored else None,
            **_figures(count),
            "clean": count.clean_share.part,
            "called": count.clean_share.whole,
            "input_tokens": count.input_tokens,
            "output_tokens": count.output_tokens,
            "mean_seconds": _rounded(count.mean_seconds),
        }


def _cell_figures(column: Column, count: Count) -> dict[str, Any]:
    return {**column._asdict(), "word": count.word, **_figures(count)}


def _figures(count: Count) -> dict[str, Any]:
    return {
        "scored": count.scored,
        "passed": count.passed,
        "errors": count.errors,
        **{name: ordered(getattr(count, name)) for name in ("forms", "repairs", "failed_checks", "error_codes")},
        "interval": [_rounded(bound) for bound in count.interval],
        "pass_at": _rounded(count.pass_at),
        "pass_hat": _rounded(count.pass_hat),
    }


def _comparison_figures(compared: Compared) -> dict[str, Any]:
    model, variant, first, found = compared
    return {
        "model": model,
        "variant": variant,
        "first": first,
        "cases": found.cases,
        "differing": found.differing,
        "difference": _rounded(found.difference),
        "interval": None if found.low is None else [_rounded(found.low), _rounded(found.high)],
        "distinguishable": found.distinguishable,
        "words": describe(found),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by name, the largest first."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def percent(rate: float | None) -> str:
    """A rate in whole percent; only 1 is 100 %, and only 0 is 0 %."""
    if rate is None:
        return "–"
    shown = round(rate * 100)
    if shown in (0, 100) and 0 < rate < 1:
        shown = 99 if shown else 1
    return f"{shown} %"


def percent_range(bounds: tuple[float, float]) -> str:
    return f"{round(bounds[0] * 100)}–{round(bounds[1] * 100)} %"


# Counting


def summarise(
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Sequence[str] = (),
    *,
    levels: Mapping[str, Mapping[str, str]] = {},
    suite: str = "",
    planned: int = 0,
) -> Summary:
    """Count results. `cases` give categories and the order of rows, `variants` the order of columns.

    `levels` are the levels of each dimension by variant. `planned` is the number of results of a complete run; 0 if
    unknown.
    """
    cells: dict[tuple[Column, str], Count] = {}
    counts: dict[Column, Count] = {}
    total, due = Count(), set[str]()
    for result in results:
        column = Column(result.cell.model, result.cell.variant)
        for count in (
            cells.setdefault((column, result.cell.case), Count()),
            counts.setdefault(column, Count()),
            total,
        ):
            count.add(result)
        if result.checks.get("count") is not None:
            due.add(result.cell.case)
    repeats = max((count.asked for count in cells.values()), default=1)
    models = list(dict.fromkeys(column.model for column in counts))
    names = list(dict.fromkeys((*variants, *(column.variant for column in counts))))
    columns = sorted(counts, key=lambda column: (models.index(column.model), names.index(column.variant)))
    scored: dict[Column, dict[str, Share]] = {column: {} for column in columns}
    for (column, case), count in cells.items():
        k, n = count.pass_share
        count.interval, count.pass_at, count.pass_hat = wilson(k, n), pass_at(n, k, repeats), pass_hat(n, k, repeats)
        if n:
            scored[column][case] = count.pass_share
    for column, shares in scored.items():
        inside = [cells[column, case] for case in shares]
        counts[column].interval = rate_interval(shares, seed=SEED)
        counts[column].pass_at = _mean(count.pass_at for count in inside)
        counts[column].pass_hat = _mean(count.pass_hat for count in inside)
    return Summary(
        suite,
        tuple(columns),
        _rows(list(dict.fromkeys(case for _, case in cells)), cases, due),
        cells,
        counts,
        total,
        tuple(_compare(scored)),
        find_effects([(_levels(column, levels), shares) for column, shares in scored.items()], seed=SEED),
        repeats,
        tuple(_notes(results, total.asked, planned)),
        planned=planned,
    )


def _rows(found: Sequence[str], cases: Mapping[str, Case], due: Collection[str]) -> tuple[Row, ...]:
    """By category, in the order of their first cases; cases of an unknown suite come last."""
    there = set(found)
    known = [Row(case.id, case.category, case.expects_calls) for case in cases.values() if case.id in there]
    categories = list(dict.fromkeys(row.category for row in known))
    known.sort(key=lambda row: categories.index(row.category))
    return (*known, *(Row(name, NO_CATEGORY, name in due) for name in found if name not in cases))


def _levels(column: Column, levels: Mapping[str, Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    return (("model", column.model), *levels.get(column.variant, {"variant": column.variant}).items())


def _mean(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return fmean(known) if known else None


def _compare(scored: Mapping[Column, Mapping[str, Share]]) -> Iterator[Compared]:
    first: dict[str, Column] = {}
    for column, shares in scored.items():
        base = first.setdefault(column.model, column)
        if column != base:
            comparison = compare_paired(scored[base], shares, seed=SEED)
            yield Compared(column.model, column.variant, base.variant, comparison)


def _notes(results: Iterable[Result], asked: int, planned: int) -> Iterator[str]:
    if asked < planned:
        yield f"The run is incomplete: {asked:,} of {planned:,} requests were sent."
    if isinstance(results, CountedResults):
        if results.left_out:
            yield f"{_many(results.left_out, 'result')} of other cases, variants or models not shown."
        if results.unread:
            yield f"{_many(results.unread, 'line')} of the file could not be read."


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
