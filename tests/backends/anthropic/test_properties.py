"""What holds for any turn and any stream: bodies that the API takes, answers that do not depend on how they come."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import orjson
from backends.anthropic.rig import PIXEL, reasoning
from hypothesis import given
from hypothesis import strategies as st
from upstream.answers import Stream
from upstream.anthropic_checks import REFUSED, body_faults
from upstream.anthropic_events import Block, answer, cited, error, redacted, search, text, thinking, tool_use

from bridge.app.tool_loop import follow_up
from bridge.core.collect import collect
from bridge.core.events import Finished, TextDelta, ToolCall
from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    OutputFormat,
    RawItem,
    Text,
    ToolChoice,
    WebSearchOptions,
)
from bridge.core.thoughts import ANTHROPIC
from bridge.core.turn import Turn
from bridge.errors import UpstreamError
from bridge.protocols.messages.build import build_body, dropped
from bridge.protocols.messages.decoder import MessagesBuffer
from bridge.protocols.messages.models import pack_thought
from bridge.protocols.sse import SseReader
from bridge.tools.payload import function_of

MODELS = [*REFUSED, "glm-4.6", "claude-epic-9"]
MODEL = "claude-opus-5-5"

words = st.one_of(st.sampled_from(["", " ", "a", "{}", '{"a": 1}', "[", "\n\n"]), st.text(max_size=5))
ids = st.sampled_from(["a", "a", "b", "a_2", "b--2", "a--2", "c d", "…", "x" * 200])
names = st.sampled_from(["add", "a.b", "a__b", "a b", "web_search", "ü", "x" * 200, ""])
spaces = st.sampled_from([None, None, "a"])
parts = st.lists(
    st.one_of(words.map(Text), words.map(Text), st.sampled_from([Image(PIXEL), Image("https://e.com/a")])), max_size=3
).map(tuple)


def thoughts(model: str) -> st.SearchStrategy[RawItem]:
    blocks = st.sampled_from(
        [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "thinking", "thinking": "", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "aGk="},
        ]
    )
    ours = blocks.map(lambda block: reasoning(pack_thought(model, block)))
    return st.one_of(ours, ours, words.map(lambda said: reasoning(ANTHROPIC + said)), words.map(reasoning))


@st.composite
def histories(draw: st.DrawFn, model: str) -> tuple[Item, ...]:
    """Anything in any order, but no output whose call is nowhere."""
    item = st.one_of(
        st.builds(Message, st.sampled_from(["system", "developer", "user", "assistant"]), parts),
        st.builds(FunctionCall, ids, names, words, spaces, st.booleans()),
        st.builds(FunctionOutput, ids, parts, st.booleans()),
        thoughts(model),
        st.just(RawItem("web_search_call", {"type": "web_search_call"})),
    )
    items = draw(st.lists(item, min_size=1, max_size=10))
    called = {item.call_id for item in items if isinstance(item, FunctionCall)}
    kept = [item for item in items if not isinstance(item, FunctionOutput) or item.call_id in called]
    return tuple(kept) or (Message("user", (Text("hi"),)),)


schemas: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, {}, {"type": "object", "anyOf": [{}]}, {"properties": {"a": {}}}]
)
functions = st.one_of(
    st.builds(FunctionTool, names, st.one_of(st.none(), words), schemas, st.booleans(), spaces),
    names.map(lambda name: function_of({"name": name}, name)),
)
formats = st.sampled_from(
    [
        None,
        OutputFormat("json_object", {}),
        OutputFormat("json_schema", {}, {"type": "object", "additionalProperties": False}, True),
        OutputFormat("json_schema", {}, {"type": "string", "minLength": 1}, True),
    ]
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    model = draw(st.sampled_from(MODELS))
    tools = tuple({tool.full_name: tool for tool in draw(st.lists(functions, max_size=4))}.values())
    choices = [ToolChoice(), ToolChoice("none"), ToolChoice("required")]
    choices += [ToolChoice("named", tool.full_name) for tool in tools]
    return Turn(
        model,
        model,
        draw(histories(model)),
        instructions=draw(st.one_of(st.none(), words)),
        tools=tools,
        tool_choice=draw(st.sampled_from(choices)),
        effort=draw(st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max", "?"])),
        output_format=draw(formats),
        temperature=draw(st.sampled_from([None, 0, 0.5, 1, 2])),
        top_p=draw(st.sampled_from([None, 0.5, 1])),
        max_output_tokens=draw(st.sampled_from([None, 1, 1366, 5000, 100_000])),
        parallel=draw(st.booleans()),
        web_search=draw(st.sampled_from([None, WebSearchOptions()])),
    )


@given(turns())
def test_any_turn_gives_a_body_that_the_api_takes(turn: Turn) -> None:
    body = orjson.loads(orjson.dumps(build_body(turn)))
    faults = list(body_faults(body))
    assert faults == [], faults
    assert set(dropped(turn)) <= {"reasoning.effort", "reasoning_effort", "temperature", "top_p", "tool_choice"}
    assert build_body(turn) == build_body(turn)


@given(turns())
def test_nothing_that_was_said_is_lost(turn: Turn) -> None:
    body = json.dumps(build_body(turn), ensure_ascii=False)
    for item in turn.items:
        for part in item.parts if isinstance(item, Message | FunctionOutput) else ():
            if isinstance(part, Text) and part.text.strip():
                assert json.dumps(part.text, ensure_ascii=False)[1:-1] in body


# Streams


blocks = st.one_of(
    st.lists(words, max_size=3).map(lambda pieces: text(*pieces)),
    words.map(lambda said: cited(said, "https://e.com")),
    st.lists(words, max_size=3).map(lambda pieces: thinking(*pieces)),
    st.just(redacted()),
    st.builds(lambda name, pieces: tool_use(name, *pieces), names, st.lists(words, max_size=3)),
    st.just(search('{"query": "x"}')),
    st.just(Block({"type": "hologram"})),
)
ends = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal"])
streams = st.builds(
    lambda parts, stop, broken: answer(*parts, stop=stop, tag="7", end=error("api_error") if broken else None),
    st.lists(blocks, max_size=5),
    ends,
    st.booleans(),
)
ASKED = Turn(MODEL, MODEL, (Message("user", (Text("hi"),)),), web_search=WebSearchOptions())


@given(streams, st.integers(1, 40), st.booleans())
def test_an_answer_does_not_depend_on_how_it_is_cut(events: Any, size: int, windows: bool) -> None:
    whole, pieces = MessagesBuffer(ASKED), MessagesBuffer(ASKED)
    for event in events:
        whole.receive(json.dumps(event).encode())
    reader, said = SseReader(), []
    for chunk in Stream(events, chunk=size, line_end="\r\n" if windows else "\n").pieces():
        assert isinstance(chunk, bytes)
        for data in reader.feed(chunk):
            pieces.receive(data)
            said += pieces.take()
    assert repr(collect(said)) == repr(collect(whole.take()))
    assert isinstance(said[-1], Finished)


@given(streams)
def test_what_is_told_is_whole(events: Any) -> None:
    buffer = MessagesBuffer(ASKED)
    for event in events:
        buffer.receive(json.dumps(event).encode())
    told = buffer.take()
    result = collect(told)
    calls = [event for event in told if isinstance(event, ToolCall)]
    assert len({call.call_id for call in calls}) == len(calls)
    assert all(call.arguments.strip() for call in calls)
    spoken = "".join(event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta")
    assert result.text == spoken
    assert all(event.pieces for event in told if isinstance(event, TextDelta))


@given(streams, st.data())
def test_a_stream_that_makes_no_sense_is_an_error_and_nothing_else(events: Any, data: st.DataObject) -> None:
    """Members are lost or replaced anywhere."""
    junk: st.SearchStrategy[Any] = st.sampled_from([None, 5, "x", [], {}, True])

    def spoil(value: Any) -> Any:
        if data.draw(st.integers(0, 19)) == 0:
            return data.draw(junk)
        if isinstance(value, dict):
            return {name: spoil(member) for name, member in value.items()}
        return value

    buffer = MessagesBuffer(ASKED)
    with suppress(UpstreamError):
        for event in events:
            buffer.receive(json.dumps(spoil(event)).encode())
    collect(buffer.take())


@given(st.lists(blocks, min_size=1, max_size=5), st.lists(blocks, min_size=1, max_size=5))
def test_an_answer_goes_back_as_it_came(first: Any, second: Any) -> None:
    """Two steps of a tool loop: each answer is one message, thoughts and calls in it, its results in the next."""
    tool = FunctionTool("add")
    turn = Turn(MODEL, MODEL, (Message("user", (Text("hi"),)),), tools=(tool,), web_search=WebSearchOptions())
    for number, parts in enumerate((first, second)):
        buffer = MessagesBuffer(turn)
        for event in answer(*parts, tool_use("add", "{}"), tag=str(number)):
            buffer.receive(json.dumps(event).encode())
        result = collect(buffer.take())
        turn = follow_up(turn, result, ["5"] * len(result.calls))
        body = orjson.loads(orjson.dumps(build_body(turn)))
        faults = list(body_faults(body))
        assert faults == [], faults
        message, results = body["messages"][-2:]
        assert len(body["messages"]) == 3 + 2 * number
        kinds = [block["type"] for block in message["content"]]
        thought = [part for part in parts if part.start["type"] in ("thinking", "redacted_thinking")]
        assert kinds.count("tool_use") == len(results["content"]) == len(result.calls)
        assert len([kind for kind in kinds if kind.endswith("thinking")]) == len(thought)
