"""What all reports tell: counts by case and column, rates with their intervals, and how variants compare. No texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from bridge.lab.case import Case
from bridge.lab.report.counted import CountedResults
from bridge.lab.result import Result
from bridge.lab.stats import Comparison, compare_paired, pass_at, pass_hat, rate_interval, wilson
from bridge.lab.table import Count, Table

SEED = 1
"""The same results give the same intervals."""
NO_CATEGORY = "other"
"""Where cases stand whose suite is not at hand."""


class Column(NamedTuple):
    """A model, asked in a variant."""

    model: str
    variant: str


class Row(NamedTuple):
    """A case. `due`: a right answer calls something."""

    case: str
    category: str
    due: bool


class Share(NamedTuple):
    """So many of so many."""

    part: int
    whole: int

    @property
    def percent(self) -> float | None:
        """In percent; None of nothing."""
        return 100 * self.part / self.whole if self.whole else None


@dataclass(frozen=True, slots=True)
class Rates:
    """The figures of a column that are more than counts; rates lie between 0 and 1."""

    interval: tuple[float, float]
    """At 95 %, of the share that passed: from drawing whole cases again."""
    pass_at: float | None
    """How often one of as many tries as were made for each case is right; None when every case lacks a try."""
    pass_hat: float | None
    """How often all of them are."""
    clean: Share
    """Of the answers with a call, or an attempt at one, those whose form is clean."""
    seconds: float | None
    """Mean of those that were scored: how long the machinery took to fail says nothing of the model."""


class CellRates(NamedTuple):
    """The figures of a cell that are more than counts."""

    interval: tuple[float, float]
    """Wilson's, at 95 %, of the share that passed."""
    pass_at: float | None
    """How often one of as many tries as the summary's repeats is right; None with fewer."""
    pass_hat: float | None
    """How often all of them are."""


class Compared(NamedTuple):
    """A variant against the first one of the same model."""

    model: str
    variant: str
    first: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Summary:
    """A run. Rows stand by category, in the order of the suite; columns by model, in the order of the variants."""

    suite: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    table: Table
    rates: Mapping[Column, Rates]
    compared: tuple[Compared, ...]
    repeats: int
    """How often a case was asked, at most."""
    told: tuple[str, ...] = ()
    """What a reader should know of the results: what was left out, what could not be read."""
    missed: tuple[str, ...] = field(default=())
    """Thresholds that were missed, and regressions: a sentence each."""
    planned: int = 0
    """How many results a whole run would have; 0 when nobody knows."""

    @property
    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(column.model for column in self.columns))

    @property
    def categories(self) -> list[str]:
        """The categories, in order."""
        return list(dict.fromkeys(row.category for row in self.rows))

    def cell(self, row: Row, column: Column) -> Count:
        """What came of a case in a column; nothing, perhaps."""
        return self.table.count(column.model, column.variant, row.case)

    def cell_rates(self, count: Count) -> CellRates:
        """How sure one may be of a cell."""
        k, n = count.passed, count.scored
        return CellRates(wilson(k, n), pass_at(n, k, self.repeats), pass_hat(n, k, self.repeats))

    def column(self, column: Column) -> Count:
        """All of a column."""
        return self.table.columns[column]


def summarise(
    results: Iterable[Result],
    cases: Mapping[str, Case],
    variants: Sequence[str] = (),
    *,
    suite: str = "",
    planned: int = 0,
) -> Summary:
    """Count results. `cases` give categories and order, `variants` the order of the columns, where they are known.

    `planned` is how many there would be of a whole run; 0 when nobody knows.
    """
    table, due, repeats = Table(), set[str](), 0
    seconds: dict[tuple[str, str], float] = {}
    for result in results:
        table.add(result)
        repeats = max(repeats, _tries(table, result))
        column = (result.cell.model, result.cell.variant)
        seconds[column] = seconds.get(column, 0.0) + (result.seconds if result.status == "scored" else 0)
        if result.checks.get("count") is not None:
            due.add(result.cell.case)
    columns = _columns(table, variants)
    repeats = max(repeats, 1)
    return Summary(
        suite,
        columns,
        _rows(table.cases, cases, due),
        table,
        {column: _rates(table, column, repeats, seconds[column]) for column in columns},
        tuple(_compare(table, columns)),
        repeats,
        tuple(_told(results, table, planned)),
        planned=planned,
    )


def _tries(table: Table, result: Result) -> int:
    return table.count(result.cell.model, result.cell.variant, result.cell.case).asked


def _columns(table: Table, variants: Sequence[str]) -> tuple[Column, ...]:
    found = [Column(*key) for key in table.columns]
    models = list(dict.fromkeys(column.model for column in found))
    names = list(dict.fromkeys((*variants, *(column.variant for column in found))))
    return tuple(sorted(found, key=lambda column: (models.index(column.model), names.index(column.variant))))


def _rows(found: Sequence[str], cases: Mapping[str, Case], due: Iterable[str]) -> tuple[Row, ...]:
    """By category, each where its first case is; cases that no suite explains come last."""
    there, expecting = set(found), set(due)
    known = [Row(case.id, case.category, case.calls_due) for case in cases.values() if case.id in there]
    rest = [Row(name, NO_CATEGORY, name in expecting) for name in found if name not in cases]
    categories = list(dict.fromkeys(row.category for row in known))
    known.sort(key=lambda row: categories.index(row.category))
    return (*known, *rest)


def _rates(table: Table, column: Column, repeats: int, seconds: float) -> Rates:
    count, outcomes = table.columns[column], table.outcomes.get(column, {})
    whole = [case for case in outcomes.values() if len(case) >= repeats]
    at = [rate for case in whole if (rate := pass_at(len(case), sum(case), repeats)) is not None]
    hat = [rate for case in whole if (rate := pass_hat(len(case), sum(case), repeats)) is not None]
    return Rates(
        rate_interval(outcomes, seed=SEED),
        fmean(at) if at else None,
        fmean(hat) if hat else None,
        Share(count.forms["clean"], count.scored - count.forms["absent"]),
        seconds / count.scored if count.scored else None,
    )


def _compare(table: Table, columns: Sequence[Column]) -> Iterable[Compared]:
    first: dict[str, str] = {}
    for model, variant in columns:
        base = first.setdefault(model, variant)
        if variant != base:
            before, after = table.outcomes.get((model, base), {}), table.outcomes.get((model, variant), {})
            yield Compared(model, variant, base, compare_paired(before, after, seed=SEED))


def _told(results: Iterable[Result], table: Table, planned: int) -> Iterable[str]:
    if (asked := table.total.asked) < planned:
        yield f"Only {asked:,} of {planned:,} were asked: the run was cut short."
    if not isinstance(results, CountedResults):
        return
    if results.left_out:
        yield f"{_many(results.left_out, 'result')} of other cases, variants or models left out."
    if results.unread:
        yield f"{_many(results.unread, 'line')} of the file could not be read as a result."


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
