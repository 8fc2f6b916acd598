"""The tools of a turn, their names, and the choice among them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from backends.anthropic.rig import ADD, built, called, gave, said, turn

from bridge.core.items import FunctionTool, Item, RawTool, ToolChoice, WebSearchOptions
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.messages.build import build_body, dropped, tool_names
from bridge.tools.payload import function_of

Json = dict[str, Any]
HI = said("user", "hi")


def offered(*tools: Any, **more: Any) -> list[Json]:
    listed: list[Json] = built(tools=tools, **more)["tools"]
    return [{name: value for name, value in tool.items() if name != "cache_control"} for tool in listed]


def test_a_function_goes_as_it_is() -> None:
    assert offered(ADD) == [{"name": "add", "description": "Adds.", "input_schema": ADD.parameters}]


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (None, {"type": "object"}),
        (True, {"type": "object"}),
        (False, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "type": "object"}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        ({"type": "object", "$defs": {"x": {"anyOf": []}}}, {"type": "object", "$defs": {"x": {"anyOf": []}}}),
    ],
)
def test_a_schema_is_an_objects(parameters: Any, schema: Json) -> None:
    assert offered(FunctionTool("f", None, parameters)) == [{"name": "f", "input_schema": schema}]


def test_a_union_at_the_top_is_told_in_words() -> None:
    parameters = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    (tool,) = offered(FunctionTool("f", "Does.", parameters))
    assert tool["input_schema"] == {"type": "object"}
    assert tool["description"] == (
        "Does.\n\nThe input must conform to this JSON Schema:\n"
        '{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}'
    )


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="'f' are not those of an object"):
        build_body(turn(tools=(FunctionTool("f", None, {"type": "string"}),)))


def test_a_custom_tool_takes_one_text() -> None:
    tool = function_of({"name": "patch", "description": "Applies."}, "patch")
    (told,) = offered(tool)
    assert (told["name"], told["description"]) == ("patch", "Applies.")
    assert list(told["input_schema"]["properties"]) == ["input"]


# Names


NAMES = [
    ("plain-name_1", None),
    ("with.dot", None),
    ("with__dot", None),
    ("dot", "with"),
    ("with space", None),
    ("with_space", None),
    ("ünïcödé", None),
    ("x" * 200, None),
    ("x" * 200 + "y", None),
    ("x" * 128, None),
    ("web_search", None),
    ("", None),
]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("search", [None, WebSearchOptions()], ids=["plain", "search"])
def test_names_are_legal_unlike_and_lead_back(search: Any, backwards: bool) -> None:
    tools = tuple(FunctionTool(name, namespace=space) for name, space in (NAMES[::-1] if backwards else NAMES))
    asked = turn(tools=tools, web_search=search)
    names = tool_names(asked)
    told = [names.of(tool.full_name) for tool in asked.functions]
    # Twice the same full name: the first is meant.
    distinct = {tool.full_name for tool in asked.functions}
    assert len(set(told)) == len(distinct) == len(NAMES) - 1
    for tool, name in zip(asked.functions, told, strict=True):
        assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", name)
        back = names.tools.get(name)
        assert back is not None
        assert back.full_name == tool.full_name
    assert names.of("plain-name_1") == "plain-name_1"
    assert names.of("with__dot") == "with__dot"
    assert (names.of("web_search") == "web_search") == (search is None)
    built(tools=tools, web_search=search)


def test_a_name_stays_the_same_with_other_tools_around() -> None:
    alone = tool_names(turn(tools=(FunctionTool("dot", namespace="with"),)))
    among = tool_names(turn(tools=(ADD, FunctionTool("dot", namespace="with"))))
    assert alone.of("with.dot") == among.of("with.dot") == "with__dot"


def test_tools_stand_in_the_clients_order() -> None:
    tools = (FunctionTool("b.b"), FunctionTool("a"), FunctionTool("c c"))
    assert [tool["name"] for tool in offered(*tools)] == ["b__b", "a", "c_c"]


def test_a_call_in_the_history_has_the_name_of_its_tool() -> None:
    items: list[Item] = [
        HI,
        called("a", name="dot", namespace="with"),
        gave("a", "5"),
        called("b", name="gone one"),
        gave("b", "5"),
    ]
    body = built(*items, tools=(FunctionTool("dot", namespace="with"),))
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert [block["name"] for block in blocks if block["type"] == "tool_use"] == ["with__dot", "gone_one"]


def test_calls_in_the_history_have_tools_even_when_none_are_offered() -> None:
    body = built(HI, called("a", name="dot", namespace="with"), gave("a", "5"))
    assert [tool["name"] for tool in body["tools"]] == ["with__dot"]
    assert body["tool_choice"] == {"type": "none"}


def test_without_tools_nothing_is_said_of_them() -> None:
    body = built()
    assert "tools" not in body
    assert "tool_choice" not in body


# The choice


def choice(chosen: ToolChoice, **more: Any) -> Json:
    told: Json = built(tools=(ADD, FunctionTool("dot", namespace="with")), tool_choice=chosen, **more)["tool_choice"]
    return told


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (ToolChoice(), {"type": "auto"}),
        (ToolChoice("none"), {"type": "none"}),
        (ToolChoice("required"), {"type": "any"}),
        (ToolChoice("named", "with.dot"), {"type": "tool", "name": "with__dot"}),
    ],
)
def test_the_choice(chosen: ToolChoice, told: Json) -> None:
    assert choice(chosen) == told
    one = {} if chosen.mode == "none" else {"disable_parallel_tool_use": True}
    assert choice(chosen, parallel=False) == {**told, **one}


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (ToolChoice("required"), "Do not answer in words now: call one of the tools."),
        (ToolChoice("named", "with.dot"), "Do not answer in words now: call the tool with__dot."),
    ],
)
def test_who_cannot_be_made_to_call_is_asked_to(chosen: ToolChoice, words: str) -> None:
    tools = (ADD, FunctionTool("dot", namespace="with"))
    body = built(model="claude-opus-5-5", tools=tools, tool_choice=chosen)
    assert body["tool_choice"] == {"type": "auto"}
    assert body["messages"][-1]["content"][-1] == {"type": "text", "text": words}
    assert "cache_control" in body["messages"][-1]["content"][-2]
    assert dropped(turn(model="claude-opus-5-5", tools=tools, tool_choice=chosen)) == ["tool_choice"]


def test_a_choice_without_tools_is_none() -> None:
    assert "tool_choice" not in built(tool_choice=ToolChoice("required"))
    assert dropped(turn(model="claude-opus-5-5", tool_choice=ToolChoice("required"))) == []


# The search


def test_the_web_is_searched_by_the_provider() -> None:
    assert offered(ADD, web_search=WebSearchOptions())[1:] == [{"type": "web_search_20250305", "name": "web_search"}]
    assert built(web_search=WebSearchOptions())["tool_choice"] == {"type": "auto"}


def test_a_search_may_be_limited() -> None:
    search = WebSearchOptions("live", ("example.com",), "low", {"city": "Bern", "country": "CH"})
    assert offered(web_search=search) == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "allowed_domains": ["example.com"],
            "user_location": {"type": "approximate", "city": "Bern", "country": "CH"},
        }
    ]


def test_tools_of_other_kinds_are_left_out() -> None:
    asked: Turn = turn(tools=(RawTool("mcp", {"type": "mcp"}),))
    assert "tools" not in build_body(asked)
