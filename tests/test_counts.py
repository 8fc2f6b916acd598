"""Counting stays bounded, whatever the names are."""

from __future__ import annotations

import pytest

from bridge.counts import MAX_NAMES, OTHER, Histogram, Tally, Timings, as_name


def test_a_histogram_counts_by_upper_bounds() -> None:
    """A value that is a bound belongs to it; what lies above all is kept too."""
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 99):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum, histogram.count) == ([2, 2, 1], 104, 5)
    histogram.add(histogram)
    assert (histogram.counts, histogram.sum) == ([4, 4, 2], 208)
    assert repr(histogram) == "<Histogram count=10 sum=208>"


def test_a_row_too_many_is_another() -> None:
    """Rows that are known go on being counted; the sum is never wrong."""
    tally, timings = Tally(), Timings()
    for number in range(3 * MAX_NAMES):
        tally.add(f"name{number}", "x")
        tally.add("name0", "x", by=2)
        timings.observe(f"name{number}", 1)
    assert len(tally) == len(timings) == MAX_NAMES + 1
    assert tally["name0", "x"] == 1 + 6 * MAX_NAMES
    assert tally[OTHER, OTHER] == 2 * MAX_NAMES
    assert timings[(OTHER,)].count == 2 * MAX_NAMES


@pytest.mark.parametrize(
    ("text", "name"),
    [("rate_limit_exceeded", "rate_limit_exceeded"), ("turn/start", "turn/start"), ("a" * 64, "a" * 64)]
    + [(text, OTHER) for text in ("", "a" * 65, "9", "a b", 'a"', "a\n", "ä", "<script>", "a{b}")],
)
def test_only_a_plain_word_is_a_name(text: str, name: str) -> None:
    """Anything else could be a secret, or break the format."""
    assert as_name(text) == name
