"""Totals for people: counts side by side, and two small plots."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from datetime import UTC, datetime

from bridge.cli.log.terminal import Screen, fit, show_seconds
from bridge.cli.log.totals import MINUTE, PERCENTILES, Latency, Totals

SHOWN = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    180,
    360,
    720,
    1440,
    2880,
    7 * 1440,
    14 * 1440,
    30 * 1440,
    90 * 1440,
    365 * 1440,
)
"""Lengths of a bar's time, in minutes."""
_ROWS = 16


def show_totals(screen: Screen, totals: Totals) -> None:
    """Everything that was counted."""
    if not totals.count:
        screen.line("no requests")
        return
    screen.line(screen.style(f"{totals.count:,} request{'' if totals.count == 1 else 's'}", "bold") + _when(totals))
    _show_counts(screen, "outcome", totals.outcomes, totals.count)
    _show_counts(screen, "error", totals.errors, totals.count)
    _show_counts(screen, "model", totals.models, totals.count)
    _show_counts(screen, "backend", totals.backends, totals.count)
    _show_counts(screen, "path", totals.paths, totals.count)
    _show_counts(screen, "tool called", totals.calls, None)
    _show_counts(screen, "repair", totals.repairs, None)
    _show_counts(screen, "arguments that are not JSON", totals.invalid_arguments, None)
    if totals.rejects:
        screen.line(f"\n{totals.rejects:,} blocks were rejected and given out as text")
    _show_tokens(screen, totals)
    _show_latencies(screen, totals)
    _plot_latency(screen, totals.total)
    _plot_times(screen, totals)


def bar(count: int, largest: int, width: int) -> str:
    """A bar of up to `width` columns; what is not nothing can be seen."""
    eighths = max(1, round(count * width * 8 / largest)) if count else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _when(totals: Totals) -> str:
    if not totals.minutes:
        return ""
    first, last = (_local(minute) for minute in (min(totals.minutes), max(totals.minutes)))
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M}"
    rate = totals.count * MINUTE / totals.seconds
    return f", {first:%Y-%m-%d %H:%M} to {end}, {rate:.3g} a minute, at most {max(totals.minutes.values()):,}"


def _show_counts(screen: Screen, name: str, counts: Counter[str], of: int | None) -> None:
    if not counts:
        return
    screen.line()
    screen.line(screen.style(name, "dim"))
    found = counts.most_common()
    for label, count in found[:SHOWN]:
        share = f" {count / of:6.1%}" if of else ""
        screen.line(f"  {fit(label, 32)} {count:>9,}{share}")
    if len(found) > SHOWN:
        rest = sum(count for _, count in found[SHOWN:])
        screen.line(f"  {fit(f'{len(found) - SHOWN} more', 32)} {rest:>9,}")


def _show_tokens(screen: Screen, totals: Totals) -> None:
    tokens = totals.tokens
    screen.line()
    screen.line(screen.style("tokens", "dim"))
    screen.line(f"  {tokens['input_tokens']:,} in, {tokens['cached_tokens']:,} of them cached")
    screen.line(f"  {tokens['output_tokens']:,} out, {tokens['reasoning_tokens']:,} of them for reasoning")


def _show_latencies(screen: Screen, totals: Totals) -> None:
    screen.line()
    names = [f"p{share}" for share in PERCENTILES] + ["max"]
    screen.line(screen.style(f"{'latency':14} {'requests':>9} " + " ".join(f"{name:>7}" for name in names), "dim"))
    for label, latency in (("first event", totals.first), ("in all", totals.total)):
        told = latency.as_json()
        values = " ".join(f"{show_seconds(told[name]) or '-':>7}" for name in names)
        screen.line(f"  {label:12} {told['count']:>9,} {values}")


def _plot_latency(screen: Screen, latency: Latency) -> None:
    """How many took how long, from the shortest to the longest; each bar reaches to about twice the time."""
    values = latency.values
    if len(values) < 2:
        return
    bounds = [step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5)]
    counts: list[tuple[float, int]] = []
    before = 0
    for bound in bounds:
        upto = bisect_left(values, bound)
        counts.append((bound, upto - before))
        before = upto
    if before < len(values):
        counts.append((values[-1], len(values) - before))
    while counts and not counts[0][1]:
        counts.pop(0)
    while counts and not counts[-1][1]:
        counts.pop()
    screen.line()
    screen.line(screen.style("how long requests took", "dim"))
    _plot(screen, [(f"up to {show_seconds(bound)}", count) for bound, count in counts])


def _plot_times(screen: Screen, totals: Totals) -> None:
    """When requests came."""
    if len(totals.minutes) < 2:
        return
    first, last = min(totals.minutes), max(totals.minutes)
    step = next((step for step in _STEPS if (last - first) // step < _ROWS), _STEPS[-1])
    begin = first - (first + _offset(first)) % step
    counts = [0] * ((last - begin) // step + 1)
    for minute, count in totals.minutes.items():
        counts[(minute - begin) // step] += count
    form = "%m-%d %H:%M" if step < 1440 else "%Y-%m-%d"
    screen.line()
    screen.line(screen.style("requests over time", "dim"))
    rows = [(f"{_local(begin + number * step):{form}}", count) for number, count in enumerate(counts)]
    _plot(screen, rows[-4 * _ROWS :])


def _plot(screen: Screen, rows: list[tuple[str, int]]) -> None:
    largest = max((count for _, count in rows), default=0)
    width = max(10, min(screen.width, 100) - 28)
    for label, count in rows:
        drawn = bar(count, largest, width) if largest else ""
        screen.line(f"  {label:>14} {count:>8,} {screen.style(drawn, 'cyan')}".rstrip())


def _local(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * MINUTE, UTC).astimezone()


def _offset(minute: int) -> int:
    """The minutes between this machine's zone and UTC, so that days begin at midnight."""
    offset = _local(minute).utcoffset()
    return int(offset.total_seconds()) // MINUTE if offset is not None else 0
