"""Two requests side by side, without what differs in every run."""

from __future__ import annotations

import difflib
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bridge.cli.log.find import find_request
from bridge.cli.log.options import chosen, open_log, tell_trouble
from bridge.cli.log.terminal import Screen, one_line, printable
from bridge.cli.log.views import View, view_of
from bridge.protolog.filters import Filters
from bridge.protolog.log import Log
from bridge.protolog.summary import Summary

MAX_LINES = 4000
"""Longer texts are compared only so far, from the first line that differs."""
CONTEXT = 3


def compare_requests(screen: Screen, left: tuple[str, str], right: tuple[str, str], *, no_index: bool) -> bool:
    """Show how two requests differ; whether they are the same."""
    logs = [open_log(Path(name), screen, no_index=no_index) for name, _ in (left, right)]
    found = [find_request(log, request) for log, (_, request) in zip(logs, (left, right), strict=True)]
    screen.progress.clear()
    views = [view_of(summary, log.records(summary)) for log, summary in zip(logs, found, strict=True)]
    same = _show(screen, found[0], found[1], views[0], views[1])
    if same:
        screen.line("no difference")
    for log in {log.path: log for log in logs}.values():
        tell_trouble(log.trouble, screen)
    return same


def compare_logs(screen: Screen, left: str, right: str, filters: Filters, *, no_index: bool) -> bool:
    """Show how the requests of two logs differ, in pairs; whether all are the same."""
    first, second = (open_log(Path(name), screen, no_index=no_index) for name in (left, right))
    partners: defaultdict[tuple[str, str], deque[Summary]] = defaultdict(deque)
    for summary in chosen(second, filters):
        partners[_kind(summary)].append(summary)
    alone, pairs, different = [], 0, 0
    for summary in chosen(first, filters):
        queue = partners[_kind(summary)]
        if not queue:
            alone.append(summary)
            continue
        other = queue.popleft()
        pairs += 1
        different += not _show(screen, summary, other, _view(first, summary), _view(second, other))
    rest = [summary for queue in partners.values() for summary in queue]
    screen.progress.clear()
    for name, summaries in ((left, alone), (right, rest)):
        for summary in summaries:
            screen.line(screen.style(f"only in {one_line(name)}: {_title(summary)}", "yellow"))
    counts = f"{pairs:,} pairs, {pairs - different:,} without a difference, {different:,} with"
    screen.line(f"{counts}; {len(alone):,} only in the first log, {len(rest):,} only in the second")
    for log in (first, second):
        tell_trouble(log.trouble, screen)
    return not (different or alone or rest)


def difference(before: list[str], after: list[str]) -> Iterator[str]:
    """A unified diff without its head."""
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    begin = max(0, same - CONTEXT)
    left, right = before[begin : begin + MAX_LINES], after[begin : begin + MAX_LINES]
    for number, line in enumerate(difflib.unified_diff(left, right, lineterm="", n=CONTEXT)):
        if number >= 2 and not line.startswith("@@"):
            yield line
        elif line.startswith("@@") and number > 2:
            yield "  …"
    if max(len(before), len(after)) > begin + MAX_LINES:
        yield f"  … not compared any further than {MAX_LINES:,} lines from the first difference"


def _show(screen: Screen, left: Summary, right: Summary, before: View, after: View) -> bool:
    if before.streamed != after.streamed:  # their events have nothing in common
        before, after = replace(before, client=before.said), replace(after, client=after.said)
    parts = [(name, getattr(before, name), getattr(after, name)) for name in View.NAMES]
    parts = [part for part in parts if part[1] != part[2]]
    if not parts:
        return True
    screen.line(screen.style(f"--- {_title(left)}", "bold"))
    screen.line(screen.style(f"+++ {_title(right)}", "bold"))
    for name, one, other in parts:
        screen.line(screen.style(f"@@ {View.NAMES[name]}", "cyan"))
        for line in difference(one, other):
            style = {"-": "red", "+": "green"}.get(line[0])
            shown = printable(line)
            screen.line(screen.style(shown, style) if style else shown)
    screen.line()
    return False


def _view(log: Log, summary: Summary) -> View:
    return view_of(summary, log.records(summary))


def _kind(summary: Summary) -> tuple[str, str]:
    return summary.path, summary.requested_model or summary.model


def _title(summary: Summary) -> str:
    return one_line(f"{summary.id} {summary.path} {summary.requested_model or summary.model}")
