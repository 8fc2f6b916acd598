"""Counting, for whoever wants to look: plain numbers that cost next to nothing to keep. Pure.

What is counted under a name that comes from outside stays bounded: one that is not a plain word, or one too many, is
counted as `other`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

OTHER = "other"
MAX_NAMES = 64
"""How many different names of one kind are kept, where nothing else is said."""
MAX_ROWS = 2000
"""How many combinations of names that are bounded themselves."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds for how long things take: from a call on this machine to a model that thinks."""

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,63}")


class Histogram:
    """How often a measured value was at most each of `bounds`, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """By bound, the last is for what lies above all of them; not cumulated."""
        self.sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram count={self.count} sum={self.sum:g}>"

    def observe(self, value: float) -> None:
        """Take one value in."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, other: Histogram) -> None:
        """Take all values of another one in; its bounds are the same."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


class Tally(dict[tuple[str, ...], int]):
    """How often each row of names was seen. It keeps `limit` rows."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        super().__init__()
        self._limit = limit

    def add(self, *names: str, by: int = 1) -> None:
        """Count one row; a row too many is counted with all its names as `other`."""
        row = names if names in self or len(self) < self._limit else (OTHER,) * len(names)
        self[row] = self.get(row, 0) + by


class Timings(dict[tuple[str, ...], Histogram]):
    """How long each of several named things takes, by a row of one name, as in a Tally."""

    def observe(self, name: str, seconds: float) -> None:
        """Take one value in; a name too many is `other`."""
        row = (name,) if (name,) in self or len(self) < MAX_NAMES else (OTHER,)
        histogram = self.get(row)
        if histogram is None:
            histogram = self[row] = Histogram()
        histogram.observe(seconds)


def as_name(text: str) -> str:
    """A name that may come from outside, as it may be counted under: a plain word, or `other`."""
    return text if _WORD.fullmatch(text) else OTHER
