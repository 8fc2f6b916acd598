"""The rest of a request: tools, choices, formats, limits; and what has no place in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from backends.openai_compatible.rig import CLOCK, WEATHER, body_of, turn

from bridge.core.items import FunctionTool, OutputFormat, RawTool, ToolChoice, WebSearchOptions
from bridge.protocols.chat.build import dropped
from bridge.protocols.chat.presets import CUSTOM, PRESETS, Preset
from bridge.protocols.chat.request import FORM
from bridge.tools.payload import function_of

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
NAMED = ToolChoice("named", "weather")
EMPTY = {"type": "object", "properties": {}}


def test_a_plain_turn_asks_for_nothing_more() -> None:
    assert body_of(turn()) == {
        "model": "some-model",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_functions_are_nested_and_their_schemas_untouched() -> None:
    odd = {"$schema": "x", "type": "object", "oneOf": [{}, {"$ref": "#/$defs/y"}], "$defs": {"y": True}}
    tools = (
        FunctionTool("plain", "does it", SCHEMA, strict=True),
        FunctionTool("odd", None, odd, strict=False),
        FunctionTool("none"),
        FunctionTool("anything", parameters=True),
        FunctionTool("get", namespace="crm"),
        function_of({"name": "patch", "description": "applies it"}, "patch"),
    )
    sent = [tool["function"] for tool in body_of(turn(tools=tools))["tools"]]
    assert sent[:5] == [
        {"name": "plain", "description": "does it", "parameters": SCHEMA, "strict": True},
        {"name": "odd", "parameters": odd},
        {"name": "none", "parameters": EMPTY},
        {"name": "anything", "parameters": EMPTY},
        {"name": "crm__get", "parameters": EMPTY},
    ]
    assert (sent[5]["name"], sent[5]["description"]) == ("patch", "applies it")
    assert sent[5]["parameters"]["properties"]["input"]["type"] == "string"
    assert "strict" not in sent[5]


def test_tools_of_other_types_are_not_sent() -> None:
    body = body_of(turn(tools=(RawTool("mcp", {"type": "mcp"}),), tool_choice=ToolChoice("required"), parallel=False))
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("choice", "preset", "said", "offered"),
    [
        (ToolChoice("auto"), CUSTOM, None, 2),
        (ToolChoice("none"), CUSTOM, "none", 2),
        (ToolChoice("required"), CUSTOM, "required", 2),
        (NAMED, CUSTOM, {"type": "function", "function": {"name": "weather"}}, 2),
        (ToolChoice("none"), PRESETS["lmstudio"], "none", 2),
        (ToolChoice("required"), PRESETS["lmstudio"], "required", 2),
        (NAMED, PRESETS["lmstudio"], "required", 1),
        (ToolChoice("none"), PRESETS["ollama"], None, 0),
        (ToolChoice("required"), PRESETS["ollama"], None, 2),
        (NAMED, PRESETS["ollama"], None, 2),
    ],
)
def test_the_choice_is_said_as_the_server_understands_it(
    choice: ToolChoice, preset: Preset, said: Any, offered: int
) -> None:
    asked = turn(tools=(WEATHER, CLOCK), tool_choice=choice)
    body = body_of(asked, preset)
    assert body.get("tool_choice") == said
    assert len(body.get("tools", ())) == offered
    forced = choice.mode in ("required", "named")
    assert ("tool_choice" in dropped(asked, preset)) == (preset is PRESETS["ollama"] and forced)


def test_a_choice_names_the_function_as_it_is_offered() -> None:
    tools = (FunctionTool("get", namespace="crm"), function_of({"name": "patch"}, "patch"))
    for full_name, offered in (("crm.get", "crm__get"), ("patch", "patch")):
        body = body_of(turn(tools=tools, tool_choice=ToolChoice("named", full_name)))
        assert body["tool_choice"]["function"]["name"] == offered


@pytest.mark.parametrize(
    ("tools", "parallel", "preset", "said"),
    [
        ((WEATHER,), False, CUSTOM, False),
        ((WEATHER,), True, CUSTOM, None),
        ((), False, CUSTOM, None),
        ((WEATHER,), False, PRESETS["gemini"], None),
        ((WEATHER,), False, PRESETS["ollama"], None),
    ],
)
def test_parallel_calls_are_mentioned_only_to_forbid_them(
    tools: tuple[FunctionTool, ...], parallel: bool, preset: Preset, said: bool | None
) -> None:
    assert body_of(turn(tools=tools, parallel=parallel), preset).get("parallel_tool_calls") is said


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (OutputFormat("json_object", {"type": "json_object"}), {"type": "json_object"}),
        (
            OutputFormat("json_schema", {"name": "Weather report!", "description": "d"}, SCHEMA, strict=True),
            {
                "type": "json_schema",
                "json_schema": {"name": "Weather_report_", "schema": SCHEMA, "description": "d", "strict": True},
            },
        ),
        (
            OutputFormat("json_schema", {"json_schema": {"name": "r"}}, SCHEMA),
            {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}},
        ),
        (
            OutputFormat("json_schema", {}, SCHEMA),
            {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}},
        ),
    ],
)
def test_formats_are_nested(wanted: OutputFormat, sent: Json) -> None:
    assert body_of(turn(output_format=wanted))["response_format"] == sent


def test_a_json_object_is_any_object_where_only_schemas_are_known() -> None:
    wanted = OutputFormat("json_object", {"type": "json_object"})
    assert body_of(turn(output_format=wanted), PRESETS["lmstudio"])["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}},
    }


def test_sampling_and_limits() -> None:
    asked = turn(temperature=0.0, top_p=0.5, max_output_tokens=9)
    body = body_of(asked)
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.0, 0.5, 9)
    for name in ("openai", "groq"):
        body = body_of(asked, PRESETS[name])
        assert body["max_completion_tokens"] == 9
        assert "max_tokens" not in body


def test_stop_texts_and_the_number_of_answers_are_the_bridges_own_work() -> None:
    assert body_of(turn(stop=("x",), n=3)).keys() == body_of(turn()).keys()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"])
def test_an_effort_is_sent_where_it_is_known_and_named_where_it_is_not(name: str, effort: str) -> None:
    preset, asked = PRESETS[name], turn(effort=effort)
    known = effort in preset.efforts
    assert body_of(asked, preset).get("reasoning_effort") == (effort if known else None)
    assert ("reasoning.effort" in dropped(asked, preset)) == (not known)


def test_what_has_no_place_is_named_as_the_client_calls_it() -> None:
    asked = turn(
        verbosity="low", web_search=WebSearchOptions(), summary="auto", encrypted_reasoning=True, effort="ultra"
    )
    assert dropped(asked, CUSTOM) == [
        "reasoning.effort",
        "reasoning.summary",
        "text.verbosity",
        "tools:web_search",
        "include:reasoning.encrypted_content",
    ]
    chat = replace(asked, **FORM, summary=None, encrypted_reasoning=False)
    assert chat.client_names(dropped(chat, CUSTOM)) == ["reasoning_effort", "verbosity", "web_search_options"]
    assert dropped(turn(effort="low"), CUSTOM) == []
    assert "include:reasoning.encrypted_content" not in dropped(asked, PRESETS["gemini"])


@pytest.mark.parametrize("name", ["openai", "openrouter"])
def test_verbosity_goes_where_it_is_known(name: str) -> None:
    asked = turn(verbosity="low")
    assert body_of(asked, PRESETS[name])["verbosity"] == "low"
    assert dropped(asked, PRESETS[name]) == []
    assert "verbosity" not in body_of(asked, CUSTOM)
