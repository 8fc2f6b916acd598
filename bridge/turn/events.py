"""TurnEvents: what a backend says while it answers a turn.

Deltas come in runs: one event holds all adjacent pieces of one item that arrived in one read, boundaries kept.
So the cost of a token is one list append, not one object. The order of a turn is

    (TextDelta | TextDone | ReasoningDelta | ReasoningDone | CallBegun | CallDelta | ToolCall | WebSearch | UsageUpdate
     | Rerouted | Restarted)* Finished

and nothing follows `Finished`. A call that streams is `CallBegun CallDelta* ToolCall`, with the same `id`; the pieces,
joined, are the beginning of the call's arguments. No other item stands in between (`order.py`). A call that has begun
and for which no `ToolCall` comes was cut off: nobody may run it. A `ToolCall` without `CallBegun` comes all at once.
Where a request has several answers, each batch of one of them is a `Choice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.errors import BridgeError


@dataclass(slots=True)
class TextDelta:
    """Pieces of the assistant message `item`."""

    item: str
    pieces: list[str]


@dataclass(frozen=True, slots=True)
class TextDone:
    """The assistant message `item` is complete."""

    item: str


@dataclass(slots=True)
class ReasoningDelta:
    """Pieces of the reasoning item `item`: part `index` of its summary, or of its raw content."""

    item: str
    index: int
    pieces: list[str]
    raw: bool = False


@dataclass(frozen=True, slots=True)
class ReasoningDone:
    """The reasoning item `item` is complete; `encrypted` is what the provider wants to get back, where asked for."""

    item: str
    encrypted: str | None = None


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model has begun to call one of the client's functions. Its arguments follow."""

    id: str
    call_id: str
    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(slots=True)
class CallDelta:
    """Pieces of the arguments of the call `id`."""

    id: str
    pieces: list[str]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call of one of the client's functions. `arguments` is the exact JSON string.

    For a `custom` tool it is the text that the tool takes. `repairs` names what had to be mended in the model's text;
    `source` is that text.
    """

    id: str
    call_id: str
    name: str
    arguments: str
    repairs: tuple[str, ...] = ()
    source: str = field(default="", repr=False)
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class WebSearch:
    """A search that the provider made by itself; `action` is what it did, in the words of the Responses API."""

    item: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Acted:
    """The other side has begun something of its own that a second try would do again: a command, a change of a file."""


@dataclass(frozen=True, slots=True)
class Rerouted:
    """The provider answers with another model than the requested one."""

    model: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The upstream stream broke and starts again from zero under new items: what was said so far is void."""

    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `input` includes `cached`, `output` includes `reasoning`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    estimated: bool = False
    """Counted by us, because the provider was interrupted before it told."""
    cache_write: int = 0
    """Of the input, what the provider has put into its cache, where it tells."""

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.input + self.output

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input - other.input,
            self.cached - other.cached,
            self.output - other.output,
            self.reasoning - other.reasoning,
            cache_write=self.cache_write - other.cache_write,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
            self.cache_write + other.cache_write,
        )


@dataclass(frozen=True, slots=True)
class UsageUpdate:
    """The turn's usage so far (not a difference)."""

    usage: Usage


Outcome = Literal["completed", "incomplete", "failed", "cancelled"]


CANCELLED = "cancelled"
"""The reason of an end that the client asked for, on another connection."""
CLIENT_GONE = "client_gone"
"""The reason of an end that came because nobody listened any more."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `reason` belongs to `incomplete` (max_output_tokens, content_filter) and `cancelled`, `error` to
    `failed`.
    """

    outcome: Outcome
    reason: str | None = None
    error: BridgeError | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Events of one of several answers to the same request."""

    index: int
    events: list[TurnEvent]


TurnEvent = (
    TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | CallBegun
    | CallDelta
    | ToolCall
    | WebSearch
    | Acted
    | Rerouted
    | Restarted
    | UsageUpdate
    | Finished
    | Choice
)
