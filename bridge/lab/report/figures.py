"""The figures of each column, as rows of words: shown on a terminal and in Markdown alike. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bridge.lab.report.summary import Column, Share, Summary
from bridge.lab.report.words import interval, ordered, percent
from bridge.lab.score import CHECKS, FORMS
from bridge.lab.table import Count

NOTHING = "·"
"""Where a count is zero."""


class Figures(NamedTuple):
    """Rows of figures under a heading: (label, a text for each column)."""

    heading: str
    rows: list[tuple[str, list[str]]]


def figures(summary: Summary) -> Iterator[Figures]:
    """All of them; groups that have nothing to tell are left out."""
    yield Figures("All cases", list(_totals(summary)))
    for heading, names, counts in (
        ("Forms", FORMS, "forms"),
        ("Repairs", None, "repairs"),
        ("Failed checks", CHECKS, "failed_checks"),
        ("Errors, not counted", None, "error_codes"),
    ):
        found = getattr(summary.table.total, counts)
        wanted = [name for name in (names or ordered(found)) if found[name]]
        rows = [
            (name, [_shown(getattr(summary.column(each), counts)[name]) for each in summary.columns]) for name in wanted
        ]
        if rows:
            yield Figures(heading, rows)


def _totals(summary: Summary) -> Iterator[tuple[str, list[str]]]:
    columns, rates, n = summary.columns, summary.rates, summary.repeats
    counts = [summary.column(column) for column in columns]
    yield "passed", [share(Share(count.passed, count.scored)) for count in counts]
    yield "95 % interval", [_interval(summary, column) for column in columns]
    yield f"pass@{n}", [percent(rates[column].pass_at) for column in columns]
    yield f"pass^{n}", [percent(rates[column].pass_hat) for column in columns]
    yield "clean of those that call", [share(rates[column].clean) for column in columns]
    if summary.table.total.errors:
        yield "errors, not counted", [_errors(count) for count in counts]
    yield "tokens in", [f"{count.input_tokens:,}" for count in counts]
    yield "tokens out", [f"{count.output_tokens:,}" for count in counts]
    yield "seconds, mean", [_seconds(rates[column].seconds) for column in columns]


def share(found: Share) -> str:
    """So many of so many, and in percent."""
    return f"{found.part}/{found.whole} {percent(found.part / found.whole)}" if found.whole else "–"


def _interval(summary: Summary, column: Column) -> str:
    return interval(summary.rates[column].interval) if summary.column(column).scored else "–"


def _errors(count: Count) -> str:
    return share(Share(count.errors, count.scored + count.errors)) if count.errors else "0"


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f}"


def _shown(number: int) -> str:
    return str(number) if number else NOTHING
