"""How hard to think: each generation of models is asked in its own way, and what cannot be asked is told."""

from __future__ import annotations

from typing import Any

import pytest
from backends.anthropic.rig import ADD, built, called, gave, reasoning, said, turn
from upstream.anthropic_checks import REFUSED

from bridge.core.items import ToolChoice
from bridge.protocols.messages.build import dropped
from bridge.protocols.messages.models import pack_thought

Json = dict[str, Any]
SUMMARIZED = {"type": "adaptive", "display": "summarized"}
HI = said("user", "hi")


def asked(model: str, effort: str | None, **more: Any) -> tuple[Any, Any, list[str]]:
    """The thinking, the effort, and what is lost."""
    body = built(model=model, effort=effort, **more)
    return body.get("thinking"), body.get("output_config", {}).get("effort"), dropped(turn(model=model, effort=effort))


@pytest.mark.parametrize(
    ("effort", "budget"), [("low", 2_000), ("medium", 8_000), ("high", 16_000), ("xhigh", 24_000), ("max", 24_000)]
)
@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-haiku-4-5-20251001", "glm-4.6"])
def test_older_models_get_a_budget(model: str, effort: str, budget: int) -> None:
    thinking, level, lost = asked(model, effort, max_output_tokens=32_000)
    assert (thinking, level, lost) == ({"type": "enabled", "budget_tokens": budget}, None, [])


@pytest.mark.parametrize("effort", [None, "none", "minimal"])
def test_older_models_do_not_think_unless_they_are_asked(effort: str | None) -> None:
    assert asked("claude-sonnet-4-5", effort) == (None, None, [])


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "level", "lost"),
    [
        ("claude-opus-4-6", None, None, None, []),
        ("claude-opus-4-6", "none", None, None, []),
        ("claude-opus-4-6", "medium", {"type": "adaptive"}, "medium", []),
        ("claude-opus-4-6", "xhigh", {"type": "adaptive"}, "high", []),
        ("claude-opus-4-6", "max", {"type": "adaptive"}, "max", []),
        ("claude-opus-4-7", None, None, None, []),
        ("claude-opus-4-7", "xhigh", SUMMARIZED, "xhigh", []),
        ("claude-opus-5", None, SUMMARIZED, None, []),
        ("claude-opus-5", "minimal", {"type": "disabled"}, None, []),
        ("claude-opus-5", "max", SUMMARIZED, "max", []),
        ("claude-sonnet-5-5", "none", {"type": "between_tools"}, None, []),
        ("claude-sonnet-5-5", "low", SUMMARIZED, "low", []),
        ("claude-opus-5-5", None, SUMMARIZED, None, []),
        ("claude-opus-5-5", "minimal", SUMMARIZED, "low", []),
        ("claude-opus-5-5", "none", SUMMARIZED, "low", ["reasoning.effort"]),
        ("claude-mythos-preview", "xhigh", SUMMARIZED, "high", []),
        ("claude-3-5-haiku-latest", "high", None, None, ["reasoning.effort"]),
        ("claude-opus-5", "gigantic", SUMMARIZED, None, ["reasoning.effort"]),
        ("claude-sonnet-4-5", "gigantic", None, None, ["reasoning.effort"]),
    ],
)
def test_each_model_in_its_own_way(model: str, effort: Any, thinking: Any, level: Any, lost: list[str]) -> None:
    assert asked(model, effort) == (thinking, level, lost)


@pytest.mark.parametrize("model", REFUSED)
@pytest.mark.parametrize("effort", [None, "none", "minimal", "low", "medium", "high", "xhigh", "max", "gigantic"])
@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("required")])
def test_no_model_is_asked_what_it_refuses(model: str, effort: Any, choice: ToolChoice) -> None:
    built(model=model, effort=effort, tools=(ADD,), tool_choice=choice, temperature=0.5, top_p=0.5)


@pytest.mark.parametrize(
    ("limit", "budget"), [(1365, None), (1366, 1024), (2048, 1536), (8192, 6144), (64_000, 16_000)]
)
def test_a_budget_leaves_room_for_the_answer(limit: int, budget: int | None) -> None:
    body = built(effort="high", max_output_tokens=limit)
    assert body["max_tokens"] == limit
    assert body.get("thinking", {}).get("budget_tokens") == budget
    assert dropped(turn(effort="high", max_output_tokens=limit)) == ([] if budget else ["reasoning.effort"])


def test_an_older_model_that_is_made_to_call_does_not_think() -> None:
    more: Json = {"effort": "high", "tools": (ADD,), "tool_choice": ToolChoice("required")}
    body = built(**more)
    assert "thinking" not in body
    assert body["tool_choice"] == {"type": "any"}
    assert dropped(turn(**more)) == ["reasoning.effort"]


# Thoughts that are missing


def thought(model: str = "claude-sonnet-4-5") -> Any:
    return reasoning(pack_thought(model, {"type": "thinking", "thinking": "hm", "signature": "c2ln"}))


STEP = (called("a"), gave("a", "5"))
NEXT = (called("b"), gave("b", "6"))


@pytest.mark.parametrize(
    ("items", "thinks"),
    [
        ((HI,), True),
        ((HI, thought(), *STEP), True),
        ((HI, *STEP), False),
        # Only the first message of what goes on now must begin with thoughts.
        ((HI, thought(), *STEP, *NEXT), True),
        ((HI, *STEP, thought(), *NEXT), False),
        # What is over is over.
        ((HI, *STEP, said("assistant", "5"), said("user", "and?")), True),
        ((HI, *STEP, said("assistant", "5"), said("user", "and?"), thought(), *NEXT), True),
        ((HI, *STEP, said("assistant", "5"), said("user", "and?"), *NEXT), False),
        # Thoughts of another model are as good as none.
        ((HI, thought("claude-haiku-4-5"), *STEP), False),
        # A word of the user's among the results begins nothing new.
        ((HI, *STEP, said("user", "hurry")), False),
    ],
    ids=range(10),
)
def test_an_older_model_goes_on_thinking_only_with_its_thoughts(items: Any, thinks: bool) -> None:
    body = built(*items, effort="low", tools=(ADD,))
    assert ("thinking" in body) == thinks
    assert dropped(turn(*items, effort="low", tools=(ADD,))) == ([] if thinks else ["reasoning.effort"])
    kinds = {block["type"] for message in body["messages"] for block in message["content"]}
    assert thinks or "thinking" not in kinds


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-opus-5", "claude-opus-5-5"])
def test_newer_models_think_anyway(model: str) -> None:
    assert built(HI, *STEP, model=model, effort="low", tools=(ADD,))["thinking"]["type"] == "adaptive"


@pytest.mark.parametrize(
    ("model", "binding"), [("claude-opus-5", False), ("claude-opus-5-5", True), ("claude-haiku-5-5", True)]
)
def test_a_bound_thought_that_does_not_fit_any_more_may_be_dropped(model: str, binding: bool) -> None:
    thinking = built(HI, thought(model), *STEP, model=model, tools=(ADD,))["thinking"]
    expected = {"prefix_mismatch_behavior": "drop_block"} if binding else None
    assert thinking.get("block_binding") == expected
    assert "block_binding" not in built(HI, *STEP, model=model, tools=(ADD,))["thinking"]


def test_who_is_not_to_think_is_not_given_thoughts() -> None:
    body = built(HI, thought("claude-sonnet-5-5"), *STEP, model="claude-sonnet-5-5", effort="none", tools=(ADD,))
    assert body["thinking"] == {"type": "between_tools"}
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
