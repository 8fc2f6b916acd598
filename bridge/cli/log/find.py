"""The one request that a person means."""

from __future__ import annotations

from bridge.cli.log.table import show_time, told_outcome
from bridge.cli.log.terminal import one_line
from bridge.errors import UsageError
from bridge.protolog.log import Log
from bridge.protolog.summary import Summary

LISTED = 12


def find_request(log: Log, prefix: str) -> Summary:
    """The request whose id begins so. Raises UsageError when there is none, or several.

    The same request twice (a log that was copied to another) is no question: the later one is meant.
    """
    wanted = prefix.strip().partition("#")[0]
    found = log.find(wanted) if wanted else []
    exact = [summary for summary in found if summary.id in (wanted, f"req_{wanted}")]
    found = exact or found
    if not found:
        raise UsageError(f"No request in {log.path} begins with {prefix!r}. `log ls` lists them.")
    if len({summary.id for summary in found}) > 1:
        lines = [f"{len(found)} requests begin with {prefix!r}; write more of the id:"]
        lines += [f"  {one_line(each.id)} {show_time(each.time)} {told_outcome(each)}" for each in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"  … and {len(found) - LISTED} more")
        raise UsageError("\n".join(lines))
    return found[-1]
