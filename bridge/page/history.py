"""Requests, failures, times and tokens over the last hours and days, for the page's overview.

The sums are kept by an observer, in buckets of a minute, an hour and a day, each of a bounded number. They start
at zero with the bridge; `GET /v1/usage` and the store's usage have what was used before.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from bridge.core.events import Finished, Usage
from bridge.core.observer import Observer, TurnFacts
from bridge.core.prices import NO_PRICES, Prices, amount
from bridge.counts import OTHER, Histogram

Span = Literal["minutes", "hours", "days"]
STEPS: dict[Span, tuple[int, int]] = {"minutes": (60, 180), "hours": (3600, 8 * 24), "days": (86400, 62)}
"""The length of a bucket in seconds, and how many there are."""
MAX_NAMES = 32
"""Models, keys and backends that a bucket tells apart; the others are counted as `other`."""

DIMENSIONS = ("model", "key", "backend")


@dataclass(slots=True)
class Sums:
    """What happened in some time."""

    requests: int = 0
    failed: int = 0
    input: int = 0
    output: int = 0
    cost: int | None = None
    """As `Prices.cost` counts it; None where no model has a price."""
    seconds: Histogram = field(default_factory=Histogram)

    def count(self, *, failed: bool, usage: Usage | None, cost: int | None, seconds: float) -> None:
        """Add one request."""
        self._pay(cost)
        self.requests += 1
        self.failed += failed
        self.seconds.observe(seconds)
        if usage is not None:
            self.input += usage.input
            self.output += usage.output

    def add(self, other: Sums) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.input += other.input
        self.output += other.output
        self._pay(other.cost)
        self.seconds.add(other.seconds)

    def _pay(self, cost: int | None) -> None:
        if cost is not None:
            self.cost = cost + (self.cost or 0)

    def shown(self, currency: str) -> dict[str, Any]:
        """As the page reads it."""
        return {
            "cost": cost_text(amount(self.cost), currency),
            "requests": self.requests,
            "failed": self.failed,
            "p50": quantile(self.seconds, 0.5),
            "p99": quantile(self.seconds, 0.99),
            "input": self.input,
            "output": self.output,
        }


@dataclass(slots=True)
class Bucket:
    """A stretch of time: all requests, and those of each model, key and backend."""

    all: Sums = field(default_factory=Sums)
    by: dict[tuple[str, str], Sums] = field(default_factory=dict)

    def row(self, dimension: str, name: str) -> Sums:
        """The sums of one name; of the others if there are too many."""
        row = self.by.get((dimension, name))
        if row is None:
            if sum(each == dimension for each, _ in self.by) >= MAX_NAMES:
                name = OTHER
            row = self.by.setdefault((dimension, name), Sums())
        return row


def cost_text(cost: float | None, currency: str) -> str | None:
    """A cost with its currency; None where it is not known."""
    return None if cost is None else f"{cost:.9f}".rstrip("0").rstrip(".") + f" {currency}".rstrip()


class History(Observer):
    """The buckets. `prices` tell what is counted from then on."""

    def __init__(self, now: Callable[[], float] = time.time, prices: Prices = NO_PRICES) -> None:
        self._now = now
        self.prices = prices
        self._spans: dict[Span, OrderedDict[int, Bucket]] = {span: OrderedDict() for span in STEPS}

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        names = (facts.turn.model if facts.turn is not None else OTHER, facts.key or OTHER, facts.backend)
        failed, seconds = end.outcome == "failed", now - facts.arrived
        cost = None if facts.turn is None or usage is None else self.prices.cost(facts.turn.model, usage)
        for span, (step, most) in STEPS.items():
            buckets, at = self._spans[span], int(self._now() // step) * step
            bucket = buckets.get(at)
            if bucket is None:
                bucket = buckets[at] = Bucket()
                while len(buckets) > most:
                    buckets.popitem(last=False)
            for sums in (bucket.all, *(bucket.row(*row) for row in zip(DIMENSIONS, names, strict=True))):
                sums.count(failed=failed, usage=usage, cost=cost, seconds=seconds)

    def shown(self, hours: int, key: str | None) -> dict[str, Any]:
        """The members of the overview about the last hours; of one key's requests alone, if it is named."""
        span: Span = "minutes" if hours <= 3 else "hours" if hours <= 8 * 24 else "days"
        step, _ = STEPS[span]
        now = self._now()
        found = [(at, bucket) for at, bucket in self._spans[span].items() if at > now - 3600 * hours - step]
        series = [(at, bucket.all if key is None else bucket.by.get(("key", key))) for at, bucket in found]
        currency = self.prices.currency
        by = {dimension: _together(dimension, (bucket for _, bucket in found), currency) for dimension in DIMENSIONS}
        if key is not None:
            by = {"key": [row for row in by["key"] if row["name"] == key]}
        return {
            "now": _iso(now),
            "span": span,
            "step": step,
            "series": [{"at": _iso(at)} | sums.shown(currency) for at, sums in series if sums is not None],
            "by": by,
        }


def _together(dimension: str, buckets: Iterable[Bucket], currency: str) -> list[dict[str, Any]]:
    """The rows of a dimension, the most used first."""
    sums: dict[str, Sums] = {}
    for bucket in buckets:
        for (each, name), found in bucket.by.items():
            if each == dimension:
                sums.setdefault(name, Sums()).add(found)
    ordered = sorted(sums.items(), key=lambda row: (-row[1].requests, row[0]))
    return [{"name": name} | row.shown(currency) for name, row in ordered]


def quantile(values: Histogram, share: float) -> float | None:
    """A value below which about this share of the others is, from the bounds of the histogram; None for none."""
    wanted, below = share * values.count, 0
    if not values.count:
        return None
    for number, count in enumerate(values.counts):
        if below + count >= wanted:
            low = values.bounds[number - 1] if number else 0.0
            high = values.bounds[number] if number < len(values.bounds) else low
            return round(low + (high - low) * (wanted - below) / count, 6) if count else round(high, 6)
        below += count
    return values.bounds[-1]


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
