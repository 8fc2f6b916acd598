"""Which dimension of a study makes the difference: each level against the first of its dimension, case by case. Pure.

A change of a case is the mean of its changes over all settings of the other dimensions in which both levels have
results. So a level is not blamed for the company it was seen in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from bridge.lab.significance import LEVEL, POWER, holm, sign_flip_p, smallest_visible
from bridge.lab.stats import Comparison, compare_changes, points, points_range

Shares = Mapping[str, tuple[int, int]]
"""(passed, scored) by case."""
Levels = tuple[tuple[str, str], ...]
"""(dimension, level) of each dimension of a column."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A level against the first level of its dimension."""

    dimension: str
    level: str
    first: str
    comparison: Comparison
    p: float
    """How often chance alone makes such a difference, corrected for all tests of the study."""
    tests: int
    visible: float | None
    """The smallest difference that would have been seen; None if there are too few cases for any."""

    @property
    def seen(self) -> bool:
        return self.p <= LEVEL

    @property
    def words(self) -> str:
        found = self.comparison
        if not found.cases:
            return "not comparable: no case has results in both"
        size = f"{points(found.difference)} points, "
        if found.low is not None and found.high is not None:
            size += f"{found.confidence * 100:g} % {points_range(found.low, found.high)}, "
        size += f"{found.cases} case{'' if found.cases == 1 else 's'}, {self._probability}"
        if self.seen:
            return f"difference {size}"
        if self.visible is None:
            return f"no difference seen ({size}): too few cases to see any"
        least = f"{self.visible * 100:.1f} points"
        return f"no difference seen ({size}): one of {least} would have been seen in {POWER:.0%} of such studies"

    @property
    def _probability(self) -> str:
        shown = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return shown if self.tests == 1 else f"{shown} corrected for {self.tests} tests"

    def figures(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "dimension": self.dimension,
            "level": self.level,
            "first": self.first,
            "cases": found.cases,
            "differing": found.differing,
            "difference": round(found.difference, 6),
            "interval": None
            if found.low is None or found.high is None
            else [round(found.low, 6), round(found.high, 6)],
            "p": round(self.p, 6),
            "seen": self.seen,
            "smallest_visible": None if self.visible is None else round(self.visible, 6),
            "words": self.words,
        }


def find_effects(scored: Sequence[tuple[Levels, Shares]], *, seed: int) -> tuple[Effect, ...]:
    """The effects of all dimensions with several levels, from the results of each column."""
    found = list(_raw_effects(scored, seed))
    tests = sum(effect.comparison.cases > 0 for effect, _ in found)
    corrected = holm([effect.p for effect, changes in found if changes])
    values = iter(corrected)
    return tuple(
        replace(
            effect,
            p=next(values) if changes else 1.0,
            tests=tests,
            visible=smallest_visible(changes, tests) if changes else None,
        )
        for effect, changes in found
    )


def _raw_effects(scored: Sequence[tuple[Levels, Shares]], seed: int) -> Iterator[tuple[Effect, list[Fraction]]]:
    dimensions: dict[str, dict[str, None]] = {}
    for levels, _ in scored:
        for dimension, level in levels:
            dimensions.setdefault(dimension, {})[level] = None
    for dimension, known in dimensions.items():
        first, *others = known
        by_setting: dict[Levels, dict[str, Shares]] = defaultdict(dict)
        for levels, shares in scored:
            setting = tuple((name, level) for name, level in levels if name != dimension)
            by_setting[setting][dict(levels).get(dimension, "")] = shares
        for level in others:
            changes = _changes(by_setting.values(), first, level)
            comparison = compare_changes(changes, seed=seed)
            yield Effect(dimension, level, first, comparison, sign_flip_p(changes), 1, None), changes


def _changes(settings: Any, first: str, level: str) -> list[Fraction]:
    """The mean change of each case."""
    found: dict[str, list[Fraction]] = defaultdict(list)
    for by_level in settings:
        before, after = by_level.get(first, {}), by_level.get(level, {})
        for case in before.keys() & after.keys():
            (k, n), (more_k, more_n) = before[case], after[case]
            if n and more_n:
                found[case].append(Fraction(more_k, more_n) - Fraction(k, n))
    return [sum(each, Fraction()) / len(each) for _, each in sorted(found.items())]
