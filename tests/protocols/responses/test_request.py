"""A responses request becomes a Turn."""

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
    RawItem,
    RawTool,
    Text,
    ToolChoice,
    WebSearchOptions,
)
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest, ModelNotFound
from bridge.protocols.responses.request import parse_responses


def resolve(name: str) -> ModelChoice:
    if name == "absent":
        raise ModelNotFound(name, ["m"])
    return ModelChoice(name, name.lower(), "low" if name.endswith("-l") else None)


def parse(**members: Any) -> Turn:
    turn = parse_responses({"model": "m", "input": "hi", **members})
    return turn.for_model(resolve(turn.model))


def refused(**members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**members)
    assert caught.value.http_status == 400
    return caught.value


def test_a_string_is_one_user_message() -> None:
    """The smallest request: everything else is unset."""
    assert parse() == Turn("m", "m", (Message("user", (Text("hi"),)),))


def test_every_item_keeps_its_place() -> None:
    """A whole tool conversation, in order, nothing lost, what we do not understand verbatim."""
    reasoning = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}
    search = {"type": "web_search_call", "id": "ws", "status": "completed"}
    turn = parse(
        input=[
            {"role": "system", "content": "s"},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            reasoning,
            search,
            {
                "type": "message",
                "id": "msg",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "let me", "annotations": []}],
            },
            {"type": "function_call", "id": "fc", "call_id": "c", "name": "find", "arguments": '{"q": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "found"},
            {"type": "function_call", "call_id": "d", "name": "find", "arguments": ""},
            {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "custom_tool_call", "call_id": "e", "name": "n", "input": "i"},
            {"type": "custom_tool_call_output", "call_id": "e", "output": "o"},
        ]
    )
    assert turn.items == (
        Message("system", (Text("s"),)),
        Message("developer", (Text("d"),)),
        Message("user", (Text("a"), Text("b"))),
        RawItem("reasoning", reasoning),
        RawItem("web_search_call", search),
        Message("assistant", (Text("let me"),)),
        FunctionCall("c", "find", '{"q": 1}'),
        FunctionOutput("c", (Text("found"),)),
        FunctionCall("d", "find", ""),
        FunctionOutput("d", (Text("x"),)),
        FunctionCall("e", "n", "i", custom=True),
        FunctionOutput("e", (Text("o"),), custom=True),
    )


def test_images_come_through() -> None:
    """An image part keeps its URL and its detail."""
    content = [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}]
    turn = parse(input=[{"role": "user", "content": content}])
    assert turn.items == (Message("user", (Image("data:image/png;base64,AA==", "low"),)),)


def test_the_model_is_resolved_and_the_name_echoed() -> None:
    """The effective model goes to the backend, the written one back to the client."""
    turn = parse(model="GPT-L")
    assert (turn.model, turn.requested_model) == ("gpt-l", "GPT-L")
    assert parse(model="x-l").effort == "low"
    assert parse(model="x-l", reasoning={"effort": "high"}).effort == "high"
    assert parse(model="x-l", reasoning={"summary": "auto"}).effort == "low"
    assert refused(model="absent").code == "model_not_found"


def test_tools_and_choice() -> None:
    """Functions are flat here, the nested form is understood too."""
    turn = parse(
        tools=[
            {"type": "function", "name": "find", "description": "d", "parameters": {}, "strict": False},
            {"type": "function", "function": {"name": "open"}},
            {"type": "web_search"},
        ],
        tool_choice={"type": "function", "name": "open"},
    )
    assert turn.tools == (
        FunctionTool("find", "d", {}, False),
        FunctionTool("open"),
        RawTool("web_search", {"type": "web_search"}),
    )
    assert turn.tool_choice == ToolChoice("named", "open")


def test_custom_tools_and_namespaces() -> None:
    """Flat, as this API has them; a namespace may be called by its functions' names."""
    turn = parse(
        tools=[
            {"type": "custom", "name": "patch", "description": "d"},
            {"type": "namespace", "name": "files", "description": "d", "tools": [{"type": "function", "name": "open"}]},
        ],
        tool_choice={"type": "function", "name": "open"},
    )
    assert [tool.full_name for tool in turn.functions] == ["patch", "files.open"]
    assert [tool.custom for tool in turn.functions] == [True, False]
    assert turn.tool_choice == ToolChoice("named", "files.open")


def test_allowed_tools_are_what_is_left() -> None:
    """Searching too must be allowed."""
    tools = [{"type": "function", "name": "find"}, {"type": "function", "name": "open"}, {"type": "web_search"}]
    turn = parse(tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": tools[:1]})
    assert (turn.tools, turn.tool_choice, turn.web_search) == ((FunctionTool("find"),), ToolChoice("auto"), None)
    turn = parse(tools=tools, tool_choice={"type": "allowed_tools", "mode": "required", "tools": tools[1:]})
    assert (turn.functions, turn.tool_choice, turn.web_search) == (
        (FunctionTool("open"),),
        ToolChoice("required"),
        WebSearchOptions(),
    )


def test_tools_in_the_input_are_offered_too() -> None:
    """They can be chosen, and their names count among the others."""
    offer = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "open"}]}
    items = [{"role": "user", "content": "hi"}, offer]
    choice = {"type": "function", "name": "open"}
    turn = parse(input=items, tools=[{"type": "function", "name": "find"}], tool_choice=choice)
    assert turn.items == parse().items
    assert turn.tools == (FunctionTool("find"), FunctionTool("open"))
    assert turn.tool_choice == ToolChoice("named", "open")
    assert refused(input=items, tools=[{"type": "function", "name": "open"}]).param == "tools"
    assert refused(input=[offer]).param == "input"


def test_tools_of_earlier_input_are_offered_too() -> None:
    """After the request's own; of two with the same name the newer one. They can be chosen."""

    def offer(*tools: dict[str, Any]) -> dict[str, Any]:
        return {"type": "additional_tools", "role": "developer", "tools": list(tools)}

    def function(name: str, description: str) -> dict[str, Any]:
        return {"type": "function", "name": name, "description": description}

    context = [
        offer(function("find", "1"), function("open", "1"), function("shut", "1"), {"type": "web_search"}),
        {"role": "user", "content": "hi"},
        offer(function("open", "2"), {"type": "web_search"}),
    ]
    choice = {"type": "function", "name": "shut"}
    body = {"model": "m", "input": "go on", "tools": [function("find", "3")], "tool_choice": choice}
    turn = parse_responses(body, context)
    assert turn.tools == (
        FunctionTool("find", "3"),
        FunctionTool("open", "2"),
        RawTool("web_search", {"type": "web_search"}),
        FunctionTool("shut", "1"),
    )
    assert turn.tool_choice == ToolChoice("named", "shut")
    assert len(turn.items) == 2


@pytest.mark.parametrize(
    ("members", "field", "value"),
    [
        ({"instructions": "be kind"}, "instructions", "be kind"),
        ({"instructions": ""}, "instructions", None),
        ({"instructions": None}, "instructions", None),
        ({"stream": True}, "stream", True),
        ({"stream": None}, "stream", None),
        ({"stream_options": {"include_usage": True}}, "include_usage", True),
        ({"reasoning": {"effort": "minimal", "summary": "concise"}}, "effort", "minimal"),
        ({"reasoning": {"effort": None, "summary": "concise"}}, "summary", "concise"),
        ({"reasoning": None}, "effort", None),
        ({"temperature": 0}, "temperature", 0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"max_output_tokens": 65000}, "max_output_tokens", 65000),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, "output_format", None),
        ({"text": None}, "output_format", None),
        ({"n": 3}, "n", None),
        ({"stop": "x"}, "stop", ()),
        ({"text": {"verbosity": "high"}}, "verbosity", "high"),
        ({"reasoning": {"generate_summary": "detailed"}}, "summary", "detailed"),
        ({"reasoning": {"generate_summary": "detailed", "summary": "auto"}}, "summary", "auto"),
        ({"reasoning": {"summary": "none"}}, "summary", "none"),
        ({"reasoning": {"effort": "none"}}, "effort", "none"),
        ({"parallel_tool_calls": False}, "parallel", False),
        ({"parallel_tool_calls": None}, "parallel", True),
        ({"include": ["reasoning.encrypted_content"]}, "encrypted_reasoning", True),
        ({"include": ["file_search_call.results"]}, "encrypted_reasoning", False),
        ({"include": None}, "encrypted_reasoning", False),
        ({"tools": []}, "web_search", None),
        ({"tools": [{"type": "web_search"}]}, "web_search", WebSearchOptions()),
        ({"tools": [{"type": "web_search_preview"}]}, "web_search", WebSearchOptions()),
        ({"tools": [{"type": "web_search_2025_08_26"}]}, "web_search", WebSearchOptions()),
        ({"tools": [{"type": "web_search", "external_web_access": True}]}, "web_search", WebSearchOptions()),
        ({"tools": [{"type": "web_search", "external_web_access": False}]}, "web_search", WebSearchOptions("cached")),
        ({"tools": [{"type": "file_search"}]}, "web_search", None),
        ({"tools": [{"type": "web_search"}], "tool_choice": "none"}, "web_search", None),
    ],
)
def test_each_option_fills_its_member(members: dict[str, Any], field: str, value: Any) -> None:
    """What the client says is what the Turn says."""
    assert getattr(parse(**members), field) == value


def test_a_schema_is_flat() -> None:
    """Responses have their schema in `text.format`."""
    raw = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    assert parse(text={"format": raw}).output_format == OutputFormat("json_schema", raw, {"type": "object"})


def test_unknown_fields_are_no_error() -> None:
    """Clients send more than we know; settings of the operator cannot be set that way."""
    turn = parse(cwd="/", sandbox="danger-full-access", messages=[], include=["x"], store=True, config={"a": 1})
    assert turn == parse()


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"background": True},
        {"store": False},
    ],
)
def test_what_is_kept_is_no_part_of_a_turn(members: dict[str, Any]) -> None:
    """What a request continues, and what becomes of its answer, is settled elsewhere."""
    assert parse(**members) == parse()


def test_a_prompt_template_is_refused() -> None:
    """Its text is not known here, so the answer would be to another question."""
    error = refused(prompt={"id": "pmpt_1"})
    assert (error.param, error.code) == ("prompt", "unsupported_parameter")
    assert parse(prompt=None) == parse()


# What it continues


def test_the_items_before_come_first() -> None:
    """What is continued, then the input: a text or items."""
    before = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "before"}]}]
    body = {"model": "m", "input": "hi"}
    expected = (Message("assistant", (Text("before"),)), Message("user", (Text("hi"),)))
    assert parse_responses(body, before).items == expected
    assert parse_responses(body | {"input": [{"role": "user", "content": "hi"}]}, before).items == expected


@pytest.mark.parametrize("value", [None, "", []])
def test_a_continued_conversation_needs_no_input(value: Any) -> None:
    """What was before may be answered as it stands."""
    before = [{"role": "user", "content": "before"}]
    turn = parse_responses({"model": "m", "input": value}, before)
    assert turn.items == (Message("user", (Text("before"),)),)


def test_an_output_may_answer_a_call_before() -> None:
    """The call was made in the response that is continued."""
    before = [{"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"}]
    output = {"type": "function_call_output", "call_id": "c", "output": "found"}
    turn = parse_responses({"model": "m", "input": [output]}, before)
    assert turn.items == (FunctionCall("c", "find", "{}"), FunctionOutput("c", (Text("found"),)))
    with pytest.raises(InvalidRequest) as caught:
        parse_responses({"model": "m", "input": [output | {"call_id": "d"}]}, before)
    assert caught.value.param == "input"


@pytest.mark.parametrize("value", [None, "", []])
def test_there_must_be_something_to_answer(value: Any) -> None:
    """An empty input is refused."""
    assert refused(input=value).param == "input"


@pytest.mark.parametrize("value", [5, True, 1.5, {}, {"role": "user", "content": "x"}])
def test_an_input_of_another_type_names_the_field(value: Any) -> None:
    """`param` is the name of the client's field."""
    assert refused(input=value).param == "input"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "input[0]"),
        ("hi", "input[0]"),
        (None, "input[0]"),
        ({}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0]"),
        ({"type": "computer_call"}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"type": []}, "input[0].type"),
        ({"type": {"a": 1}, "role": "user", "content": "x"}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": [], "content": "x"}, "input[0].role"),
        ({"type": "message", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": ""}, "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "input[0].arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": 5}, "input[0].output"),
        ({"type": "function_call_output", "call_id": "c", "output": "orphan"}, "input"),
    ],
)
def test_an_item_of_another_shape_names_its_place(item: Any, param: str) -> None:
    """`param` points at what is wrong; unknown items are refused, never dropped in silence."""
    assert refused(input=[item]).param == param


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": ["m"]}, "model"),
        ({"instructions": 5}, "instructions"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"reasoning": {"summary": 5}}, "reasoning.summary"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": []}, "metadata"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"include": "reasoning.encrypted_content"}, "include"),
        ({"include": [5]}, "include[0]"),
        ({"store": "yes"}, "store"),
        ({"background": 1}, "background"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "absent"}}, "tool_choice"),
    ],
)
def test_an_option_of_another_shape_names_its_place(members: dict[str, Any], param: str) -> None:
    """Nothing is coerced or ignored; `param` points at what is wrong."""
    assert refused(**members).param == param


def test_a_missing_model_is_named() -> None:
    """A model is needed."""
    with pytest.raises(InvalidRequest) as caught:
        parse_responses({"input": "hi"})
    assert caught.value.param == "model"
