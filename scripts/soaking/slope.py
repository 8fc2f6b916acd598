"""Whether a quantity grows: the median slope between its samples (Theil and Sen), which no single peak can bend."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MAX_POINTS = 200


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """By how much the values grow from the first sample to the last, if they grow evenly. 0 for less than 8 samples."""
    step = max(1, len(samples) // MAX_POINTS)
    points = samples[::step]
    if len(points) < 8:
        return 0.0
    slopes = [
        (late[1] - early[1]) / (late[0] - early[0])
        for number, early in enumerate(points)
        for late in points[number + 1 :]
        if late[0] > early[0]
    ]
    return statistics.median(slopes) * (points[-1][0] - points[0][0])
