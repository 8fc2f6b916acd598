"""Requests as lines of a table, as wide as the terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from bridge.cli.log.terminal import Screen, fit, show_count, show_seconds
from bridge.protolog.filters import parse_log_time
from bridge.protolog.summary import Summary

_OUTCOME_STYLES = {"failed": "red", "cancelled": "yellow", "incomplete": "yellow", "unfinished": "magenta"}


@dataclass(frozen=True, slots=True)
class Table:
    """One line per request. What an 80-column terminal has no room for, a wider one shows."""

    screen: Screen
    model: int
    outcome: int
    path: int
    tools: int

    @classmethod
    def on(cls, screen: Screen) -> Table:
        """Columns for this screen: first the error's code, then the model's whole name, the tools, the endpoint."""
        extra = max(0, screen.width - 80)
        outcome = min(extra, 18)
        model = min(max(0, extra - outcome), 10)
        path = 21 if extra - outcome - model >= 42 else 0
        tools = extra - outcome - model - path
        return cls(screen, 14 + model, 10 + outcome, path, tools if tools >= 6 else 0)

    @property
    def head(self) -> str:
        """The names of the columns."""
        path = fit("path", self.path - 1) + " " if self.path else ""
        tools = " tools" if self.tools else ""
        line = (
            f"{'time':14} {'request':8} {path}{fit('model', self.model)} {fit('outcome', self.outcome)} "
            f"{'in':>4} {'out':>4} {'first':>5} {'total':>5} {'call':>4} {'rep':>3}{tools}"
        )
        return self.screen.style(line.rstrip(), "dim")

    def line(self, summary: Summary) -> str:
        """One request."""
        outcome = fit(told_outcome(summary) if self.outcome > 10 else summary.outcome, self.outcome)
        style = _OUTCOME_STYLES.get(summary.outcome)
        path = fit(summary.path, self.path - 1) + " " if self.path else ""
        parts = [
            _when_and_which(summary),
            path + fit(summary.requested_model or summary.model or "-", self.model),
            self.screen.style(outcome, style) if style else outcome,
            f"{show_count(summary.input_tokens) or '-':>4}",
            f"{show_count(summary.output_tokens) or '-':>4}",
            f"{show_seconds(summary.first_event_s) or '-':>5}",
            f"{show_seconds(summary.total_s) or '-':>5}",
            f"{_show_calls(summary):>4}",
            f"{len(summary.repairs) or '':>3}",
        ]
        if self.tools:
            parts.append(fit(show_tools(summary), self.tools - 1))
        return " ".join(parts).rstrip()


def _when_and_which(summary: Summary) -> str:
    """The time and the beginning of the id; of a transcript, which has no time, more of its name."""
    name = summary.short_id
    if summary.is_transcript and not summary.time:
        return fit(name, 23)
    short = fit(name, 8) if len(name) <= 8 else "".join(char if char.isprintable() else "?" for char in name[:8])
    return f"{show_time(summary.time)} {short}"


def told_outcome(summary: Summary) -> str:
    """The outcome with its error code or reason."""
    told = summary.error or summary.reason
    return f"{summary.outcome}:{told}" if told else summary.outcome


def _show_calls(summary: Summary) -> str:
    """How many calls; with a mark where arguments are not JSON."""
    return f"{len(summary.calls) or ''}{'!' if summary.invalid_arguments else ''}"


def show_tools(summary: Summary) -> str:
    """The tools that were called, each once; with a mark where arguments are not JSON."""
    counts, invalid = Counter(summary.calls), set(summary.invalid_arguments)
    return ", ".join(
        f"{name}{'!' if name in invalid else ''}{'' if count == 1 else f'×{count}'}" for name, count in counts.items()
    )


def show_time(text: str) -> str:
    """A record's time in fourteen characters, in the zone of this machine."""
    return _show_second(text[:19] + "Z" if text.endswith("Z") else text)


@lru_cache(maxsize=256)
def _show_second(text: str) -> str:
    time = local_time(text)
    return f"{time:%m-%d %H:%M:%S}" if time is not None else fit("-", 14)


def local_time(text: str) -> datetime | None:
    """A record's time in the zone of this machine; None for what is none."""
    time = parse_log_time(text)
    try:
        return time.astimezone() if time is not None else None
    except (OverflowError, ValueError):
        return time.astimezone(UTC) if time is not None else None
