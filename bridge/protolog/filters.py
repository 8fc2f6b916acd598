"""Which requests of a log are meant: one set of filters for all commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from bridge.errors import UsageError
from bridge.protolog.answer import AnswerReader, sent_values
from bridge.protolog.asked import messages_from_body
from bridge.protolog.heard import Heard
from bridge.protolog.log import begins_with
from bridge.protolog.loose import dumps
from bridge.protolog.summary import OUTCOMES, Summary

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Filters:
    """All of them must fit. The texts are as they were typed; `parse_filters` makes one from them."""

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
        """Whether everything fits."""
        return self == Filters()

    def wants_id(self, name: str) -> bool:
        """Whether a request of this id can fit."""
        return self.req is None or begins_with(name, self.req)

    def accepts(self, summary: Summary, records: Callable[[Summary], Iterable[dict[str, Any]]]) -> bool:
        """Whether a request fits. `records` gives its lines; they are read only for `grep`."""
        return (
            self.wants_id(summary.id)
            and self._fits_model(summary)
            and self._fits_outcome(summary)
            and self._fits_time(summary)
            and (self.tool is None or any(fits(self.tool, call) for call in summary.calls))
            and (self.path is None or fits(self.path, summary.path) or self.path in summary.path)
            and (self.grep is None or holds(records(summary), self.grep))
        )

    def _fits_model(self, summary: Summary) -> bool:
        return self.model is None or fits(self.model, summary.model) or fits(self.model, summary.requested_model)

    def _fits_outcome(self, summary: Summary) -> bool:
        if self.outcome is None:
            return True
        outcome, _, code = self.outcome.partition(":")
        told = summary.error or summary.reason or ""
        return summary.outcome == outcome and (not code or fits(code, told))

    def _fits_time(self, summary: Summary) -> bool:
        if self.since is None and self.until is None:
            return True
        time = parse_log_time(summary.time)
        if time is None:
            return False
        return (self.since is None or time >= self.since) and (self.until is None or time <= self.until)


def parse_filters(
    now: datetime,
    *,
    model: str | None = None,
    outcome: str | None = None,
    since: str | None = None,
    until: str | None = None,
    tool: str | None = None,
    req: str | None = None,
    path: str | None = None,
    grep: str | None = None,
) -> Filters:
    """Filters as they were typed. `now` has a time zone. Raises UsageError for what makes no sense."""
    for name, value in (("model", model), ("tool", tool), ("req", req), ("path", path), ("grep", grep)):
        if value is not None and not value.strip():
            raise UsageError(f"--{name} is empty. Write what to look for, or leave it out.")
    if outcome is not None and outcome.partition(":")[0] not in OUTCOMES:
        raise UsageError(
            f"--outcome {outcome} is none. Write {', '.join(OUTCOMES)}, or with a code: failed:rate_limit_exceeded."
        )
    return Filters(
        model,
        outcome,
        parse_time("--since", since, now) if since is not None else None,
        parse_time("--until", until, now) if until is not None else None,
        tool,
        req,
        path,
        grep,
    )


def parse_time(option: str, text: str, now: datetime) -> datetime:
    """A time: ISO (in the zone of `now` unless it says another), a time of today, or how long ago."""
    written = text.strip()
    ago = _AGO.fullmatch(written)
    try:
        if ago is not None:
            return now - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        today = re.fullmatch(r"\d\d:\d\d(:\d\d)?", written)
        time = datetime.fromisoformat(f"{now:%Y-%m-%d}T{written}" if today else written)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option} {text} is no time. Write 2026-03-01, 2026-03-01T08:30, 08:30, or how long ago: 90s, 10m, 2h, 3d."
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=now.tzinfo)


def parse_log_time(text: str) -> datetime | None:
    """The time of a record; None for what is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def fits(pattern: str, value: str) -> bool:
    """Whether a name fits a pattern with `*` and `?`, whatever its case."""
    return fnmatchcase(value.lower(), pattern.lower())


def holds(records: Iterable[dict[str, Any]], text: str) -> bool:
    """Whether a request, or its answer, holds a text, whatever its case."""
    wanted = text.casefold()
    backend, client = Heard(), AnswerReader()
    for record in records:
        kind, payload = record["kind"], record.get("payload")
        if kind == "client_request" and isinstance(payload, dict):
            body = payload.get("body")
            if wanted in dumps(body).casefold():
                return True
            asked = messages_from_body(body) if isinstance(body, dict) else ()
            if any(wanted in part.text.casefold() for message in asked for part in message):
                return True
        elif record["phase"] == "client_egress":
            if not backend.has_begun:  # else the client got the same words
                for value in sent_values(kind, payload):
                    client.take(value)
        elif kind == "turn_end" and isinstance(payload, dict) and wanted in dumps(payload.get("error")).casefold():
            return True
        else:
            backend.add(kind, payload)
    return any(wanted in part.words.casefold() for part in [*backend.parts, *client.answer().parts])
