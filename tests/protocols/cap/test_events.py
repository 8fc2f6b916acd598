"""TurnEvents as packets: each kind of event by its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from protocols.cap.samples import REQUEST_ID
from protocols.cap.streams import encoder, feed, fixed, fold, packets_of, read_lines, read_sse
from protocols.cases import CANCEL, CUSTOM_CALL, END, FIRST_CALL, NAMESPACED_CALL, REASONING, USAGE

from bridge.core.collect import collect
from bridge.core.events import (
    Acted,
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import BackendCrashed, NotReady, UpstreamError
from bridge.protocols.cap.encoder import Form
from bridge.protocols.cap.models import EVENT, ServiceResponse
from bridge.protocols.cap.stream import EventPacket

CLOSE = {"op": "close", "p": None}
TEXT: list[TurnEvent] = [TextDelta("m", ["Hel", "lo"]), TextDone("m")]


def shown(kind: str, /, **data: Any) -> dict[str, Any]:
    """An event packet, without its id and time."""
    return {"op": "event", "p": {"type": kind, "data": data}}


def deltas(*texts: str) -> list[dict[str, Any]]:
    """Delta packets."""
    return [{"op": "delta", "p": text} for text in texts]


def thought(text: str, index: int = 0, *, kind: str = "summary", final: bool = True, item: str = "rs") -> Any:
    """The packet of a thought."""
    return shown("thought_trace", thought=text, kind=kind, item_id=item, index=index, final=final)


# Text


def test_a_stream_to_the_byte() -> None:
    assert feed(encoder(), [*TEXT, END]) == (
        b"event: stream.packet\nid: 550e8400-e29b-41d4-a716-446655440000:1\n"
        b'data: {"op":"delta","p":"Hel"}\n\n'
        b"event: stream.packet\nid: 550e8400-e29b-41d4-a716-446655440000:2\n"
        b'data: {"op":"delta","p":"lo"}\n\n'
        b"event: stream.packet\nid: 550e8400-e29b-41d4-a716-446655440000:3\n"
        b'data: {"op":"close","p":null}\n\n'
    )
    assert feed(encoder(form="ndjson"), [*TEXT, END]) == (
        b'{"op":"delta","p":"Hel"}\n{"op":"delta","p":"lo"}\n{"op":"close","p":null}\n'
    )


def test_an_event_to_the_byte() -> None:
    events: list[TurnEvent] = [FIRST_CALL, END]
    assert encoder(now=fixed(0.5)).packets(events)[0] == (
        b'{"op":"event","p":{"id":"919446ee-104d-506e-9eac-20ca0f91afae","timestamp":"2023-11-14T22:13:20.500000Z",'
        b'"type":"progress_indicator","data":{"label":"tool: find","status":"running"}}}'
    )


BEGUN: list[TurnEvent] = [
    CallBegun(FIRST_CALL.id, FIRST_CALL.call_id, FIRST_CALL.name),
    CallDelta(FIRST_CALL.id, ['{"q"']),
]


def test_a_call_is_running_from_its_beginning_to_its_end() -> None:
    packets = encoder()
    assert len(packets.packets(BEGUN[:1])) == 1
    assert packets.visible
    assert packets.packets(BEGUN[1:]) == []
    running, complete = (shown("progress_indicator", label="tool: find", status=s) for s in ("running", "complete"))
    assert packets_of(events=[*BEGUN, FIRST_CALL, *TEXT, END]) == [running, complete, *deltas("Hel", "lo"), CLOSE]


def test_a_call_that_is_cut_off_has_failed() -> None:
    packets = packets_of(events=[*BEGUN, Finished("incomplete", reason="max_output_tokens")])
    assert [packet["p"]["data"]["status"] for packet in packets[:2]] == ["running", "failed"]


def test_a_call_that_is_sent_on_request_is_complete() -> None:
    whole = packets_of("tool_call", events=[FIRST_CALL, END])
    assert packets_of("tool_call", events=[*BEGUN, FIRST_CALL, END]) == whole
    packets = packets_of("tool_call", events=[*BEGUN, Finished("incomplete", reason="max_output_tokens")])
    assert [packet["p"]["type"] for packet in packets[:-1]] == ["user_error"]


def test_empty_pieces_are_not_sent() -> None:
    assert packets_of(events=[TextDelta("m", ["", "a", ""]), TextDelta("m", [""]), END]) == [*deltas("a"), CLOSE]


def test_messages_have_a_blank_line_between_them() -> None:
    events: list[TurnEvent] = [
        TextDelta("a", ["1"]),
        TextDone("a"),
        FIRST_CALL,
        TextDelta("b", ["", ""]),
        TextDelta("c", ["", "2"]),
    ]
    packets = packets_of(events=[*events, TextDelta("c", ["3"]), END])
    assert [packet["p"] for packet in packets if packet["op"] == "delta"] == ["1", "\n\n", "2", "3"]


def test_odd_characters() -> None:
    text = '\u2028\u2029\x85\r\n\r\n"\\ data: x\n\n\0😀'
    forms: list[tuple[Form, Callable[[bytes], Any]]] = [("sse", read_sse), ("ndjson", read_lines)]
    for form, read in forms:
        assert fold(read(feed(encoder(form=form), [TextDelta("m", [text]), END]))).text == text


# Thoughts


def test_thoughts_are_sent_part_by_part() -> None:
    packets = [thought("**Plan** first"), thought("then", 1), *deltas("Hel", "lo"), CLOSE]
    assert packets_of(events=[*REASONING, *TEXT, END]) == packets


def test_raw_thoughts_are_sent_on_request() -> None:
    packets = packets_of("reasoning_raw", events=[*REASONING, END])
    assert packets == [thought("**Plan** first"), thought("then", 1), thought("raw", kind="raw"), CLOSE]


def test_pieces_of_thoughts_are_sent_on_request() -> None:
    """What is new of them; then the whole."""
    events: list[TurnEvent] = [ReasoningDelta("rs", 0, ["a", "b"]), ReasoningDelta("rs", 0, ["c"]), ReasoningDone("rs")]
    packets = [thought("ab", final=False), thought("c", final=False), thought("abc"), CLOSE]
    assert packets_of("reasoning_stream", events=[*events, END]) == packets
    assert fold(read_sse(feed(encoder("reasoning_stream"), [*events, END]))).output(None)["reasoning"] == [
        {"thought": "abc", "kind": "summary", "item_id": "rs", "index": 0}
    ]


def test_a_thought_without_an_end_precedes_what_follows() -> None:
    for following in (TEXT[0], FIRST_CALL, ReasoningDelta("other", 0, ["x"])):
        packets = packets_of(events=[ReasoningDelta("rs", 0, ["Hm."]), following, END])
        assert packets[0] == thought("Hm.")
    assert packets_of(events=[ReasoningDelta("rs", 0, ["Hm."]), END]) == [thought("Hm."), CLOSE]


def test_empty_thoughts_are_not_sent() -> None:
    assert packets_of(events=[ReasoningDelta("rs", 0, [""]), ReasoningDone("rs", "gAAA"), END]) == [CLOSE]


# Tools


def test_a_call_is_progress() -> None:
    packets = [
        shown("progress_indicator", label="tool: files.find", status=status) for status in ("running", "complete")
    ]
    assert packets_of(events=[NAMESPACED_CALL, *TEXT, END]) == [*packets, *packets_of(events=[*TEXT, END])]


@pytest.mark.parametrize("text_before", [[], [TextDelta("m", ["\n"])]], ids=["nothing", "blank"])
def test_a_turn_of_only_calls_is_not_an_answer(text_before: list[TurnEvent]) -> None:
    """CAP has no tools and no way to send their outputs, so a client could do nothing with it."""
    *_, error, close = packets_of(events=[*text_before, NAMESPACED_CALL, END])
    assert (error["op"], error["p"]["code"], close) == ("error", "empty_response", CLOSE)
    assert "'files.find'" in error["p"]["message"]
    whole = encoder(form="json")
    feed(whole, [*text_before, NAMESPACED_CALL, END])
    assert whole.failure is not None


@pytest.mark.parametrize(
    ("call", "tool", "kind", "arguments"),
    [
        (FIRST_CALL, "find", "function", {"q": "é\n"}),
        (NAMESPACED_CALL, "files.find", "function", {}),
        (CUSTOM_CALL, "patch", "custom", "*** Begin\n+é"),
    ],
)
def test_a_call_is_sent_on_request(call: ToolCall, tool: str, kind: str, arguments: Any) -> None:
    packet = shown("tool_call", call_id=call.call_id, tool=tool, kind=kind, arguments=arguments, state="requested")
    assert packets_of("tool_call", events=[call, END]) == [packet, CLOSE]


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", '"x"', '{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 99 + "1" + "}" * 99]
)
def test_arguments_that_are_not_an_object_stay_text(arguments: str) -> None:
    packets = packets_of("tool_call", events=[ToolCall("i", "c", "find", arguments), END])
    assert packets[0]["p"]["data"]["arguments"] == arguments


def test_large_numbers_are_exact() -> None:
    call = ToolCall("i", "c", "find", '{"n": 123456789012345678901234567890, "ü": "\u2028"}')
    packets = read_lines(feed(encoder("tool_call", form="ndjson"), [call, END]))
    assert isinstance(packets[0], EventPacket)
    assert isinstance(packets[0].p, dict)
    assert packets[0].p["data"]["arguments"] == {"n": 123456789012345678901234567890, "ü": "\u2028"}


SEARCH = WebSearch(
    "ws_1",
    {
        "type": "search",
        "query": "weather",
        "sources": [
            {"type": "url", "url": "https://example.org"},
            {"url": "javascript:alert(1)"},
            {"url": "http://"},
            {"url": None},
            "x",
            {"url": "HTTP://example.org/b", "title": "B"},
        ],
    },
)
CITATIONS = [
    {"source_id": "ws_1:0", "uri": "https://example.org/", "title": "https://example.org"},
    {"source_id": "ws_1:1", "uri": "http://example.org/b", "title": "B"},
]


def test_a_search_is_progress_and_its_sources_are_cited() -> None:
    packets = [shown("progress_indicator", label="tool: web_search", status=state) for state in ("running", "complete")]
    assert packets_of(events=[SEARCH, END]) == [*packets, shown("citation_block", items=CITATIONS), CLOSE]


def test_a_search_is_sent_on_request() -> None:
    about = {"call_id": "ws_1", "tool": "web_search", "kind": "web_search"}
    packets = [
        shown("tool_call", **about, arguments={"type": "search", "query": "weather"}, state=state)
        for state in ("running", "complete")
    ]
    assert packets_of("tool_call", events=[SEARCH, END])[:-1] == [*packets, shown("citation_block", items=CITATIONS)]


# Ends


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_answer_that_is_cut(reason: str) -> None:
    *before, notice, close = packets_of(events=[*TEXT, Finished("incomplete", reason=reason)])
    assert (before, close) == (deltas("Hel", "lo"), CLOSE)
    assert notice["p"]["type"] == "user_error"
    data = notice["p"]["data"]
    assert (data["code"], data["domain"], data["retryable"], data["reason"]) == (206, "llm", False, reason)


def test_an_answer_that_fails() -> None:
    error = UpstreamError(
        "No more.", code="rate_limit_exceeded", http_status=429, severity="transient", retry_after=2.5
    )
    made = encoder("metrics")
    stream = feed(made, [*TEXT, Finished("failed", error=error)])
    *before, failed, close = [packet.dump() for packet in read_sse(stream)]
    assert (before, close) == (deltas("Hel", "lo"), CLOSE)
    assert failed == {
        "op": "error",
        "p": {
            "code": "rate_limit_exceeded",
            "message": "No more.",
            "severity": "transient",
            "details": {"retry_after": 3, "domain": "llm", "request_id": REQUEST_ID},
        },
    }
    assert made.failure is error


def test_a_failure_from_outside() -> None:
    made = encoder()
    made.packets([TEXT[0]])
    packets = made.fail(NotReady("Stopping.", code="shutdown_initiated"))
    assert [orjson.loads(packet)["op"] for packet in packets] == ["error", "close"]
    assert made.sequence == 4
    assert made.fail(BackendCrashed("gone")) == []
    assert made.feed([*TEXT, END]) == b""


def test_cancellation_by_the_client_is_not_an_error() -> None:
    made = encoder("metrics")
    assert read_sse(feed(made, [TEXT[0], CANCEL]))[-1].dump() == CLOSE
    assert [packet["op"] for packet in packets_of(events=[TEXT[0], CANCEL])] == ["delta", "delta", "close"]
    assert made.failure is None


def test_an_interruption_is_an_error() -> None:
    made = encoder()
    ops = [packet.op for packet in read_sse(feed(made, [TEXT[0], Finished("cancelled")]))]
    assert ops == ["delta", "delta", "error", "close"]
    assert made.failure is not None


def test_a_restart_before_anything_was_shown() -> None:
    """The client learns that there is another attempt; thoughts that were not sent yet are dropped."""
    made = encoder()
    stream = made.feed([ReasoningDelta("rs", 0, ["Hm."]), Restarted("again")])
    assert not made.visible
    packets = read_sse(stream + made.feed([*TEXT, END]))
    assert isinstance(packets[0], EventPacket)
    assert isinstance(packets[0].p, dict)
    assert packets[0].p["data"] == {"label": "reconnecting", "status": "running"}
    assert [packet.op for packet in packets[1:]] == ["delta", "delta", "close"]


def test_a_restart_after_something_was_shown() -> None:
    packets = packets_of(events=[*TEXT, Restarted("again"), TextDelta("n", ["new"]), END])
    assert [packet["op"] for packet in packets] == ["delta", "delta", "error", "close"]
    assert packets[2]["p"]["code"] == "upstream_stream_disconnected"
    assert packets[2]["p"]["severity"] == "transient"


# Metrics

METRICS = {
    "duration_ms": 900,
    "ttft_ms": 250,
    "tokens": 32,
    "input_tokens": 20,
    "cached_input_tokens": 8,
    "output_tokens": 12,
    "reasoning_tokens": 5,
}


def test_metrics_on_request() -> None:
    made = encoder("metrics", now=fixed(0.25, 0.9))
    *_, metrics, _ = read_sse(feed(made, [*TEXT, USAGE, END]))
    assert isinstance(metrics, EventPacket)
    assert isinstance(metrics.p, dict)
    assert (metrics.p["type"], metrics.p["data"]) == ("metrics", METRICS)
    assert packets_of(events=[*TEXT, USAGE, END]) == [*deltas("Hel", "lo"), CLOSE]


def test_metrics_without_usage() -> None:
    def metrics(*events: TurnEvent) -> Any:
        return packets_of("metrics", events=[*events, END])[-2]["p"]["data"]

    assert metrics() == {"duration_ms": 250}
    assert metrics(UsageUpdate(Usage(1, 0, 1, estimated=True)))["estimated"] is True


# One answer


def test_an_answer_that_is_not_streamed() -> None:
    made = encoder("tool_call", form="json", now=fixed(0.25, 0.9))
    assert feed(made, [*REASONING, *TEXT], [SEARCH, FIRST_CALL, USAGE], [END]) == b""
    response = orjson.loads(made.body())
    assert ServiceResponse.model_validate(response).dump() == response
    assert response == {
        "request_id": REQUEST_ID,
        "created_at": "2023-11-14T22:13:20.900000Z",
        "output": {
            "text": "Hello",
            "conversation_id": "c1",
            "conversation": "new",
            "status": "completed",
            "citations": CITATIONS,
            "tool_calls": [
                {
                    "call_id": "ws_1",
                    "tool": "web_search",
                    "kind": "web_search",
                    "arguments": {"type": "search", "query": "weather"},
                    "state": "complete",
                },
                {
                    "call_id": "call_a",
                    "tool": "find",
                    "kind": "function",
                    "arguments": {"q": "é\n"},
                    "state": "requested",
                },
            ],
            "reasoning": [
                {"thought": "**Plan** first", "kind": "summary", "item_id": "rs", "index": 0},
                {"thought": "then", "kind": "summary", "item_id": "rs", "index": 1},
            ],
        },
        "metrics": METRICS,
    }


@pytest.mark.parametrize("end", [Finished("incomplete", reason="max_output_tokens"), CANCEL])
def test_a_cut_answer_that_is_not_streamed_says_so(end: Finished) -> None:
    made = encoder(form="json")
    feed(made, [*TEXT, end])
    output = orjson.loads(made.body())["output"]
    assert (output["text"], output["status"]) == ("Hello", "incomplete")
    assert [notice["reason"] for notice in output["notices"]] == [end.reason]


def test_a_failed_answer_that_is_not_streamed_has_no_body() -> None:
    made = encoder(form="json")
    feed(made, [*TEXT, Finished("failed", error=BackendCrashed("gone"))])
    assert made.failure is not None
    assert made.finished


def test_a_restart_is_invisible_without_a_stream() -> None:
    made = encoder("tool_call", form="json")
    feed(
        made, [*REASONING, *TEXT], [FIRST_CALL, TextDelta("m", ["!"]), Restarted("again"), TextDelta("n", ["new"]), END]
    )
    output = orjson.loads(made.body())["output"]
    assert output == {"text": "new", "conversation_id": "c1", "conversation": "new", "status": "completed"}


# For the server


def test_what_the_server_asks_for() -> None:
    made = encoder()
    assert (made.begin(), made.visible, made.finished, made.usage, made.sequence) == (b"", False, False, None, 0)
    made.feed([USAGE])
    assert not made.visible
    made.feed(TEXT)
    assert (made.visible, made.sequence) == (True, 2)
    made.feed([END])
    assert made.finished
    assert made.usage == USAGE.usage
    assert made.result == collect([*TEXT, USAGE, END])
    assert REQUEST_ID in repr(made)


def test_every_event_is_a_presentation_event() -> None:
    events: list[TurnEvent] = [*REASONING, SEARCH, FIRST_CALL, Finished("incomplete", reason="max_output_tokens")]
    packets = [packet for packet in read_sse(feed(encoder(), events)) if isinstance(packet, EventPacket)]
    for packet in packets:
        assert EVENT.validate_python(packet.p).dump() == packet.p
    assert len({packet.p["id"] for packet in packets if isinstance(packet.p, dict)}) == len(packets)


def test_a_failure_after_something_was_done_says_so() -> None:
    """Of this turn alone: the same failure may have ended others, in which nothing was done."""
    crash = BackendCrashed("Gone.")
    cases: list[tuple[list[TurnEvent], bool | None]] = [([Acted()], True), ([Acted(), *TEXT], True), ([*TEXT], None)]
    for events, done in cases:
        packet = read_lines(feed(encoder(form="ndjson"), [*events, Finished("failed", error=crash)]))[-2]
        assert packet.dump()["p"]["details"].get("side_effects") is done
    assert not crash.side_effects
