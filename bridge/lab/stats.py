"""How sure one may be of a rate, and of a difference between two. Pure; the standard library alone.

The rate of one case has Wilson's interval. That of many cases comes from drawing whole cases again (a bootstrap
clustered by case), because repetitions of one case tell little about another. So does the interval of a difference: two
variants are compared case by case, the difference of a case is that of its two rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, floor, lcm, log2, sqrt
from random import Random
from statistics import NormalDist

ROUNDS = 10_000


def wilson(k: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the rate behind `k` of `n`; all of [0, 1] when nothing was tried. `k` may be a part of a try."""
    _check_counts(n, k)
    _check_confidence(confidence)
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = k / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends the formula gives 0 and 1 but for rounding.
    low = 0.0 if k == 0 else min(middle - reach, rate)
    high = 1.0 if k == n else max(middle + reach, rate)
    return max(low, 0.0), min(high, 1.0)


def pass_at(n: int, c: int, k: int) -> float | None:
    """pass@k: how often one of `k` tries is right, from `c` right of `n`; unbiased. None with fewer tries than k."""
    _check_counts(n, c)
    _check_tries(k)
    return None if k > n else 1 - comb(n - c, k) / comb(n, k)


def pass_hat(n: int, c: int, k: int) -> float | None:
    """pass^k: how often all of `k` tries are right, from `c` right of `n`; unbiased. None with fewer tries than k."""
    _check_counts(n, c)
    _check_tries(k)
    return None if k > n else comb(c, k) / comb(n, k)


def rate_interval(
    results: Mapping[str, Sequence[bool]], *, seed: int, rounds: int = ROUNDS, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of the rate behind the results of many cases, each by its id: what passed of what was tried.

    Where all cases have one rate, drawing them again tells nothing: then it is Wilson's, with each case as one try.
    The same seed gives the same interval.
    """
    _check_confidence(confidence)
    _check_rounds(rounds)
    counts = [(sum(map(bool, results[case])), len(results[case])) for case in sorted(results) if results[case]]
    tried, size = sum(n for _, n in counts), len(counts)
    if len({Fraction(k, n) for k, n in counts}) < 2:
        return wilson(sum(k for k, _ in counts) / tried * size if tried else 0, size, confidence)
    # Both counts in one number, to be drawn and added at once; no sum of `n` reaches the place of `k`.
    place = size * max(n for _, n in counts) + 1
    coded, choices = [k * place + n for k, n in counts], Random(seed).choices
    sums = (divmod(sum(choices(coded, k=size)), place) for _ in range(rounds))
    rates = sorted(k / n for k, n in sums)
    position = (1 - confidence) / 2 * (rounds - 1)
    return _at(rates, position), _at(rates[::-1], position)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changes from one variant to another; rates, not points."""

    difference: float
    """The mean over cases; above 0 the second is better."""
    low: float | None
    high: float | None
    """The interval of the difference; None with fewer than two cases."""
    cases: int
    """How many cases both have results for."""
    differing: int
    """How many of them have another rate in the second."""
    confidence: float = 0.95

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves zero out, and enough cases differ.

        With few differing cases a bootstrap is too sure of itself. When chance alone decides the side of each, all
        of them fall on one side once in 2 ** (differing - 1) times: at 95 % it takes six to exclude that.
        """
        if self.low is None or self.high is None or self.differing < least_differing(self.confidence):
            return False
        return self.low > 0 or self.high < 0


def least_differing(confidence: float = 0.95) -> int:
    """The least number of cases whose agreement could not be chance."""
    return floor(1 - log2(1 - confidence)) + 1


def compare_paired(
    a: Mapping[str, Sequence[bool]],
    b: Mapping[str, Sequence[bool]],
    *,
    seed: int,
    rounds: int = ROUNDS,
    confidence: float = 0.95,
) -> Comparison:
    """What changes from `a` to `b`, each the results of every case by its id.

    Cases that one of them has no result for are left out. The same seed gives the same interval; exchanging `a` and
    `b` gives its exact mirror.
    """
    _check_confidence(confidence)
    _check_rounds(rounds)
    shared = sorted(case for case in a.keys() & b.keys() if a[case] and b[case])
    if not shared:
        return Comparison(0.0, None, None, 0, 0, confidence)
    changes = [_rate(b[case]) - _rate(a[case]) for case in shared]
    # Whole numbers: sums of them have no rounding that could make zero a difference.
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
    """A comparison in words, in points of a hundred."""
    if comparison.cases == 0:
        return "not comparable: no case has results in both"
    many = "1 case" if comparison.cases == 1 else f"{comparison.cases} cases"
    difference = f"difference {_points(comparison.difference)} points"
    if comparison.low is None or comparison.high is None:
        return f"not distinguishable ({difference}, {many}: no interval)"
    interval = f"{comparison.confidence * 100:g} % [{_points(comparison.low)}, {_points(comparison.high)}]"
    told = f"{difference}, {interval}, {many}"
    if comparison.distinguishable:
        return told
    few = comparison.low > 0 or comparison.high < 0
    return f"not distinguishable ({told}{f', only {comparison.differing} of them differ' if few else ''})"


def _rate(results: Sequence[bool]) -> Fraction:
    return Fraction(sum(map(bool, results)), len(results))


def _at(ordered: Sequence[float], position: float) -> float:
    """The value at a position between two of a row."""
    before = floor(position)
    part = position - before
    return ordered[before] + (part * (ordered[before + 1] - ordered[before]) if part else 0)


def _points(rate: float) -> str:
    # Adding zero turns a negative zero into a plain one.
    return f"{round(rate * 100, 1) + 0.0:+.1f}"


def _check_rounds(rounds: int) -> None:
    if rounds < 1:
        raise ValueError("a bootstrap takes at least one round")


def _check_counts(n: int, k: float) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no count")


def _check_tries(k: int) -> None:
    if k < 1:
        raise ValueError("at least one try")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1; not {confidence}")
