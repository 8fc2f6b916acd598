"""What holds whatever is said: any turn makes a right body, any answer is read however it is cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import orjson
from backends.openai_compatible.rig import turn
from hypothesis import given
from hypothesis import strategies as st
from upstream.openai_chat_checks import body_faults
from upstream.openai_chat_chunks import answer, call, completion, reasoning, text

from bridge.core.collect import Result
from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    OutputFormat,
    Part,
    RawItem,
    RawTool,
    Text,
    ToolChoice,
)
from bridge.core.turn import Turn
from bridge.errors import UpstreamError
from bridge.protocols.chat.build import MAX_NAME, build_body, dropped
from bridge.protocols.chat.decoder import ChatBuffer
from bridge.protocols.chat.presets import CUSTOM, PRESETS
from bridge.protocols.upstream import ToolNames
from bridge.tools.payload import function_of

Json = dict[str, Any]

# Turns

words = st.text(max_size=5)
parts: st.SearchStrategy[Part] = st.builds(Text, words) | st.builds(
    Image, st.just("data:image/png;base64,AAAA"), st.sampled_from([None, "low", "original"])
)
some_parts = st.lists(parts, min_size=1, max_size=3).map(tuple)
names = st.sampled_from(["a", "b.c", "b__c", "b__c_2", "x" * 70, "x" * 71, "é", "1:2"])
namespaces = st.sampled_from([None, None, "b", "ns"])
call_ids = st.sampled_from(["1", "2", "3", "call_" + "y" * 50])
messages = st.builds(Message, st.sampled_from(["system", "developer", "user", "assistant"]), some_parts)
calls = st.builds(FunctionCall, call_ids, names, words, namespaces, st.booleans())
raw_items = st.builds(
    lambda content: RawItem("reasoning", {"type": "reasoning", "encrypted_content": content}),
    st.sampled_from(["gAAA", 'gemini-signatures:{"1":"s"}']),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Item, ...]:
    """Items in any order, as a request may have them: each output comes somewhere after its call."""
    items: list[Item] = [draw(messages | calls)]
    waiting: list[FunctionCall] = []
    waiting += [item for item in items if isinstance(item, FunctionCall)]
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["message", "call", "call", "output", "raw"]))
        if kind == "call":
            made = draw(calls)
            waiting.append(made)
            items.append(made)
        elif kind == "output" and waiting:
            answered = waiting.pop(draw(st.integers(0, len(waiting) - 1)))
            items.append(FunctionOutput(answered.call_id, draw(some_parts), answered.custom))
        else:
            items.append(draw(raw_items) if kind == "raw" else draw(messages))
    return tuple(items)


functions = st.lists(
    st.one_of(
        st.builds(
            FunctionTool,
            names,
            st.none() | words,
            st.none() | st.booleans() | st.just({"type": "object"}),
            st.sampled_from([None, True, False]),
            namespaces,
        ),
        st.builds(lambda name, space: function_of({"name": name}, name, space), names, namespaces),
    ),
    max_size=5,
    unique_by=lambda tool: tool.full_name,
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    tools = draw(functions)
    modes = ["auto", "none", "required", *(["named"] if tools else [])]
    mode: Any = draw(st.sampled_from(modes))
    return turn(
        *draw(histories()),
        instructions=draw(st.none() | words),
        tools=(*tools, *([RawTool("mcp", {"type": "mcp"})] if draw(st.booleans()) else [])),
        tool_choice=ToolChoice(mode, draw(st.sampled_from(tools)).full_name if mode == "named" else None),
        parallel=draw(st.booleans()),
        effort=draw(st.sampled_from([None, "none", "minimal", "low", "high", "xhigh", "max", "ultra"])),
        verbosity=draw(st.sampled_from([None, "low"])),
        temperature=draw(st.none() | st.floats(0, 2)),
        top_p=draw(st.none() | st.floats(0, 1)),
        max_output_tokens=draw(st.none() | st.integers(1, 9)),
        output_format=draw(
            st.sampled_from(
                [
                    None,
                    OutputFormat("json_object", {}),
                    OutputFormat("json_schema", {"name": "a b"}, {"type": "object"}, strict=True),
                ]
            )
        ),
    )


@given(turns(), st.sampled_from([CUSTOM, *PRESETS.values()]))
def test_any_turn_makes_a_body_that_the_official_types_know(asked: Turn, preset: Any) -> None:
    body = orjson.loads(orjson.dumps(build_body(asked, preset)))
    assert list(body_faults(body)) == []
    assert all(isinstance(name, str) and name for name in dropped(asked, preset))


@given(turns(), st.sampled_from([CUSTOM, *PRESETS.values()]))
def test_nothing_that_was_said_is_lost_and_every_output_follows_its_call(asked: Turn, preset: Any) -> None:
    sent = build_body(asked, preset)["messages"]
    spoken = Counter(item.role for item in asked.items if isinstance(item, Message))
    calls_made = [item for item in asked.items if isinstance(item, FunctionCall)]
    names_sent = [entry["function"]["name"] for message in sent for entry in message.get("tool_calls", ())]
    offered = ToolNames(asked.functions, MAX_NAME)
    assert names_sent == [offered.of(made.full_name) for made in calls_made]
    outputs = sum(isinstance(item, FunctionOutput) for item in asked.items)
    roles = Counter(message["role"] for message in sent)
    assert roles["tool"] <= outputs
    assert (roles["tool"] > 0) == (outputs > 0)
    assert roles["user"] >= spoken["user"]
    assert roles["assistant"] >= spoken["assistant"]
    images = [part for message in sent for part in _parts_of(message) if part["type"] == "image_url"]
    shown = [
        part
        for item in asked.items
        if isinstance(item, Message | FunctionOutput)
        for part in item.parts
        if isinstance(part, Image)
    ]
    assert len(images) == len(shown)


def _parts_of(message: Json) -> list[Json]:
    return message["content"] if isinstance(message["content"], list) else []


@given(functions)
def test_names_go_out_and_come_back(tools: list[FunctionTool]) -> None:
    offered = ToolNames(tools, MAX_NAME)
    assert list(offered.tools.values()) == tools
    for tool in tools:
        assert offered.tools[offered.of(tool.full_name)] is tool


# Answers

pieces = st.lists(words.filter(bool) | st.sampled_from(["\u2028", "\r\n\r\n", "data: [DONE]\n\n", "😀"]), min_size=1)
arguments = st.dictionaries(words, st.integers(-9, 9) | words, max_size=3)


@st.composite
def items_said(draw: st.DrawFn) -> list[Any]:
    said: list[Any] = []
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=5)):
        if kind == "call":
            whole = orjson.dumps(draw(arguments)).decode()
            cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
            bounds = zip([0, *cuts], [*cuts, len(whole)], strict=True)
            said.append(call(draw(st.sampled_from(["weather", "clock"])), *(whole[a:b] for a, b in bounds)))
        else:
            said.append((text if kind == "text" else reasoning)(*draw(pieces)))
    return said


def played(body: bytes, cuts: list[int]) -> tuple[Any, ...]:
    """A body in these pieces: what it comes to."""
    buffer = ChatBuffer(())
    reader = buffer.reader()
    bounds = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    result = Result()
    for start, end in pairwise(bounds):
        for event in reader.feed(body[start:end]):
            buffer.receive(event)
        result.add(buffer.take())
    for event in reader.finish():
        buffer.receive(event)
    buffer.over(told=reader.done)
    result.add(buffer.take())
    outputs = [(type(output).__name__, _said_in(output)) for output in result.outputs]
    return outputs, result.usage, result.end and (result.end.outcome, result.end.reason)


def _said_in(output: Any) -> Any:
    if hasattr(output, "pieces"):
        return "".join(output.pieces)
    if hasattr(output, "content"):
        return output.content_parts()
    return (output.call_id, output.name, output.arguments)


def sse(chunks: list[Json], line_end: str = "\n") -> bytes:
    lines = [f"data: {orjson.dumps(chunk).decode()}{line_end * 2}" for chunk in chunks]
    return "".join([*lines, f"data: [DONE]{line_end * 2}"]).encode()


@given(items_said(), st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_an_answer_is_the_same_however_it_is_cut(said: list[Any], cuts: list[int], line_end: str) -> None:
    chunks = answer(*said, tag="t")
    body = sse(chunks, line_end)
    assert played(body, cuts) == played(sse(chunks), []) == played(sse(chunks), list(range(len(body))))


@given(items_said())
def test_an_answer_that_is_not_streamed_says_the_same(said: list[Any]) -> None:
    chunks = answer(*said, tag="t")
    whole, streamed = played(orjson.dumps(completion(chunks)), []), played(sse(chunks), [])
    assert whole[1:] == streamed[1:]
    for kind in ("TextOutput", "ReasoningOutput", "ToolCall"):
        assert _joined(whole[0], kind) == _joined(streamed[0], kind)


def _joined(outputs: list[Any], kind: str) -> Any:
    said = [each for name, each in outputs if name == kind]
    return said if kind == "ToolCall" else "".join("".join(each) for each in said)


@given(items_said(), st.integers(0, 100))
def test_the_truth_is_never_made_up_from_a_part(said: list[Any], kept: int) -> None:
    """A stream that breaks before its reason has no end of its own."""
    chunks = answer(*said)[:-2][:kept]
    body = b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)
    outputs, _, end = played(body, [])
    assert end is None
    assert all(kind != "ToolCall" for kind, _ in outputs)


members = [
    "choices", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage", "error",
    "message", "finish_reason", "reasoning", "type", "text", "thinking", "code", "extra_content", "function_call",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "stop", "length", "error"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(members), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=4), st.booleans())
def test_nonsense_is_a_broken_event_or_an_end_and_nothing_else(values: list[Any], told: bool) -> None:
    buffer = ChatBuffer(())
    broken = None
    try:
        for value in values:
            buffer.receive(orjson.dumps(value))
    except UpstreamError as error:
        broken = error.code
    else:
        buffer.over(told=told)
    assert broken == "broken_event" if broken else (buffer.finished or not told)
    result = Result()
    result.add(buffer.take())
