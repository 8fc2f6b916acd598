"""The events of a Responses stream: items in every way that they can be told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upstream.events import (
    Item,
    answer,
    call,
    completed,
    custom_call,
    reasoning,
    refusal_text,
    search,
    text,
)

from bridge.core.collect import ReasoningOutput, Result, TextOutput, collect
from bridge.core.events import (
    CallBegun,
    CallDelta,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    WebSearch,
)
from bridge.core.items import FunctionTool
from bridge.errors import UpstreamError
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.protocols.wire import WireEncoder

Json = dict[str, Any]


def decode(events: Iterable[Json], functions: Iterable[FunctionTool] = ()) -> list[TurnEvent]:
    buffer = ResponsesBuffer(functions)
    for event in events:
        buffer.receive(json.dumps(event).encode())
    return buffer.take()


def result_of(events: Iterable[Json], functions: Iterable[FunctionTool] = ()) -> Result:
    return collect(decode(events, functions))


def without(events: Iterable[Json], *kinds: str) -> list[Json]:
    return [event for event in events if not any(kind in event["type"] for kind in kinds)]


def done(item: Json) -> list[Json]:
    return [{"type": "response.output_item.done", "item": item}, *answer(text("."))]


# Text


def test_text_comes_in_its_pieces() -> None:
    events = decode(answer(text("a", "b", "c"), tag="t"))
    assert events[:2] == [TextDelta("msg_t_0", ["a", "b", "c"]), TextDone("msg_t_0")]


@pytest.mark.parametrize(
    ("part", "said", "thought"),
    [
        ({"type": "output_text", "text": "hello"}, "hello", []),
        ({"type": "refusal", "refusal": "I will not"}, "I will not", []),
        ({"type": "reasoning_text", "text": "hm"}, ".", ["hm"]),
        ({"type": "output_text", "text": ""}, ".", []),
        ({"type": "refusal", "refusal": None}, ".", []),
        ({"type": "something_new", "text": "?"}, ".", []),
        ({}, ".", []),
    ],
)
def test_text_of_a_part_that_begins(part: Json, said: str, thought: list[str]) -> None:
    """Before the first delta; what is no text says nothing."""
    events = [{"type": "response.content_part.added", "item_id": "x_1", "content_index": 0, "part": part}]
    result = result_of([*events, *answer(text("."))])
    assert result.text.removesuffix(".") == said.removesuffix(".")
    assert [
        each for output in result.outputs if isinstance(output, ReasoningOutput) for each in output.content_parts()
    ] == thought


@pytest.mark.parametrize(
    "missing",
    [
        ["delta"],
        ["delta", "output_item"],
        ["output_item"],
        ["output_text.done", "content_part"],
        ["added"],
        ["created", "in_progress", "added", "output_text.done", "content_part", "output_item.done"],
    ],
    ids=str,
)
@pytest.mark.parametrize("item", [text("all ", "of it"), refusal_text("I will not")], ids=["text", "refusal"])
def test_text_is_told_once_whatever_tells_it(item: Item, missing: list[str]) -> None:
    """By deltas, by the item, or at last by the response."""
    whole = result_of(answer(item, tag="t"))
    assert whole.text in ("all of it", "I will not")
    assert result_of(without(answer(item, tag="t"), *missing)).text == whole.text


def test_what_was_not_streamed_of_a_text_is_added() -> None:
    events = answer(text("one ", "two ", "three"), tag="t")
    assert result_of(events[:5] + events[7:]).text == "one two three"


def test_deltas_may_name_no_item() -> None:
    """As in seed 000's shortest events."""
    events = [{key: value for key, value in event.items() if key != "item_id"} for event in answer(text("a", "b"))]
    assert result_of(events).text == "ab"


def test_deltas_of_a_call_may_name_no_item() -> None:
    events = [{key: value for key, value in event.items() if key != "item_id"} for event in answer(call("f", "{", "}"))]
    for event in events:
        event.get("item", {}).pop("arguments", None)
    assert [each.arguments for each in result_of(events[:-1] + answer(text("."))[-1:]).calls] == ["{}"]


def test_an_item_without_an_id_is_an_item_all_the_same() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    assert result_of(done(item)).text == "a."


def test_an_item_without_an_id_may_be_told_at_last() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    assert result_of([{"type": "response.completed", "response": {"output": [item]}}]).text == "a"


def test_all_items_without_an_id_may_be_told_at_last() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = result_of([{"type": "response.completed", "response": {"output": [message, called]}}])
    assert (result.text, [each.call_id for each in result.calls]) == ("a", ["c"])


def test_calls_without_an_id_are_not_taken_for_the_item_before() -> None:
    items = [{"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in ("c1", "c2")]
    calls = [{"type": "response.output_item.done", "item": item} for item in items]
    result = result_of([*answer(text("a"), tag="t")[:-1], *calls, answer()[-1]])
    assert len({"msg_t_0", *(each.id for each in result.calls)}) == 3


def test_two_messages_are_two() -> None:
    outputs = result_of(answer(text("a", "b"), text("c"), tag="t")).outputs
    assert outputs == [TextOutput("msg_t_0", ["a", "b"]), TextOutput("msg_t_1", ["c"])]


# Calls


@pytest.mark.parametrize("missing", [["delta"], ["arguments.done"], ["added", "delta"], ["output_item"]], ids=str)
def test_a_call_is_told_once_whatever_tells_it(missing: list[str]) -> None:
    result = result_of(without(answer(call("add", '{"a"', ":2}"), tag="t"), *missing))
    assert result.calls == [ToolCall("fc_t_0", "call_t_0", "add", '{"a":2}')]


def test_arguments_may_come_as_deltas_alone() -> None:
    events = answer(call("add", '{"a"', ":2}"), tag="t", end=completed(output=False))
    for event in events:
        event.get("item", {}).pop("arguments", None)
    assert result_of(events).calls[0].arguments == '{"a":2}'
    events[-2]["item"]["arguments"] = ""
    assert result_of(events).calls[0].arguments == '{"a":2}'


def test_parallel_calls_do_not_mix() -> None:
    items = [call("add", '{"a"', ":1}"), call("mul", '{"b"', ":2", "}"), call("add", '{"a":3}')]
    events = answer(*items, interleaved=True, tag="t")
    for event in events:
        event.get("item", {}).pop("arguments", None)
    assert sorted(result_of(events[:-1] + answer()[-1:]).calls, key=lambda call: call.id) == [
        ToolCall("fc_t_0", "call_t_0", "add", '{"a":1}'),
        ToolCall("fc_t_1", "call_t_1", "mul", '{"b":2}'),
        ToolCall("fc_t_2", "call_t_2", "add", '{"a":3}'),
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1', "", "not json", "{}", '{"a": "\\u2028\\n"}', "null"])
def test_arguments_are_passed_as_they_are(arguments: str) -> None:
    """Valid or not: they are the model's."""
    assert result_of(answer(call("add", arguments))).calls[0].arguments == arguments


def test_a_call_that_is_never_complete_is_not_told() -> None:
    events = answer(call("add", '{"a"', ":2}"))
    assert not any(isinstance(event, ToolCall) for event in decode(events[:-2]))


def test_custom_calls_have_a_text() -> None:
    events = answer(custom_call("patch", "*** Begin", "\n"), tag="t")
    wanted = ToolCall("ctc_t_0", "call_t_0", "patch", "*** Begin\n", custom=True)
    assert result_of(events).calls == [wanted]
    for event in events:
        event.get("item", {}).pop("input", None)
    assert result_of(events).calls == [wanted]


def test_names_come_back_as_the_client_wrote_them() -> None:
    tools = [FunctionTool("read", namespace="files"), FunctionTool("files__write"), FunctionTool("dot.ted")]
    result = result_of(answer(call("files__read", "{}"), call("files__write", "{}"), call("other", "{}")), tools)
    assert [(each.namespace, each.name) for each in result.calls] == [
        ("files", "read"),
        (None, "files__write"),
        (None, "other"),
    ]


def test_a_namespace_of_the_providers_own_is_kept() -> None:
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "namespace": "mcp", "arguments": "{}"}
    assert result_of(done(item)).calls[0].namespace == "mcp"


@pytest.mark.parametrize("names", [{"id": "fc_1"}, {}], ids=["with an id", "without"])
def test_a_call_that_is_told_again_is_made_once(names: Json) -> None:
    """Some proxies repeat an event when they connect again."""
    item = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}", **names}
    told = {"type": "response.output_item.done", "item": item}
    end = {"type": "response.completed", "response": {"output": [item]}}
    assert [call.call_id for call in result_of([told, told, end]).calls] == ["call_1"]


def test_a_call_without_an_id_is_called_by_its_call_id() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    assert result_of(done(item)).calls == [ToolCall("c", "c", "f", "{}")]


# Reasoning and searches


@pytest.mark.parametrize("missing", [[], ["delta"], ["output_item.done"]], ids=str)
def test_reasoning_keeps_what_is_encrypted(missing: list[str]) -> None:
    events = without(answer(reasoning("a", "b", raw="c", encrypted="canary"), text("."), tag="t"), *missing)
    (thought, _) = result_of(events).outputs
    assert isinstance(thought, ReasoningOutput)
    assert (thought.item, thought.summary_parts(), thought.content_parts()) == ("rs_t_0", ["a", "b"], ["c"])
    assert thought.encrypted == "canary"


def test_reasoning_may_be_encrypted_alone_or_not_at_all() -> None:
    events = decode(
        answer(reasoning(encrypted="canary"), reasoning("a", encrypted=None), reasoning(encrypted=None), tag="t")
    )
    assert events[:3] == [
        ReasoningDone("rs_t_0", "canary"),
        ReasoningDelta("rs_t_1", 0, ["a"]),
        ReasoningDone("rs_t_1", None),
    ]
    assert not any(isinstance(event, ReasoningDone) for event in events[3:])


def test_a_search_is_told_with_what_it_did() -> None:
    events = decode(answer(search("weather"), text("."), tag="t"))
    assert events[0] == WebSearch("ws_t_0", {"type": "search", "query": "weather"})


@pytest.mark.parametrize("action", [{}, {"type": "ask"}, {"type": "search", "query": 5}, {"type": "find_in_page"}])
def test_a_search_is_told_in_a_shape_that_clients_know(action: Json) -> None:
    """Found by the fuzzer: an action of no kind."""
    search = decode(done({"type": "web_search_call", "id": "ws", "action": action}))[0]
    assert isinstance(search, WebSearch)
    assert search.action["type"] in ("search", "find_in_page")
    assert isinstance(search.action.get("query", ""), str)


def test_items_stay_in_their_order() -> None:
    items = [reasoning("r"), search("s"), text("t"), call("c", "{}"), text("u")]
    kinds = [type(event) for event in decode(answer(*items)) if not isinstance(event, TextDone | ReasoningDone)]
    assert kinds[:7] == [ReasoningDelta, WebSearch, TextDelta, CallBegun, CallDelta, ToolCall, TextDelta]


# Nothing else than an UpstreamError


MEMBERS = (
    "id", "item_id", "call_id", "name", "arguments", "input", "delta", "content", "summary", "text", "action",
    "summary_index", "content_index", "namespace", "encrypted_content", "usage", "output", "error", "refusal",
    "incomplete_details", "message", "code", "reason", "input_tokens", "output_tokens", "input_tokens_details",
)  # fmt: skip
ITEMS = ("message", "function_call", "custom_tool_call", "reasoning", "web_search_call", "x")
KINDS = (
    "response.output_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_text.delta",
    "response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.output_item.done",
    "response.completed", "response.incomplete", "response.failed", "error",
)  # fmt: skip
SCALARS = st.sampled_from([None, True, 0, -1, 2**40, 0.5, "", "x", "rs_1"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(MEMBERS), SCALARS, max_size=2)
OBJECTS = st.dictionaries(st.sampled_from(MEMBERS), VALUES | st.lists(VALUES, max_size=2), max_size=6)
EVENTS = st.builds(
    lambda kind, event, item_kind, item, response: {
        **event,
        "type": kind,
        "item": {**item, "type": item_kind},
        "response": {**response, "output": [item]},
    },
    st.sampled_from(KINDS),
    OBJECTS,
    st.sampled_from(ITEMS),
    OBJECTS,
    OBJECTS,
)


@given(st.lists(EVENTS, max_size=4))
def test_any_event_is_understood_or_refused(events: list[Json]) -> None:
    buffer = ResponsesBuffer()
    with suppress(UpstreamError):
        for event in events:
            buffer.receive(json.dumps(event).encode())
    Result().add(buffer.take())


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "id": 5, "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "function_call", "id": 5, "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}", "namespace": 5},
        {"type": "web_search_call", "id": "ws", "action": "x"},
    ],
    ids=lambda item: item["type"],
)
def test_what_is_no_text_is_not_passed_on_as_one(item: Json) -> None:
    """The lines of exec have a schema; an encoder trusts what it is given."""
    encoder = WireEncoder("m", lambda prefix: f"{prefix}_1")
    lines: list[bytes] = []
    with suppress(UpstreamError):
        lines = encoder.feed(decode(done(item)))
    for line in map(json.loads, lines):
        told = line.get("item", {})
        assert isinstance(told.get("id", ""), str)
        assert isinstance(told.get("namespace", ""), str)
        assert isinstance(told.get("action", {}), dict)


def test_many_small_deltas_cost_linear_time() -> None:
    def seconds(number: int) -> float:
        buffer = ResponsesBuffer()
        delta = json.dumps(
            {"type": "response.function_call_arguments.delta", "item_id": "f", "delta": "x" * 10}
        ).encode()
        said = json.dumps({"type": "response.output_text.delta", "item_id": "m", "delta": "x" * 10}).encode()
        begun = time.process_time()
        for _ in range(number):
            buffer.receive(delta)
            buffer.receive(said)
        item = {"type": "function_call", "id": "f", "call_id": "c", "name": "n"}
        buffer.receive(json.dumps({"type": "response.output_item.done", "item": item}).encode())
        assert len(buffer.take()[-1].arguments) == 10 * number  # type: ignore[union-attr]
        return time.process_time() - begun

    seconds(1000)
    assert seconds(50_000) < 2
