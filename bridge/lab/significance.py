"""Whether a difference between two levels is chance, and how small a difference a study can see. Pure.

The unit is the case: each has one change, the mean of its changes over everything that both levels have in common. If
the levels do not differ, a change is as likely as its negative. That gives an exact test without any assumption about
how rates are distributed. Holm's method corrects the tests of a study, so that all of them together report a
difference that does not exist in at most 5 % of all studies.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, comb, erfc, lcm, log2, sqrt
from statistics import NormalDist, stdev

LEVEL = 0.05
"""How often a study may report a difference that does not exist."""
POWER = 0.8
"""How often a difference of the size that is called visible would be reported."""
FINEST = 1_000
"""Changes are counted in such parts of 1 at most."""
MOST_BITS = 20_000_000
"""The size of the numbers of an exact test; beyond it the sum is taken as normal."""


def sign_flip_p(changes: Sequence[Fraction]) -> float:
    """How often chance alone gives a mean at least as far from zero, if each change may have either sign."""
    unit = min(lcm(*(change.denominator for change in changes)), FINEST) if changes else 1
    sizes = [round(change * unit) for change in changes]
    observed, sizes = abs(sum(sizes)), [abs(size) for size in sizes if size]
    if not observed:
        return 1.0
    total, width = sum(sizes), len(sizes) + 1
    if total * width > MOST_BITS:
        return erfc(observed / sqrt(sum(size * size for size in sizes)) / sqrt(2))
    # A number with a digit of `width` bits for each sum of positive changes: how many choices of signs give that sum.
    ways = 1
    for size in sizes:
        ways += ways << (size * width)
    # The mean is far enough from zero if the positive ones sum to at least (total + observed) / 2; no digit overflows,
    # so the remainder of the division by the base less one is the sum of the digits.
    far = (ways >> ((total + observed + 1) // 2 * width)) % ((1 << width) - 1)
    return min(1.0, 2 * far / (1 << len(sizes)))


def holm(values: Sequence[float]) -> list[float]:
    """The p-values of the tests of a study, corrected for their number, in the same order."""
    corrected, largest = [1.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = largest
    return corrected


def smallest_visible(changes: Sequence[Fraction], tests: int = 1) -> float | None:
    """The difference that a study with this number of tests sees with POWER; None if there are too few cases.

    With few differing cases the spread says little. Then it is the share of cases that would have to change fully.
    """
    level = LEVEL / tests
    needed = ceil(1 + log2(1 / level))
    """This number of changes in the same direction cannot be chance."""
    if len(changes) < needed:
        return None
    normal = NormalDist()
    spread = stdev(map(float, changes))
    visible = (normal.inv_cdf(1 - level / 2) + normal.inv_cdf(POWER)) * spread / sqrt(len(changes))
    if sum(map(bool, changes)) < 2 * needed:
        visible = max(visible, _least_share(len(changes), needed))
    return min(visible, 1.0)


def _least_share(count: int, needed: int) -> float:
    """The share of cases that change so that at least `needed` of `count` do with POWER."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fewer = sum(comb(count, k) * middle**k * (1 - middle) ** (count - k) for k in range(needed))
        low, high = (middle, high) if 1 - fewer < POWER else (low, middle)
    return high
