"""Every decision of a history, each by its name.

A decision is a function of the seed and its name, and of nothing else. So one of them can be put back to its default
without changing the others: that is how a failing history is shrunk. The default of every decision is the dull one.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """The decisions of one history. With `kept`, all others have their default."""

    def __init__(self, seed: int, kept: frozenset[str] | None = None) -> None:
        self.seed = seed
        self.kept = kept
        self.taken: dict[str, object] = {}
        """The decisions that were not the default, in the order in which they were made."""
        self._salt = b"%d/" % seed

    def number(self, name: str) -> int:
        """A number of 64 bits for this name."""
        return int.from_bytes(blake2b(self._salt + name.encode(), digest_size=8).digest(), "big")

    def keeps(self, name: str) -> bool:
        """Whether this decision may differ from its default."""
        return self.kept is None or name in self.kept

    def choose(self, name: str, default: T, *others: T) -> T:
        """One of these, all equally likely; an option that is named twice is twice as likely."""
        at = self.number(name) % (len(others) + 1)
        if at == 0 or others[at - 1] == default or not self.keeps(name):
            return default
        self.taken[name] = others[at - 1]
        return others[at - 1]

    def rarely(self, name: str, one_in: int, default: T, *others: T) -> T:
        """The default, or once in `one_in` times one of the others."""
        number = self.number(name)
        if number % one_in or not self.keeps(name):
            return default
        found = others[number // one_in % len(others)]
        self.taken[name] = found
        return found

    def between(self, name: str, low: float, high: float) -> float:
        """A number of seconds, in milliseconds; by default the lowest."""
        if not self.keeps(name):
            return low
        found = round(low + (high - low) * (self.number(name) % 10_000) / 10_000, 3)
        if found != low:
            self.taken[name] = found
        return found
