"""Chunks of a stream as events: text, thoughts, ends, errors, usage."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from backends.openai_compatible.rig import WEATHER, called, decode, thoughts, turn
from upstream.openai_chat_chunks import answer, call, chunk, completion, reasoning, refusing, text

from bridge.core.collect import ReasoningOutput, TextOutput
from bridge.core.events import Finished, ReasoningDelta, ReasoningDone, TextDelta, TextDone, Usage
from bridge.core.items import FunctionTool
from bridge.errors import UpstreamError
from bridge.protocols.chat.decoder import ChatBuffer
from bridge.tools.payload import function_of

Json = dict[str, Any]

COMPLETED = Finished("completed")
FEW = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def events_of(chunks: list[Json]) -> list[Any]:
    buffer = ChatBuffer(())
    for each in chunks:
        buffer.receive(orjson.dumps(each))
    buffer.over(told=True)
    return buffer.take()


# What is said


def test_a_text() -> None:
    result = decode(answer(text("hel", "lo")))
    assert (result.text, result.end) == ("hello", COMPLETED)
    assert result.usage == Usage(11, 3, 7, 2)


def test_pieces_are_one_run_and_every_item_is_closed() -> None:
    events = events_of(answer(reasoning("a", "b"), text("c", "d"), usage=None))
    assert events == [
        ReasoningDelta("reasoning_1", 0, ["a", "b"], raw=True),
        ReasoningDone("reasoning_1"),
        TextDelta("message_2", ["c", "d"]),
        TextDone("message_2"),
        COMPLETED,
    ]


def test_thoughts_between_texts_are_items_of_their_own() -> None:
    result = decode(answer(text("a"), reasoning("b"), text("c")))
    assert [type(output) for output in result.outputs] == [TextOutput, ReasoningOutput, TextOutput]
    assert (result.text, thoughts(result)) == ("ac", "b")


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_have_several_names(member: str) -> None:
    assert thoughts(decode(answer(reasoning("a", "b", member=member), text("c")))) == "ab"


def test_thoughts_under_two_names_are_thought_once() -> None:
    both = chunk({"reasoning_content": "hm", "reasoning": "hm", "reasoning_details": [{"text": "hm"}]})
    assert thoughts(decode([both, *answer(text("a"))])) == "hm"


def test_thoughts_and_text_in_one_delta() -> None:
    result = decode([chunk({"content": "b", "reasoning": "a"}, "stop")])
    assert (thoughts(result), result.text) == ("a", "b")
    assert isinstance(result.outputs[0], ReasoningOutput)


def test_content_may_be_null_empty_or_a_list_of_parts() -> None:
    chunks = [
        chunk({"role": "assistant", "content": None}),
        chunk({"content": ""}),
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "closed": True}]}),
        chunk({"content": [{"type": "thinking", "thinking": " so"}]}),
        chunk({"content": [{"type": "text", "text": "a"}, {"type": "reference", "reference_ids": [1]}]}),
        chunk({"content": "b"}),
        chunk({"content": []}, "stop"),
    ]
    result = decode(chunks)
    assert (thoughts(result), result.text, result.end) == ("hm so", "ab", COMPLETED)


def test_a_refusal_is_what_the_model_says() -> None:
    assert decode(answer(refusing("I ", "cannot"))).text == "I cannot"


def test_other_choices_are_not_listened_to() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "length"}]}
    assert decode([other, *answer(text("a")), other]).text == "a"


def test_chunks_may_have_next_to_nothing_in_them() -> None:
    chunks = [{}, {"choices": None}, {"choices": []}, {"choices": [{}]}, {"choices": [{"index": 0, "delta": None}]}]
    assert decode([*chunks, *answer(text("a")), *chunks]).text == "a"


def test_calls_come_at_the_end_with_their_ids() -> None:
    result = decode(answer(text("I look."), call("weather", '{"ci', 'ty":1}'), call("clock"), tag="t"))
    assert called(result) == [("weather", '{"city":1}'), ("clock", "{}")]
    assert [(each.id, each.call_id) for each in result.calls] == [
        ("fc_call_t_0", "call_t_0"),
        ("fc_call_t_1", "call_t_1"),
    ]
    assert result.end == COMPLETED


def test_functions_come_back_as_the_client_named_them() -> None:
    tools = (
        FunctionTool("get", namespace="crm"),
        FunctionTool("a.b"),
        function_of({"name": "patch"}, "patch"),
        function_of({"name": "run"}, "run", "shell"),
    )
    chunks = answer(
        call("crm__get"),
        call("a__b", "{}"),
        call("patch", '{"input":"*** Begin"}'),
        call("shell__run", "no JSON"),
        call("else"),
    )
    calls = decode(chunks, turn(tools=tools)).calls
    assert [(each.namespace, each.name, each.arguments, each.custom) for each in calls] == [
        ("crm", "get", "{}", False),
        (None, "a.b", "{}", False),
        (None, "patch", "*** Begin", True),
        ("shell", "run", "no JSON", True),
        (None, "else", "{}", False),
    ]
    assert calls[2].id.startswith("ctc_")


def test_one_call_where_the_client_wants_one_at_a_time() -> None:
    asked = turn(tools=(WEATHER,), parallel=False)
    assert called(decode(answer(call("weather", "{}"), call("clock", "{}")), asked)) == [("weather", "{}")]


def test_the_old_function_call() -> None:
    chunks = [
        chunk({"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"city":'}}),
        chunk({"function_call": {"arguments": '"Bern"}'}}),
        chunk({}, "function_call"),
    ]
    result = decode(chunks)
    assert called(result) == [("weather", '{"city":"Bern"}')]
    assert result.calls[0].call_id == "call_answer_0"


# The end


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "eos", "end_turn", "STOP", None])
@pytest.mark.parametrize("item", [text("a"), call("weather", "{}")], ids=["text", "call"])
def test_done_ends_an_answer_whatever_its_reason(finish: str | None, item: Any) -> None:
    result = decode(answer(item, finish=finish))
    assert result.end == COMPLETED
    assert result.text or result.calls


def test_a_finish_reason_is_not_the_end() -> None:
    """Usage follows, and from some servers more calls."""
    chunks = [
        chunk({"tool_calls": [{"id": "a", "function": {"name": "weather", "arguments": "{}"}}]}, "tool_calls"),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "clock", "arguments": "{}"}}]}, "tool_calls"),
    ]
    assert decode(chunks, told=None).end is None
    result = decode([*chunks, {"choices": [], "usage": FEW}])
    assert [each.call_id for each in result.calls] == ["a", "b"]
    assert result.usage == Usage(1, 0, 2)


@pytest.mark.parametrize(
    ("chunks", "whole"),
    [
        (answer(text("a"), usage=None), True),
        (answer(call("weather", "{}"), usage=None), True),
        (answer(text("a"), finish=None), True),
        (answer(call("weather", "{}"), finish=None), True),
        (answer(text("a"), finish=None, usage=None), False),
        (answer(call("weather", "{}"), finish=None, usage=None), False),
        ([chunk({"content": "a"}, usage=FEW)], False),
        ([{"choices": [], "usage": FEW}], False),
        ([], False),
    ],
)
def test_a_body_that_just_ends_is_whole_after_a_reason_or_the_last_usage(chunks: list[Json], whole: bool) -> None:
    result = decode(chunks, told=False)
    assert (result.end == COMPLETED) == whole
    assert whole or result.end is None
    assert whole or result.calls == []


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("MAX_TOKENS", "max_output_tokens"),
        ("content_filter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("content_filter: RECITATION", "content_filter"),
    ],
)
def test_an_answer_that_was_cut_is_incomplete_and_keeps_what_was_said(finish: str, reason: str) -> None:
    result = decode(answer(text("a"), finish=finish))
    assert result.end == Finished("incomplete", reason=reason)
    assert (result.text, result.usage) == ("a", Usage(11, 3, 7, 2))
    assert decode(answer(finish=finish)).end == Finished("incomplete", reason=reason)


def test_half_a_call_is_not_told() -> None:
    chunks = answer(call("weather", '{"city":"Bern"}'), call("clock", '{"zo'), call("clock"), finish="length")
    result = decode(chunks)
    assert called(result) == [("weather", '{"city":"Bern"}')]
    assert result.end == Finished("incomplete", reason="max_output_tokens")


@pytest.mark.parametrize("chunks", [answer(), answer(reasoning("hm")), []], ids=["empty", "thoughts", "nothing"])
def test_an_answer_without_a_word_is_a_failure(chunks: list[Json]) -> None:
    end = decode(chunks).end
    assert end is not None
    assert end.error is not None
    assert end.error.code == "empty_response"


def test_nothing_comes_after_the_end() -> None:
    buffer = ChatBuffer(())
    for each in answer(text("a")):
        buffer.receive(orjson.dumps(each))
    buffer.over(told=True)
    before = buffer.take()
    buffer.receive(b'{"choices":[{"delta":{"content":"late"}}]}')
    buffer.receive(b'{"error":"late"}')
    buffer.over(told=False)
    assert before[-1] == COMPLETED
    assert buffer.take() == []


# Errors in the stream


@pytest.mark.parametrize(
    ("said", "code", "status", "words"),
    [
        ({"error": {"message": "too busy", "type": "server_error", "code": None}}, "upstream_error", 502, "too busy"),
        ({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, "rate_limit_exceeded", 429, "slow"),
        ({"error": {"message": "slow", "code": 429}}, "rate_limit_exceeded", 429, "slow"),
        ({"error": {"message": "down", "code": "503"}}, "overloaded", 503, "down"),
        ({"error": {"message": "down", "code": 502, "metadata": {}}}, "upstream_error", 502, "down"),
        ({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, "BadRequestError", 400, "no"),
        ({"error": {"message": "who", "code": 401}}, "upstream_unauthorized", 401, "who"),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, "invalid_request_error", 400, "no"),
        ({"error": {"message": "gone", "code": "insufficient_quota"}}, "insufficient_quota", 429, "gone"),
        ({"error": "just words"}, "upstream_error", 502, "just words"),
        ({"error": {}, "message": "x", "object": "error"}, "upstream_error", 502, "x"),
        ({"object": "error", "message": "vLLM", "type": "x", "code": 500}, "upstream_error", 502, "vLLM"),
        ([{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}], "overloaded", 503, "busy"),
        (chunk({"content": ""}, "error", error={"code": 429, "message": "up"}), "rate_limit_exceeded", 429, "up"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "c"}}]}, "upstream_error", 502, "c"),
        (chunk({}, "error"), "upstream_error", 502, "broke the answer off (error)"),
        (chunk({}, "abort"), "upstream_error", 502, "broke the answer off (abort)"),
    ],
)
def test_an_error_is_the_end(said: Any, code: str, status: int, words: str) -> None:
    result = decode([*answer(text("a"), call("weather", "{}"), usage=None)[:-1], said])
    assert result.end is not None
    assert result.end.outcome == "failed"
    error = result.end.error
    assert error is not None
    assert (error.code, error.http_status) == (code, status)
    assert words in error.message
    assert (result.text, result.calls) == ("a", [])


def test_usage_before_an_error_is_kept() -> None:
    result = decode([chunk({"content": "a"}, usage=FEW), {"error": "x"}])
    assert result.usage == Usage(1, 0, 2)


@pytest.mark.parametrize("null", [None, "", {}, False])
def test_an_error_of_nothing_is_none(null: Any) -> None:
    assert decode([each | {"error": null} for each in answer(text("a"))]).text == "a"


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"7",
        b"null",
        b'"text"',
        b"[7]",
        b'{"choices":7}',
        b'{"choices":[7]}',
        b'{"choices":["x"]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":{"content":7}}]}',
        b'{"choices":[{"delta":{"content":[7]}}]}',
        b'{"choices":[{"delta":{"content":[{"text":7}]}}]}',
        b'{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[7]}]}}]}',
        b'{"choices":[{"delta":{"refusal":7}}]}',
        b'{"choices":[{"delta":{"tool_calls":7}}]}',
        b'{"choices":[{"delta":{"tool_calls":[7]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":7}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":{}}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":7}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"id":[1]}]}}]}',
        b'{"choices":[],"usage":7}',
        b'{"choices":[],"x_groq":7}',
    ],
)
def test_what_makes_no_sense_is_a_broken_event(data: bytes) -> None:
    buffer = ChatBuffer(())
    with pytest.raises(UpstreamError) as caught:
        buffer.receive(data)
    assert caught.value.code == "broken_event"
    assert caught.value.__cause__ is None


def test_a_call_without_a_name_is_broken_and_one_without_anything_is_none() -> None:
    nameless = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]})
    result = decode([*answer(text("a"))[:-1], nameless])
    assert result.end is not None
    assert result.end.error is not None
    assert result.end.error.code == "broken_event"
    nothing = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "", "arguments": ""}}]})
    assert decode([nothing, *answer(text("a"))]).end == COMPLETED


# An answer that is no stream


@pytest.mark.parametrize(
    "items",
    [
        (text("hel", "lo"),),
        (reasoning("hm"), text("so")),
        (text("a"), call("weather", '{"city":', "1}"), call("clock")),
        (refusing("no"),),
    ],
)
def test_a_whole_completion_says_the_same_as_its_chunks(items: Any) -> None:
    chunks = answer(*items, tag="t")
    whole = decode([completion(chunks)])
    streamed = decode(chunks)
    assert (whole.text, thoughts(whole), whole.calls, whole.usage, whole.end) == (
        streamed.text,
        thoughts(streamed),
        streamed.calls,
        streamed.usage,
        streamed.end,
    )
