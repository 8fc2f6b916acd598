"""A chat request becomes a Turn."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Message,
    OutputFormat,
    RawTool,
    Text,
    ToolChoice,
    WebSearchOptions,
)
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest, ModelNotFound
from bridge.protocols.chat.request import FORM, MAX_CHOICES, MAX_STOPS, parse_chat
from bridge.protocols.tooling import speaks_functions

HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}


def resolve(name: str) -> ModelChoice:
    if name == "absent":
        raise ModelNotFound(name, ["m"])
    return ModelChoice(name, name.lower(), "low" if name.endswith("-l") else None)


def parse(*messages: Any, **members: Any) -> Turn:
    turn = parse_chat({"model": "m", "messages": list(messages), **members})
    return turn.for_model(resolve(turn.model))


def refused(*messages: Any, **members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **members)
    assert caught.value.http_status == 400
    return caught.value


def test_the_smallest_request() -> None:
    """Nothing but a model and a message: everything else is unset."""
    assert parse(HI) == Turn("m", "m", (Message("user", (Text("hi"),)),), **FORM)


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
        tools=[{"type": "function", "function": {"name": "find", "strict": True}}, {"type": "mcp", "a": 1}],
        tool_choice={"type": "function", "function": {"name": "find"}},
    )
    assert turn.tools == (FunctionTool("find", strict=True), RawTool("mcp", {"type": "mcp", "a": 1}))
    assert turn.tool_choice == ToolChoice("named", "find")
    assert parse(HI, tool_choice="none").tool_choice == ToolChoice("none")


def test_a_custom_tool_and_its_calls() -> None:
    """Offered, called and answered: a text in place of JSON."""
    call = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "+x"}}
    turn = parse(
        HI,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        tools=[{"type": "custom", "custom": {"name": "patch"}}],
        tool_choice={"type": "custom", "custom": {"name": "patch"}},
    )
    assert [tool.custom for tool in turn.functions] == [True]
    assert turn.tool_choice == ToolChoice("named", "patch")
    assert turn.items[1:] == (
        FunctionCall("call_1", "patch", "+x", custom=True),
        FunctionOutput("call_1", (Text("ok"),), custom=True),
    )


def test_allowed_tools_are_what_is_left() -> None:
    """The turn does not know of the others."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("find", "open")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools[1:]}}
    turn = parse(HI, tools=tools, tool_choice=choice)
    assert (turn.tools, turn.tool_choice) == ((FunctionTool("open"),), ToolChoice("required"))


# From before there were tools


def test_old_functions_and_their_messages() -> None:
    """Offered, chosen, called and answered in the old words; there is one call at a time."""
    body = {
        "model": "m",
        "messages": [
            HI,
            {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}},
            {"role": "function", "name": "find", "content": "found"},
        ],
        "functions": [{"name": "find", "description": "d", "parameters": {"type": "object"}}],
        "function_call": {"name": "find"},
    }
    turn = parse_chat(body)
    assert turn.tools == (FunctionTool("find", "d", {"type": "object"}),)
    assert turn.tool_choice == ToolChoice("named", "find")
    assert turn.parallel is False
    _, call, output = turn.items
    assert isinstance(call, FunctionCall)
    assert output == FunctionOutput(call.call_id, (Text("found"),))
    assert speaks_functions(body)


def test_tools_win_over_old_functions() -> None:
    """A client that sends both reads tool calls."""
    members: dict[str, Any] = {
        "tools": [{"type": "function", "function": {"name": "find"}}],
        "functions": [{"name": "open"}],
        "function_call": {"name": "open"},
    }
    turn = parse(HI, **members)
    assert (turn.tools, turn.tool_choice, turn.parallel) == ((FunctionTool("find"),), ToolChoice(), True)
    assert not speaks_functions(members)


@pytest.mark.parametrize("members", [{}, {"functions": []}, {"functions": None}, {"function_call": "auto"}])
def test_without_functions_nobody_speaks_the_old_words(members: dict[str, Any]) -> None:
    """An empty list offers nothing."""
    assert not speaks_functions(members)
    assert parse(HI, **members) == parse(HI)


# Options


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
        ({"n": MAX_CHOICES}, "n", MAX_CHOICES),
        ({"stop": None}, "stop", ()),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ""}, "stop", ()),
        ({"stop": []}, "stop", ()),
        ({"stop": ["x", "", "y z"]}, "stop", ("x", "y z")),
        ({"stop": ["x"] * MAX_STOPS}, "stop", ("x",) * MAX_STOPS),
        ({"parallel_tool_calls": False}, "parallel", False),
        ({"parallel_tool_calls": True}, "parallel", True),
        ({"parallel_tool_calls": None}, "parallel", True),
        ({"verbosity": "low"}, "verbosity", "low"),
        ({"web_search_options": {}}, "web_search", WebSearchOptions()),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search", WebSearchOptions(context_size="low")),
        ({"web_search_options": None}, "web_search", None),
        ({"web_search_options": {}, "tool_choice": "none"}, "web_search", None),
        ({"tools": [{"type": "web_search"}]}, "web_search", WebSearchOptions()),
        ({"tools": [{"type": "web_search", "external_web_access": False}]}, "web_search", WebSearchOptions("cached")),
        ({"reasoning_effort": "none"}, "effort", "none"),
        ({"reasoning_effort": "max"}, "effort", "max"),
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
    assert parse(HI, response_format=raw).output_format == OutputFormat("json_schema", raw, {"type": "object"}, True)


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
        ([{}], "messages[0].type"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "function", "name": "f", "content": "x"}], "messages[0]"),
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
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 0}, "max_completion_tokens"),
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
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1000}, "n"),
        ({"n": MAX_CHOICES + 1}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
        ({"verbosity": "loud"}, "verbosity"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"web_search_options": True}, "web_search_options"),
        ({"functions": {}}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "absent"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": "never"}, "function_call"),
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


@pytest.mark.parametrize("entry", [5, None, ["x"], {}])
def test_a_stop_sequence_is_a_text(entry: Any) -> None:
    """Nothing else can be looked for in one."""
    assert refused(HI, stop=["x", entry]).param == "stop"


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_what_is_missing_is_named(missing: str) -> None:
    """A model and messages are needed."""
    body = {"model": "m", "messages": [HI]}
    del body[missing]
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body)
    assert caught.value.param == missing
