"""CAP in a log: its requests and answers are read like everybody else's, whatever form they have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from log.replayed import compared, recordings_in

from bridge.log.content import Answer, AnswerReader, sent_values
from bridge.log.recording import Piece, Recording
from bridge.log.request import Part, messages_from_body
from bridge.protocols.cap.decoder import clock_readings, effective_meta
from bridge.redact import Redactor
from bridge.replay.compare import compare, update_log

Json = dict[str, Any]
LOGS = sorted((ROOT / "fixtures/logs").glob("cap-*.ndjson"))


def event(type_: str, **data: Any) -> Json:
    return {"op": "event", "p": {"id": "x", "timestamp": "2026-03-01T08:00:00Z", "type": type_, "data": data}}


def lines(*packets: Json) -> str:
    return "".join(json.dumps(packet, separators=(",", ":")) + "\n" for packet in packets)


def collected(kind: str, *payloads: Any) -> Answer:
    reader = AnswerReader()
    for payload in payloads:
        for value in sent_values(kind, payload):
            reader.take(value)
    return reader.answer()


def thought(text: str, *, final: bool, index: int = 0) -> Json:
    return event("thought_trace", thought=text, kind="summary", item_id="rs_1", index=index, final=final)


CALL = event("tool_call", call_id="c", tool="look", kind="function", arguments={"q": 1}, state="requested")
NOTICE = event("user_error", message="Cut.", code=206, reason="max_output_tokens")
PACKETS = [
    event("progress_indicator", label="reconnecting", status="running"),
    thought("He", final=False),
    thought("ll", final=False),
    thought("Hell", final=True),
    thought("o", final=True, index=1),
    {"op": "delta", "p": "Good "},
    {"op": "delta", "p": "day"},
    CALL,
    event("progress_indicator", label="tool: web_search", status="running"),
    event("progress_indicator", label="tool: web_search", status="complete"),
    event("citation_block", items=[{"uri": "http://a"}]),
    {"op": "delta", "p": "."},
    NOTICE,
    event("metrics", duration_ms=5, input_tokens=7, output_tokens=3),
    {"op": "close", "p": None},
]
SAID = [
    Part("assistant", "reasoning", "Hell"),
    Part("assistant", "reasoning", "o"),
    Part("assistant", "text", "Good day"),
    Part("assistant", "call", '{"q":1}', "look", "c"),
    Part("assistant", "search", "", "web_search"),
    Part("assistant", "other", '[{"uri":"http://a"}]', "citation_block"),
    Part("assistant", "text", "."),
    Part("assistant", "other", "Cut.", "user_error"),
]


@pytest.mark.parametrize("form", ["sse", "ndjson", "a socket"])
def test_packets_are_read_as_an_answer(form: str) -> None:
    sse = [f"event: stream.packet\nid: x:{n}\ndata: {json.dumps(packet)}\n\n" for n, packet in enumerate(PACKETS)]
    pieces = {"sse": sse, "ndjson": [lines(*PACKETS[:6]), lines(*PACKETS[6:])], "a socket": [*map(lines, PACKETS)]}
    answer = collected("client_sse", *pieces[form])
    assert answer.parts == SAID
    assert (answer.choices[0].finish_reason, answer.usage) == ("incomplete", {"input_tokens": 7, "output_tokens": 3})


def test_unfinished_thoughts_are_read() -> None:
    answer = collected("client_sse", lines(*PACKETS[:3]))
    assert answer.parts == [Part("assistant", "reasoning", "Hell")]
    assert answer.choices[0].finish_reason is None


def test_an_answer_in_one_piece() -> None:
    output = {
        "text": "Good day",
        "status": "incomplete",
        "reasoning": [{"thought": "Hell", "kind": "summary", "item_id": "rs_1", "index": 0}],
        "tool_calls": [CALL["p"]["data"]],
        "notices": [NOTICE["p"]["data"]],
    }
    body = {"request_id": "x", "created_at": "2026-03-01T08:00:00Z", "output": output, "metrics": {"output_tokens": 3}}
    answer = collected("client_json", body)
    assert [part.kind for part in answer.parts] == ["reasoning", "call", "text", "other"]
    assert (answer.choices[0].finish_reason, answer.usage) == ("incomplete", {"output_tokens": 3})


@pytest.mark.parametrize("in_stream", [True, False])
def test_an_error_is_read_from_packets_and_bodies(in_stream: bool) -> None:
    error = {"code": "overloaded", "message": "Too many.", "severity": "transient", "details": {"retry_after": 1}}
    stream = lines({"op": "delta", "p": "half"}, {"op": "error", "p": error}, {"op": "close", "p": None})
    answer = collected("client_sse", stream) if in_stream else collected("client_json", error)
    assert answer.error == error
    assert answer.choices[0].finish_reason == "failed"
    assert answer.parts[-1] == Part("assistant", "error", "Too many.")


def test_the_content_of_a_request() -> None:
    body = {
        "payload": {
            "query": "What is this?",
            "files": ["https://example.org/a.png"],
            "meta": {"instructions": "no", "model": "m", "codex": {"instructions": "Be brief."}},
        }
    }
    (instructions,), (text, image) = messages_from_body(body)
    assert instructions == Part("instructions", "text", "Be brief.")
    assert text == Part("user", "text", "What is this?")
    assert (image.kind, json.loads(image.text)["image_url"]) == ("media", "https://example.org/a.png")
    assert effective_meta(body["payload"]["meta"]) == {"instructions": "Be brief.", "model": "m"}


NAMES = st.sampled_from(
    [
        "op", "p", "type", "data", "thought", "final", "tool", "label", "status", "output", "request_id", "message",
        "severity", "timestamp", "metrics", "duration_ms", "ttft_ms", "created_at", "details", "resets_at", "payload",
        "meta", "codex", "query", "files", "text", "reasoning", "tool_calls", "notices", "items", "error",
    ]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(NAMES, json_values, max_size=5), max_size=4))
def test_anything_can_be_read(told: list[Json]) -> None:
    """A log may be anybody's."""
    reader = AnswerReader()
    for each in told:
        reader.take(each)
        list(messages_from_body(each))
        assert isinstance(effective_meta(each), dict)
    assert all(isinstance(part.text, str) for part in reader.answer().parts)
    assert all(isinstance(time, float) for time in clock_readings(told, told[0] if told else None))


# Times


def test_the_reset_of_a_usage_limit_is_reproduced() -> None:
    """It is counted from the time of the failure, in whole seconds."""
    details = {"resets_at": "2026-03-01T08:01:00Z", "retry_after": 60}
    error = {"code": "usage_limit_exceeded", "message": "No.", "severity": "transient", "details": details}
    begun, *_, ended = clock_readings([error], {"error": {"retry_after": 60}})
    assert begun == ended
    assert int(ended + 60) == 1772352060


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_every_time_and_id_comes_from_the_recording(log: Any) -> None:
    found = compared(recordings_in(log))
    assert {line for each in found for line in each.lines} <= {"only the recorded beginning was compared"}


def test_times_that_are_not_in_the_log_do_not_count() -> None:
    def answer(stream: str) -> Recording:
        end = {"outcome": "completed"}
        return Recording("r", LOGS[0], client=[Piece(0.0, "client_sse", stream)], end=end)

    then, now = lines(event("metrics", duration_ms=5)), lines(event("metrics", duration_ms=7)).replace("08:00", "09:30")
    found = compare(answer(then), answer(now))
    assert (found.outcome, found.lines) == ("same", ("times that are not in the log were generated",))
    said = lines({"op": "delta", "p": '{"timestamp":"1"}'})
    assert compare(answer(said), answer(said.replace("1", "2"))).outcome == "different"


@pytest.mark.parametrize("sse", [True, False])
@pytest.mark.parametrize("cut", ["client_gone", "cancelled", "deadline_exceeded"])
def test_a_cut_answer_may_lack_the_end_of_what_its_backend_said(cut: str, sse: bool) -> None:
    """The packets that tell of the end are no part of the beginning that is compared."""

    def answer(*packets: Json) -> Recording:
        stream = [line + "\n" for line in lines(*packets).split("\n")[:-1]]
        if sse:
            stream = [f"event: stream.packet\nid: x:{number}\ndata: {line}\n" for number, line in enumerate(stream)]
        late = cut == "deadline_exceeded"
        end = {"outcome": "failed", "error": {"code": cut}} if late else {"outcome": "cancelled", "reason": cut}
        return Recording("r", LOGS[0], client=[Piece(0.0, "client_sse", "".join(stream))], end=end)

    close: list[dict[str, Any]] = [{"op": "close", "p": None}]
    if cut == "deadline_exceeded":
        close.insert(0, {"op": "error", "p": {"code": cut, "message": "}{", "severity": "transient"}})
    half: dict[str, Any] = {"op": "delta", "p": "half"}
    more: dict[str, Any] = {"op": "delta", "p": " and more"}
    then = answer(half, *close)
    for now, outcome in (([half, *close], "same"), ([half, more, *close], "same"), ([more, *close], "different")):
        assert compare(then, answer(*now)).outcome == outcome


@pytest.mark.parametrize("form", ["sse", "ndjson"])
def test_a_turn_that_was_cancelled_before_it_began_is_played(form: str) -> None:
    """It asked nobody, and told nothing but its end."""
    name = "550e8400-e29b-41d4-a716-446655440000"
    close = '{"op":"close","p":null}\n'
    stream = f"event: stream.packet\nid: {name}:1\ndata: {close}\n" if form == "sse" else close
    context = {"session_id": "s", "user": {"id": "u", "name": "Ada"}}
    recording = Recording(
        "r",
        LOGS[0],
        request={
            "path": "/v1/assist",
            "form": form,
            "body": {"request_id": name, "context": context, "payload": {"query": "hi"}},
        },
        client=[Piece(0.0, "client_start", {"status": 200}), Piece(0.0, "client_sse", stream)],
        end={"outcome": "cancelled", "reason": "cancelled", "error": None},
    )
    (found,) = compared([recording])
    assert found.now is not None
    assert (found.outcome, found.now.sent) == ("same", recording.sent)


# Writing


def test_packets_that_are_lines_stay_in_their_records(tmp_path: Any) -> None:
    """As many in each as there were."""
    (recording,) = [each for each in recordings_in(LOGS[0]) if each.sent.startswith(b'{"op":"delta","p":"Good ')][:1]
    path = tmp_path / "log.ndjson"
    path.write_bytes(LOGS[0].read_bytes())
    pieces = [
        Piece(
            piece.mono,
            piece.kind,
            piece.payload.replace("Good", "God") if piece.kind == "client_sse" else piece.payload,
        )
        for piece in recording.client
    ]
    update_log([path], [(recording, Recording(recording.id, path, client=pieces))])
    (after,) = [each for each in recordings_in(path) if each.id == recording.id]
    assert after.sent == recording.sent.replace(b"Good", b"God")
    assert [piece.payload for piece in after.client] == [piece.payload for piece in pieces]
    assert len(pieces) > 3


def test_secrets_under_their_names_do_not_get_into_the_log() -> None:
    call = event("tool_call", tool="look", arguments={"password": "hunter2", "q": "password: x"})
    chunk = (lines({"op": "delta", "p": "password"}, call)).encode()
    for stream in (chunk, chunk.replace(b'{"op"', b'data: {"op"')):
        kept = Redactor().sse(stream)
        assert b"hunter2" not in kept
        assert kept.split(b"\n")[0] == stream.split(b"\n")[0]
        assert b"password: x" in kept
