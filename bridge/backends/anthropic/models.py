"""What each generation of models takes, told by its name: what a model does not know, the API refuses.

A name is read wherever it comes from: `claude-opus-4-5-20251101`, `claude-3-7-sonnet-latest`, `x/claude-opus-4.7`. A
Claude that is not known here counts as the newest, which takes the least. A model of somebody else's, behind the same
API, counts as an old one: that is what others imitate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model takes."""

    max_tokens: int
    """The limit of an answer where the client names none: the API wants one. Thoughts count.

    Well within what the model can do: with older ones the room for the prompt shrinks by it.
    """
    thinking: Literal["none", "budget", "adaptive"] = "none"
    """How it is asked to think: not at all, with a number of tokens, or with an effort."""
    off: Literal["omit", "disabled", "between_tools", "never"] = "omit"
    """How it is asked not to think. All but `omit` think unless they are told."""
    efforts: tuple[str, ...] = ()
    summarizes: bool = True
    """Whether its thoughts can be read without asking for that."""
    bound: bool = False
    """Whether a thought is good only after exactly what stood before it."""
    sampling: bool = True
    """Whether it takes a temperature."""
    forced_choice: bool = True
    """Whether it can be made to call a tool."""
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
"""The first that a model is at least as new as; older ones differ by their version alone."""

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
"""Family and version, in either order. A date is no version."""


def traits_of(model: str) -> Traits:
    """What a model of this name takes."""
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
