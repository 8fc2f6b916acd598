"""From results to reports and an exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from bridge.cli.log.terminal import fit, one_line, printing
from bridge.cli.streams import say
from bridge.errors import UsageError
from bridge.lab.case import Case
from bridge.lab.report.baseline import changes, nothing_compared, read_baseline, regressions
from bridge.lab.report.counted import CountedResults, Only
from bridge.lab.report.csv import csv_pieces
from bridge.lab.report.html import html_pieces
from bridge.lab.report.json import json_report
from bridge.lab.report.junit import junit_pieces
from bridge.lab.report.markdown import markdown_lines
from bridge.lab.report.summary import Column, Share, Summary, summarise
from bridge.lab.report.text import Sheet, text_lines
from bridge.lab.result import ResultFile
from bridge.lab.variant import SHIPPED, LabVariant
from bridge.protolog.export.output import WriteFailed, write_pieces

FAILED = 1
"""The exit code when something could not be done that should have been possible."""
MISSED = 100
"""The exit code when a threshold or the baseline was missed."""
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Reports:
    """Files that are written, each in its format; `-` is stdout, where the table then is not. Raises UsageError."""

    html: Path | None = None
    junit: Path | None = None
    json: Path | None = None
    csv: Path | None = None
    markdown: Path | None = None

    def __post_init__(self) -> None:
        taken: dict[Path, str] = {}
        for name, path in self.chosen.items():
            place = path if path == STDOUT else path.resolve()
            if place in taken:
                raise UsageError(f"--{name} and {taken[place]} cannot both be written to {path}.")
            taken[place] = f"--{name}"
            if path != STDOUT and not place.parent.is_dir():
                raise UsageError(f"--{name} {path}: there is no directory {path.parent}.")

    @property
    def chosen(self) -> dict[str, Path]:
        """The paths, by format."""
        paths = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: path for name, path in paths.items() if path is not None}

    def refuse(self, source: Path, what: str) -> None:
        """Raises UsageError when a report would take the place of a file that it is made from."""
        for name, path in self.chosen.items():
            if path != STDOUT and (path.resolve() == source.resolve() or _are_same(path, source)):
                raise UsageError(f"--{name} {path}: this file is {what}. Give the report another name.")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a run must reach, in percent, for each model and variant; and an earlier report."""

    min_pass: float | None = None
    min_clean: float | None = None
    max_errors: float = 100
    baseline: Path | None = None

    def check(self) -> None:
        """Raises UsageError when the baseline is none, before anything is spent."""
        if self.baseline is not None:
            read_baseline(self.baseline)

    def missed(self, summary: Summary) -> Iterator[str]:
        """A sentence for each that was missed."""
        if not summary.columns and (self.min_pass, self.min_clean, self.baseline) != (None, None, None):
            yield "there are no results"
        for column in summary.columns:
            name, count = f"{column.model} {column.variant}", summary.column(column)
            passed, clean = Share(count.passed, count.scored), summary.rates[column].clean
            errors = Share(count.errors, count.scored + count.errors)
            if self.min_pass is not None and _below(passed, self.min_pass):
                yield f"{name}: {_told(passed)} passed; at least {self.min_pass:g} % should"
            if self.min_clean is not None and _calls_due(summary, column) and _below(clean, self.min_clean):
                yield f"{name}: {_told(clean)} answers with calls are clean; at least {self.min_clean:g} % should be"
            if errors.percent is not None and errors.percent > self.max_errors:
                yield f"{name}: {_told(errors)} requests failed; at most {self.max_errors:g} % may"


def report(
    file: ResultFile,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    reports: Reports,
    thresholds: Thresholds,
    *,
    only: Only,
    planned: int = 0,
) -> int:
    """Show the table, write the reports, and tell what was missed; the exit code.

    `planned` is how many there would be if the run had come to its end; 0 when nobody knows.
    """
    reports.refuse(file.path, "the results themselves")
    if thresholds.baseline is not None:
        reports.refuse(thresholds.baseline, "the baseline")
    results = CountedResults(file, only)
    suite = file.header().get("suite")
    order = [*variants, *file.known("variants")]
    summary = summarise(results, cases, order, suite=suite if isinstance(suite, str) else "", planned=planned)
    baseline = read_baseline(thresholds.baseline) if thresholds.baseline is not None else None
    worse = list(regressions(summary, baseline)) if baseline is not None else []
    short = list(thresholds.missed(summary))
    if baseline is not None and summary.columns and (why := nothing_compared(summary, baseline)) is not None:
        short.append(why)
    told = (*summary.told, *(changes(summary, baseline) if baseline is not None else ()))
    missed = (*(f"Worse than before: {each}." for each in worse), *(f"Missed: {each}." for each in short))
    summary = replace(summary, told=told, missed=missed)
    if STDOUT not in reports.chosen.values():
        _show(summary)
    try:
        _write(reports, summary, results, cases, _all_variants(summary, variants), file.path)
    except WriteFailed as error:
        say("error", error.message)
        return FAILED
    for sentence in worse:
        say("regression", sentence)
    for sentence in short:
        say("missed", sentence)
    return MISSED if worse or short else 0


def _show(summary: Summary) -> None:
    with printing() as screen:
        for line in text_lines(summary, Sheet(screen.width, fit, one_line, screen.style)):
            screen.line(line)


def _write(
    reports: Reports,
    summary: Summary,
    results: CountedResults,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    source: Path,
) -> None:
    if reports.json is not None:
        write_pieces(reports.json, [json_report(summary)])
    if reports.csv is not None:
        write_pieces(reports.csv, csv_pieces(results, cases))
    if reports.markdown is not None:
        lines = markdown_lines(summary)
        write_pieces(reports.markdown, (f"{line}\n".encode("utf-8", "backslashreplace") for line in lines))
    if reports.junit is not None:
        when = datetime.fromtimestamp(source.stat().st_mtime, UTC)
        write_pieces(reports.junit, junit_pieces(summary, results, cases, variants, when=when))
    if reports.html is not None:
        write_pieces(reports.html, html_pieces(summary, results, cases, variants))


def _all_variants(summary: Summary, known: Mapping[str, LabVariant]) -> dict[str, LabVariant]:
    """The variants of the columns; one that is not at hand is taken to have the usual tags."""
    names = dict.fromkeys(column.variant for column in summary.columns)
    return {name: known.get(name) or SHIPPED.get(name) or LabVariant(name) for name in names}


def _calls_due(summary: Summary, column: Column) -> bool:
    """Whether something called, or should have: where nothing is due, nothing can be clean."""
    due = any(row.due and summary.cell(row, column).word != "-" for row in summary.rows)
    return due or bool(summary.rates[column].clean.whole)


def _below(share: Share, least: float) -> bool:
    return share.percent is None or share.percent < least


def _told(share: Share) -> str:
    return f"{share.part} of {share.whole}" + ("" if share.percent is None else f" ({share.percent:.1f} %)")


def _are_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False
