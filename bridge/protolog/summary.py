"""One request of a log in a few words: what `log ls` shows, and where in the files its lines stand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTCOMES = ("completed", "incomplete", "failed", "cancelled", "unfinished")
"""How a request can end; the last one: the log does not tell its end."""
TRANSCRIPT = "transcript"
"""The path of a request that nobody made: its turn stands in a plain transcript."""
MESSAGE_KEPT = 400


@dataclass(slots=True)
class Span:
    """Where lines of a request stand: between two bytes of a file, beside those of others."""

    file: str
    start: int
    end: int


@dataclass(slots=True)
class Summary:
    """One request. What the log does not tell is None, or empty."""

    id: str
    run: str = ""
    time: str = ""
    """When it came, ISO; empty in a transcript, and where its beginning is missing."""
    ended: str = ""
    path: str = ""
    model: str = ""
    requested_model: str = ""
    backend: str = ""
    outcome: str = "unfinished"
    reason: str | None = None
    error: str | None = None
    """The error's code."""
    message: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    first_event_s: float | None = None
    total_s: float | None = None
    calls: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    invalid_arguments: list[str] = field(default_factory=list)
    """The tools that were called with arguments that are not JSON."""
    rejects: int = 0
    begun: bool = True
    """Whether its beginning is in the log."""
    spans: list[Span] = field(default_factory=list)

    @property
    def is_transcript(self) -> bool:
        """Whether it was made up from a plain transcript."""
        return self.path == TRANSCRIPT

    @property
    def short_id(self) -> str:
        """Enough of the id to ask for it."""
        return self.id.removeprefix("req_")[:8] if self.id.startswith("req_") else self.id

    def take_start(self, payload: Any) -> None:
        """What `turn_start` tells."""
        if isinstance(payload, dict):
            self.model = _text(payload.get("model")) or self.model
            self.requested_model = _text(payload.get("requested_model")) or self.requested_model
            self.backend = _text(payload.get("backend"))

    def take_end(self, payload: Any) -> None:
        """What `turn_end` tells; older logs tell less."""
        if not isinstance(payload, dict):
            return
        outcome = payload.get("outcome")
        self.outcome = outcome if isinstance(outcome, str) and outcome in OUTCOMES else "unfinished"
        reason, error, usage = payload.get("reason"), payload.get("error"), payload.get("usage")
        self.reason = reason if isinstance(reason, str) else None
        if isinstance(error, dict):
            self.error = _text(error.get("code")) or "unknown"
            self.message = _text(error.get("message"))[:MESSAGE_KEPT]
        if isinstance(usage, dict):
            self.input_tokens = _count(usage.get("input_tokens"))
            self.cached_tokens = _count(usage.get("cached_tokens"))
            self.output_tokens = _count(usage.get("output_tokens"))
            self.reasoning_tokens = _count(usage.get("reasoning_tokens"))
        self.first_event_s = _seconds(payload.get("first_event_s"))
        self.total_s = _seconds(payload.get("total_s"))
        if isinstance(payload.get("calls"), list):
            self.calls = _texts(payload["calls"])
        if isinstance(payload.get("repairs"), list):
            self.repairs = _texts(payload["repairs"])
        if isinstance(payload.get("invalid_arguments"), list):
            self.invalid_arguments = _texts(payload["invalid_arguments"])

    def take_note(self, kind: str, payload: Any) -> None:
        """What was noted while calls were parsed; logs of format 1 tell of calls only here."""
        if kind == "tool_reject":
            self.rejects += 1
        elif isinstance(payload, dict) and kind == "tool_call":
            self.calls.append(_text(payload.get("name")))
        elif isinstance(payload, dict) and kind == "tool_repair" and isinstance(payload.get("repairs"), list):
            self.repairs += _texts(payload["repairs"])

    def joined(self, later: Summary) -> Summary:
        """This one, which goes on in the next file, with what that file tells of it."""
        later.time, later.begun = self.time or later.time, self.begun or later.begun
        later.path, later.run = later.path or self.path, later.run or self.run
        later.model, later.requested_model = later.model or self.model, later.requested_model or self.requested_model
        later.backend = later.backend or self.backend
        if not later.run:  # Format 1: half of the notes may stand in each file.
            later.calls, later.repairs = self.calls + later.calls, self.repairs + later.repairs
        later.rejects += self.rejects
        later.spans = self.spans + later.spans
        return later


def summary_from_json(data: dict[str, Any]) -> Summary:
    """A summary as it was written. Raises TypeError or KeyError for anything else."""
    data["spans"] = [Span(**span) for span in data["spans"]]
    return Summary(**data)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _texts(values: list[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
