"""Filters that choose requests of a log, the same for all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from bridge.errors import UsageError
from bridge.exact_json import member, text_of
from bridge.log.log import Log, begins_with
from bridge.log.summary import OUTCOMES, Summary

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Filters:
    """A request must match all of them. `parse_filters` makes them from what was typed."""

    model: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tool: str | None = None
    req: str | None = None
    path: str | None = None
    grep: str | None = None

    @property
    def are_none(self) -> bool:
        return self == Filters()

    def wants_id(self, name: str) -> bool:
        """Whether a request of this id can match."""
        return self.req is None or begins_with(name, self.req)

    def accepts(self, summary: Summary, records: Callable[[Summary], Iterable[dict[str, Any]]]) -> bool:
        """Whether a request matches. `records` returns its records; they are read only for `grep`."""
        return (
            self.wants_id(summary.id)
            and (self.model is None or any(fits(self.model, name) for name in (summary.model, summary.requested_model)))
            and self._fits_outcome(summary)
            and self.fits_time(summary.time)
            and (self.tool is None or any(fits(self.tool, call) for call in summary.calls))
            and (self.path is None or fits(self.path, summary.path) or self.path in summary.path)
            and (self.grep is None or contains(records(summary), self.grep))
        )

    def _fits_outcome(self, summary: Summary) -> bool:
        if self.outcome is None:
            return True
        outcome, _, code = self.outcome.partition(":")
        return summary.outcome == outcome and (not code or fits(code, summary.error or summary.reason or ""))

    def fits_time(self, text: str) -> bool:
        """Whether a time of the log is between `since` and `until`."""
        if self.since is None and self.until is None:
            return True
        time = parse_log_time(text)
        if time is None:
            return False
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)


def chosen(log: Log, filters: Filters) -> Iterator[Summary]:
    """The requests that match the filters."""
    if filters.are_none:
        yield from log.summaries()
        return
    for summary in log.summaries(filters.wants_id):
        if filters.accepts(summary, log.records):
            yield summary


def parse_filters(
    now: datetime,
    *,
    outcome: str | None = None,
    since: str | None = None,
    until: str | None = None,
    **texts: str | None,
) -> Filters:
    """Parse the options. `now` has a time zone. Raises UsageError for an invalid value."""
    for name, value in texts.items():
        if value is not None and not value.strip():
            raise UsageError(f"--{name} is empty. Give a value or omit the option.")
    if outcome is not None and outcome.partition(":")[0] not in OUTCOMES:
        raise UsageError(
            f"Invalid --outcome '{outcome}'. Choose {', '.join(OUTCOMES)}, or add a code: failed:rate_limit_exceeded."
        )
    return Filters(
        outcome=outcome,
        since=parse_time("--since", since, now) if since is not None else None,
        until=parse_time("--until", until, now) if until is not None else None,
        **texts,
    )


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """A time: ISO (in the zone of `now` unless it has another), a time of today, or how long ago."""
    written = text.strip()
    ago = _AGO.fullmatch(written)
    try:
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        today = re.fullmatch(r"\d\d:\d\d(:\d\d)?", written)
        time = datetime.fromisoformat(f"{now:%Y-%m-%d}T{written}" if today else written)
    except (ValueError, OverflowError):
        raise UsageError(
            f"Invalid {option} '{text}'. Use 2026-03-01, 2026-03-01T08:30, 08:30, or how long ago: 90s, 10m, 2h, 3d."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=now.tzinfo)


def parse_log_time(text: str) -> datetime | None:
    """The time of a record; None if it is not valid."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def fits(pattern: str, value: str) -> bool:
    """Whether a name matches a pattern with `*` and `?`, ignoring case."""
    return fnmatchcase(value.lower(), pattern.lower())


def contains(records: Iterable[dict[str, Any]], text: str) -> bool:
    """Whether a request or its answer contains a text, ignoring case."""
    # Imported here: the parsers of requests take longer to load than most commands take to run.
    from bridge.log.content import AnswerReader, BackendReader, sent_values
    from bridge.log.request import messages_from_body

    wanted = text.casefold()
    backend, client = BackendReader(), AnswerReader()
    for record in records:
        kind, payload = record["kind"], record.get("payload")
        if kind == "client_request" and isinstance(payload, dict):
            body = payload.get("body")
            if wanted in text_of(body).casefold():
                return True
            messages = messages_from_body(body) if isinstance(body, dict) else ()
            if any(wanted in part.text.casefold() for message in messages for part in message):
                return True
        elif record["phase"] == "client_egress":
            if not backend.has_begun:  # else the client got the same text
                for value in sent_values(kind, payload):
                    client.take(value)
        elif kind == "turn_end" and wanted in text_of(member(payload, "error")).casefold():
            return True
        else:
            backend.add(kind, payload)
    return any(wanted in part.words.casefold() for part in [*backend.parts, *client.answer().parts])
