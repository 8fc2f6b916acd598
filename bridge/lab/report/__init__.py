"""Reports of a run: the table on a terminal, files in five formats, thresholds, a baseline and the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bridge.errors import UsageError
from bridge.lab.case import Case, some
from bridge.lab.report.exports import FORMAT, csv_pieces, json_report, junit_pieces
from bridge.lab.report.summary import Column, Share, Summary, summarise
from bridge.lab.result import CountedResults, Only, ResultFile
from bridge.lab.variant import SHIPPED, LabVariant
from bridge.terminal import WriteFailed, printing, say, write_pieces

if TYPE_CHECKING:
    from bridge.lab.commands import Reports

FAILED = 1
"""The exit code if a report could not be written."""
MISSED = 100
"""The exit code if a threshold or the baseline was missed."""
STDOUT = Path("-")

Baseline = Mapping[Column, Mapping[str, Share]]
"""An earlier report: what passed of what was scored, by column and case. Errors do not count."""


def check_files(reports: Reports, source: Path) -> None:
    """Raises UsageError for an unusable baseline, and for reports that would overwrite `source` or each other."""
    if reports.baseline is not None:
        read_baseline(reports.baseline)
    taken: dict[Path, str] = {}
    for name, path in reports.files.items():
        location = path if path == STDOUT else path.resolve()
        if location in taken:
            raise UsageError(f"--{name} and {taken[location]} cannot both be written to {path}.")
        taken[location] = f"--{name}"
        if path == STDOUT:
            continue
        if not location.parent.is_dir():
            raise UsageError(f"--{name} {path}: no such directory: {path.parent}.")
        for other, what in ((source, "the results themselves"), (reports.baseline, "the baseline")):
            same = other is not None and path.exists() and other.exists() and path.samefile(other)
            if other is not None and (same or location == other.resolve()):
                raise UsageError(f"--{name} {path}: this file is {what}. Give the report another name.")


def missed_thresholds(reports: Reports, summary: Summary) -> Iterator[str]:
    """One sentence per threshold that a model and variant missed."""
    if not summary.columns and (reports.min_pass, reports.min_clean, reports.baseline) != (None, None, None):
        yield "there are no results"
    for column in summary.columns:
        name, count = " ".join(column), summary.counts[column]
        passed, clean, errors = count.pass_share, count.clean_share, count.error_share
        # If no call was made or expected, no form can be clean.
        due = clean.whole or any(row.due and summary.cell(row, column).word != "-" for row in summary.rows)
        if reports.min_pass is not None and (passed.percent is None or passed.percent < reports.min_pass):
            yield f"{name}: {_share(passed)} passed; the minimum is {reports.min_pass:g} %"
        if reports.min_clean is not None and due and (clean.percent is None or clean.percent < reports.min_clean):
            yield f"{name}: {_share(clean)} answers with calls are clean; the minimum is {reports.min_clean:g} %"
        if errors.percent is not None and errors.percent > reports.max_errors:
            yield f"{name}: {_share(errors)} requests failed; the maximum is {reports.max_errors:g} %"


def report_results(
    file: ResultFile,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    reports: Reports,
    *,
    only: Only,
    planned: int = 0,
) -> int:
    """Show the table, write the reports and report what was missed. Returns the exit code.

    `planned` is the number of results of a complete run; 0 if unknown.
    """
    results, about = CountedResults(file, only), file.about()
    names = [*variants, *about.variants]
    summary = summarise(results, cases, names, levels=about.levels, suite=about.suite, planned=planned)
    worse, notes, missed = list[str](), list(summary.notes), list(missed_thresholds(reports, summary))
    if reports.baseline is not None:
        baseline = read_baseline(reports.baseline)
        worse += regressions(summary, baseline)
        notes += changes(summary, baseline)
        if summary.columns and (why := nothing_compared(summary, baseline)) is not None:
            missed.append(why)
    sentences = (*(f"Worse than before: {each}." for each in worse), *(f"Missed: {each}." for each in missed))
    summary = replace(summary, notes=tuple(notes), missed=sentences)
    try:
        _write(reports.files, summary, results, cases, {**SHIPPED, **variants}, file.path)
    except WriteFailed as error:
        say("error", error.message)
        return FAILED
    for kind, found in (("regression", worse), ("missed", missed)):
        for sentence in found:
            say(kind, sentence)
    return MISSED if worse or missed else 0


def _write(
    files: Mapping[str, Path],
    summary: Summary,
    results: CountedResults,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    source: Path,
) -> None:
    # Each of these imports takes memory that a run should not need while it asks.
    from bridge.lab.report.html import html_pieces
    from bridge.lab.report.text import markdown_lines, text_lines

    if STDOUT not in files.values():
        with printing() as screen:
            for line in text_lines(summary, screen.width, coloured=screen.coloured):
                screen.line(line)
    when = datetime.fromtimestamp(source.stat().st_mtime, UTC)
    makers: dict[str, Any] = {
        "json": lambda: [json_report(summary)],
        "csv": lambda: csv_pieces(results, cases),
        "markdown": lambda: (f"{line}\n".encode("utf-8", "backslashreplace") for line in markdown_lines(summary)),
        "junit": lambda: junit_pieces(summary, results, cases, variants, when=when),
        "html": lambda: html_pieces(summary, results, cases, variants),
    }
    for name, path in files.items():
        write_pieces(path, makers[name]())


def _share(share: Share) -> str:
    return f"{share.part} of {share.whole}" + ("" if share.percent is None else f" ({share.percent:.1f} %)")


# The baseline


def read_baseline(path: Path) -> Baseline:
    """Read an earlier `--json` report. Raises UsageError for any other file."""
    try:
        data = orjson.loads(path.read_bytes())
        if data["report"] > FORMAT:
            raise UsageError(f"--baseline {path}: written by a newer version of this program.")
        found = {Column(str(each["model"]), str(each["variant"])): dict[str, Share]() for each in data["columns"]}
        for case in data["cases"]:
            for cell in case["cells"]:
                share = Share(cell["passed"], cell["scored"])
                if not 0 <= share.part <= share.whole:
                    raise ValueError
                found.setdefault(Column(str(cell["model"]), str(cell["variant"])), {})[str(case["id"])] = share
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"--baseline {path}: not a report of `lab run --json`.") from None
    return found


def regressions(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """One sentence for each case whose pass rate fell, even by one sample."""
    for column, case, was, now in _pairs(summary, baseline):
        if now.part * was.whole < was.part * now.whole:
            shares = f"was {was.part}/{was.whole} and is {now.part}/{now.whole}"
            yield f"{case} ({column.model}, {column.variant}) {shares}"


def nothing_compared(summary: Summary, baseline: Baseline) -> str | None:
    """Why no case can be compared; None if one can."""
    if any(_pairs(summary, baseline)):
        return None
    known = ", ".join(" ".join(column) for column in baseline) or "nothing"
    return f"no case can be compared with the baseline of {known}; choose its model, variant and cases"


def _pairs(summary: Summary, baseline: Baseline) -> Iterator[tuple[Column, str, Share, Share]]:
    """(column, case, share before, share now) wherever both are known."""
    for column in summary.columns:
        before = baseline.get(column, {})
        for row in summary.rows:
            was, now = before.get(row.case), summary.cell(row, column).pass_share
            if was is not None and was.whole and now.whole:
                yield column, row.case, was, now


def changes(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """One sentence for everything that cannot be compared: new and missing columns and cases, and errors."""
    for column in summary.columns:
        if column not in baseline:
            yield f"{' '.join(column)} is not in the baseline."
    for column in baseline:
        if column not in summary.columns:
            yield f"{' '.join(column)} is in the baseline only."
    here = {row.case for row in summary.rows}
    there = dict.fromkeys(case for shares in baseline.values() for case in shares)
    if new := [row.case for row in summary.rows if row.case not in there]:
        yield f"Not in the baseline: {some(new)}."
    if gone := [case for case in there if case not in here]:
        yield f"Only in the baseline: {some(gone)}."
    for column in summary.columns:
        before = baseline.get(column, {})
        unknown = [row.case for row in summary.rows if row.case in before and not summary.cell(row, column).scored]
        if unknown:
            yield f"{' '.join(column)} has no scored answer to compare for {some(unknown)}."
