"""One JSON object per request: what was asked, and the final answer put together from what the client was sent."""

from __future__ import annotations

from typing import Any

from bridge.protolog.answer import Choice
from bridge.protolog.asked import tools_offered
from bridge.protolog.export.answered import call_members, collect_answer, error_members
from bridge.protolog.export.cleaned import cleaned
from bridge.protolog.export.summarised import summary_of, usage_of
from bridge.protolog.loose import dump
from bridge.protolog.recording import Recording
from bridge.redact import Redactor


def jsonl_row(recording: Recording) -> bytes:
    """The line of a recording. Every line has the same members; docs/event-log.md tells what is in each."""
    recording = cleaned(recording)
    told, answer = summary_of(recording), collect_answer(recording)
    first = answer.choices[0] if answer.choices else Choice()
    row: dict[str, Any] = {
        "id": recording.id,
        "ts": recording.ts or None,
        "path": recording.path or None,
        "model": told.model or None,
        "requested_model": told.requested_model or None,
        "effort": (recording.start or {}).get("effort"),
        "backend": told.backend or None,
        "status": recording.status,
        "streamed": recording.streamed,
        "outcome": told.outcome,
        "reason": told.reason,
        "first_event_s": told.first_event_s,
        "total_s": told.total_s,
        "usage": usage_of(told) or answer.usage,
        "tools": tools_offered(recording.body),
        "repairs": told.repairs,
        "invalid_arguments": told.invalid_arguments,
        "request": recording.body,
        "response_id": answer.response_id,
        "answered_by": answer.source,
        **_choice(first),
        "choices": [_choice(choice) for choice in answer.choices] if len(answer.choices) > 1 else None,
        "error": error_members(answer.error),
    }
    return Redactor().json(dump(row)) + b"\n"


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "text": choice.joined("text"),
        "reasoning": choice.joined("reasoning"),
        "calls": [call_members(call) for call in choice.calls],
        "finish_reason": choice.finish_reason,
    }
