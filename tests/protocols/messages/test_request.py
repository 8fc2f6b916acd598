"""How a body of the Messages API becomes a turn. What a law cannot say: the forms that this program never sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.backend import NOTHING_MORE, Abilities
from bridge.core.items import FAILED, FunctionCall, FunctionOutput, Image, Message, RawItem, Text, ToolChoice
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.messages.models import pack_thought
from bridge.protocols.messages.openapi import API
from bridge.protocols.messages.protocol import MESSAGES
from bridge.protocols.messages.request import parse_messages

BODY: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {"q": "tea"}}
LOOK = {"name": "look", "input_schema": {"type": "object"}}


def parse(**members: Any) -> Turn:
    return parse_messages(BODY | members)


def items(*blocks: Any, role: str = "user") -> tuple[Any, ...]:
    """The items of a message after a call."""
    messages = [{"role": "assistant", "content": [CALL]}, {"role": role, "content": list(blocks)}]
    return parse(messages=messages).items[1:]


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("system", "instructions"),
    [
        (None, None),
        ("", None),
        (" \n", None),
        ("be brief", "be brief"),
        ([text_block("be brief"), text_block(" "), text_block("be kind")], "be brief\n\nbe kind"),
        ([text_block("x-anthropic-billing-header: cch=1;"), text_block("be brief")], "be brief"),
    ],
)
def test_the_system_prompt(system: Any, instructions: str | None) -> None:
    """A text or blocks; Claude Code's note for billing is not for the model."""
    assert parse(system=system).instructions == instructions


@pytest.mark.parametrize(
    ("block", "parts"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://x/i.png"}}, [Image("https://x/i.png")]),
        ({"type": "document", "source": {"type": "text", "data": "d"}}, [Text("d")]),
        (
            {"type": "document", "title": "t", "context": "c", "source": {"type": "content", "content": "d"}},
            [Text("t"), Text("c"), Text("d")],
        ),
        (
            {"type": "document", "source": {"type": "content", "content": [text_block("a"), text_block("b")]}},
            [Text("a"), Text("b")],
        ),
        (
            {"type": "search_result", "title": "t", "source": "s", "content": [text_block("a")]},
            [Text("t\ns"), Text("a")],
        ),
        ({"type": "tool_reference", "tool_name": "look"}, [Text("The tool look is available.")]),
        ({**text_block("hi"), "cache_control": {"type": "ephemeral"}, "citations": None}, [Text("hi")]),
    ],
)
def test_a_block_becomes_texts_and_images(block: Any, parts: list[Any]) -> None:
    """In a message, and in the output of a tool."""
    assert items(block) == (Message("user", tuple(parts)),)
    output = {"type": "tool_result", "tool_use_id": "c1", "content": [block]}
    assert items(output) == (FunctionOutput("c1", tuple(parts)),)


def test_outputs_and_what_the_user_says_about_them() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1"}
    assert items(result, text_block("and")) == (FunctionOutput("c1", ()), Message("user", (Text("and"),)))
    assert items(result | {"content": "", "is_error": False}) == (FunctionOutput("c1", ()),)
    assert items(result | {"content": "no", "is_error": True}) == (FunctionOutput("c1", (FAILED, Text("no"))),)


def test_what_an_assistant_said_keeps_its_order() -> None:
    found = items(text_block("a"), {**CALL, "id": "c2"}, text_block("b"), role="assistant")
    assert found == (
        Message("assistant", (Text("a"),)),
        FunctionCall("c2", "look", '{"q":"tea"}'),
        Message("assistant", (Text("b"),)),
    )
    blocks = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, text_block("a")]
    assert items(*blocks, role="assistant") == (Message("assistant", (Text("a"),)),)


def thought(block: dict[str, Any]) -> Any:
    found = items(block, text_block("a"), role="assistant")
    return found[0].data["encrypted_content"] if isinstance(found[0], RawItem) else None


def test_a_thought_knows_its_provider() -> None:
    """By the mark in its signature; without one it is from Anthropic, for the model of this request."""
    block = {"type": "thinking", "thinking": "hm"}
    assert thought(block) is thought(block | {"signature": ""}) is None
    assert thought(block | {"signature": "c2ln"}) == pack_thought("m", block | {"signature": "c2ln"})
    sealed = "bridge.thought.1.0123456789abcdef:gAAA"
    (item, *_) = items(block | {"signature": f"rs_1@{sealed}"}, text_block("a"), role="assistant")
    assert item.data == {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": sealed,
    }
    packed = pack_thought("claude", {"type": "thinking", "thinking": "", "signature": "c2ln"})
    assert thought(block | {"signature": packed}) == pack_thought("claude", block | {"signature": "c2ln"})
    redacted = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
    assert thought(redacted) == pack_thought("m", redacted)
    assert thought({**redacted, "data": pack_thought("claude", redacted)}) == pack_thought("claude", redacted)


def test_tools_that_a_client_runs_without_describing_them() -> None:
    """They become functions with a description; others run on Anthropic's servers, and are named."""
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "custom", **LOOK},
    ]
    turn = parse(tools=tools)
    assert [tool.name for tool in turn.functions] == ["bash", "str_replace_based_edit_tool", "memory", "look"]
    assert all(isinstance(tool.parameters, dict) and tool.parameters["type"] == "object" for tool in turn.functions)
    assert dropped(tools=tools) == ["tools:web_fetch_20250910"]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "look"}, ToolChoice("named", "look"), True),
        ({"type": "tool", "name": "web_search"}, ToolChoice(), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_choices(choice: Any, expected: ToolChoice, parallel: bool) -> None:
    turn = parse(tools=[LOOK], tool_choice=choice)
    assert (turn.tool_choice, turn.parallel) == (expected, parallel)


def test_a_web_search() -> None:
    """The provider's; nothing is searched when the choice is none."""
    place = {"type": "approximate", "city": "Bern"}
    search = {"type": "web_search_20260209", "name": "web_search", "allowed_domains": ["a.b"], "user_location": place}
    wanted = parse(tools=[search | {"max_uses": 3}]).web_search
    assert wanted is not None
    assert (wanted.allowed_domains, wanted.location) == (("a.b",), {"city": "Bern"})
    assert dropped(tools=[search | {"max_uses": 3}]) == ["web_search.max_uses"]
    assert parse(tools=[search], tool_choice={"type": "none"}).web_search is None


@pytest.mark.parametrize(
    ("members", "effort", "thinks"),
    [
        ({}, None, False),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None, False),
        ({"thinking": {"type": "adaptive"}}, None, True),
        ({"thinking": {"type": "between_tools"}}, None, True),
        ({"output_config": {"effort": "xhigh"}}, "xhigh", False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, "medium", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 8001}}, "high", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 99_999}}, "xhigh", True),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}, "output_config": {"effort": "max"}}, "max", True),
    ],
)
def test_thinking(members: Any, effort: str | None, thinks: bool) -> None:
    turn = parse(**members)
    assert (turn.effort, turn.encrypted_reasoning) == (effort, thinks)


@pytest.mark.parametrize(
    ("user", "session"),
    [
        ("me", None),
        ("5", None),
        ("[]", None),
        ('{"session_id": ""}', None),
        (json.dumps({"device_id": "d", "session_id": "s1"}), "s1"),
        ("user_ab_account__session_0a1b2c3d-0000-4000-8000-0123456789ab", "0a1b2c3d-0000-4000-8000-0123456789ab"),
    ],
)
def test_the_conversation_that_claude_code_names(user: str, session: str | None) -> None:
    assert parse(metadata={"user_id": user}).session == session


SAMPLING = Abilities(sampling=True)


def dropped(takes: Abilities = SAMPLING, **members: Any) -> list[str]:
    data = BODY | members
    return MESSAGES.dropped_fields(data, parse_messages(data), takes)


def test_what_has_no_effect_is_named() -> None:
    """Unless the backend has it; what only concerns the client or the cache has no effect anywhere."""
    assert dropped(NOTHING_MORE) == ["max_tokens"]
    assert dropped(temperature=0.5, metadata={"user_id": "u"}, cache_control={}, top_k=None) == []
    assert dropped(Abilities(counts_tokens=True), temperature=0.5) == ["temperature"]
    assert dropped(top_k=5, context_management={"edits": [1]}) == ["top_k", "context_management"]
    assert dropped(output_config={"task_budget": {"total": 5}}) == ["output_config.task_budget"]
    betas = "claude-code-20250219, context-1m-2025-08-07,,effort-2025-11-24"
    assert dropped(anthropic_beta=betas) == ["anthropic-beta:context-1m-2025-08-07"]
    assert dropped(anthropic_beta=["new-1", 5]) == ["anthropic-beta:new-1"]


def test_the_examples_of_the_description_are_read() -> None:
    assert all(parse_messages(example) for example in API.examples.values())


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "name"]), inner),
    max_leaves=6,
)
KINDS = ["text", "image", "document", "thinking", "redacted_thinking", "tool_use", "tool_result", "search_result"]
blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional=dict.fromkeys(("text", "source", "thinking", "signature", "data", "id", "input", "content"), anything),
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.lists(blocks | anything)}
)
FIELDS = ["system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "metadata", "anthropic_beta"]


@given(st.lists(messages | anything, max_size=3), st.dictionaries(st.sampled_from(FIELDS), anything, max_size=3))
def test_any_body_is_a_turn_or_refused(said: list[Any], members: dict[str, Any]) -> None:
    """Nothing that a client sends is a mistake of ours."""
    data = BODY | {"messages": said} | members
    try:
        turn = parse_messages(data)
    except InvalidRequest:
        return
    assert turn.items
    assert all(name.isascii() for name in MESSAGES.dropped_fields(data, turn, NOTHING_MORE))
