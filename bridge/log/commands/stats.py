"""Totals over the requests of a log, and how `log stats` draws them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import dropwhile, pairwise
from math import ceil
from typing import Any

from rich.table import Table

from bridge.log.commands.requests import show_seconds
from bridge.log.filters import parse_log_time
from bridge.log.record import TOKENS
from bridge.log.summary import Summary
from bridge.terminal import Screen, escape_line

PERCENTILES = (50, 90, 99)
SHOWN = 8
"""Rows of a table of counts; the others are added up."""
_COUNTED = {
    "outcomes": "outcome", "errors": "error", "models": "model", "backends": "backend", "paths": "path",
    "calls": "tool called", "repairs": "repair", "invalid_arguments": "invalid JSON arguments",
}  # fmt: skip
"""What is counted, and the title of its table."""
_PER_CALL = ("calls", "repairs", "invalid_arguments")
"""Counts that are not a share of the requests."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_DAY = 24 * 60
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, *(_DAY * days for days in (1, 2, 7, 14, 30, 90, 365)))
"""How many minutes one bar can stand for."""
_ROWS = 16
_BOUNDS = [step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5)]
"""Seconds up to which durations are counted together."""


class Latency:
    """Durations in seconds."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, seconds: float | None) -> None:
        if seconds is not None:
            self._values.append(seconds)

    @property
    def values(self) -> array[float]:
        """All of them, sorted."""
        self._values = array("d", sorted(self._values))  # a single pass if they are sorted already
        return self._values

    def percentile(self, share: int) -> float | None:
        """The smallest value that `share` per cent of the values do not exceed."""
        values = self.values
        return values[max(0, ceil(len(values) * share / 100) - 1)] if values else None

    def as_json(self) -> dict[str, Any]:
        shares = {f"p{share}": self.percentile(share) for share in PERCENTILES}
        return {"count": len(self.values)} | shares | {"max": self.percentile(100)}


class Totals:
    """Counts over summaries. Of each request only a few numbers are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        self.tokens: Counter[str] = Counter()
        self.costs: Counter[str] = Counter()
        """In billionths, by currency: whole numbers add up exactly."""
        self.rejects = 0
        self.first, self.total = Latency(), Latency()
        self.minutes: Counter[int] = Counter()
        """Requests by the minute since 1970 in which they came."""

    def add(self, summary: Summary) -> None:
        self.count += 1
        self.counts["outcomes"][summary.outcome] += 1
        self.counts["models"][summary.model or summary.requested_model or "unknown"] += 1
        self.counts["backends"][summary.backend or "none"] += 1
        self.counts["paths"][summary.path or "unknown"] += 1
        self.counts["errors"].update([summary.error] if summary.error else [])
        for name in _PER_CALL:
            self.counts[name].update(getattr(summary, name))
        self.rejects += summary.rejects
        for name in TOKENS:
            self.tokens[name] += getattr(summary, name) or 0
        if summary.cost is not None:
            self.costs[summary.currency or "?"] += round(summary.cost * 10**9)
        self.first.add(summary.first_event_s)
        self.total.add(summary.total_s)
        if (time := parse_log_time(summary.time)) is not None:
            self.minutes[int(time.timestamp()) // 60] += 1

    @property
    def per_minute(self) -> float | None:
        """Requests per minute, from the first minute to the last."""
        return self.count / (max(self.minutes) - min(self.minutes) + 1) if self.minutes else None

    def as_json(self) -> dict[str, Any]:
        times = [datetime.fromtimestamp(minute * 60, UTC) for minute in self.minutes]
        return {
            "requests": self.count,
            **{name: dict(counter.most_common()) for name, counter in self.counts.items()},
            "tokens": dict(self.tokens),
            "costs": {currency: cost / 10**9 for currency, cost in self.costs.items()},
            "first_event_s": self.first.as_json(),
            "total_s": self.total.as_json(),
            "rejects": self.rejects,
            "from": f"{min(times):%Y-%m-%dT%H:%M:%SZ}" if times else None,
            "to": f"{max(times):%Y-%m-%dT%H:%M:%SZ}" if times else None,
            "requests_per_minute": None if self.per_minute is None else round(self.per_minute, 3),
            "busiest_minute": max(self.minutes.values(), default=0),
        }


def show_totals(screen: Screen, totals: Totals) -> None:
    if not totals.count:
        screen.line("no requests")
        return
    screen.line(screen.style(f"{totals.count:,} request{'' if totals.count == 1 else 's'}", "bold") + _when(totals))
    for name, title in _COUNTED.items():
        if found := totals.counts[name].most_common():
            table = _table(title, "", "")
            table.columns[0].width, table.columns[1].min_width, table.columns[2].min_width = 32, 9, 6
            for label, count in found[:SHOWN]:
                share = "" if name in _PER_CALL else f"{count / totals.count:.1%}"
                table.add_row(escape_line(label), f"{count:,}", share)
            if len(found) > SHOWN:
                table.add_row(f"{len(found) - SHOWN} more", f"{sum(count for _, count in found[SHOWN:]):,}", "")
            screen.draw(table)
    if totals.rejects:
        screen.line(f"\n{totals.rejects:,} tool call blocks were rejected and sent as text")
    tokens = totals.tokens
    screen.line(screen.style("\ntokens", "dim"))
    screen.line(f"{tokens['input_tokens']:,} in, {tokens['cached_tokens']:,} of them cached")
    screen.line(f"{tokens['output_tokens']:,} out, {tokens['reasoning_tokens']:,} of them for reasoning")
    for currency, cost in totals.costs.items():
        screen.line(f"{cost / 10**9:.6f} {currency}")
    names = [*(f"p{share}" for share in PERCENTILES), "max"]
    table = _table("latency", "requests", *names)
    for label, latency in (("first event", totals.first), ("total", totals.total)):
        values = latency.as_json()
        table.add_row(label, f"{values['count']:,}", *(show_seconds(values[name]) or "-" for name in names))
    screen.draw(table)
    if len(totals.total.values) > 1:
        _draw_bars(screen, "duration of requests", _durations(totals.total.values))
    if len(totals.minutes) > 1:
        _draw_bars(screen, "requests over time", _times(totals.minutes))


def bar(count: int, largest: int, width: int) -> str:
    """A bar of up to `width` columns. rich's bar would show nothing for a small count."""
    eighths = max(1, round(count * width * 8 / largest)) if count else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _when(totals: Totals) -> str:
    if not totals.minutes:
        return ""
    first, last = _local(min(totals.minutes)), _local(max(totals.minutes))
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    rate = f"{totals.per_minute:.3g} per minute, at most {max(totals.minutes.values()):,}"
    return f", {first:%Y-%m-%d %H:%M} to {end}, {rate}"


def _durations(values: array[float]) -> list[tuple[str, int]]:
    """How many requests took how long; each row reaches to about twice the time of the one before."""
    ends = [0, *(bisect_left(values, bound) for bound in _BOUNDS), len(values)]
    names = [f"up to {show_seconds(bound)}" for bound in (*_BOUNDS, values[-1])]
    rows = [(name, end - start) for name, (start, end) in zip(names, pairwise(ends), strict=True)]
    for _ in range(2):  # without the empty ones at both ends
        rows = list(dropwhile(lambda row: not row[1], reversed(rows)))
    return rows


def _times(minutes: Counter[int]) -> list[tuple[str, int]]:
    """How many requests came when."""
    first, last = min(minutes), max(minutes)
    step = next((step for step in _STEPS if (last - first) // step < _ROWS), _STEPS[-1])
    offset = _local(first).utcoffset()  # so that days begin at midnight
    begin = first - (first + (int(offset.total_seconds()) // 60 if offset is not None else 0)) % step
    counts = Counter[int]()
    for minute, count in minutes.items():
        counts[(minute - begin) // step] += count
    form = "%m-%d %H:%M" if step < _DAY else "%Y-%m-%d"
    rows = [(f"{_local(begin + number * step):{form}}", counts[number]) for number in range((last - begin) // step + 1)]
    return rows[-4 * _ROWS :]


def _draw_bars(screen: Screen, title: str, rows: Iterable[tuple[str, int]]) -> None:
    rows = list(rows)
    table = _table(title, "", "")
    table.columns[2].justify, table.columns[2].style = "left", "cyan"
    largest = max(count for _, count in rows)
    for label, count in rows:
        table.add_row(label, f"{count:,}", bar(count, largest, max(10, min(screen.width, 100) - 34)))
    screen.draw(table)


def _table(title: str, *names: str) -> Table:
    """A table without lines: its title is the head of the first column, numbers are aligned to the right."""
    table = Table(title, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.columns[0].no_wrap = True
    return table


def _local(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC).astimezone()
