"""Either body on either path; and whatever a body holds, it is read or refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocols.cases import CREATED_AT
from protocols.official import check_response

from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Message, Text, ToolChoice
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.chat.request import FORM, ChatBody
from bridge.protocols.dropped import dropped_fields
from bridge.protocols.reading import conversation_id, parse_request, shape_of
from bridge.protocols.responses.encoder import echo_of, response_object
from bridge.protocols.responses.request import ResponsesBody

PATHS: list[str] = ["responses", "chat"]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}
HI = Message("user", (Text("hi"),))


def parse(body: dict[str, Any], path: str, context: Any = ()) -> Turn:
    return parse_request(body, path, context)


@pytest.mark.parametrize("path", PATHS)
def test_the_body_decides_how_it_is_read(path: str) -> None:
    """Its own words count, wherever it was sent."""
    assert shape_of(CHAT, path) == "chat"
    assert shape_of(RESPONSES, path) == "responses"
    assert parse(CHAT, path) == Turn("m", "m", (HI,), **FORM)
    assert parse(RESPONSES, path) == Turn("m", "m", (HI,))


@pytest.mark.parametrize("path", PATHS)
def test_a_body_of_both_or_neither_is_its_paths_own(path: str) -> None:
    """What cannot be told apart is what the path says; null is nothing."""
    both = CHAT | RESPONSES
    assert shape_of(both, path) == path
    assert parse(both, path).legacy_form == path
    assert shape_of({"model": "m"}, path) == path
    assert shape_of({"input": None, "messages": None}, path) == path
    assert shape_of(CHAT | {"input": None}, path) == "chat"
    assert shape_of(RESPONSES | {"messages": None}, path) == "responses"


@pytest.mark.parametrize(("path", "param"), [("responses", "input"), ("chat", "messages")])
def test_a_body_of_neither_says_what_the_path_wants(path: str, param: str) -> None:
    """The fault is named in the path's own words."""
    with pytest.raises(InvalidRequest) as caught:
        parse({"model": "m"}, path)
    assert caught.value.param == param


@pytest.mark.parametrize("path", PATHS)
def test_the_spellings_may_be_mixed(path: str) -> None:
    """Messages in the input, items among the messages, tools and choices of the other format."""
    conversation = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "find", "arguments": ""}}],
        },
        {"type": "function_call_output", "call_id": "c", "output": "found"},
        {"type": "function_call", "call_id": "d", "name": "find", "arguments": "{}"},
        {"role": "tool", "tool_call_id": "d", "content": "found"},
    ]
    items = (
        HI,
        FunctionCall("c", "find", ""),
        FunctionOutput("c", (Text("found"),)),
        FunctionCall("d", "find", "{}"),
        FunctionOutput("d", (Text("found"),)),
    )
    flat, nested = {"type": "function", "name": "find"}, {"type": "function", "function": {"name": "find"}}
    for member in ("input", "messages"):
        for tool in (flat, nested):
            for choice in (flat, nested):
                body = {"model": "m", member: conversation, "tools": [tool], "tool_choice": choice}
                turn = parse(body, path)
                assert turn.items == items
                assert turn.tools == (FunctionTool("find"),)
                assert turn.tool_choice == ToolChoice("named", "find")


@pytest.mark.parametrize("body", [CHAT, RESPONSES])
def test_a_body_continues_what_was_before(body: dict[str, Any]) -> None:
    """Whatever its shape, on the path that knows what was before."""
    context = [{"type": "message", "role": "assistant", "content": "before"}]
    assert parse(body, "responses", context).items == (Message("assistant", (Text("before"),)), HI)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("member", ["input", "messages"])
def test_tools_may_stand_in_the_conversation(path: str, member: str) -> None:
    """An item that offers tools adds them to the others."""
    offer = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "open"}]}
    body = {"model": "m", member: [{"role": "user", "content": "hi"}, offer]}
    turn = parse(body | {"tools": [{"type": "function", "name": "find"}]}, path)
    assert turn.items == (HI,)
    assert turn.tools == (FunctionTool("find"), FunctionTool("open"))


# Whatever is sent

scalars = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(0, 1) | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
OTHERS = {"conversation", "user", "truncation", "service_tier", "modalities", "prompt_cache_key", "safety_identifier"}
FIELDS = sorted(ChatBody.model_fields.keys() | ResponsesBody.model_fields.keys() | OTHERS)
LIKELY: dict[str, list[Any]] = {
    "tools": [[{"type": "function", "name": "find"}], [{"type": "custom", "custom": {"name": "c"}}], [{}]],
    "functions": [[{"name": "find"}]],
    "tool_choice": ["required", {"type": "function", "name": "find"}, {"type": "custom", "custom": {"name": "c"}}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {}}}],
    "text": [{"verbosity": "low"}, {"format": {"type": "json_object"}}, "plain"],
    "reasoning": [{"effort": "high"}, {"summary": "none"}],
    "include": [["reasoning.encrypted_content"], 5],
    "conversation": ["conv_1", {"id": "conv_1"}, {"id": 5}],
    "stop": ["x", ["x", ""]],
}
changes = st.dictionaries(st.sampled_from(FIELDS), st.none(), max_size=4).flatmap(
    lambda given: st.fixed_dictionaries({name: _values(name) for name in given})
)


def _values(name: str) -> st.SearchStrategy[Any]:
    return st.sampled_from(LIKELY[name]) | anything if name in LIKELY else anything


@given(st.sampled_from([CHAT, RESPONSES]), changes, st.sampled_from(PATHS))
def test_any_body_is_answered_or_refused(body: dict[str, Any], changed: dict[str, Any], path: str) -> None:
    """Nothing that a client sends is a mistake of ours: not where it is read, named or echoed."""
    data = body | changed
    try:
        turn = parse(data, path)
    except InvalidRequest:
        return
    assert turn.items
    assert all(name.isascii() for name in dropped_fields(data, turn, path))
    conversation_id(data)
    orjson.dumps(
        response_object(
            echo_of(data, turn), id="resp_1", created_at=CREATED_AT, status="completed", output=[], usage=None
        )
    )


NESTED = {"type": "function", "function": {"name": "find"}}
CUSTOM = {"type": "custom", "custom": {"name": "patch", "description": "d"}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"tools": [NESTED], "tool_choice": NESTED},
        {"tools": [CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}},
        {
            "tools": [NESTED],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NESTED]}},
        },
        {"tools": [{"type": "custom", "custom": {"name": "patch", "format": GRAMMAR}}]},
        {"functions": [{"name": "find"}], "function_call": {"name": "find"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}, "strict": True}}},
        {"reasoning_effort": "high", "verbosity": "low", "max_tokens": 5, "stop": "x"},
        {"metadata": {"a": "b"}, "user": "u", "store": True},
        {"text": "a field that chat does not have", "metadata": 5},
    ],
)
def test_a_chat_body_is_answered_by_a_response_of_the_clients_type(members: dict[str, Any]) -> None:
    """What is echoed of it has the Responses spelling."""
    data = CHAT | members
    turn = parse(data, "responses")
    check_response(
        response_object(
            echo_of(data, turn), id="resp_1", created_at=CREATED_AT, status="completed", output=[], usage=None
        )
    )
