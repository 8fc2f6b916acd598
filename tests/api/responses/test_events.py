"""TurnEvents as a Responses stream and as a response object."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from api.cases import CASES, END, FIRST_CALL, GOLDEN, REASONING, USAGE, encode, read_frames, responses_encoder
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from bridge.errors import BackendCrashed
from bridge.turn.events import Finished, ReasoningDelta, Restarted, TextDelta, TextDone, TurnEvent, Usage, UsageUpdate

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT: list[TurnEvent] = [TextDelta("m", ["Hel", "lo"]), TextDone("m")]


def kinds(stream: bytes) -> list[str]:
    return [payload["type"].removeprefix("response.") for payload in read_frames(stream)]


@pytest.mark.parametrize("name", CASES)
def test_the_golden_stream(name: str) -> None:
    """Byte for byte what is kept in fixtures/golden/responses."""
    assert encode(responses_encoder(), CASES[name]) == (GOLDEN / f"responses/{name}.sse").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_every_event_is_one_of_the_clients_types(name: str) -> None:
    """The official client's own models accept each golden event."""
    for payload in read_frames((GOLDEN / f"responses/{name}.sse").read_bytes()):
        EVENT.validate_python(payload, strict=True)


def test_the_order_of_a_text() -> None:
    """Created, in progress, the item, its part, its deltas, and all of it done, then completed."""
    assert kinds(encode(responses_encoder(), [*TEXT, END])) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


@pytest.mark.parametrize("name", [name for name in CASES if name != "failed"])
def test_the_body_is_the_streams_last_response(name: str) -> None:
    """Not streamed: the same object that the stream ends with."""
    stream, whole = responses_encoder(), responses_encoder(streaming=False)
    last = read_frames(encode(stream, CASES[name]))[-1]["response"]
    encode(whole, CASES[name])
    assert orjson.loads(whole.body()) == orjson.loads(stream.body()) == last
    Response.model_validate(last, strict=True)


def test_the_batches_do_not_matter() -> None:
    """One event at a time gives the same bytes."""
    for events in CASES.values():
        assert encode(responses_encoder(), *([event] for event in events)) == encode(responses_encoder(), events)


def test_nothing_is_said_before_there_is_something() -> None:
    """Usage, empty batches and ends of nothing are silent, and do not count as visible."""
    encoder = responses_encoder()
    encoder.begin()
    assert encoder.feed([]) == b""
    assert encoder.feed([USAGE, TextDone("m"), Restarted("x")]) == b""
    assert not encoder.visible
    assert encoder.feed(TEXT) != b""
    assert encoder.visible


def test_what_follows_the_end_is_ignored() -> None:
    """The terminal event is the last."""
    encoder = responses_encoder()
    stream = encode(encoder, [*TEXT, END, *TEXT, FIRST_CALL, Finished("failed", error=BackendCrashed("x"))])
    assert kinds(stream)[-1] == "completed"
    assert encoder.feed([*TEXT, END]) == b""
    assert encoder.failure is None


def test_text_around_a_call_is_three_items() -> None:
    """A message that goes on behind a call is another message, under another id."""
    encoder = responses_encoder()
    encode(encoder, [TextDelta("m", ["a"]), FIRST_CALL, TextDelta("m", ["b"]), TextDone("m"), END])
    output = orjson.loads(encoder.body())["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert len({item["id"] for item in output}) == 3
    assert [item["status"] for item in output] == ["completed"] * 3


def test_a_tool_call_keeps_its_ids_and_its_arguments() -> None:
    """The call's own ids and the exact arguments string."""
    encoder = responses_encoder()
    encode(encoder, [FIRST_CALL, END])
    assert orjson.loads(encoder.body())["output"] == [
        {
            "id": "fc_a",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_a",
            "name": "find",
            "arguments": FIRST_CALL.arguments,
        }
    ]


def test_reasoning_is_an_item_of_its_own() -> None:
    """Summary parts and raw content, in order."""
    encoder = responses_encoder()
    encode(encoder, [*REASONING, *TEXT, END])
    reasoning, message = orjson.loads(encoder.body())["output"]
    assert [part["text"] for part in reasoning["summary"]] == ["**Plan** first", "then"]
    assert [part["text"] for part in reasoning["content"]] == ["raw"]
    assert message["content"][0]["text"] == "Hello"


def test_reasoning_without_raw_content_has_none() -> None:
    """`content` is there only when something was said in it."""
    encoder = responses_encoder()
    encode(encoder, [ReasoningDelta("r", 0, ["a"]), END])
    assert "content" not in orjson.loads(encoder.body())["output"][0]


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_incomplete_says_why(reason: str) -> None:
    """The cut item is incomplete, and the response too."""
    encoder = responses_encoder()
    encode(encoder, [TextDelta("m", ["cut"]), Finished("incomplete", reason=reason)])
    body = orjson.loads(encoder.body())
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert body["output"][0]["status"] == "incomplete"
    assert encoder.failure is None


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_failure_closes_what_is_open(outcome: Any) -> None:
    """The open item is done as incomplete; the response has failed and says why."""
    encoder = responses_encoder()
    error = BackendCrashed("gone") if outcome == "failed" else None
    payloads = read_frames(encode(encoder, [TextDelta("m", ["half"]), Finished(outcome, error=error)]))
    assert payloads[-1]["type"] == "response.failed"
    response = payloads[-1]["response"]
    assert response["status"] == "failed"
    assert response["output"][0]["status"] == "incomplete"
    assert response["error"]["code"] == "server_error"
    assert encoder.failure is not None
    assert response["error"]["message"] == encoder.failure.message
    assert response["error"]["bridge_code"] == ("backend_crashed" if error else "interrupted")


def test_the_last_usage_is_shown_at_the_end() -> None:
    """No usage before the end; without any it is null."""
    encoder = responses_encoder()
    payloads = read_frames(encode(encoder, [UsageUpdate(Usage(1)), *TEXT, USAGE, END]))
    assert all(payload["response"]["usage"] is None for payload in payloads[:2])
    assert payloads[-1]["response"]["usage"]["total_tokens"] == 32
    silent = responses_encoder()
    encode(silent, [*TEXT, END])
    assert orjson.loads(silent.body())["usage"] is None


def test_a_restart_after_visible_text_fails_the_stream() -> None:
    """What was shown cannot be taken back."""
    encoder = responses_encoder()
    stream = encode(encoder, [TextDelta("a", ["dead"]), Restarted("Reconnecting"), TextDelta("b", ["alive"]), END])
    assert kinds(stream)[-1] == "failed"
    assert b"alive" not in stream
    assert encoder.failure is not None
    assert encoder.failure.code == "stream_interrupted"
    assert encoder.failure.severity == "transient"


@pytest.mark.parametrize("dead", [[TextDelta("a", ["dead"])], [FIRST_CALL], REASONING, [*TEXT, FIRST_CALL]])
def test_a_restart_is_forgiven_where_nothing_was_shown(dead: list[TurnEvent]) -> None:
    """Not streamed, the answer is the new one alone."""
    encoder, clean = responses_encoder(streaming=False), responses_encoder(streaming=False)
    encode(encoder, [*dead, Restarted("x"), TextDelta("b", ["alive"]), TextDone("b"), END])
    encode(clean, [TextDelta("b", ["alive"]), TextDone("b"), END])
    told, expected = orjson.loads(encoder.body()), orjson.loads(clean.body())
    assert told["status"] == "completed"
    for item in (*told["output"], *expected["output"]):
        del item["id"]
    assert told == expected
    assert encoder.failure is None


def test_it_can_be_printed() -> None:
    """Its state can be read off it."""
    encoder = responses_encoder()
    encode(encoder, [*TEXT, END])
    assert repr(encoder) == "<ResponsesEncoder resp_1 items=1 finished=True>"
