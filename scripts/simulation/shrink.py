"""Shrinks a failing history: which of its decisions are needed for the violation?

Delta debugging (Zeller): drop halves, quarters, … of the decisions that are not the default, as long as the same
promise is still broken.
"""

from __future__ import annotations

import re

from history import History, run_history

MOST_RUNS = 1500


def kind_of(violation: str) -> str:
    """What is broken, without the names, numbers and texts of one history."""
    return re.sub(r"'[^']*'|q\d+;|[\d.]+", "#", violation.partition(": ")[2] or violation)[:60]


def shrink(history: History, most_runs: int = MOST_RUNS) -> History:
    """The same violation with as few decisions as possible."""
    wanted = {kind_of(each) for each in history.violations}
    best, runs = history, 0

    def fails(kept: list[str]) -> bool:
        nonlocal best, runs
        runs += 1
        found = run_history(history.seed, frozenset(kept))
        if wanted.isdisjoint(map(kind_of, found.violations)):
            return False
        if len(found.taken) <= len(best.taken):
            best = found
        return True

    names = list(history.taken)
    # The order of tasks has the most decisions, and most failures do not need it.
    for without in (
        [name for name in names if not name.startswith("order")],
        [name for name in names if not name.startswith(("order.", "thread."))],
    ):
        if len(without) < len(names) and fails(without):
            names = without
            break
    pieces = 2
    while len(names) > 1 and runs < most_runs:
        size = -(-len(names) // pieces)
        for start in range(0, len(names), size):
            rest = names[:start] + names[start + size :]
            if fails(rest):
                names, pieces = [name for name in rest if name in best.taken], max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(names), 2 * pieces)
    return best
