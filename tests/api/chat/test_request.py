"""A chat request becomes a Turn."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.api.chat.request import parse_chat
from bridge.errors import InvalidRequest, ModelNotFound
from bridge.turn.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Message,
    OutputFormat,
    RawTool,
    Text,
    ToolChoice,
)
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def resolve(name: str) -> ModelChoice:
    if name == "absent":
        raise ModelNotFound(name, ["m"])
    return ModelChoice(name, name.lower(), "low" if name.endswith("-l") else None)


def parse(*messages: Any, **members: Any) -> Turn:
    return parse_chat({"model": "m", "messages": list(messages), **members}, resolve)


def refused(*messages: Any, **members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **members)
    assert caught.value.http_status == 400
    return caught.value


def test_the_smallest_request() -> None:
    """Nothing but a model and a message: everything else is unset."""
    assert parse(HI) == Turn("chat", "m", "m", (Message("user", (Text("hi"),)),))


def test_every_role_keeps_its_place() -> None:
    """A whole tool conversation, in order, nothing lost."""
    turn = parse(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "let me", "tool_calls": [CALL, CALL | {"id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_2", "content": "two"},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": None, "refusal": "no"},
        HI,
    )
    assert turn.items == (
        Message("system", (Text("s"),)),
        Message("developer", (Text("d"),)),
        Message("user", (Text("a"), Text("b"))),
        Message("assistant", (Text("let me"),)),
        FunctionCall("call_1", "find", '{"q": 1}'),
        FunctionCall("call_2", "find", '{"q": 1}'),
        FunctionOutput("call_2", (Text("two"),)),
        FunctionOutput("call_1", (Text("one"),)),
        Message("assistant", (Text("no"),)),
        Message("user", (Text("hi"),)),
    )


@pytest.mark.parametrize("content", [None, [], ...])
def test_an_assistant_may_only_call(content: Any) -> None:
    """A message that is nothing but calls needs no content."""
    message: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
    if content is not ...:
        message["content"] = content
    assert parse(message).items == (FunctionCall("call_1", "find", '{"q": 1}'),)


def test_images_come_through() -> None:
    """An image part keeps its URL and its detail."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "high"}}
    turn = parse({"role": "user", "content": [picture]})
    assert turn.items == (Message("user", (Image("data:image/png;base64,AA==", "high"),)),)


def test_the_model_is_resolved_and_the_name_echoed() -> None:
    """The effective model goes to the backend, the written one back to the client."""
    turn = parse(HI, model="GPT-L")
    assert (turn.model, turn.requested_model) == ("gpt-l", "GPT-L")
    assert parse(HI, model="x-l").effort == "low"
    assert parse(HI, model="x-l", reasoning_effort="high").effort == "high"
    assert refused(HI, model="absent").code == "model_not_found"


def test_tools_and_choice() -> None:
    """Functions and other tools in the client's order, and whom it chose."""
    turn = parse(
        HI,
        tools=[{"type": "function", "function": {"name": "find", "strict": True}}, {"type": "custom", "custom": {}}],
        tool_choice={"type": "function", "function": {"name": "find"}},
    )
    assert turn.tools == (FunctionTool("find", strict=True), RawTool("custom", {"type": "custom", "custom": {}}))
    assert turn.tool_choice == ToolChoice("named", "find")
    assert parse(HI, tool_choice="none").tool_choice == ToolChoice("none")


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"stream": True}, "stream", True),
        ({"stream": False}, "stream", False),
        ({"stream": None}, "stream", None),
        ({"stream_options": {"include_usage": True}}, "include_usage", True),
        ({"stream_options": {"include_usage": False}}, "include_usage", False),
        ({"stream_options": {"include_obfuscation": True}}, "include_usage", False),
        ({"stream_options": None}, "include_usage", False),
        ({"temperature": 0}, "temperature", 0),
        ({"temperature": 2}, "temperature", 2),
        ({"top_p": 1}, "top_p", 1),
        ({"max_tokens": 5}, "max_output_tokens", 5),
        ({"max_completion_tokens": 6}, "max_output_tokens", 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_output_tokens", 6),
        ({"n": 2}, "n", 2),
        ({"reasoning_effort": "xhigh"}, "effort", "xhigh"),
        ({"reasoning_effort": None}, "effort", None),
        ({"response_format": {"type": "text"}}, "output_format", None),
    ],
)
def test_each_option_fills_its_member(members: dict[str, Any], field: str, value: Any) -> None:
    """What the client says is what the Turn says."""
    assert getattr(parse(HI, **members), field) == value


def test_a_schema_is_nested() -> None:
    """Chat nests its schema in `json_schema`."""
    raw = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    assert parse(HI, response_format=raw).output_format == OutputFormat("json_schema", raw, {"type": "object"})


def test_unknown_fields_are_no_error() -> None:
    """Clients send more than we know; settings of the operator cannot be set that way."""
    turn = parse(HI, cwd="/", sandbox="danger-full-access", input="x", baseInstructions="x", seed=1, user="u")
    assert turn == parse(HI)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([5], "messages[0]"),
        (["hi"], "messages[0]"),
        ([HI, None], "messages[1]"),
        ([{}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "system", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "content": None}], "messages"),
        ([{"role": "assistant", "tool_calls": {"a": 1}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f", "arguments": ""}}]}],
            "messages[0].tool_calls[0].id",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"arguments": ""}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([HI, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
        ([HI, {"role": "tool", "tool_call_id": "c", "content": "orphan"}], "messages"),
    ],
)
def test_a_message_of_another_shape_names_its_place(messages: list[Any], param: str) -> None:
    """`param` points at what is wrong."""
    assert refused(*messages).param == param


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"model": "x" * 1000}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"temperature": "0"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1000}, "n"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": {}}, "tools"),
        ({"tools": "find"}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, "tool_choice"),
    ],
)
def test_an_option_of_another_shape_names_its_place(members: dict[str, Any], param: str) -> None:
    """Nothing is coerced or ignored; `param` points at what is wrong."""
    assert refused(HI, **members).param == param


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_what_is_missing_is_named(missing: str) -> None:
    """A model and messages are needed."""
    body = {"model": "m", "messages": [HI]}
    del body[missing]
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body, resolve)
    assert caught.value.param == missing
