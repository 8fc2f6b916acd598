"""An earlier report, and what got worse since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bridge.errors import UsageError
from bridge.lab.report.json import FORMAT
from bridge.lab.report.summary import Column, Summary

ORDER = {"PASS": 2, "MIXED": 1, "FAIL": 0}
"""Words that can be compared; an error of the machinery tells nothing."""
NAMED = 8
"""Cases that are named in one sentence."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What came of each case, by column."""

    words: Mapping[Column, Mapping[str, str]]


def read_baseline(path: Path) -> Baseline:
    """Read an earlier `--json` report. Raises UsageError for what is none."""
    try:
        data = orjson.loads(path.read_bytes())
        if not isinstance(data, dict) or not isinstance(data.get("report"), int):
            raise UsageError(f"--baseline {path}: this is no report of `lab run --json`.")
        if data["report"] > FORMAT:
            raise UsageError(f"--baseline {path}: it was written by a newer program than this.")
        return Baseline(_words(data))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}.") from None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(f"--baseline {path}: this is no report of `lab run --json`.") from None


def regressions(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """A sentence for each case whose word is worse than it was."""
    for column in summary.columns:
        before = baseline.words.get(column, {})
        for row in summary.rows:
            was, now = before.get(row.case, ""), summary.cell(row, column).word
            if was in ORDER and now in ORDER and ORDER[now] < ORDER[was]:
                yield f"{row.case} ({column.model}, {column.variant}) was {was} and is {now}"


def changes(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """A sentence for everything that cannot be compared: columns and cases that are new or gone, errors."""
    for column in summary.columns:
        if column not in baseline.words:
            yield f"{_named(column)} is not in the baseline."
    for column in baseline.words:
        if column not in summary.columns:
            yield f"{_named(column)} is in the baseline, but not in these results."
    here = {row.case for row in summary.rows}
    there = dict.fromkeys(case for words in baseline.words.values() for case in words)
    if new := [row.case for row in summary.rows if row.case not in there]:
        yield f"Not in the baseline: {_some(new)}."
    if gone := [case for case in there if case not in here]:
        yield f"In the baseline, but not in these results: {_some(gone)}."
    for column in summary.columns:
        before = baseline.words.get(column, {})
        unknown = [
            row.case for row in summary.rows if row.case in before and summary.cell(row, column).word not in ORDER
        ]
        if unknown:
            yield f"{_named(column)} has no answer to compare for {_some(unknown)}."


def _words(data: dict[str, Any]) -> dict[Column, dict[str, str]]:
    found: dict[Column, dict[str, str]] = {}
    for column in data["columns"]:
        found[Column(str(column["model"]), str(column["variant"]))] = {}
    for case in data["cases"]:
        for cell in case["cells"]:
            column = Column(str(cell["model"]), str(cell["variant"]))
            found.setdefault(column, {})[str(case["id"])] = str(cell["word"])
    return found


def _named(column: Column) -> str:
    return f"{column.model} {column.variant}"


def _some(cases: list[str]) -> str:
    more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
    return ", ".join(cases[:NAMED]) + more
