"""TurnEvents: what a backend sends while it answers a turn.

Deltas come in runs: one event holds all adjacent pieces of one item that arrived in one read, boundaries kept.
So a token costs one list append, not one object. The order of a turn is

    (TextDelta | TextDone | ReasoningDelta | ReasoningDone | CallBegun | CallDelta | ToolCall | WebSearch | UsageUpdate
     | Rerouted | Restarted)* Finished

and nothing follows `Finished`. A streamed call is `CallBegun CallDelta* ToolCall` with one `id`; the pieces, joined,
are the beginning of the call's arguments. No other item comes in between (`stages.ItemOrder`). A call that has begun
and gets no `ToolCall` was cut off and must not run. A `ToolCall` without `CallBegun` comes as a whole. If a request
asks for several answers, each batch of one of them is a `Choice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge.errors import BridgeError

_ACTIONS = {"search": ("type", "query", "queries", "sources"), "open_page": ("type", "url")}


def search_action(given: Mapping[str, Any]) -> dict[str, Any]:
    """The action of a web search in the form of the Responses API, from untrusted JSON: unknown and malformed members
    are left out. An unknown kind of action becomes a search for its query.
    """
    kind = given.get("type")
    action = {name: value for name, value in given.items() if _is_well_formed(name, value)}
    if kind == "find_in_page":
        return {"type": kind, "url": action.get("url") or "", "pattern": action.get("pattern") or ""}
    if not isinstance(kind, str) or kind not in _ACTIONS:
        return {"type": "search", "query": action.get("query") or ""}
    return {name: value for name, value in action.items() if name in _ACTIONS[kind]}


def _is_well_formed(name: str, value: Any) -> bool:
    if name == "queries":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if name == "sources":
        return isinstance(value, list) and all(
            isinstance(each, dict) and each.get("type") == "url" and isinstance(each.get("url"), str) for each in value
        )
    return name not in ("query", "url", "pattern") or value is None or isinstance(value, str)


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
    """The reasoning item `item` is complete. `encrypted` is its content for the provider, if that was asked for."""

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

    def complete(self, arguments: str, repairs: tuple[str, ...] = (), source: str = "") -> ToolCall:
        """The complete call."""
        return ToolCall(self.id, self.call_id, self.name, arguments, repairs, source, self.namespace, self.custom)


@dataclass(slots=True)
class CallDelta:
    """Pieces of the arguments of the call `id`."""

    id: str
    pieces: list[str]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call of one of the client's functions. `arguments` is the exact JSON string.

    For a `custom` tool it is the tool's input text. `repairs` names what was repaired in the model's text; `source` is
    that text.
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
    """A web search by the provider itself; `action` has the form of the Responses API."""

    item: str
    action: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Acted:
    """The backend has begun an action of its own that a retry would repeat: a command, a change of a file."""


@dataclass(frozen=True, slots=True)
class Rerouted:
    """The provider answers with another model than the requested one."""

    model: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The upstream stream broke and starts again from zero with new items. All items so far are void."""

    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `input` includes `cached`, `output` includes `reasoning`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    estimated: bool = False
    """Estimated by the bridge, because the provider was interrupted before it reported its usage."""
    cache_write: int = 0
    """The part of the input that the provider has written to its cache, if it reports that."""

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
"""The reason of an end that the client requested on another connection."""
CLIENT_GONE = "client_gone"
"""The reason of an end because the client disconnected."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end. `reason` belongs to `incomplete` (max_output_tokens, content_filter) and `cancelled`, `error` to
    `failed`, `stop_sequence` to a `completed` answer that one of the client's texts has ended.
    """

    outcome: Outcome
    reason: str | None = None
    error: BridgeError | None = None
    stop_sequence: str | None = None


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
