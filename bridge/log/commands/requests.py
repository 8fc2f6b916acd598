"""The requests of a log: those that the user means, and one line for each, as wide as the terminal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from bridge.errors import UsageError
from bridge.log.filters import Filters, chosen, parse_log_time
from bridge.log.log import Log, cache_dir
from bridge.log.read import RecordReader, Trouble, log_files, refuse_other_files
from bridge.log.recording import Recording, read_recordings
from bridge.log.summary import Summary
from bridge.terminal import Screen, escape_line, fit, printing, say

NO_FILTERS = Filters()
LISTED = 12
"""Ids that are listed when a beginning is ambiguous."""
_STYLES = {"failed": "red", "cancelled": "yellow", "incomplete": "yellow", "unfinished": "magenta"}


@contextmanager
def reading(*paths: Path, no_index: bool) -> Iterator[tuple[Screen, list[Log]]]:
    """A screen and logs. The faults of the logs are reported at the end, also when a request is not found."""
    with printing() as screen:
        logs = [Log(path, None if no_index else cache_dir(), on_read=screen.progress.advance) for path in paths]
        screen.progress.size = sum(log.size for log in logs)
        troubles = {log.path: log.trouble for log in logs}.values()
        try:
            yield screen, logs
        except UsageError:
            report(screen, *troubles)
            raise
        report(screen, *troubles)


def report(screen: Screen, *troubles: Trouble) -> None:
    """Report the faults of logs on stderr."""
    screen.flush()
    screen.progress.clear()
    for trouble in troubles:
        for sentence in trouble.sentences():
            say("note", f"{sentence}.")


def report_none(filters: Filters) -> None:
    """Report on stderr that there is nothing to show."""
    say("note", "the log contains no requests." if filters.are_none else "no request matches the filters.")


class MatchingRecordings:
    """The requests of a log that match the filters, whole, in the order in which they ended.

    The iteration raises ConfigError at its end if no line of the log is a record.
    """

    def __init__(self, path: Path, filters: Filters, screen: Screen) -> None:
        self.reader = RecordReader(log_files(path), on_read=screen.progress.advance)
        self.count = 0
        """How many there were so far."""
        self._path, self._filters, self._screen = path, filters, screen

    def __iter__(self) -> Iterator[Recording]:
        from bridge.log.export import records_of, summary_of

        reader, filters, progress = self.reader, self._filters, self._screen.progress
        progress.size = sum(file.stat().st_size for file in reader.files)
        for recording in read_recordings(reader):
            if filters.are_none or filters.accepts(summary_of(recording), lambda _: records_of(recording)):  # noqa: B023
                self.count += 1
                yield recording
        progress.clear()
        if reader.found_nothing:
            refuse_other_files(self._path, reader.files, reader.trouble)


def find_request(log: Log, prefix: str | None, filters: Filters = NO_FILTERS) -> Summary:
    """The request whose id begins with `prefix`, or the last one, of those that match the filters.

    Raises UsageError when none or several match. The same request twice (a log that was copied to another) is not
    ambiguous: the later one is meant.
    """
    matching = "" if filters.are_none else " that matches the filters"
    if prefix is None:
        last = deque(chosen(log, filters), maxlen=1)
        if not last:
            raise UsageError(f"{log.path} holds no request{matching}.")
        return last.pop()
    wanted = prefix.strip().partition("#")[0]
    found = [summary for summary in log.find(wanted) if filters.accepts(summary, log.records)] if wanted else []
    found = [summary for summary in found if summary.id in (wanted, f"req_{wanted}")] or found
    if not found:
        raise UsageError(f"No request{matching} in {log.path} begins with {prefix!r}. `log ls` lists them.")
    if len({summary.id for summary in found}) > 1:
        lines = [f"{len(found)} requests begin with {prefix!r}; write more of the id:"]
        lines += [f"  {escape_line(each.id)} {show_time(each.time)} {show_outcome(each)}" for each in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"  … and {len(found) - LISTED} more")
        raise UsageError("\n".join(lines))
    return found[-1]


class Table:
    """One line per request. A terminal wider than 80 columns shows more: first the error's code, then the whole name of
    the model, the tools, and the endpoint."""

    def __init__(self, screen: Screen) -> None:
        extra = max(0, screen.width - 80)
        self._screen = screen
        self._outcome = 10 + min(extra, 18)
        extra = max(0, extra - 18)
        self._model = 14 + min(extra, 10)
        extra = max(0, extra - 10)
        self._path = 21 if extra >= 42 else 0
        self._tools = extra - self._path if extra >= 6 else 0

    @property
    def head(self) -> str:
        path = fit("path", self._path - 1) + " " if self._path else ""
        line = (
            f"{'time':14} {'request':8} {path}{fit('model', self._model)} {fit('outcome', self._outcome)} "
            f"{'in':>4} {'out':>4} {'first':>5} {'total':>5} {'call':>4} {'rep':>3}{' tools' if self._tools else ''}"
        )
        return self._screen.style(line.rstrip(), "dim")

    def line(self, summary: Summary) -> str:
        outcome = fit(show_outcome(summary) if self._outcome > 10 else summary.outcome, self._outcome)
        style = _STYLES.get(summary.outcome)
        path = fit(summary.path, self._path - 1) + " " if self._path else ""
        counts = Counter(summary.calls)
        tools = ", ".join(
            f"{name}{'!' if name in summary.invalid_arguments else ''}{'' if count == 1 else f'×{count}'}"
            for name, count in counts.items()
        )
        parts = [
            _when_and_which(summary),
            path + fit(summary.requested_model or summary.model or "-", self._model),
            self._screen.style(outcome, style) if style else outcome,
            f"{show_count(summary.input_tokens) or '-':>4}",
            f"{show_count(summary.output_tokens) or '-':>4}",
            f"{show_seconds(summary.first_event_s) or '-':>5}",
            f"{show_seconds(summary.total_s) or '-':>5}",
            f"{len(summary.calls) or ''}{'!' if summary.invalid_arguments else ''}".rjust(4),
            f"{len(summary.repairs) or '':>3}",
            fit(tools, self._tools - 1) if self._tools else "",
        ]
        return " ".join(parts).rstrip()


def _when_and_which(summary: Summary) -> str:
    """The time and the beginning of the id; of a transcript, which has no time, more of its name."""
    name = summary.short_id
    if summary.is_transcript and not summary.time:
        return fit(name, 23)
    short = fit(name, 8) if len(name) <= 8 else "".join(char if char.isprintable() else "?" for char in name[:8])
    return f"{show_time(summary.time)} {short}"


def show_outcome(summary: Summary) -> str:
    """The outcome with its error code or reason."""
    why = summary.error or summary.reason
    return f"{summary.outcome}:{why}" if why else summary.outcome


def show_time(text: str) -> str:
    """A record's time in fourteen characters, in the zone of this machine."""
    return _show_second(text[:19] + "Z" if text.endswith("Z") else text)


@lru_cache(maxsize=256)
def _show_second(text: str) -> str:
    time = local_time(text)
    return f"{time:%m-%d %H:%M:%S}" if time is not None else fit("-", 14)


def local_time(text: str) -> datetime | None:
    """A record's time in the zone of this machine; None if it is not a time."""
    time = parse_log_time(text)
    try:
        return time.astimezone() if time is not None else None
    except (OverflowError, ValueError):
        return time.astimezone(UTC) if time is not None else None


def show_count(count: int | None) -> str:
    """A number in at most four characters; empty for none."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    return "huge"


def show_seconds(seconds: float | None) -> str:
    """A duration in at most five characters; empty for none."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    for limit, digits in ((9.995, 2), (99.95, 1), (999.5, 0)):
        if seconds < limit:
            return f"{seconds:.{digits}f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, of_hour = divmod(minutes, 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    return f"{hours}h{of_hour:02}" if hours < 100 else f"{hours // 24}d"
