"""The parts of an answer as the backend sent them, in both dialects."""

from __future__ import annotations

import pytest
from harness import ROOT
from log.export.making import recordings

from bridge.log.content import BackendReader, backend_text
from bridge.log.request import Part

TRACES = ROOT / "fixtures/traces"
LOGS = ROOT / "fixtures/logs"


@pytest.mark.parametrize("trace", ["current_0.166.0_toolcall_tiny_deltas", "legacy_0.107.0_toolcall"])
def test_text_of_both_dialects_is_read_once(trace: str) -> None:
    """The legacy child sends each piece three times."""
    (recording,) = recordings(TRACES / f"{trace}.ndjson")
    text = backend_text(recording)
    assert text.count("<tool_call>") == text.count("</tool_call>") >= 1
    assert text.startswith("Let me look.")


@pytest.mark.parametrize("log", ["cap-current", "cap-legacy"])
def test_searches_of_both_dialects_are_read(log: str) -> None:
    """Clients do not get the searches of the legacy dialect; a reader of the log does."""
    answers = backend_answers(log)
    searched = [parts for parts in answers if any(part.kind == "search" for part in parts)]
    assert len(searched) == 4
    assert searched[0] == [Part("assistant", "search", "tea"), Part("assistant", "text", "found")]


def test_native_calls_are_read() -> None:
    calls = [part for parts in backend_answers("current-native") for part in parts if part.kind == "call"]
    assert calls
    assert all(call.name and call.call_id for call in calls)


def backend_answers(log: str) -> list[list[Part]]:
    """The parts of every attempt in a log of the fixtures."""
    answers = []
    for recording in recordings(LOGS / f"{log}.ndjson"):
        for frames in recording.attempts.values():
            reader = BackendReader()
            for frame in frames:
                reader.add(frame.kind, frame.payload)
            answers.append(reader.parts)
    return answers
