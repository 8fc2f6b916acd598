"""Gemini's signatures on their way to the client and back."""

from __future__ import annotations

from typing import Any

import pytest
from backends.openai_compatible.rig import MODEL, WEATHER, body_of, decode, turn
from upstream.openai_chat_chunks import chunk

from bridge.app.tool_loop import follow_up
from bridge.core.collect import ReasoningOutput
from bridge.core.items import FunctionCall, FunctionOutput, Item, RawItem, Text
from bridge.protocols.chat.calls import NO_SIGNATURE, pack, unpack
from bridge.protocols.chat.presets import CUSTOM, PRESETS, Preset

Json = dict[str, Any]

GEMINI = PRESETS["gemini"]


def signed_call(number: int, signature: str | None) -> Json:
    extra = {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}
    return {"id": f"c{number}", "type": "function", "function": {"name": "weather", "arguments": "{}"}, **extra}


def signatures(items: tuple[Item, ...], preset: Preset = GEMINI, model: str = "gemini-3-flash") -> list[str | None]:
    """Those of all calls of a history."""
    asked = turn(*items, tools=(WEATHER,))
    sent = body_of(type(asked)(**{**_members(asked), "model": model}), preset)
    calls = [call for message in sent["messages"] for call in message.get("tool_calls", ())]
    return [call.get("extra_content", {}).get("google", {}).get("thought_signature") for call in calls]


def _members(asked: Any) -> Json:
    return {name: getattr(asked, name) for name in asked.__slots__}


CALLS = [chunk({"tool_calls": [signed_call(0, "sig")]}), chunk({"tool_calls": [signed_call(1, None)]}, "stop")]
HISTORY: tuple[Item, ...] = (
    FunctionCall("c0", "weather", "{}"),
    FunctionCall("c1", "weather", "{}"),
    FunctionOutput("c0", (Text("a"),)),
    FunctionOutput("c1", (Text("b"),)),
    FunctionCall("c2", "weather", "{}"),
    FunctionOutput("c2", (Text("c"),)),
)


def test_signatures_come_as_reasoning_that_only_the_provider_can_read() -> None:
    asked = turn(tools=(WEATHER,), encrypted_reasoning=True)
    result = decode(CALLS, asked, GEMINI)
    (thought,) = [output for output in result.outputs if isinstance(output, ReasoningOutput)]
    assert result.outputs[0] is thought
    assert (thought.summary_parts(), thought.content_parts()) == ([], [])
    assert thought.encrypted is not None
    assert unpack(RawItem("reasoning", {"encrypted_content": thought.encrypted})) == {"c0": "sig"}
    sent = body_of(follow_up(asked, result, ["x", "y"]), GEMINI)["messages"]
    calls = [call for message in sent for call in message.get("tool_calls", ())]
    assert calls[0]["extra_content"] == {"google": {"thought_signature": "sig"}}


@pytest.mark.parametrize(
    ("preset", "asked_for"), [(GEMINI, False), (CUSTOM, True)], ids=["nobody asked", "another server"]
)
def test_they_are_not_told_otherwise(preset: Preset, asked_for: bool) -> None:
    result = decode(CALLS, turn(tools=(WEATHER,), encrypted_reasoning=asked_for), preset)
    assert [type(output).__name__ for output in result.outputs] == ["ToolCall", "ToolCall"]


def test_the_first_call_of_each_answer_has_a_signature_or_googles_word_for_none() -> None:
    given = RawItem("reasoning", {"type": "reasoning", "encrypted_content": pack({"c0": "sig"})})
    assert signatures((given, *HISTORY)) == ["sig", None, NO_SIGNATURE]
    assert signatures(HISTORY) == [NO_SIGNATURE, None, NO_SIGNATURE]


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "models/gemini-2.0-flash-001", "gemini-1.5-pro", "gemini-2-x"])
def test_models_that_ask_for_none_get_only_what_was_theirs(model: str) -> None:
    given = RawItem("reasoning", {"type": "reasoning", "encrypted_content": pack({"c0": "sig"})})
    assert signatures((given, *HISTORY), model=model) == ["sig", None, None]
    assert signatures(HISTORY, model=model) == [None, None, None]


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "gemini"])
def test_other_servers_see_none(name: str) -> None:
    given = RawItem("reasoning", {"type": "reasoning", "encrypted_content": pack({"c0": "sig"})})
    assert signatures((given, *HISTORY), PRESETS[name], MODEL) == [None, None, None]


@pytest.mark.parametrize(
    "content", ["gAAAAA", "gemini-signatures:", "gemini-signatures:[1]", "gemini-signatures:{", None, 7]
)
def test_reasoning_of_others_is_left_alone(content: Any) -> None:
    assert unpack(RawItem("reasoning", {"encrypted_content": content})) == {}
    assert unpack(RawItem("compaction", {"encrypted_content": pack({"a": "b"})})) == {}
    assert unpack(RawItem("reasoning", {"encrypted_content": 'gemini-signatures:{"a":1,"b":"c"}'})) == {"b": "c"}
