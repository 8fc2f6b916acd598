"""What a client got then and would get now: equal, or the place where they part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from log.replayed import recordings_in

from bridge.log.recording import Piece, Recording
from bridge.replay.compare import MAX_LINES, Comparison, compare, renamed, show_difference, without_comments

LOG = Path("log.ndjson")
ONE, OTHER = "0" * 32, "f" * 32


def answer(stream: str, *, outcome: str | None = "completed", reason: str | None = None, **more: Any) -> Recording:
    """A recorded stream; `outcome` None is one whose end is not in the log."""
    found = Recording("req_1", LOG, request={"path": "/v1/chat/completions", "body": {"model": "m", **more}})
    found.client = [Piece(0.0, "client_start", {"status": 200}), Piece(0.0, "client_sse", stream)]
    found.end = None if outcome is None else {"outcome": outcome, "reason": reason}
    return found


def event(text: str) -> str:
    return f'data: {{"text":"{text}"}}\n\n'


def chunk(index: int, text: str) -> str:
    return f'data: {{"choices":[{{"index":{index},"delta":{{"content":"{text}"}}}}]}}\n\n'


def outcome(then: Recording, now: Recording) -> Comparison:
    return compare(then, now)


@given(st.lists(st.text("ab:\n ", max_size=6), max_size=6))
def test_everything_is_the_same_as_itself(texts: list[str]) -> None:
    one = answer("".join(map(event, texts)))
    assert compare(one, one).same
    assert compare(one, one).lines == ()


def test_every_recording_is_the_same_as_itself() -> None:
    for recording in recordings_in(ROOT / "fixtures/logs"):
        assert compare(recording, recording).outcome == "same"


def with_headers(*headers: list[str], **end: Any) -> Recording:
    found = answer(event("a"))
    found.client[0] = Piece(0.0, "client_start", {"status": 200, "headers": list(headers)})
    found.end = {"outcome": "completed"} | end
    return found


def test_a_response_header_is_a_difference() -> None:
    """One that is new, one that is missing, one with another value; their order is none."""
    then = with_headers(["x-bridge-dropped", "stop"], ["cache-control", "no-cache"])
    assert compare(then, with_headers(["cache-control", "no-cache"], ["x-bridge-dropped", "stop"])).same
    found = compare(then, with_headers(["x-bridge-dropped", "seed"], ["retry-after", "2"]))
    assert found.outcome == "different"
    assert found.lines[0] == "the response headers differ"
    assert set(found.lines[3:]) == {
        "-cache-control: no-cache",
        "-x-bridge-dropped: stop",
        "+retry-after: 2",
        "+x-bridge-dropped: seed",
    }


def test_headers_with_ids_and_dates_must_be_present_with_any_value() -> None:
    then = with_headers(["x-request-id", "req_1"], ["date", "Mon"])
    assert compare(then, with_headers(["x-request-id", "req_2"], ["date", "Tue"])).lines == ()
    found = compare(then, with_headers(["date", "Tue"]))
    assert (found.outcome, found.lines[3:]) == ("different", ("-x-request-id: …",))
    quota = {"error": {"code": "insufficient_quota"}}
    assert compare(with_headers(["retry-after", "9"], **quota), with_headers(["retry-after", "8"], **quota)).same
    assert not compare(with_headers(["retry-after", "9"]), with_headers(["retry-after", "8"])).same


def test_a_log_without_headers_is_compared_without_them() -> None:
    assert compare(answer(event("a")), with_headers(["cache-control", "no-cache"])).same


def test_one_byte_is_a_difference() -> None:
    found = compare(answer(event("a") + event("b") + event("c")), answer(event("a") + event("b") + event("d")))
    assert found.outcome == "different"
    assert not found.same
    assert found.lines[0] == "event 3 of 3 (now 3) is the first that differs"
    assert '-  "text": "c"' in found.lines
    assert '+  "text": "d"' in found.lines


def test_comments_are_not_compared() -> None:
    assert compare(answer(event("a") + ": keepalive\n\n" + event("b")), answer(event("a") + event("b"))).same
    assert without_comments(b"data: a: b\n\n") == b"data: a: b\n\n"


def test_another_status_is_a_difference() -> None:
    now = answer(event("a"))
    now.client[0] = Piece(0.0, "client_start", {"status": 502})
    found = compare(answer(event("a")), now)
    assert found.lines[0] == "HTTP status 502, recorded was 200"


@pytest.mark.parametrize(("told", "reason"), [(None, None), ("cancelled", "client_gone")])
def test_an_answer_without_an_end_is_compared_up_to_there(told: str | None, reason: str | None) -> None:
    then = answer(event("a"), outcome=told, reason=reason)
    found = compare(then, answer(event("a") + event("b")))
    assert (found.outcome, found.lines) == ("same", ("only the recorded beginning was compared",))
    assert compare(then, answer(event("b"))).outcome == "different"
    assert compare(answer(event("a")), answer(event("a") + event("b"))).outcome == "different"


def test_choices_are_compared_one_by_one() -> None:
    then = chunk(0, "a") + chunk(1, "b") + chunk(0, "c") + "data: [DONE]\n\n"
    now = chunk(1, "b") + chunk(0, "a") + chunk(0, "c") + "data: [DONE]\n\n"
    assert compare(answer(then, n=2), answer(now)).same
    assert not compare(answer(then), answer(now)).same
    assert not compare(answer(then, n=2), answer(now.replace('"c"', '"d"'))).same
    left = answer(chunk(1, "b") + chunk(0, "a"), n=2, outcome="cancelled", reason="client_gone")
    assert compare(left, answer(then)).same
    assert not compare(left, answer(then.replace('"b"', '"x"'))).same


def test_generated_ids_may_differ_consistently() -> None:
    then = event(f"msg_{ONE}") + event(f"msg_{ONE}")
    found = compare(answer(then), answer(then.replace(ONE, OTHER)))
    assert (found.outcome, found.lines) == ("same", ("ids that are not in the log were generated",))
    assert not compare(answer(then), answer(event(f"msg_{ONE}") + event(f"msg_{OTHER}"))).same
    assert not compare(answer(then), answer(then.replace("msg", "fc"))).same
    assert renamed(b"sha 0123456789abcdef0123456789abcdef") == b"sha 0123456789abcdef0123456789abcdef"


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_two_streams_can_be_shown(one: bytes, other: bytes) -> None:
    lines = show_difference(one, other)
    assert "is the first that differs" in lines[0]
    assert all(isinstance(line, str) for line in lines)


def test_a_long_difference_is_cut() -> None:
    one, other = ("".join(event(f"{side}{number}") for number in range(99)).encode() for side in "ab")
    lines = show_difference(one, other)
    assert len(lines) <= MAX_LINES + 2
    assert lines[-1].endswith("more lines")
