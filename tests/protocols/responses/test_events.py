"""TurnEvents as a Responses stream and as a response object."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from protocols.cases import (
    CANCEL,
    CASES,
    CUSTOM_CALL,
    END,
    FIRST_CALL,
    GOLDEN,
    NAMESPACED_CALL,
    REASONING,
    SEARCH,
    USAGE,
    counter,
    encode,
    read_frames,
    responses_encoder,
)
from protocols.official import check_response
from protocols.readers import ReadResponse

from bridge.core.events import (
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.errors import BackendCrashed
from bridge.protocols.responses.encoder import ResponsesEncoder

TEXT: list[TurnEvent] = [TextDelta("m", ["Hel", "lo"]), TextDone("m")]


def kinds(stream: bytes) -> list[str]:
    return [payload["type"].removeprefix("response.") for payload in read_frames(stream)]


@pytest.mark.parametrize("name", CASES)
def test_the_golden_stream(name: str) -> None:
    """Byte for byte what is kept in fixtures/golden/responses."""
    assert encode(responses_encoder(), CASES[name]) == (GOLDEN / f"responses/{name}.sse").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_a_golden_stream_keeps_every_rule(name: str) -> None:
    """Each event is the official client's own type, and numbers, indexes, ids and texts agree."""
    ReadResponse((GOLDEN / f"responses/{name}.sse").read_bytes())


def test_the_cases_show_every_kind_of_event() -> None:
    """All that this encoder can say has been held against the types."""
    streams = [encode(responses_encoder(), events) for events in CASES.values()]
    assert {kind for stream in streams for kind in kinds(stream)} == {
        "created",
        "in_progress",
        "completed",
        "incomplete",
        "failed",
        "output_item.added",
        "output_item.done",
        "content_part.added",
        "content_part.done",
        "output_text.delta",
        "output_text.done",
        "reasoning_summary_part.added",
        "reasoning_summary_part.done",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_text.delta",
        "reasoning_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
    }


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
    """Not streamed: the same object that the stream ends with, and no events, which nobody would see."""
    stream, whole = responses_encoder(), responses_encoder(streaming=False)
    last = read_frames(encode(stream, CASES[name]))[-1]["response"]
    assert encode(whole, CASES[name]) == b""
    assert orjson.loads(whole.body()) == orjson.loads(stream.body()) == last
    check_response(last)


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


def test_a_custom_call_has_an_input() -> None:
    """An item of its own type, with the exact text."""
    encoder = responses_encoder()
    encode(encoder, [CUSTOM_CALL, END])
    assert orjson.loads(encoder.body())["output"] == [
        {
            "id": "ctc_a",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_c",
            "name": "patch",
            "input": CUSTOM_CALL.arguments,
        }
    ]


def test_a_call_of_a_namespace_says_so() -> None:
    """The name alone is the function's; without a namespace the member is not there."""
    encoder = responses_encoder()
    encode(encoder, [NAMESPACED_CALL, FIRST_CALL, END])
    called, plain = orjson.loads(encoder.body())["output"]
    assert (called["name"], called["namespace"]) == ("find", "files")
    assert "namespace" not in plain


def test_a_web_search_is_an_item() -> None:
    """With what was searched for; it counts as visible."""
    encoder = responses_encoder()
    stream = encode(encoder, [SEARCH, END])
    assert kinds(stream)[2:-1] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    assert encoder.visible
    assert orjson.loads(encoder.body())["output"] == [
        {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": SEARCH.action}
    ]


def test_encrypted_reasoning_keeps_its_providers_id() -> None:
    """What is encrypted is bound to it; other names are ours."""
    encoder = responses_encoder()
    events: list[TurnEvent] = [
        ReasoningDelta("rs_0abc", 0, ["Hm"]),
        ReasoningDone("rs_0abc", "gAAA"),
        ReasoningDelta("item-7", 0, ["So"]),
        ReasoningDone("item-7"),
        ReasoningDelta('rs_"<x>', 0, ["?"]),
    ]
    encode(encoder, [*events, END])
    output = orjson.loads(encoder.body())["output"]
    assert [item["id"] for item in output] == ["rs_0abc", "rs_1", "rs_2"]
    assert output[0]["encrypted_content"] == "gAAA"
    assert not any("encrypted_content" in item for item in output[1:])


def test_reasoning_that_nobody_may_read_is_an_item_too() -> None:
    """Encrypted it has to come back, even where nothing of it was shown; else there is nothing to tell."""
    encoder = responses_encoder()
    stream = encode(encoder, [ReasoningDone("rs_a", "gAAA"), ReasoningDone("rs_b"), *TEXT, END])
    reasoning, _ = ReadResponse(stream).items
    assert (reasoning["id"], reasoning["summary"], reasoning["encrypted_content"]) == ("rs_a", [], "gAAA")


def test_reasoning_that_goes_on_later_is_another_item() -> None:
    """No two items of a response have one id."""
    events: list[TurnEvent] = [ReasoningDelta("rs_a", 0, ["A"]), *TEXT, ReasoningDelta("rs_a", 0, ["B"]), END]
    items = ReadResponse(encode(responses_encoder(), events)).items
    assert [item["type"] for item in items] == ["reasoning", "message", "reasoning"]


@pytest.mark.parametrize("raw", [True, False])
def test_the_parts_of_reasoning_are_counted_here(raw: bool) -> None:
    """Whatever numbers the provider gives them, and when it comes back to one."""
    events: list[TurnEvent] = [
        ReasoningDelta("r", 1, ["A"], raw),
        ReasoningDelta("r", 4, ["B"], raw),
        ReasoningDelta("r", 1, ["C"], raw),
        END,
    ]
    (item,) = ReadResponse(encode(responses_encoder(), events)).items
    parts = [part["text"] for part in item["content" if raw else "summary"]]
    assert sorted("".join(parts)) == ["A", "B", "C"]


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


def test_a_cancelled_response_has_its_own_status() -> None:
    """The client asked for it, so it is no failure; the event is the one that comes nearest."""
    encoder = responses_encoder()
    read = ReadResponse(encode(encoder, [TextDelta("m", ["half"]), CANCEL]))
    assert read.payloads[-1]["type"] == "response.incomplete"
    assert (read.final["status"], read.final["error"], read.final["incomplete_details"]) == ("cancelled", None, None)
    assert read.final["output"][0]["status"] == "incomplete"
    assert encoder.failure is None
    assert encoder.finished


def test_the_end_has_a_time() -> None:
    """A completed response says when; any other says nothing."""
    for end, completed_at in ((END, 1_700_000_007), (CANCEL, None), (Finished("incomplete"), None)):
        encoder = ResponsesEncoder({}, counter(), created_at=1_700_000_000, now=lambda: 1_700_000_007.9)
        encode(encoder, [*TEXT, end])
        assert orjson.loads(encoder.body())["completed_at"] == completed_at


def test_what_is_there_can_be_looked_at_while_it_is_written() -> None:
    """The items that are done; the end replaces it."""
    encoder = responses_encoder()
    encode(encoder, [FIRST_CALL, TextDelta("m", ["half"])])
    snapshot = encoder.snapshot()
    check_response(snapshot)
    assert (snapshot["status"], [item["id"] for item in snapshot["output"]]) == ("in_progress", ["fc_a"])
    early = encoder.final
    assert early is None
    encoder.feed([TextDone("m"), END])
    assert encoder.final is not None
    assert len(encoder.final["output"]) == 2
    assert len(snapshot["output"]) == 1


def test_the_text_is_that_of_the_finished_messages() -> None:
    """All of them, in order, and nothing else."""
    encoder = responses_encoder()
    encode(encoder, [*REASONING, *TEXT, CUSTOM_CALL, SEARCH, TextDelta("n", [" you"]), END])
    assert encoder.text == "Hello you"


def test_estimated_usage_says_so() -> None:
    """Only where it is estimated."""
    encoder = responses_encoder()
    encode(encoder, [*TEXT, UsageUpdate(Usage(3, 0, 1, estimated=True)), END])
    assert orjson.loads(encoder.body())["usage"]["estimated"] is True


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


@pytest.mark.parametrize(
    "dead", [[TextDelta("a", ["dead"])], [FIRST_CALL], [CUSTOM_CALL], [SEARCH], REASONING, [*TEXT, FIRST_CALL]]
)
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
