"""The statistics: against scipy, against all resamples there are, and against values that were worked out by hand."""

from __future__ import annotations

import time
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from bridge.lab.stats import (
    Comparison,
    compare_paired,
    describe,
    least_differing,
    pass_at,
    pass_hat,
    rate_interval,
    wilson,
)

Results = dict[str, tuple[int, int]]
"""(right, tried) by case."""

counts = st.integers(0, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
tries = st.lists(st.booleans(), max_size=5).map(lambda found: (sum(found), len(found)))
results = st.dictionaries(st.sampled_from("abcdefgh"), tries, max_size=8)


class TestWilson:
    @pytest.mark.parametrize(
        ("k", "n", "low", "high"),
        [
            # z = 1.959964, z² = 3.841459; for 0 of n the interval is [0, z²/(n + z²)].
            (0, 10, 0.0, 3.841459 / 13.841459),
            (10, 10, 10 / 13.841459, 1.0),
            # (0.5 ± …): the middle stays at one half, the reach is z/2 / sqrt(n + z²).
            (5, 10, 0.5 - 0.979982 / 13.841459**0.5, 0.5 + 0.979982 / 13.841459**0.5),
            (1, 1, 1 / 4.841459, 1.0),
        ],
    )
    def test_by_hand(self, k: int, n: int, low: float, high: float) -> None:
        assert wilson(k, n) == pytest.approx((low, high), abs=1e-6)

    def test_without_tries_the_interval_is_everything(self) -> None:
        assert wilson(0, 0) == (0.0, 1.0)

    @pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
    @pytest.mark.parametrize(
        ("k", "n"), [(0, 1), (1, 1), (3, 5), (5, 5), (0, 60), (17, 60), (599, 1000), (99999, 100000)]
    )
    def test_like_scipy(self, k: int, n: int, confidence: float) -> None:
        theirs = scipy_stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
        assert wilson(k, n, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-12)

    @given(counts, st.floats(0.01, 0.999))
    def test_the_interval_contains_the_rate(self, count: tuple[int, int], confidence: float) -> None:
        k, n = count
        low, high = wilson(k, n, confidence)
        assert 0 <= low <= (k / n if n else 0.5) <= high <= 1

    @given(st.integers(1, 200))
    def test_more_right_answers_never_lower_the_interval(self, n: int) -> None:
        intervals = [wilson(k, n) for k in range(n + 1)]
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(intervals))

    @given(counts)
    def test_wrong_answers_mirror_right_answers(self, count: tuple[int, int]) -> None:
        k, n = count
        low, high = wilson(k, n)
        assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)

    @pytest.mark.parametrize(("k", "n", "confidence"), [(2, 1, 0.95), (-1, 1, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
    def test_invalid_counts(self, k: int, n: int, confidence: float) -> None:
        with pytest.raises(ValueError):
            wilson(k, n, confidence)


class TestPassing:
    @pytest.mark.parametrize(
        ("n", "c", "k", "one", "every"),
        [
            (5, 0, 1, 0.0, 0.0),
            (5, 3, 1, 0.6, 0.6),
            # Pairs of 5: 10. Both wrong: 1 pair, both right: 3 pairs.
            (5, 3, 2, 0.9, 0.3),
            (5, 3, 5, 1.0, 0.0),
            (5, 5, 5, 1.0, 1.0),
            (4, 1, 2, 0.5, 0.0),
        ],
    )
    def test_by_hand(self, n: int, c: int, k: int, one: float, every: float) -> None:
        assert pass_at(n, c, k) == pytest.approx(one)
        assert pass_hat(n, c, k) == pytest.approx(every)

    @pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (7, 5, 2), (5, 4, 4), (6, 0, 2), (6, 6, 6)])
    def test_like_scipys_draws_without_replacement(self, n: int, c: int, k: int) -> None:
        right = scipy_stats.hypergeom(n, c, k)
        assert pass_at(n, c, k) == pytest.approx(1 - right.pmf(0))
        assert pass_hat(n, c, k) == pytest.approx(right.pmf(k))

    @pytest.mark.parametrize("k", [1, 6])
    def test_too_few_tries_give_none(self, k: int) -> None:
        n = k - 1
        assert pass_at(n, n, k) is None
        assert pass_hat(n, n, k) is None

    def test_large_counts(self) -> None:
        assert pass_at(20_000, 10_000, 1_000) == pytest.approx(1.0)
        assert pass_hat(20_000, 19_999, 10_000) == pytest.approx(0.5)

    @pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 3, 0)])
    def test_invalid_counts(self, n: int, c: int, k: int) -> None:
        for passing in (pass_at, pass_hat):
            with pytest.raises(ValueError):
                passing(n, c, k)


class TestRateOfManyCases:
    @pytest.mark.parametrize("confidence", [0.8, 0.95])
    def test_like_scipys_bootstrap_of_cases(self, confidence: float) -> None:
        """Cases with few tries and with many: a case is drawn with all of its tries."""
        random = Random(3)
        counts = {str(case): (random.randrange(tried + 1), tried) for case, tried in enumerate([2, 5] * 20)}
        passed, tried = np.array(list(counts.values())).T
        theirs = scipy_stats.bootstrap(
            (passed, tried),
            lambda k, n, axis: k.sum(axis=axis) / n.sum(axis=axis),
            n_resamples=10_000,
            confidence_level=confidence,
            method="percentile",
            paired=True,
            rng=5,
        ).confidence_interval
        found = rate_interval(counts, seed=5, confidence=confidence)
        assert found == pytest.approx((theirs.low, theirs.high), abs=0.008)

    def test_like_all_resamples_there_are(self) -> None:
        k, n = np.array([0, 1, 5, 4, 2]), np.array([5, 5, 5, 4, 3])
        every = np.array(list(product(range(5), repeat=5)))
        low, high = np.quantile(k[every].sum(axis=1) / n[every].sum(axis=1), [0.025, 0.975])
        counts = dict(zip("abcde", zip(k.tolist(), n.tolist(), strict=True), strict=True))
        assert rate_interval(counts, seed=3, rounds=100_000) == pytest.approx((low, high), abs=0.009)

    def test_repeating_a_deterministic_model_changes_nothing(self) -> None:
        once = {str(case): (int(case < 4), 1) for case in range(60)}
        often = {case: (right * 20, tried * 20) for case, (right, tried) in once.items()}
        assert rate_interval(once, seed=1) == rate_interval(often, seed=1)
        assert wilson(80, 1200)[1] < rate_interval(often, seed=1)[1], "as 1,200 samples it would be too sure"

    def test_if_all_cases_have_one_rate_each_case_is_one_try(self) -> None:
        assert rate_interval({"a": (5, 5), "b": (3, 3)}, seed=1) == wilson(2, 2)
        assert rate_interval({"a": (0, 5), "b": (0, 3), "c": (0, 0)}, seed=1) == wilson(0, 2)
        assert rate_interval({"a": (2, 4), "b": (1, 2)}, seed=1) == wilson(1, 2)
        assert rate_interval({}, seed=1) == (0.0, 1.0)

    @given(results, st.integers(0, 99))
    def test_the_interval_does_not_depend_on_the_order_of_cases(self, found: Results, seed: int) -> None:
        low, high = rate_interval(found, seed=seed, rounds=20)
        assert 0 <= low <= high <= 1
        assert (low, high) == rate_interval(dict(reversed(found.items())), seed=seed, rounds=20)

    def test_no_rounds(self) -> None:
        with pytest.raises(ValueError):
            rate_interval({}, seed=1, rounds=0)


class TestPaired:
    def test_the_mean_of_the_cases_differences(self) -> None:
        a = {"one": (1, 2), "two": (0, 4), "three": (5, 5), "only a": (1, 1), "no results": (0, 0)}
        b = {"one": (2, 2), "two": (3, 4), "three": (4, 5), "only b": (1, 1), "no results": (1, 1)}
        found = compare_paired(a, b, seed=1)
        assert found.difference == pytest.approx((0.5 + 0.75 - 0.2) / 3)
        assert (found.cases, found.differing) == (3, 3)

    def test_like_all_resamples_there_are(self) -> None:
        a = {"a": (0, 5), "b": (1, 5), "c": (2, 5), "d": (5, 5), "e": (3, 5), "f": (2, 4)}
        b = {"a": (4, 5), "b": (2, 5), "c": (2, 5), "d": (4, 5), "e": (5, 5), "f": (3, 4)}
        changes = np.array([0.8, 0.2, 0.0, -0.2, 0.4, 0.25])
        every = changes[np.array(list(product(range(6), repeat=6)))].mean(axis=1)
        low, high = np.quantile(every, [0.025, 0.975])
        found = compare_paired(a, b, seed=3, rounds=100_000)
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.009)

    @pytest.mark.parametrize("confidence", [0.8, 0.95])
    def test_like_scipys_bootstrap(self, confidence: float) -> None:
        random = Random(11)
        rates = {f"case {number}": random.randrange(6) for number in range(40)}
        a = {case: (right, 5) for case, right in rates.items()}
        b = {case: (min(5, right + random.choice((-1, 0, 1, 1))), 5) for case, right in rates.items()}
        changes = np.array([sum(b[case]) / 5 - sum(a[case]) / 5 for case in rates])
        theirs = scipy_stats.bootstrap(
            (changes,), np.mean, n_resamples=10_000, confidence_level=confidence, method="percentile", rng=5
        ).confidence_interval
        found = compare_paired(a, b, seed=5, confidence=confidence)
        assert found.difference == pytest.approx(changes.mean())
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)

    def test_the_percentiles_are_numpys(self) -> None:
        """The same resamples, drawn again: every digit of the interval is explained."""
        a = {str(number): (number % 4, 4) for number in range(9)}
        b = {str(number): (3 - number % 3, 4) for number in range(9)}
        changes = [sum(b[str(number)]) - sum(a[str(number)]) for number in range(9)]
        choices = Random(7).choices
        means = [sum(choices(changes, k=9)) / 36 for _ in range(777)]
        found = compare_paired(a, b, seed=7, rounds=777)
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)

    @given(results, results, st.integers(0, 99))
    def test_swapping_the_variants_mirrors_the_comparison(self, a: Results, b: Results, seed: int) -> None:
        there, back = compare_paired(a, b, seed=seed, rounds=50), compare_paired(b, a, seed=seed, rounds=50)
        assert there.difference == -back.difference
        assert (there.cases, there.differing) == (back.cases, back.differing)
        assert there.distinguishable == back.distinguishable
        if there.low is None or there.high is None:
            assert back.low is None
            assert there.cases < 2
        else:
            assert back.low is not None
            assert (there.low, there.high) == (-back.high if back.high is not None else None, -back.low)
            assert -1 <= there.low <= there.high <= 1

    @given(results, st.integers(0, 99))
    def test_a_variant_is_never_distinguishable_from_itself(self, a: Results, seed: int) -> None:
        found = compare_paired(a, a, seed=seed, rounds=20)
        assert not found.distinguishable
        assert found.low in (None, 0)

    def test_the_order_of_the_cases_does_not_matter(self) -> None:
        a, b = {"x": (1, 3), "y": (2, 3), "z": (0, 3)}, {"x": (3, 3), "y": (2, 3), "z": (1, 3)}
        backwards = dict(reversed(a.items()))
        assert compare_paired(a, b, seed=2) == compare_paired(backwards, b, seed=2)

    def test_a_seed_fixes_the_interval(self) -> None:
        a = {str(number): (number % 5, 5) for number in range(20)}
        b = {str(number): (number * 7 % 6, 5) for number in range(20)}
        assert compare_paired(a, b, seed=1, rounds=100) == compare_paired(a, b, seed=1, rounds=100)
        assert compare_paired(a, b, seed=1, rounds=100) != compare_paired(a, b, seed=2, rounds=100)

    def test_thirds_and_sevenths_add_up_to_nothing_exactly(self) -> None:
        a = {"a": (1, 3), "b": (2, 3), "c": (1, 7), "d": (2, 7), "e": (3, 7), "f": (3, 7)}
        b = {"a": (2, 3), "b": (1, 3), "c": (2, 7), "d": (1, 7), "e": (4, 7), "f": (2, 7)}
        assert compare_paired(a, b, seed=1).difference == 0

    def test_a_large_comparison_is_quick(self) -> None:
        random = Random(1)
        a, b = ({str(case): (sum(random.random() < 0.6 for _ in range(5)), 5) for case in range(60)} for _ in range(2))
        started = time.process_time()
        compare_paired(a, b, seed=1, rounds=10_000)
        assert time.process_time() - started < 0.5

    def test_no_rounds(self) -> None:
        with pytest.raises(ValueError):
            compare_paired({}, {}, seed=1, rounds=0)


class TestDistinguishable:
    @pytest.mark.parametrize(("differing", "expected"), [(5, False), (6, True)])
    def test_it_takes_six_differing_cases(self, differing: int, expected: bool) -> None:
        a = {str(case): (0, 1) for case in range(differing)}
        b = {str(case): (1, 1) for case in range(differing)}
        assert compare_paired(a, b, seed=1).distinguishable is expected

    def test_that_many_because_of_the_sign_test(self) -> None:
        for confidence in (0.8, 0.9, 0.95, 0.99, 0.999):
            least = least_differing(confidence)
            assert scipy_stats.binomtest(least, least).pvalue < 1 - confidence
            assert scipy_stats.binomtest(least - 1, least - 1).pvalue >= 1 - confidence

    def test_chance_is_seldom_called_a_difference(self) -> None:
        """Two equal variants, compared two hundred times: about one in twenty may be called different."""
        random = Random(4)
        wrong = 0
        for seed in range(200):
            a, b = (
                {str(case): (sum(random.random() < 0.7 for _ in range(3)), 3) for case in range(40)} for _ in range(2)
            )
            wrong += compare_paired(a, b, seed=seed, rounds=400).distinguishable
        assert wrong <= 20


class TestWords:
    @pytest.mark.parametrize(
        ("comparison", "expected"),
        [
            (Comparison(0.062, 0.011, 0.114, 40, 12), "difference +6.2 points, 95 % [+1.1, +11.4], 40 cases"),
            (Comparison(-0.5, -0.75, -0.25, 8, 8, 0.9), "difference -50.0 points, 90 % [-75.0, -25.0], 8 cases"),
            (
                Comparison(0.02, -0.031, 0.06, 40, 12),
                "not distinguishable (difference +2.0 points, 95 % [-3.1, +6.0], 40 cases)",
            ),
            (
                Comparison(0.083, 0.017, 0.15, 60, 5),
                "not distinguishable (difference +8.3 points, 95 % [+1.7, +15.0], 60 cases, only 5 of them differ)",
            ),
            (
                Comparison(-0.0001, -0.0002, 0.0, 9, 9),
                "not distinguishable (difference +0.0 points, 95 % [+0.0, +0.0], 9 cases)",
            ),
            (Comparison(0.2, None, None, 1, 1), "not distinguishable (difference +20.0 points, 1 case: no interval)"),
            (Comparison(0.0, None, None, 0, 0), "not comparable: no case has results in both"),
        ],
    )
    def test_each_way(self, comparison: Comparison, expected: str) -> None:
        assert describe(comparison) == expected

    def test_one_case_and_none(self) -> None:
        one = {"a": (1, 2)}
        assert describe(compare_paired(one, {"a": (1, 1)}, seed=1)) == (
            "not distinguishable (difference +50.0 points, 1 case: no interval)"
        )
        assert describe(compare_paired(one, {"b": (1, 1)}, seed=1)) == "not comparable: no case has results in both"
        assert describe(compare_paired({}, {}, seed=1)) == "not comparable: no case has results in both"
