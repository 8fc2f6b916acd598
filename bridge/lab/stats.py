"""Confidence intervals of a rate, and of a difference between two rates. Pure; only the standard library.

The rate of one case has Wilson's interval. The interval for many cases comes from a bootstrap clustered by case,
because repetitions of one case say little about another. So does the interval of a difference: two variants are
compared case by case, and the difference of a case is that of its two rates. Results are (right, tried) by case id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, floor, lcm, log2, sqrt
from random import Random
from statistics import NormalDist

ROUNDS = 10_000
Results = Mapping[str, tuple[int, int]]


def wilson(k: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the rate behind `k` of `n`; [0, 1] for `n` = 0. `k` may be fractional."""
    _require(0 <= k <= n, f"invalid count: {k} of {n}")
    _require(0 < confidence < 1, f"confidence must be between 0 and 1, not {confidence}")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = k / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends the formula gives 0 and 1 except for rounding.
    low = 0.0 if k == 0 else min(middle - reach, rate)
    high = 1.0 if k == n else max(middle + reach, rate)
    return max(low, 0.0), min(high, 1.0)


def pass_at(n: int, c: int, k: int) -> float | None:
    """pass@k, unbiased: how often at least one of `k` tries is right, if `c` of `n` were. None if `n` < `k`."""
    _require(0 <= c <= n and k >= 1, f"invalid count: {c} of {n}, {k} tries")
    return None if k > n else 1 - comb(n - c, k) / comb(n, k)


def pass_hat(n: int, c: int, k: int) -> float | None:
    """pass^k, unbiased: how often all of `k` tries are right, if `c` of `n` were. None if `n` < `k`."""
    _require(0 <= c <= n and k >= 1, f"invalid count: {c} of {n}, {k} tries")
    return None if k > n else comb(c, k) / comb(n, k)


def rate_interval(
    results: Results, *, seed: int, rounds: int = ROUNDS, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of the rate behind the results of many cases.

    If all cases have the same rate, a bootstrap says nothing; then it is Wilson's interval, with each case as one try.
    The same seed gives the same interval.
    """
    _check_bootstrap(rounds, confidence)
    counts = [(k, n) for _, (k, n) in sorted(results.items()) if n]
    tried, size = sum(n for _, n in counts), len(counts)
    if len({Fraction(k, n) for k, n in counts}) < 2:
        return wilson(sum(k for k, _ in counts) / tried * size if tried else 0, size, confidence)
    # Both counts in one number, to draw and add them at once; no sum of `n` reaches the digits of `k`.
    base = size * max(n for _, n in counts) + 1
    coded, choices = [k * base + n for k, n in counts], Random(seed).choices
    sums = (divmod(sum(choices(coded, k=size)), base) for _ in range(rounds))
    rates = sorted(k / n for k, n in sums)
    position = (1 - confidence) / 2 * (rounds - 1)
    return _at(rates, position), _at(rates[::-1], position)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The change from one variant to another, in rates."""

    difference: float
    """The mean over cases; positive if the second is better."""
    low: float | None
    high: float | None
    """The interval of the difference; None for fewer than two cases."""
    cases: int
    """Cases with results in both."""
    differing: int
    """Cases whose rates differ."""
    confidence: float = 0.95

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes zero and enough cases differ.

        A bootstrap is overconfident if few cases differ. If chance alone decides the side of each, all of them fall on
        one side once in 2 ** (differing - 1) times: at 95 % it takes six to exclude that.
        """
        if self.low is None or self.high is None or self.differing < least_differing(self.confidence):
            return False
        return self.low > 0 or self.high < 0


def least_differing(confidence: float = 0.95) -> int:
    """The smallest number of differing cases whose agreement cannot be chance."""
    return floor(1 - log2(1 - confidence)) + 1


def compare_paired(a: Results, b: Results, *, seed: int, rounds: int = ROUNDS, confidence: float = 0.95) -> Comparison:
    """Compare `a` with `b`.

    Cases without results in both are left out. The same seed gives the same interval; swapping `a` and `b` gives its
    exact mirror.
    """
    shared = sorted(case for case in a.keys() & b.keys() if a[case][1] and b[case][1])
    changes = [Fraction(*b[case]) - Fraction(*a[case]) for case in shared]
    return compare_changes(changes, seed=seed, rounds=rounds, confidence=confidence)


def compare_changes(
    changes: Sequence[Fraction], *, seed: int, rounds: int = ROUNDS, confidence: float = 0.95
) -> Comparison:
    """The comparison of two levels from the change of each case."""
    _check_bootstrap(rounds, confidence)
    if not changes:
        return Comparison(0.0, None, None, 0, 0, confidence)
    # Integers, because rounding errors of sums could turn zero into a difference.
    unit = lcm(*(change.denominator for change in changes))
    whole = [int(change * unit) for change in changes]
    scale = unit * len(whole)
    difference, differing = sum(whole) / scale, sum(change != 0 for change in whole)
    if len(whole) == 1:
        return Comparison(difference, None, None, 1, differing, confidence)
    choices, size = Random(seed).choices, len(whole)
    sums = sorted(sum(choices(whole, k=size)) for _ in range(rounds))
    position = (1 - confidence) / 2 * (rounds - 1)
    low, high = _at(sums, position) / scale, _at(sums[::-1], position) / scale
    return Comparison(difference, low, high, size, differing, confidence)


def describe(comparison: Comparison) -> str:
    """A comparison in words, in percentage points."""
    if comparison.cases == 0:
        return "not comparable: no case has results in both"
    many = "1 case" if comparison.cases == 1 else f"{comparison.cases} cases"
    difference = f"difference {points(comparison.difference)} points"
    if comparison.low is None or comparison.high is None:
        return f"not distinguishable ({difference}, {many}: no interval)"
    interval = f"{comparison.confidence * 100:g} % {points_range(comparison.low, comparison.high)}"
    summary = f"{difference}, {interval}, {many}"
    if comparison.distinguishable:
        return summary
    few = comparison.low > 0 or comparison.high < 0
    return f"not distinguishable ({summary}{f', only {comparison.differing} of them differ' if few else ''})"


def _at(ordered: Sequence[float], position: float) -> float:
    """The value at a fractional index."""
    before = floor(position)
    part = position - before
    return ordered[before] + (part * (ordered[before + 1] - ordered[before]) if part else 0)


def points_range(low: float, high: float) -> str:
    return f"[{points(low)}, {points(high)}]"


def points(rate: float) -> str:
    """A difference of rates in percentage points."""
    # Adding zero turns a negative zero into a plain one.
    return f"{round(rate * 100, 1) + 0.0:+.1f}"


def _check_bootstrap(rounds: int, confidence: float) -> None:
    _require(rounds >= 1, "a bootstrap needs at least one round")
    _require(0 < confidence < 1, f"confidence must be between 0 and 1, not {confidence}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
