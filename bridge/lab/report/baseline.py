"""An earlier report, and what got worse since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from bridge.errors import UsageError
from bridge.lab.report.json import FORMAT
from bridge.lab.report.summary import Column, Share, Summary

NAMED = 8
"""Cases that are named in one sentence."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What passed of what was scored, by column and case; an error of the machinery tells nothing."""

    shares: Mapping[Column, Mapping[str, Share]]


def read_baseline(path: Path) -> Baseline:
    """Read an earlier `--json` report. Raises UsageError for what is none."""
    try:
        data = orjson.loads(path.read_bytes())
        if not isinstance(data, dict) or not isinstance(data.get("report"), int):
            raise UsageError(f"--baseline {path}: this is no report of `lab run --json`.")
        if data["report"] > FORMAT:
            raise UsageError(f"--baseline {path}: it was written by a newer program than this.")
        return Baseline(_shares(data))
    except OSError as error:
        raise UsageError(f"--baseline {path}: {error.strerror}.") from None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(f"--baseline {path}: this is no report of `lab run --json`.") from None


def regressions(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """A sentence for each case of which less passes than did, be it by one sample."""
    for column, case, was, now in _pairs(summary, baseline):
        if now.part * was.whole < was.part * now.whole:
            yield f"{case} ({column.model}, {column.variant}) was {_told(was)} and is {_told(now)}"


def nothing_compared(summary: Summary, baseline: Baseline) -> str | None:
    """Why no case could be compared, in a sentence; None when one could."""
    if any(_pairs(summary, baseline)):
        return None
    known = ", ".join(map(_named, baseline.shares)) or "nothing"
    return f"nothing here can be compared with the baseline, which is of {known}: choose its model, variant and cases"


def _pairs(summary: Summary, baseline: Baseline) -> Iterator[tuple[Column, str, Share, Share]]:
    """Column, case, what it was and what it is, where both are known."""
    for column in summary.columns:
        before = baseline.shares.get(column, {})
        for row in summary.rows:
            was, count = before.get(row.case), summary.cell(row, column)
            if was is not None and was.whole and count.scored:
                yield column, row.case, was, Share(count.passed, count.scored)


def changes(summary: Summary, baseline: Baseline) -> Iterator[str]:
    """A sentence for everything that cannot be compared: columns and cases that are new or gone, errors."""
    for column in summary.columns:
        if column not in baseline.shares:
            yield f"{_named(column)} is not in the baseline."
    for column in baseline.shares:
        if column not in summary.columns:
            yield f"{_named(column)} is in the baseline, but not in these results."
    here = {row.case for row in summary.rows}
    there = dict.fromkeys(case for shares in baseline.shares.values() for case in shares)
    if new := [row.case for row in summary.rows if row.case not in there]:
        yield f"Not in the baseline: {_some(new)}."
    if gone := [case for case in there if case not in here]:
        yield f"In the baseline, but not in these results: {_some(gone)}."
    for column in summary.columns:
        before = baseline.shares.get(column, {})
        unknown = [row.case for row in summary.rows if row.case in before and not summary.cell(row, column).scored]
        if unknown:
            yield f"{_named(column)} has no answer to compare for {_some(unknown)}."


def _shares(data: dict[str, Any]) -> dict[Column, dict[str, Share]]:
    found: dict[Column, dict[str, Share]] = {}
    for column in data["columns"]:
        found[Column(str(column["model"]), str(column["variant"]))] = {}
    for case in data["cases"]:
        for cell in case["cells"]:
            column = Column(str(cell["model"]), str(cell["variant"]))
            found.setdefault(column, {})[str(case["id"])] = _share(cell["passed"], cell["scored"])
    return found


def _share(passed: Any, scored: Any) -> Share:
    if not isinstance(passed, int) or not isinstance(scored, int) or not 0 <= passed <= scored:
        raise TypeError
    return Share(passed, scored)


def _told(share: Share) -> str:
    return f"{share.part}/{share.whole}"


def _named(column: Column) -> str:
    return f"{column.model} {column.variant}"


def _some(cases: list[str]) -> str:
    more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
    return ", ".join(cases[:NAMED]) + more
