"""When an encoder of CAP looked at the clock, from what it told then: so it can tell the same again. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from bridge.protolog.loose import member

_AT_THE_END = ("metrics", "user_error")
_BEFORE_THE_ANSWER = "reconnecting"
_FAILING_HALF = 0.5
"""Seconds after which a wait of whole seconds, added to the time, gives the recorded moment."""


def assist_moments(told: list[dict[str, Any]], end: dict[str, Any] | None) -> list[float]:
    """The times in order: of the beginning, of the first thing that was shown, of each event, of the end.

    `told` are all packets, or the one answer; `end` is how the turn ended. Where no time is told, none is given.
    """
    metrics, ended = _metrics(told), _ended(told, end)
    if ended is None:
        return []
    begun = ended - _seconds(metrics.get("duration_ms"))
    first = begun + _seconds(metrics.get("ttft_ms")) if "ttft_ms" in metrics else ended
    if len(told) == 1 and "op" not in told[0]:
        # Of an answer that is one object, all other times are unknown, and so are told as that of its end.
        return [begun, first, ended] if "ttft_ms" in metrics else [begun, ended]
    return [begun, *_events(told, first, ended), ended]


def _events(told: list[dict[str, Any]], first: float, ended: float) -> Iterator[float]:
    shown = over = False
    for packet in told:
        kind = member(packet, "p", "type")
        at_the_end = kind in _AT_THE_END or packet.get("op") in ("error", "close")
        if not shown and not at_the_end and member(packet, "p", "data", "label") != _BEFORE_THE_ANSWER:
            shown = True
            yield first
        if not over and at_the_end:
            over = True
            yield ended
        time = _time(member(packet, "p", "timestamp"))
        if packet.get("op") == "event" and time is not None:
            yield time


def _ended(told: list[dict[str, Any]], end: dict[str, Any] | None) -> float | None:
    """When the end was told: as it says itself, or as the last event does."""
    for said in told:
        resets = _time(member(said.get("p", said), "details", "resets_at"))
        wait = member(end, "error", "retry_after")
        if resets is not None and isinstance(wait, int | float):
            return resets - wait + _FAILING_HALF
        if "op" not in said and (created := _time(said.get("created_at"))) is not None:
            return created
        if member(said, "p", "type") in _AT_THE_END:
            return _time(member(said, "p", "timestamp"))
    times = [time for said in told if (time := _time(member(said, "p", "timestamp"))) is not None]
    return times[-1] if times else None


def _metrics(told: list[dict[str, Any]]) -> dict[str, Any]:
    for said in told:
        found = member(said, "p", "data") if member(said, "p", "type") == "metrics" else said.get("metrics")
        if isinstance(found, dict):
            return found
    return {}


def _seconds(milliseconds: Any) -> float:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else 0.0


def _time(text: Any) -> float | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time.timestamp() if time is not None and time.tzinfo is not None else None
