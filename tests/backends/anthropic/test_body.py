"""Whole bodies, and what stands in them beside the messages."""

from __future__ import annotations

from typing import Any

import pytest
from backends.anthropic.rig import ADD, PIXEL, built, called, gave, reasoning, said, turn

from bridge.core.items import FunctionTool, Image, Item, Message, OutputFormat, Text, ToolChoice, WebSearchOptions
from bridge.protocols.chat.request import FORM
from bridge.protocols.messages.build import dropped
from bridge.protocols.messages.models import pack_thought
from bridge.tools.payload import function_of

Json = dict[str, Any]
CACHED = {"type": "ephemeral"}
HI = said("user", "hi")


def test_the_least() -> None:
    assert built() == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": CACHED}]}],
        "stream": True,
    }


def test_everything() -> None:
    model = "claude-opus-5-5"
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    patch = function_of({"name": "patch"}, "patch")
    body = built(
        said("developer", "be brief"),
        Message("user", (Text("what is this?"), Image(PIXEL))),
        reasoning(pack_thought(model, thought)),
        said("assistant", "Let me look."),
        called("toolu_1", '{"a": 2}', namespace="math"),
        called("toolu_2--2", "*** Begin", name="patch", custom=True),
        gave("toolu_2--2", "done", custom=True),
        gave("toolu_1", "4"),
        said("system", "hurry"),
        model=model,
        instructions="be kind",
        tools=(FunctionTool("add", "Adds.", ADD.parameters, True, "math"), patch),
        tool_choice=ToolChoice(),
        parallel=False,
        effort="xhigh",
        summary="detailed",
        output_format=OutputFormat("json_object", {}),
        max_output_tokens=100_000,
        temperature=0.3,
        web_search=WebSearchOptions("cached"),
        verbosity="low",
        stop=("x",),
        session="s",
    )
    assert body == {
        "model": model,
        "max_tokens": 100_000,
        "system": [
            {"type": "text", "text": "be kind"},
            {"type": "text", "text": "be brief"},
            {
                "type": "text",
                "text": "Answer with one valid JSON object and nothing else: no text around it, no code fence.",
                "cache_control": CACHED,
            },
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                        "cache_control": CACHED,
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    thought,
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "math__add", "input": {"a": 2}},
                    {"type": "tool_use", "id": "toolu_2--2", "name": "patch", "input": {"input": "*** Begin"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4"},
                    {"type": "tool_result", "tool_use_id": "toolu_2--2", "content": "done"},
                    {
                        "type": "text",
                        "text": "<system-message>\nhurry\n</system-message>",
                        "cache_control": CACHED,
                    },
                ],
            },
        ],
        "tools": [
            {"name": "math__add", "description": "Adds.", "input_schema": ADD.parameters},
            {"name": "patch", "input_schema": patch.parameters},
            {"type": "web_search_20250305", "name": "web_search", "cache_control": CACHED},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {
            "type": "adaptive",
            "display": "summarized",
            "block_binding": {"prefix_mismatch_behavior": "drop_block"},
        },
        "output_config": {"effort": "xhigh"},
        "stream": True,
    }


# The system prompt


def test_instructions_come_before_the_first_system_messages() -> None:
    items = [said("system", "a", "b"), said("developer", " "), said("developer", "c"), HI, said("system", "d")]
    assert [block["text"] for block in built(*items, instructions="be kind")["system"]] == ["be kind", "a\nb", "c"]


@pytest.mark.parametrize("instructions", [None, "", " \n"])
def test_without_words_there_is_no_system_prompt(instructions: Any) -> None:
    assert "system" not in built(instructions=instructions)


# The cache


def test_the_next_request_finds_what_this_one_has_cached() -> None:
    """What ends with a mark in one request is, to the letter, a part of the next."""
    more: Json = {"instructions": "be kind", "tools": (ADD,)}
    first = built(HI, **more)
    step: list[Item] = [called("a"), gave("a", "5")]
    second = built(HI, *step, **more)
    third = built(HI, *step, said("assistant", "5"), said("user", "and?"), **more)
    for earlier, later in ((first, second), (second, third)):
        assert earlier["system"] == later["system"]
        assert earlier["tools"] == later["tools"]
        old, new = earlier["messages"], later["messages"][: len(earlier["messages"])]
        assert _unmarked(old) == _unmarked(new)
        assert "cache_control" in old[-1]["content"][-1]
        assert "cache_control" in new[-1]["content"][-1]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(member) for name, member in value.items() if name != "cache_control"}
    return [_unmarked(member) for member in value] if isinstance(value, list) else value


# Sampling, limits


@pytest.mark.parametrize(
    ("model", "effort", "given", "sent", "lost"),
    [
        ("claude-sonnet-4-5", None, {"temperature": 0}, {"temperature": 0}, []),
        ("claude-sonnet-4-5", None, {"top_p": 0.5}, {"top_p": 0.5}, []),
        ("claude-sonnet-4-5", None, {"temperature": 0.2, "top_p": 0.5}, {"temperature": 0.2}, ["top_p"]),
        ("claude-sonnet-4-5", None, {"temperature": 1.5}, {"temperature": 1}, ["temperature"]),
        ("claude-sonnet-4-5", "low", {"temperature": 0.2, "top_p": 0.5}, {}, ["temperature", "top_p"]),
        ("claude-sonnet-4-5", "low", {"temperature": 1.0, "top_p": 1.0}, {}, []),
        ("claude-opus-4-6", "low", {"temperature": 0.2}, {}, ["temperature"]),
        ("claude-opus-4-6", None, {"temperature": 0.2}, {"temperature": 0.2}, []),
        ("claude-opus-4-7", None, {"temperature": 0.2}, {}, ["temperature"]),
        ("claude-opus-5-5", None, {"top_p": 0.9}, {}, ["top_p"]),
    ],
)
def test_a_temperature_where_it_is_taken(model: str, effort: Any, given: Json, sent: Json, lost: list[str]) -> None:
    body = built(model=model, effort=effort, **given)
    assert {name: body[name] for name in ("temperature", "top_p") if name in body} == sent
    assert dropped(turn(model=model, effort=effort, **given)) == lost


@pytest.mark.parametrize(("form", "name"), [(FORM, "verbosity"), ({}, "text.verbosity")], ids=["chat", "responses"])
def test_verbosity_has_no_place(form: Any, name: str) -> None:
    asked = turn(**form, verbosity="low")
    assert asked.client_names(dropped(asked)) == [name]


def test_nothing_is_lost_of_a_plain_turn() -> None:
    assert dropped(turn(tools=(ADD,), max_output_tokens=5, encrypted_reasoning=True, summary="auto")) == []


def test_the_limit_is_the_clients() -> None:
    assert built(max_output_tokens=16)["max_tokens"] == 16
