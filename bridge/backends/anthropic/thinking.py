"""How a model is asked to think, and its thoughts on their way to the client and back.

A thought is signed and is wanted back as it was. It travels in the reasoning item's `encrypted_content`, whole, with
the name of the model: it is given back to nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bridge.backends.anthropic.models import Traits, traits_of
from bridge.turn.items import Item, RawItem
from bridge.turn.thoughts import ANTHROPIC
from bridge.turn.turn import Turn

BUDGETS: Mapping[str, int] = {"low": 2_000, "medium": 8_000, "high": 16_000, "xhigh": 24_000, "max": 24_000}
"""Tokens to think with, for models that want a number."""
SMALLEST_BUDGET = 1024
_OFF = ("none", "minimal")
_LEVELS = tuple(BUDGETS)
_MEMBERS: Mapping[str, tuple[str, ...]] = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


@dataclass(frozen=True, slots=True)
class Thinking:
    """What to ask for: the member `thinking`, and the effort. `lost` when that is less than the client asked for."""

    on: bool = False
    config: Mapping[str, Any] | None = None
    effort: str | None = None
    lost: bool = False


def plan_thinking(turn: Turn, max_tokens: int, *, can_resume: bool) -> Thinking:
    """How a turn's effort is asked for.

    `can_resume` tells that the calls which are being answered come with the thoughts before them. Models that think
    with a budget demand those, and cannot think when they are made to call a tool.
    """
    traits = traits_of(turn.model)
    if traits.thinking == "adaptive":
        return _adaptive(turn, traits)
    if turn.effort is None or turn.effort in _OFF:
        return Thinking()
    # There must be room for the answer, too.
    budget = min(BUDGETS.get(turn.effort, 0), max_tokens * 3 // 4)
    forced = turn.tool_choice.mode in ("required", "named")
    if traits.thinking == "none" or budget < SMALLEST_BUDGET or forced or not can_resume:
        return Thinking(lost=True)
    return Thinking(True, {"type": "enabled", "budget_tokens": budget})


def _adaptive(turn: Turn, traits: Traits) -> Thinking:
    config: dict[str, Any] = {"type": "adaptive"}
    if not traits.summarizes:
        config["display"] = "summarized"
    if is_bound(turn):
        # Who has changed what stood before a thought shall lose the thought, not the answer.
        config["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    if turn.effort in _OFF:
        if traits.off == "never":
            return Thinking(True, config, "low", lost=turn.effort == "none")
        return Thinking() if traits.off == "omit" else Thinking(config={"type": traits.off})
    if turn.effort in _LEVELS:
        return Thinking(True, config, _level(turn.effort, traits.efforts))
    lost = turn.effort is not None
    return Thinking(lost=lost) if traits.off == "omit" else Thinking(True, config, lost=lost)


def _level(wanted: str, efforts: Sequence[str]) -> str:
    """The effort that was asked for, or the next one below that the model knows."""
    below = [level for level in _LEVELS[: _LEVELS.index(wanted) + 1] if level in efforts]
    return below[-1]


def is_bound(turn: Turn) -> bool:
    """Whether thoughts go back that the API compares with what stands before them. That is a beta feature."""
    return traits_of(turn.model).bound and any(thought_in(item, turn.model) is not None for item in turn.items)


def pack_thought(model: str, block: Mapping[str, Any]) -> str:
    """A block of thought as `encrypted_content`."""
    return ANTHROPIC + orjson.dumps({"model": model, "block": block}).decode()


def thought_in(item: Item, model: str) -> dict[str, Any] | None:
    """The block of thought that an item holds; None when it is not one of this model's."""
    if not isinstance(item, RawItem) or item.type != "reasoning":
        return None
    packed = item.data.get("encrypted_content")
    if not isinstance(packed, str) or not packed.startswith(ANTHROPIC):
        return None
    try:
        data = orjson.loads(packed.removeprefix(ANTHROPIC))
        block = data["block"]
        members = _MEMBERS[block["type"]]
        thought = {"type": block["type"], **{name: block[name] for name in members}}
    except (ValueError, KeyError, TypeError):
        return None
    sound = data.get("model") == model and all(isinstance(value, str) for value in thought.values())
    return thought if sound else None
