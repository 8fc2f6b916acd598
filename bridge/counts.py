"""Counters and histograms for metrics: plain numbers that cost next to nothing to keep. Pure.

Names come from outside, so their number is bounded: one that is not a plain word, or one too many, is counted as
`other`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

OTHER = "other"
MAX_NAMES = 64
"""Default limit of different names of one kind."""
MAX_ROWS = 2000
"""Limit of combinations of names that are bounded themselves."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of durations: from a local call to a model that reasons for minutes."""

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,63}")


class Histogram:
    """How often a measured value was at most each of `bounds`, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Values per bound, not cumulated; the last counter is for values above all bounds."""
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum={self.sum:g}>"

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: Histogram) -> None:
        """Add the values of another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        return sum(self.counts)


class Tally(dict[tuple[str, ...], int]):
    """Counts rows of names, at most `limit` different ones."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        super().__init__()
        self._limit = limit

    def add(self, *names: str, by: int = 1) -> None:
        """Count one row; beyond the limit all its names become `other`."""
        row = names if names in self or len(self) < self._limit else (OTHER,) * len(names)
        self[row] = self.get(row, 0) + by


class Timings(dict[tuple[str, ...], Histogram]):
    """Histograms of durations by name; the keys are rows of one name, as in a Tally."""

    def observe(self, name: str, seconds: float) -> None:
        """Count one duration; beyond the limit the name becomes `other`."""
        row = (name,) if (name,) in self or len(self) < MAX_NAMES else (OTHER,)
        histogram = self.get(row)
        if histogram is None:
            histogram = self[row] = Histogram()
        histogram.observe(seconds)


@dataclass(slots=True)
class ChildCounts:
    """What is counted of an app-server. Kept by its supervisor, and handed to each child that it starts."""

    reads: int = 0
    """How often its output was read; each read may hold many lines."""
    lines: int = 0
    garbage: int = 0
    """Lines that were no message."""
    strays: int = 0
    """Replies without a waiting call (late, repeated or invented)."""
    oversize: int = 0
    """Lines too long to keep."""
    calls: Timings = field(default_factory=Timings)
    """How long the child took to answer our calls, by method."""
    unanswered: Tally = field(default_factory=Tally)
    """Calls that were not answered in time, by method."""
    asked: Tally = field(default_factory=Tally)
    """The child's requests, by method."""


def as_name(text: str) -> str:
    """The name to count a foreign text under: the text if it is a plain word, else `other`."""
    return text if _WORD.fullmatch(text) else OTHER
