"""What the log says of a turn's beginning and end, however the request came. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.protolog.loose import is_json
from bridge.protolog.record import error_record
from bridge.turn.events import Choice, Finished, Rerouted, ToolCall, TurnEvent, Usage
from bridge.turn.turn import Turn


def turn_start(turn: Turn, backend: str, dropped: Sequence[str], *, counts_tokens: bool = False) -> dict[str, Any]:
    """The payload of `turn_start`: the model, what is not passed on, and whether the bridge itself enforces the limit
    of tokens.
    """
    return {
        "model": turn.model,
        "requested_model": turn.requested_model,
        "effort": turn.effort,
        "backend": backend,
        **({} if turn.provider is None else {"provider": turn.provider}),
        "dropped": list(dropped),
        **({"counts_tokens": True} if counts_tokens and turn.max_output_tokens is not None else {}),
    }


def turn_end(
    end: Finished,
    usage: Usage | None,
    calls: Sequence[ToolCall],
    first_event_s: float | None,
    total_s: float,
    rerouted: str | None = None,
) -> dict[str, Any]:
    """The payload of `turn_end`: how it ended, what it cost, and what was called. Times in seconds.

    `rerouted` is the model that answered, where that was not the one that was asked for.
    """
    about: dict[str, Any] = {} if rerouted is None else {"rerouted_to": rerouted}
    if invalid := invalid_arguments(calls):
        about["invalid_arguments"] = invalid
    return about | {
        "outcome": end.outcome,
        "reason": end.reason,
        "error": error_record(end.error) if end.error else None,
        "usage": None if usage is None else _tokens(usage),
        "calls": [call.name for call in calls],
        "repairs": [repair for call in calls for repair in call.repairs],
        "first_event_s": first_event_s,
        "total_s": total_s,
    }


def calls_in(events: list[TurnEvent]) -> tuple[ToolCall, ...]:
    """The calls among events, in each choice too."""
    found: list[ToolCall] = []
    for event in events:
        if isinstance(event, ToolCall):
            found.append(event)
        elif isinstance(event, Choice):
            found += calls_in(event.events)
    return tuple(found)


def invalid_arguments(calls: Sequence[ToolCall]) -> list[str]:
    """The tools that were called with arguments that are not JSON. A custom tool takes any text."""
    return [call.name for call in calls if not call.custom and not is_json(call.arguments)]


def rerouted_in(events: list[TurnEvent]) -> str | None:
    """The model that answers instead of the one that was asked for, where these events say so."""
    for event in events:
        found = rerouted_in(event.events) if isinstance(event, Choice) else None
        found = event.model if isinstance(event, Rerouted) else found
        if found is not None:
            return found
    return None


def _tokens(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "cached_tokens": usage.cached,
        "output_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
    }
