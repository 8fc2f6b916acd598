"""The answer of a recording: whose words it has, and whose error."""

from __future__ import annotations

from pathlib import Path

from harness import ROOT
from log.export.making import LogMaker, recordings

from bridge.log.export import collect_answer


def test_an_error_is_the_one_of_the_turn(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    error = {"code": "rate_limited", "message": "later", "http_status": 429, "type": "x", "param": None}
    log.turn(answer={"error": {"message": "later"}}, status=429, outcome="failed", error=error)
    (recording,) = recordings(log.close())
    assert collect_answer(recording).error == error


def test_the_text_of_an_answer_that_failed_is_the_backend_s(tmp_path: Path) -> None:
    """The client wanted it whole, and got only an error."""
    log = LogMaker(tmp_path / "log.ndjson")
    error = {"code": "backend_crashed", "message": "gone", "http_status": 502, "type": "x", "param": None}
    log.turn(said=["half an ", "ans"], answer={"error": error}, status=502, outcome="failed", error=error)
    (recording,) = recordings(log.close())
    answer = collect_answer(recording)
    assert (answer.source, answer.choices[0].joined("text"), answer.error) == ("backend", "half an ans", error)


def test_without_a_client_the_backend_is_believed(tmp_path: Path) -> None:
    """A transcript has no client at all."""
    (recording,) = recordings(ROOT / "fixtures/traces/current_0.166.0_text.ndjson")
    answer = collect_answer(recording)
    assert answer.source == "backend"
    assert answer.choices[0].joined("text")
