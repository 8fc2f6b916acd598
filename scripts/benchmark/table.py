"""Parts, their rows and goals; the table on the terminal and the one in docs/performance.md."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from side_by_side import ROOT, Run, Values


@dataclass(frozen=True)
class Goal:
    """A number that a row is to reach."""

    sign: str
    value: float
    scales: Literal["", "time", "rate"] = ""
    """How it depends on the machine's speed: twice as slow doubles a time and halves a rate."""

    def on(self, ratio: float) -> Goal:
        """The goal on a machine that is this many times slower than the one the goals were set on."""
        if not self.scales:
            return self
        value = self.value * ratio if self.scales == "time" else self.value / ratio
        return Goal(self.sign, float(f"{value:.3g}"))

    def is_met(self, value: float) -> bool:
        return value <= self.value if self.sign == "≤" else value >= self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:,g}" if self.value < 1e6 else f"{self.sign} {self.value:,.0f}"


def at_most(value: float) -> Goal:
    """For memory, counts and ratios: the same on every machine."""
    return Goal("≤", value)


def time_at_most(value: float) -> Goal:
    """For CPU time, latency, start-up and shares of a core: scaled by the machine's speed."""
    return Goal("≤", value, "time")


def rate_at_least(value: float) -> Goal:
    """For work per second: scaled by the machine's speed."""
    return Goal("≥", value, "rate")


Rows = Mapping[str, Goal | None]


@dataclass(frozen=True)
class Part:
    """Something that is measured in one go: its rows with their goals, and how."""

    name: str
    rows: Rows
    measure: Callable[[Run], list[Values]]
    """The rows' numbers for each version."""

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Whether its name or one of its rows does."""
        return any(map(pattern.search, (self.name, *self.rows)))


def scaled(rows: Rows, ratio: float) -> Rows:
    """The rows with the goals for a machine that is this many times slower."""
    return {name: goal and goal.on(ratio) for name, goal in rows.items()}


def shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == 0 else f"{value:,.2f}"


def missed(rows: Rows, values: Values) -> list[str]:
    """The rows whose goal is not met. A goal without a number is not met."""
    return [name for name, goal in rows.items() if goal and not (name in values and goal.is_met(values[name]))]


def text_table(rows: Rows, names: Sequence[str], columns: Sequence[Values]) -> str:
    """For people: one version and whether it meets the goals, or two and the first divided by the second."""
    lines = [("", *names, *["ratio"][: len(names) - 1], "")]
    failed = missed(rows, columns[0])
    for row, goal in rows.items():
        values = [column.get(row) for column in columns]
        first, *others = values
        ratios = [f"{first / other:.2f}" if first is not None and other else "" for other in others]
        verdict = "" if goal is None else f"{'MISSED' if row in failed else 'ok    '} (goal {goal})"
        lines.append((row, *map(shown, values), *ratios, verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join((first.ljust(widths[0]), *map(str.rjust, rest[:-1], widths[1:-1]), rest[-1])).rstrip()
        for first, *rest in lines
    )


def page_table(rows: Rows, values: Values) -> str:
    """For docs/performance.md."""
    lines = ["| what | measured | goal |", "|---|---:|---:|"]
    lines += [f"| {name} | {shown(values.get(name))} | {goal or ''} |" for name, goal in rows.items()]
    return "\n".join(lines)


def put_into_page(mark: str, table: str, *notes: str, page: Path = ROOT / "docs" / "performance.md") -> None:
    """Replace what is between the marks of this name in docs/performance.md."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        sys.exit(f"docs/performance.md has no lines {begin!r} and {end!r} any more; put them back.")
    page.write_text(f"{before}{begin}\n{table}\n\n" + "\n\n".join(notes) + f"\n\n{end}{after}")


def machine() -> str:
    """What the numbers were measured on, and when."""
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    model = names[0] if names else "unknown"
    return f"{os.cpu_count()} cores ({model}), Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}."
