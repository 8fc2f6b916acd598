"""What the event log, metrics and traces see of a request. Each of them is an observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.core.events import Finished, ToolCall, Usage
from bridge.core.turn import Turn

UNKNOWN = "other"
"""The protocol or backend of a request that is refused before it is known."""


@dataclass(slots=True)
class TurnFacts:
    """What is known of a request so far. Times are trio's."""

    id: str
    key: str
    """The label of the client's key."""
    arrived: float
    protocol: str = UNKNOWN
    backend: str = UNKNOWN
    turn: Turn | None = None
    dropped: tuple[str, ...] = ()
    """Requested options that the backend does not get."""
    counts_tokens: bool = False
    """Whether the bridge itself ends the answer at the client's limit of tokens."""
    begun: float | None = None
    first: float | None = None
    """When the first event came."""
    calls: tuple[ToolCall, ...] = ()
    rerouted: str | None = None
    """The model that answers, if it is not the requested one."""
    trace: Any = None
    """The span that this request belongs to."""


class Observer:
    """Is called at each step of a request, but never per event of an answer."""

    def arrived(self, facts: TurnFacts, request: dict[str, Any]) -> None:
        """The request has arrived."""

    def starting(self, facts: TurnFacts) -> None:
        """The turn has been admitted; the backend gets it next."""

    def started(self, facts: TurnFacts) -> None:
        """The backend has accepted the turn."""

    def answering(self, facts: TurnFacts) -> None:
        """The first event has come."""

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        """The request is over."""
