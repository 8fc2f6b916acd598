"""A recording as a backend: its models, its errors, its ends, and a copy of it in another log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from log.replayed import recordings_in

from bridge.app.answers import start_answer
from bridge.core.events import Finished
from bridge.errors import (
    BackendCrashed,
    BridgeError,
    Forbidden,
    InvalidRequest,
    Overloaded,
    Unauthorized,
    UpstreamError,
)
from bridge.ids import new_id
from bridge.log.record import Recorder, error_record
from bridge.log.recording import Recording, read_recordings
from bridge.playback.backend import CUT, ReplayBackend, read_error, recorded_end
from bridge.playback.recorded import request_body
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.reading import parse_request
from bridge.redact import Redactor

LOG = Path("log.ndjson")


@given(
    st.builds(
        BridgeError,
        st.text(max_size=9),
        code=st.sampled_from(["rate_limit_exceeded", "x"]),
        http_status=st.integers(400, 599),
        kind=st.sampled_from(["server_error", "invalid_request_error"]),
        param=st.none() | st.text(max_size=3),
        severity=st.sampled_from(["transient", "fatal"]),
        retry_after=st.none() | st.integers(1, 99),
    )
)
def test_an_error_is_the_same_after_it_was_written_and_read(error: BridgeError) -> None:
    again = read_error(json.loads(json.dumps(error_record(error))))
    assert error_record(again) == error_record(error)
    assert again.body() == error.body()


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no", code="unknown_agent", http_status=404),
        Forbidden("no"),
        Unauthorized("no"),
        UpstreamError("no", code="overloaded", severity="transient"),
        Overloaded("no", retry_after=3),
        BackendCrashed("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_side_of_an_error_is_kept(error: BridgeError) -> None:
    """In CAP, which tells it."""
    again = read_error(json.loads(json.dumps(error_record(error))))
    assert failure_from(again, now=0) == failure_from(error, now=0)


@pytest.mark.parametrize("odd", [None, 5, [], {}, "x", 10**6])
def test_an_error_of_any_form_can_be_read(odd: Any) -> None:
    names = ("message", "code", "http_status", "type", "param", "severity", "retry_after")
    error = read_error(dict.fromkeys(names, odd))
    assert 400 <= error.http_status < 600
    assert isinstance(error.message, str)


def test_an_error_of_the_previous_format_can_be_read() -> None:
    error = read_error({"code": "backend_crashed", "message": "It died."})
    assert (error.code, error.message, error.http_status) == ("backend_crashed", "It died.", 502)


def test_a_recording_that_was_cut_fails_and_says_so() -> None:
    end = recorded_end(Recording("req_1", LOG))
    assert end.error is not None
    assert (end.outcome, end.error.code, end.error.message) == ("failed", "recording_cut", CUT)


@pytest.mark.parametrize("outcome", ["completed", "incomplete", "cancelled", "failed"])
def test_a_turn_ends_as_recorded(outcome: str) -> None:
    end = {"outcome": outcome, "reason": "why", "error": None}
    assert recorded_end(Recording("req_1", LOG, end=end)) == Finished(outcome, "why")  # type: ignore[arg-type]
    assert recorded_end(Recording("req_1", LOG, end={"outcome": [outcome]})).outcome == "failed"


async def test_a_recording_without_messages_fails_or_is_empty() -> None:
    choice = ReplayBackend(Recording("r", LOG), new_id=new_id).resolve("m")
    turn = parse_request({"model": "m", "input": "x"}, "responses").for_model(choice)
    with pytest.raises(BridgeError, match="The recording ends here"):
        await ReplayBackend(Recording("r", LOG), new_id=new_id).start(turn, "req_1")
    failed = Recording("r", LOG, end={"outcome": "failed", "error": {"code": "x", "message": "No."}})
    with pytest.raises(BridgeError, match="No"):
        await ReplayBackend(failed, new_id=new_id).start(turn, "req_1")
    quiet = ReplayBackend(Recording("r", LOG, end={"outcome": "completed", "error": None}), new_id=new_id)
    assert await (await quiet.start(turn, "req_1")).next() == [Finished("completed")]


async def test_the_model_is_the_recorded_one() -> None:
    start = {
        "model": "real",
        "requested_model": "alias",
        "effort": "low",
        "backend": "app-server",
        "dropped": ["top_p", 5],
    }
    backend = ReplayBackend(Recording("r", LOG, start=start), new_id=new_id)
    choice = backend.resolve("whatever")
    assert (choice.effective, choice.effort, choice.backend) == ("real", "low", "app-server")
    assert backend.models() == ["alias", "real"]
    turn = parse_request({"model": "m", "input": "x"}, "responses").for_model(choice)
    assert await backend.drops(turn) == ["top_p"]


@pytest.mark.parametrize("log", sorted((ROOT / "fixtures/logs").glob("*.ndjson")), ids=lambda path: path.stem)
async def test_played_messages_are_recorded_again(log: Path) -> None:
    """The copy holds every frame up to the end, for the request that it answers now."""
    for recording in recordings_in(log):
        body = request_body(recording)
        if recording.start is None or not recording.attempts or body is None:
            continue
        lines: list[bytes] = []
        recorder = Recorder(lines.append, lambda: ("2026-01-01T00:00:00Z", 1.0), Redactor(), "0123abcd")
        backend = ReplayBackend(recording, new_id=new_id, recorder=recorder)
        body = {name: value for name, value in body.items() if name not in ("previous_response_id", "tools")}
        asked = {"model": "m"} | body | {"input": "x", "messages": None}
        turn = parse_request(asked, "responses")
        turn = turn.for_model(backend.resolve(turn.model))
        stream = await start_answer(backend, turn, "req_new")
        while not isinstance((await stream.next())[-1], Finished):
            pass
        stream.close()
        records = [json.loads(line) for part in lines for line in part.splitlines()]
        (copy,) = read_recordings((LOG, record) for record in records)
        assert copy.id == "req_new"
        assert recorder.threads == 0
        for attempt, frames in copy.attempts.items():
            then = [(each.kind, each.method, each.key, each.payload) for each in recording.attempts[attempt]]
            now = [(each.kind, each.method, each.key, each.payload) for each in frames]
            assert now == then[: len(now)]
            assert now
