"""The options of each generation of models, by the name: the API refuses options that a model does not have.

All forms of a name are known: `claude-opus-4-5-20251101`, `claude-3-7-sonnet-latest`, `x/claude-opus-4.7`. An unknown
Claude counts as the newest, which has the fewest options. A model of another company behind the same API counts as an
old one: that is what others imitate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from bridge.core.items import Item, RawItem
from bridge.core.thoughts import ANTHROPIC
from bridge.core.turn import Turn
from bridge.protocols.reading import BUDGETS

# How a model is asked to think, and how reasoning gets to the client and back.
#
# Reasoning is signed and must come back unchanged. The whole block is in the `encrypted_content` of the reasoning item,
# with the name of the model: no other model gets it.

SMALLEST_BUDGET = 1024
_OFF = ("none", "minimal")
_LEVELS = tuple(BUDGETS)
_MEMBERS: Mapping[str, tuple[str, ...]] = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


@dataclass(frozen=True, slots=True)
class Thinking:
    """The member `thinking` and the effort. `lost`: the client asked for more than that."""

    on: bool = False
    config: Mapping[str, Any] | None = None
    effort: str | None = None
    lost: bool = False


def plan_thinking(turn: Turn, max_tokens: int, *, can_resume: bool) -> Thinking:
    """How a turn's effort is asked for.

    `can_resume`: the calls that are answered now come with the reasoning before them. Models with a budget require
    that, and cannot think when they are forced to call a tool.
    """
    traits = traits_of(turn.model)
    if traits.thinking == "adaptive":
        return _adaptive(turn, traits)
    if turn.effort is None or turn.effort in _OFF:
        return Thinking()
    # The answer needs tokens, too.
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
        # A client that has changed the history before reasoning loses the reasoning, not the answer.
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
    """The requested effort, or the next lower one that the model has."""
    below = [level for level in _LEVELS[: _LEVELS.index(wanted) + 1] if level in efforts]
    return below[-1]


def is_bound(turn: Turn) -> bool:
    """Whether the body has reasoning that the API compares with the history before it, which is a beta feature."""
    return traits_of(turn.model).bound and any(thought_in(item, turn.model) is not None for item in turn.items)


def pack_thought(model: str, block: Mapping[str, Any]) -> str:
    """A block of reasoning as `encrypted_content`."""
    return ANTHROPIC + orjson.dumps({"model": model, "block": block}).decode()


def _unpack(packed: Any) -> tuple[str, dict[str, Any]] | None:
    """The model and the block in `encrypted_content`; None for reasoning of other providers and for damaged data."""
    if not isinstance(packed, str) or not packed.startswith(ANTHROPIC):
        return None
    try:
        data = orjson.loads(packed.removeprefix(ANTHROPIC))
        model, block = data["model"], data["block"]
        thought = {"type": block["type"], **{name: block[name] for name in _MEMBERS[block["type"]]}}
    except (ValueError, KeyError, TypeError):
        return None
    return (model, thought) if all(isinstance(value, str) for value in (model, *thought.values())) else None


def thought_in(item: Item, model: str) -> dict[str, Any] | None:
    """The block of reasoning in an item; None if it is not from this model."""
    if not isinstance(item, RawItem) or item.type != "reasoning":
        return None
    found = _unpack(item.data.get("encrypted_content"))
    return found[1] if found is not None and found[0] == model else None


# Reasoning as a client of this protocol gets it. The signature of a block is its `encrypted_content`, whose mark names
# the provider, after the provider's id of the item: a provider of the Responses API refuses another id.

_PROVIDERS_ID = re.compile(r"rs_[A-Za-z0-9_-]{1,200}")
_OURS = re.compile(rf"(?:({_PROVIDERS_ID.pattern})@)?(.*)", re.DOTALL)
_ANTHROPICS = re.compile(r"[A-Za-z0-9+/=_-]*")
"""Anthropic's own signatures are base64."""


def client_block(text: str, encrypted: str | None, item: str = "") -> dict[str, Any]:
    """Reasoning as the block that a client gets: readable text, and `encrypted_content` of this `item`."""
    found = _unpack(encrypted)
    if found is None:
        signed = f"{item}@{encrypted}" if _PROVIDERS_ID.fullmatch(item) else encrypted
        return {"type": "thinking", "thinking": text, "signature": signed if encrypted else ""}
    model, block = found
    if block["type"] == "redacted_thinking":
        return {"type": "redacted_thinking", "data": encrypted}
    # The text is in the block already.
    return {"type": "thinking", "thinking": text, "signature": pack_thought(model, {**block, "thinking": ""})}


def thought_of_client(block: Mapping[str, Any], model: str) -> RawItem | None:
    """The reasoning item of a block that a client has sent back; None if it has no signature.

    Without a mark it comes from Anthropic itself, so it is for the `model` of the request.
    """
    if block["type"] == "redacted_thinking":
        data = block["data"]
        packed = data if _unpack(data) is not None else pack_thought(model, {"type": "redacted_thinking", "data": data})
        return _reasoning(packed, "")
    text, signature = block["thinking"], block.get("signature")
    if not signature:
        return None
    if _ANTHROPICS.fullmatch(signature):
        return _reasoning(pack_thought(model, {"type": "thinking", "thinking": text, "signature": signature}), text)
    if (found := _unpack(signature)) is not None:
        model, thought = found
        return _reasoning(pack_thought(model, {**thought, "thinking": text}), text)
    ours = _OURS.fullmatch(signature)
    assert ours is not None  # it matches any text
    return _reasoning(ours[2], text, ours[1])


def _reasoning(encrypted: str, text: str, item: str | None = None) -> RawItem:
    summary = [{"type": "summary_text", "text": text}] if text else []
    named = {} if item is None else {"id": item}
    return RawItem("reasoning", {"type": "reasoning", **named, "summary": summary, "encrypted_content": encrypted})


Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Traits:
    """The options of a model."""

    max_tokens: int
    """The limit of output tokens, with reasoning, if the client has none: the API requires one.

    Well below the model's maximum: with older models it reduces the space for the prompt.
    """
    thinking: Literal["none", "budget", "adaptive"] = "none"
    """How it is asked to think: not at all, with a number of tokens, or with an effort."""
    off: Literal["omit", "disabled", "between_tools", "never"] = "omit"
    """How it is asked not to think. All except `omit` think by default."""
    efforts: tuple[str, ...] = ()
    summarizes: bool = True
    """Whether its reasoning is readable by default."""
    bound: bool = False
    """Whether reasoning is valid only after an unchanged history."""
    sampling: bool = True
    """Whether it accepts a temperature."""
    forced_choice: bool = True
    """Whether it can be forced to call a tool."""
    schemas: bool = False
    """Whether it can be held to a JSON Schema."""


_OLDEST = Traits(4096)
_CLAUDE_3_5 = Traits(8192)
_CLAUDE_3_7 = Traits(32_000, "budget")
_CLAUDE_4_5 = replace(_CLAUDE_3_7, schemas=True)
_CLAUDE_4_6 = Traits(64_000, "adaptive", efforts=("low", "medium", "high", "max"), schemas=True)
_CLAUDE_4_7 = replace(_CLAUDE_4_6, efforts=("low", "medium", "high", "xhigh", "max"), summarizes=False, sampling=False)
_CLAUDE_5 = replace(_CLAUDE_4_7, off="disabled")
_HAIKU_5_5 = replace(_CLAUDE_5, bound=True)
_SONNET_5_5 = replace(_CLAUDE_5, off="between_tools", bound=True, forced_choice=False)
_FABLE_5 = replace(_CLAUDE_5, off="never")
_NEWEST = replace(_FABLE_5, bound=True, forced_choice=False)
_UNKNOWN_CLAUDE = replace(_NEWEST, efforts=("low", "medium", "high"))
_SOMEBODY_ELSES = Traits(8192, "budget")

_GENERATIONS: tuple[tuple[str, Version, Traits], ...] = (
    ("opus", (5, 5), _NEWEST),
    ("opus", (5, 0), _CLAUDE_5),
    ("opus", (4, 7), _CLAUDE_4_7),
    ("opus", (4, 6), _CLAUDE_4_6),
    ("sonnet", (5, 5), _SONNET_5_5),
    ("sonnet", (5, 0), _CLAUDE_5),
    ("sonnet", (4, 6), _CLAUDE_4_6),
    ("haiku", (5, 0), _HAIKU_5_5),
    ("fable", (5, 1), _NEWEST),
    ("fable", (0, 0), _FABLE_5),
    ("mythos", (5, 1), _NEWEST),
    ("mythos", (0, 0), _FABLE_5),
)
"""The first entry that is not newer than a model applies; older ones differ only by version."""

_OLDER: tuple[tuple[Version, Traits], ...] = (
    ((4, 5), _CLAUDE_4_5),
    ((3, 7), _CLAUDE_3_7),
    ((3, 5), _CLAUDE_3_5),
    ((0, 0), _OLDEST),
)
_OLDER_FAMILIES = ("opus", "sonnet", "haiku")

_NAME = re.compile(
    r"claude-(?:([a-z]+)-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)|(\d{1,2})(?:[-.](\d{1,2}))?-([a-z]+))", re.IGNORECASE
)
"""Family and version, in either order. A date is not a version."""


def traits_of(model: str) -> Traits:
    """The options of a model of this name."""
    found = _NAME.search(model)
    if found is None:
        return _UNKNOWN_CLAUDE if "claude" in model.lower() else _SOMEBODY_ELSES
    family = (found[1] or found[6]).lower()
    version = (int(found[2] or found[4]), int(found[3] or found[5] or 0))
    for name, since, traits in _GENERATIONS:
        if name == family and version >= since:
            return traits
    if family not in _OLDER_FAMILIES:
        return _UNKNOWN_CLAUDE
    return next(traits for since, traits in _OLDER if version >= since)
