"""Deadlines that were slept through."""

from __future__ import annotations

import trio

LATE = 1.0
"""Seconds after which a deadline counts as slept through."""


def overslept(deadline: float) -> bool:
    """Whether a deadline that has just passed is long over.

    Then the machine was asleep, or this program was stopped, and the deadline says nothing about the child: what it
    said meanwhile may wait in the pipe. It is to be asked once more.
    """
    return trio.current_time() - deadline > LATE
