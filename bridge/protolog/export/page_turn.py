"""One request as the page has it: a row for the list, and two blocks that are read when they are looked at."""

from __future__ import annotations

from typing import Any

from bridge.protolog.answer import Answer
from bridge.protolog.asked import Part, messages_from_body, tools_offered, with_words
from bridge.protolog.crashes import exit_cause, last_words
from bridge.protolog.export.answered import collect_answer, error_members
from bridge.protolog.export.marked import PLAIN, marked
from bridge.protolog.export.summarised import summary_of, usage_of
from bridge.protolog.loose import dump, text_of
from bridge.protolog.recording import Frame, Recording

PREVIEW = 160
_DANGEROUS = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


def script_safe(value: Any) -> bytes:
    """JSON that may stand in a script element, whatever it says: nothing in it can end the element or begin a comment.

    These characters occur in JSON within strings only, where their escapes mean the same.
    """
    data = dump(value)
    for character, escape in _DANGEROUS.items():
        data = data.replace(character, escape)
    return data


def list_row(recording: Recording) -> dict[str, Any]:
    """What the list of turns shows, and finds without opening the turn."""
    told = summary_of(recording)
    return {
        "id": recording.id,
        "ts": recording.ts,
        "model": told.model or "?",
        "outcome": told.outcome,
        "reason": told.reason,
        "in": told.input_tokens,
        "out": told.output_tokens,
        "first": told.first_event_s,
        "total": told.total_s,
        "calls": told.calls,
        "repairs": told.repairs,
        "invalid": told.invalid_arguments,
        "error": told.error,
        "preview": _preview(recording),
        "path": recording.path,
    }


def conversation_block(recording: Recording) -> dict[str, Any]:
    """What was said: read when a turn is opened, or searched."""
    told, answer = summary_of(recording), collect_answer(recording)
    return {
        "path": recording.path,
        "backend": told.backend,
        "requested": told.requested_model,
        "effort": (recording.start or {}).get("effort"),
        "status": recording.status,
        "streamed": recording.streamed,
        "usage": usage_of(told),
        "run": _run(recording),
        "tools": tools_offered(recording.body),
        "dropped": (recording.start or {}).get("dropped") or [],
        "body": recording.body is not None,
        "asked": [_part(part) for part in with_words(messages_from_body(recording.body))],
        "answers": _answers(answer),
        "source": answer.source,
        "error": error_members(answer.error),
        "exit": None if recording.exit is None else [exit_cause(recording.exit), last_words(recording.exit)],
        "heard": [
            [[s.text] if s.kind == PLAIN else [s.text, s.kind, s.note] for s in each] for each in marked(recording)
        ],
        "rejects": [
            text_of(payload.get("reason"))
            for kind, payload in recording.notes
            if kind == "tool_reject" and "source" not in payload
        ],
    }


def wire_block(recording: Recording) -> dict[str, Any]:
    """What went over both wires, with times in seconds since the request came."""
    frames = [(attempt, frame) for attempt, frames in recording.attempts.items() for frame in frames]
    return {
        "request": recording.request,
        "end": _since(recording.end_mono, recording) if recording.end_mono is not None else None,
        "frames": [_frame(attempt, frame, recording) for attempt, frame in frames],
        "client": [[_since(piece.mono, recording), piece.kind, piece.payload] for piece in recording.client],
    }


def _frame(attempt: int, frame: Frame, recording: Recording) -> list[Any]:
    at = _since(frame.mono, recording)
    return [at, frame.direction, frame.kind, frame.method, frame.chunk, attempt, frame.payload]


def _since(mono: float, recording: Recording) -> float:
    return round(mono - recording.at, 6)


def _part(part: Part) -> list[str]:
    role = "system" if part.role == "instructions" else part.role
    members = [role, part.kind, part.text, part.name, part.call_id]
    while members[-1] == "":
        members.pop()
    return members if len(members) > 2 else members + [""] * (3 - len(members))


def _answers(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"parts": [_part(part) for part in choice.parts], "finish": choice.finish_reason} for choice in answer.choices
    ]


def _run(recording: Recording) -> dict[str, Any]:
    header = recording.header
    return {name: header.get(name) for name in ("program", "redaction", "redacted", "dialect", "run") if name in header}


def _preview(recording: Recording) -> str:
    """The beginning of what a person asked last."""
    last = ""
    for part in with_words(messages_from_body(recording.body)):
        if part.kind == "text" and part.role == "user":
            last = part.text
    return " ".join(last[: PREVIEW * 4].split())[:PREVIEW]
