"""A case: what a model is asked, with which tools, and what a right answer does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bridge.turn.items import FunctionTool, Item, ToolChoice
from bridge.turn.turn import AUTO

Order = Literal["any", "exact"]
Leak = Literal["forbidden", "allowed"]


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that is due. `arguments` are matchers by name (see `bridge.lab.match`); what they do not name must not be
    there, unless `optional` names it or the matcher of `*` takes it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that may be left out; where they are given they must match."""


@dataclass(frozen=True, slots=True)
class Expect:
    """What a right answer does."""

    calls: tuple[ExpectedCall, ...] = ()
    """The calls that are due; none: a call would be wrong."""
    order: Order = "any"
    contains: tuple[str, ...] = ()
    """Texts that the visible answer must hold, in any case."""
    lacks: tuple[str, ...] = ()
    leak: Leak = "forbidden"
    """Whether tags may stand in the visible text: only where the talk is of them."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `items` is the whole conversation up to the answer that is scored."""

    id: str
    category: str
    items: tuple[Item, ...]
    expect: Expect
    tools: tuple[FunctionTool, ...] = ()
    instructions: str | None = None
    tool_choice: ToolChoice = AUTO
    parallel: bool = True
    tags: tuple[str, ...] = ()
    notes: str = ""
    file: Path | None = field(default=None, compare=False)
    line: int = field(default=0, compare=False)

    @property
    def calls_due(self) -> bool:
        """Whether a right answer calls anything."""
        return bool(self.expect.calls)
