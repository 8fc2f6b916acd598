"""Counts over many requests. What is kept of each is a few numbers."""

from __future__ import annotations

from array import array
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from bridge.protolog.filters import parse_log_time
from bridge.protolog.summary import Summary

PERCENTILES = (50, 90, 99)
MINUTE = 60


class Latency:
    """Durations, to be asked for percentiles."""

    def __init__(self) -> None:
        self._values = array("d")
        self._sorted = True

    def add(self, seconds: float) -> None:
        """One more."""
        self._values.append(seconds)
        self._sorted = False

    @property
    def values(self) -> array[float]:
        """All of them, in order of size."""
        if not self._sorted:
            self._values = array("d", sorted(self._values))
            self._sorted = True
        return self._values

    def percentile(self, share: float) -> float | None:
        """The smallest that so many per cent do not exceed."""
        values = self.values
        return values[max(0, -(-len(values) * share // 100).__int__() - 1)] if values else None

    def as_json(self) -> dict[str, Any]:
        """The usual percentiles."""
        told: dict[str, Any] = {f"p{share}": self.percentile(share) for share in PERCENTILES}
        return {"count": len(self._values)} | told | {"max": self.values[-1] if self._values else None}


class Totals:
    """Takes summaries in."""

    def __init__(self) -> None:
        self.count = 0
        self.outcomes: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.invalid_arguments: Counter[str] = Counter()
        """Calls with arguments that are not JSON, by tool."""
        self.tokens: Counter[str] = Counter()
        self.rejects = 0
        self.first = Latency()
        self.total = Latency()
        self.minutes: Counter[int] = Counter()
        """How many came in which minute since 1970."""

    def add(self, summary: Summary) -> None:
        """One more request."""
        self.count += 1
        self.outcomes[summary.outcome] += 1
        self.models[summary.model or summary.requested_model or "unknown"] += 1
        self.backends[summary.backend or "none"] += 1
        self.paths[summary.path or "unknown"] += 1
        if summary.error:
            self.errors[summary.error] += 1
        self.calls.update(summary.calls)
        self.repairs.update(summary.repairs)
        self.invalid_arguments.update(summary.invalid_arguments)
        self.rejects += summary.rejects
        for name in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
            self.tokens[name] += getattr(summary, name) or 0
        if summary.first_event_s is not None:
            self.first.add(summary.first_event_s)
        if summary.total_s is not None:
            self.total.add(summary.total_s)
        time = parse_log_time(summary.time)
        if time is not None:
            self.minutes[int(time.timestamp()) // MINUTE] += 1

    @property
    def seconds(self) -> int:
        """From the first minute to the last, both included."""
        return (max(self.minutes) - min(self.minutes) + 1) * MINUTE if self.minutes else 0

    def as_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "requests": self.count,
            "outcomes": dict(self.outcomes.most_common()),
            "models": dict(self.models.most_common()),
            "backends": dict(self.backends.most_common()),
            "paths": dict(self.paths.most_common()),
            "errors": dict(self.errors.most_common()),
            "tokens": dict(self.tokens),
            "first_event_s": self.first.as_json(),
            "total_s": self.total.as_json(),
            "calls": dict(self.calls.most_common()),
            "repairs": dict(self.repairs.most_common()),
            "invalid_arguments": dict(self.invalid_arguments.most_common()),
            "rejects": self.rejects,
            "from": _iso(min(self.minutes)) if self.minutes else None,
            "to": _iso(max(self.minutes)) if self.minutes else None,
            "requests_per_minute": round(self.count * MINUTE / self.seconds, 3) if self.seconds else None,
            "busiest_minute": max(self.minutes.values(), default=0),
        }


def _iso(minute: int) -> str:
    return datetime.fromtimestamp(minute * MINUTE, UTC).isoformat().replace("+00:00", "Z")
