"""The one request that a person means."""

from __future__ import annotations

from collections import deque

from bridge.cli.log.options import chosen
from bridge.cli.log.table import show_time, told_outcome
from bridge.cli.log.terminal import one_line
from bridge.errors import UsageError
from bridge.protolog.filters import Filters
from bridge.protolog.log import Log
from bridge.protolog.summary import Summary

LISTED = 12


def find_last(log: Log, filters: Filters) -> Summary:
    """The last request that fits. Raises UsageError when there is none."""
    last = deque(chosen(log, filters), maxlen=1)
    if not last:
        fits = "" if filters.are_none else " that fits"
        raise UsageError(f"{log.path} holds no request{fits}.")
    return last.pop()


def find_request(log: Log, prefix: str, filters: Filters | None = None) -> Summary:
    """The request whose id begins so, and that fits. Raises UsageError when there is none, or several.

    The same request twice (a log that was copied to another) is no question: the later one is meant.
    """
    wanted = prefix.strip().partition("#")[0]
    found = log.find(wanted) if wanted else []
    if filters is not None:
        found = [summary for summary in found if filters.accepts(summary, log.records)]
    exact = [summary for summary in found if summary.id in (wanted, f"req_{wanted}")]
    found = exact or found
    if not found:
        fits = "" if filters is None or filters.are_none else " and fits"
        raise UsageError(f"No request in {log.path} begins with {prefix!r}{fits}. `log ls` lists them.")
    if len({summary.id for summary in found}) > 1:
        lines = [f"{len(found)} requests begin with {prefix!r}; write more of the id:"]
        lines += [f"  {one_line(each.id)} {show_time(each.time)} {told_outcome(each)}" for each in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"  … and {len(found) - LISTED} more")
        raise UsageError("\n".join(lines))
    return found[-1]
