"""A recording in the few words of a list, so that exports tell and choose requests as `log ls` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bridge.protolog.assist import wishes_of
from bridge.protolog.filters import Filters
from bridge.protolog.recording import EGRESS, Recording
from bridge.protolog.summary import Summary

_USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


def summary_of(recording: Recording) -> Summary:
    """The summary of a recording."""
    asked = (recording.body or {}).get("model") or wishes_of(recording.body).get("model")
    model = asked if isinstance(asked, str) else ""
    run = recording.header.get("run")
    summary = Summary(recording.id, run if isinstance(run, str) else "", recording.ts, path=recording.path, model=model)
    summary.requested_model = model
    for kind, payload in recording.notes:
        summary.take_note(kind, payload)
    summary.take_start(recording.start)
    summary.take_end(recording.end)
    return summary


def usage_of(summary: Summary) -> dict[str, int] | None:
    """The tokens that are known; None when none are."""
    return {name: count for name in _USAGE if (count := getattr(summary, name)) is not None} or None


def accepted(recordings: Iterable[Recording], filters: Filters) -> Iterator[Recording]:
    """Those that fit all filters."""
    for recording in recordings:
        if filters.accepts(summary_of(recording), lambda _, held=recording: _records(held)):  # type: ignore[misc]
            yield recording


def _records(recording: Recording) -> Iterator[dict[str, Any]]:
    """What a text is looked for in."""
    yield {"phase": "http_ingress", "kind": "client_request", "payload": recording.request}
    for piece in recording.client:
        yield {"phase": EGRESS, "kind": piece.kind, "payload": piece.payload}
    for frames in recording.attempts.values():
        for frame in frames:
            yield {"phase": "backend_io", "kind": frame.kind, "payload": frame.payload}
    yield {"phase": "turn", "kind": "turn_end", "payload": recording.end}
