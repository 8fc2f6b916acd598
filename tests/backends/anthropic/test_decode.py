"""The events of a stream as what the bridge makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from backends.anthropic.rig import ADD, reasoning, turn
from upstream.anthropic_events import (
    NOTHING,
    Block,
    answer,
    cited,
    error,
    found,
    redacted,
    search,
    text,
    thinking,
    tool_use,
)

from bridge.core.collect import ReasoningOutput, Result, TextOutput, collect
from bridge.core.events import Finished, TextDelta, ToolCall, Usage, UsageUpdate, WebSearch
from bridge.core.items import FunctionTool, WebSearchOptions
from bridge.errors import BridgeError, UpstreamError
from bridge.protocols.messages.decoder import MessagesBuffer
from bridge.protocols.messages.models import thought_in
from bridge.tools.payload import function_of

Json = dict[str, Any]
MODEL = "claude-sonnet-4-5"


def decoded(events: list[Json], **more: Any) -> Result:
    buffer = MessagesBuffer(turn(**more))
    for event in events:
        buffer.receive(json.dumps(event).encode())
    return collect(buffer.take())


def outcome(result: Result) -> tuple[str, str | None]:
    assert result.end is not None
    return result.end.outcome, result.end.reason


def failure(result: Result) -> BridgeError:
    assert result.end is not None
    assert result.end.error is not None
    return result.end.error


# Texts


def test_a_text() -> None:
    result = decoded(answer(text("hel", "", "lo"), tag="7"))
    assert result.outputs == [TextOutput("msg_7_0", ["hel", "lo"])]
    assert outcome(result) == ("completed", None)


def test_a_text_that_is_told_at_once() -> None:
    assert decoded(answer(Block({"type": "text", "text": "hello"}))).text == "hello"


def test_texts_in_a_row_are_one() -> None:
    result = decoded(answer(text("a"), cited("b", "https://example.com"), text("c")))
    assert [output.text for output in result.outputs if isinstance(output, TextOutput)] == ["abc"]


def test_texts_with_something_between_are_two() -> None:
    result = decoded(answer(text("a"), thinking("hm"), text("b"), tag="7"))
    assert [type(output) for output in result.outputs] == [TextOutput, ReasoningOutput, TextOutput]
    assert len({output.item for output in result.outputs if isinstance(output, TextOutput | ReasoningOutput)}) == 3


# Calls


def test_calls() -> None:
    result = decoded(answer(text("let me"), tool_use("add", '{"a"', ": 2}"), tool_use("now"), tag="7"), tools=(ADD,))
    assert result.calls == [
        ToolCall("fc_toolu_7_1", "toolu_7_1", "add", '{"a": 2}'),
        ToolCall("fc_toolu_7_2--2", "toolu_7_2--2", "now", "{}"),
    ]
    assert outcome(result) == ("completed", None)


@pytest.mark.parametrize("arguments", ['{"a":1, "a":2}', '{ "é\\u00e9" : 1.0 }', "[1]", '"x"', " {}"])
def test_arguments_are_what_was_streamed(arguments: str) -> None:
    (call,) = decoded(answer(tool_use("add", *arguments))).calls
    assert call.arguments == arguments


def test_arguments_that_are_told_at_once() -> None:
    block = Block({"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2}})
    assert decoded(answer(block)).calls[0].arguments == '{"a":2}'


def test_names_come_back_as_the_client_wrote_them() -> None:
    tools = (FunctionTool("get.it", namespace="my space"), FunctionTool("a b"), FunctionTool("a_b"))
    told = answer(tool_use("my_space__get__it", "{}"), tool_use("a_b", "{}"), tool_use("unheard", "{}"))
    calls = decoded(told, tools=tools).calls
    assert [(call.namespace, call.name) for call in calls] == [("my space", "get.it"), (None, "a_b"), (None, "unheard")]


@pytest.mark.parametrize(
    ("arguments", "given"), [('{"input": "*** Begin"}', "*** Begin"), ("*** Begin", "*** Begin"), ("", "")]
)
def test_a_custom_tool_is_given_its_text(arguments: str, given: str) -> None:
    (call,) = decoded(answer(tool_use("patch", arguments)), tools=(function_of({"name": "patch"}, "patch"),)).calls
    assert (call.arguments, call.custom) == (given, True)


@pytest.mark.parametrize("given", [{}, {"id": None}, {"id": "same"}])
def test_ids_are_made_where_there_are_none_and_never_twice_the_same(given: Json) -> None:
    blocks = [Block({"type": "tool_use", "name": "add", "input": {}, **given}) for _ in range(3)]
    calls = decoded(answer(*blocks, tag="7")).calls
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == 3
    assert all(calls[0].call_id for _ in calls)
    assert decoded(answer(*blocks, tag="7")).calls == calls


@pytest.mark.parametrize("pieces", [('{"a": ',), (), ('{"a": [{"b',)])
def test_a_call_that_was_cut_off_is_not_told(pieces: tuple[str, ...]) -> None:
    result = decoded(answer(tool_use("now", "{}"), tool_use("add", *pieces), stop="max_tokens"))
    assert [call.name for call in result.calls] == ["now"]
    assert outcome(result) == ("incomplete", "max_output_tokens")


@pytest.mark.parametrize("following", [(), (tool_use("now", "{}"),), (text("a"),)])
def test_arguments_that_are_no_json_are_told_if_the_model_meant_them(following: Any) -> None:
    result = decoded(answer(tool_use("add", '{"a": '), *following))
    assert result.outputs[0] == ToolCall("fc_" + result.calls[0].call_id, result.calls[0].call_id, "add", '{"a": ')
    assert outcome(result) == ("completed", None)


# Thoughts


def test_thoughts_and_what_to_give_back() -> None:
    result = decoded(answer(thinking("h", "m", signature="c2ln"), text("a"), tag="7"))
    first = result.outputs[0]
    assert isinstance(first, ReasoningOutput)
    assert (first.item, first.summary_parts(), first.content_parts()) == ("msg_7_0", ["hm"], [])
    assert thought_in(reasoning(first.encrypted), MODEL) == {
        "type": "thinking",
        "thinking": "hm",
        "signature": "c2ln",
    }
    assert thought_in(reasoning(first.encrypted), "claude-opus-4-5") is None


@pytest.mark.parametrize("block", [redacted("aGlkZGVu"), thinking(signature="c2ln")])
def test_thoughts_that_cannot_be_read_are_given_back_too(block: Block) -> None:
    first = decoded(answer(block, text("a"))).outputs[0]
    assert isinstance(first, ReasoningOutput)
    assert first.summary_parts() == []
    thought = thought_in(reasoning(first.encrypted), MODEL)
    assert thought in (
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
    )


def test_thoughts_without_a_signature_are_only_shown() -> None:
    first = decoded(answer(thinking("hm", signature=""), text("a"))).outputs[0]
    assert isinstance(first, ReasoningOutput)
    assert (first.summary_parts(), first.encrypted) == (["hm"], None)


def test_a_signature_may_come_in_pieces() -> None:
    deltas = [{"type": "signature_delta", "signature": piece} for piece in ("c2", "ln")]
    first = decoded(answer(Block({"type": "thinking", "thinking": "hm", "signature": ""}, deltas))).outputs[0]
    assert isinstance(first, ReasoningOutput)
    assert thought_in(reasoning(first.encrypted), MODEL) == {
        "type": "thinking",
        "thinking": "hm",
        "signature": "c2ln",
    }


# Searches


FOUND = (search('{"query": ', '"bern"}'), found("https://example.com"), text("a"))


def test_a_search_is_told_where_it_was_wanted() -> None:
    result = decoded(answer(*FOUND, tag="7"), web_search=WebSearchOptions())
    assert result.outputs[0] == WebSearch("msg_7_0", {"type": "search", "query": "bern"})
    assert result.text == "a"
    assert [type(output) for output in decoded(answer(*FOUND)).outputs] == [TextOutput]


def test_a_search_that_was_cut_off_breaks_nothing() -> None:
    result = decoded(answer(search('{"query": "be'), stop="max_tokens"), web_search=WebSearchOptions())
    assert outcome(result) == ("incomplete", "max_output_tokens")


def test_blocks_and_events_of_unknown_kinds_are_left_out() -> None:
    strange = Block({"type": "hologram", "depth": 5}, [{"type": "hologram_delta", "x": 1}])
    events = answer(strange, text("a"))
    result = decoded([events[0], {"type": "weather", "sunny": True}, *events[1:]])
    assert result.text == "a"


# Usage


def test_usage_includes_what_was_cached_and_thought() -> None:
    result = decoded(answer(text("a"), fresh=11, written=2, read=3, output=7, thinking_tokens=4))
    assert result.usage == Usage(16, 3, 7, 4, cache_write=2)


def test_the_last_counts_hold() -> None:
    events = answer(text("a"))
    events[-2]["usage"] = {"input_tokens": 100, "cache_read_input_tokens": 50, "output_tokens": 9}
    assert decoded(events).usage == Usage(152, 50, 9, cache_write=2)


def test_usage_is_known_from_the_beginning() -> None:
    assert decoded(answer(text("a"))[:1]).usage == Usage(16, 3, 1, cache_write=2)


@pytest.mark.parametrize("where", [0, -2])
def test_usage_may_be_missing(where: int) -> None:
    events = answer(text("a"))
    (events[0]["message"] if where == 0 else events[where]).pop("usage")
    assert outcome(decoded(events)) == ("completed", None)


# Ends


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        ("end_turn", ("completed", None)),
        ("tool_use", ("completed", None)),
        ("stop_sequence", ("completed", None)),
        ("some_new_reason", ("completed", None)),
        ("max_tokens", ("incomplete", "max_output_tokens")),
        ("model_context_window_exceeded", ("incomplete", "max_output_tokens")),
        ("pause_turn", ("incomplete", "max_output_tokens")),
        ("refusal", ("incomplete", "content_filter")),
    ],
)
def test_why_it_stopped(stop: str, end: Any) -> None:
    result = decoded(answer(text("a"), stop=stop))
    assert (outcome(result), result.text, result.usage) == (end, "a", Usage(16, 3, 7, cache_write=2))


def test_an_answer_with_nothing_in_it_is_a_failure() -> None:
    assert failure(decoded(answer(thinking("hm")))).code == "empty_response"
    assert failure(decoded(answer(text("")))).code == "empty_response"


def test_a_refusal_needs_no_words() -> None:
    assert outcome(decoded(answer(stop="refusal"))) == ("incomplete", "content_filter")


@pytest.mark.parametrize("events", [answer(text("a"), end=NOTHING), answer(text("a"))[:-1]])
def test_there_is_no_end_before_the_last_event(events: list[Json]) -> None:
    assert decoded(events).end is None


@pytest.mark.parametrize(
    ("kind", "code", "status", "severity"),
    [
        ("overloaded_error", "overloaded", 503, "transient"),
        ("rate_limit_error", "rate_limit_exceeded", 429, "transient"),
        ("api_error", "upstream_error", 502, "transient"),
        ("timeout_error", "upstream_error", 502, "transient"),
        ("invalid_request_error", "invalid_request_error", 400, "fatal"),
    ],
)
def test_an_error_in_the_stream(kind: str, code: str, status: int, severity: str) -> None:
    result = decoded(answer(text("a"), end=error(kind, "what happened")))
    problem = failure(result)
    assert (problem.code, problem.http_status, problem.severity) == (code, status, severity)
    assert problem.message == "what happened"
    assert result.text == "a"
    assert result.usage == Usage(16, 3, 1, cache_write=2)


def test_an_error_may_be_a_mere_word() -> None:
    assert failure(decoded([{"type": "error", "error": "down"}])).message == "down"


def test_after_the_end_nothing_is_said() -> None:
    buffer = MessagesBuffer(turn())
    for event in [*answer(text("a")), *answer(text("b"))[-2:], *error("api_error")]:
        buffer.receive(json.dumps(event).encode())
    events = buffer.take()
    assert isinstance(events[-1], Finished)
    assert buffer.ended
    assert collect(events).text == "a"
    assert sum(isinstance(event, UsageUpdate) for event in events) == 2


# What makes no sense


START = answer()[0]
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b"{}",
        {"type": "message_start"},
        {"type": "message_start", "message": None},
        {"type": "message_start", "message": {"usage": 5}},
        {"type": "message_start", "message": {"usage": {"input_tokens": "many"}}},
        {"type": "content_block_start", "index": 0},
        {"type": "content_block_start", "index": "0", "content_block": {"type": "text"}},
        {"type": "content_block_start", "index": 1, "content_block": {}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": 5}},
        TEXT,
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
        {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": None},
        {"type": "message_delta", "delta": None},
        {"type": "message_delta", "delta": {"stop_reason": ["x"]}, "stop": 1},
        {"type": "error"},
    ],
    ids=str,
)
def test_an_event_that_makes_no_sense_is_told(event: Any) -> None:
    buffer = MessagesBuffer(turn())
    buffer.receive(json.dumps(START).encode())
    buffer.receive(json.dumps(TEXT).encode())
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    with pytest.raises(UpstreamError) as caught:
        buffer.receive(data)
        buffer.receive(b'{"type": "message_stop"}')
    assert caught.value.code == "broken_event"


def test_a_piece_that_is_no_text_is_in_no_answer() -> None:
    """Found by the fuzzer: it was refused, and told all the same."""
    buffer = MessagesBuffer(turn())
    for event in (START, TEXT):
        buffer.receive(json.dumps(event).encode())
    with pytest.raises(UpstreamError):
        buffer.receive(b'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 1}}')
    assert not any(isinstance(event, TextDelta) for event in buffer.take())


@pytest.mark.parametrize(
    "block",
    [
        Block({"type": "tool_use", "id": "a"}),
        Block({"type": "tool_use", "id": "a", "name": 5}),
        Block({"type": "redacted_thinking"}),
        Block({"type": "thinking"}, [{"type": "thinking_delta", "thinking": 5}]),
        Block({"type": "tool_use", "id": "a", "name": "b"}, [{"type": "input_json_delta", "partial_json": {}}]),
    ],
    ids=range(5),
)
def test_so_is_a_block_that_makes_no_sense(block: Block) -> None:
    with pytest.raises(UpstreamError, match="makes no sense"):
        decoded(answer(block))
