"""The answer to a request, as an export tells it."""

from __future__ import annotations

from typing import Any

from bridge.protolog.answer import Answer, AnswerReader, Choice, sent_values
from bridge.protolog.asked import Part
from bridge.protolog.heard import heard_text
from bridge.protolog.loose import loads, member
from bridge.protolog.recording import Recording


def collect_answer(recording: Recording) -> Answer:
    """The final answer of a recording, as much of it as was sent; where nothing of it was, as much as arrived."""
    reader = AnswerReader()
    for piece in recording.client:
        for value in sent_values(piece.kind, piece.payload):
            reader.take(value)
    answer = reader.answer()
    end = recording.end or {}
    # A transcript has no client; one that asked for an answer in the background got nothing but its name; and one that
    # wanted it whole gets nothing of an answer that fails.
    if not any(choice.parts for choice in answer.choices):
        text = heard_text(recording)
        if text:
            answer.choices, answer.source = [Choice([Part("assistant", "text", text)])], "backend"
    if isinstance(end.get("error"), dict):
        answer.error = end["error"]
    if isinstance(end.get("usage"), dict):
        answer.usage = end["usage"]
    return answer


def call_members(part: Part) -> dict[str, Any]:
    """A call as a row has it. `parsed` is there when the arguments are JSON."""
    parsed = loads(part.text)
    members: dict[str, Any] = {"id": part.call_id or None, "name": part.name, "arguments": part.text}
    return members if parsed is None else members | {"parsed": parsed}


def error_members(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a row tells of an error."""
    if error is None:
        return None
    return {name: member(error, name) for name in ("code", "message", "http_status", "type", "param")}
