"""What happens with a child, counted over all of its lives. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.counts import Tally, Timings


@dataclass(slots=True)
class ChildCounts:
    """Kept by a supervisor, and handed to each child that it starts."""

    reads: int = 0
    """How often its output was read; each read may hold many lines."""
    lines: int = 0
    garbage: int = 0
    """Lines that were no message."""
    strays: int = 0
    """Replies that nobody waited for."""
    oversize: int = 0
    """Lines too long to keep."""
    calls: Timings = field(default_factory=Timings)
    """How long our calls took to be answered, by method."""
    unanswered: Tally = field(default_factory=Tally)
    """Calls that were not answered in time, by method."""
    asked: Tally = field(default_factory=Tally)
    """What the child asked of us, by method; the answer is always no."""
