"""What the event log, metrics and traces see: of a request as observers, and of an app-server's lines as a tap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from bridge.core.events import Finished, ToolCall, Usage
from bridge.core.turn import Turn
from bridge.errors import BridgeError

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
    fallbacks: int = 0
    """How many models were started before this one, and did not answer."""
    trace: Any = None
    """The span that this request belongs to."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """A model that did not begin to answer, and the one that is asked instead."""

    model: str
    """Its name in the request, or in the chain of fallbacks; `to` is the name of the next."""
    backend: str
    to: str
    error: BridgeError


class Observer:
    """Is called at each step of a request, but never per event of an answer."""

    def arrived(self, facts: TurnFacts, request: dict[str, Any]) -> None:
        """The request has arrived."""

    def starting(self, facts: TurnFacts) -> None:
        """The turn has been admitted; the backend gets it next."""

    def started(self, facts: TurnFacts) -> None:
        """The backend has accepted the turn."""

    def fell_back(self, facts: TurnFacts, fallback: Fallback) -> None:
        """Another model has been admitted in place of one that failed; `starting` follows."""

    def answering(self, facts: TurnFacts) -> None:
        """The first event has come."""

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        """The request is over."""


class Owner(Protocol):
    """A turn, as the log sees it."""

    key: str | None
    req_id: str | None


class Tap(Protocol):
    """What becomes of the lines of children: implemented by the recorder of `bridge.log`; None stands for nothing."""

    wants_lines: bool
    """Whether it gets each line on its own, as the calls from `begin_read` to `end_read`, and not only whole reads."""

    def connect(self) -> Tap:
        """The tap of one more child."""

    def read(self, data: bytes, *, is_first: bool) -> None:
        """What one read of the child's output gave, as it is; `is_first`: a line begins with it."""

    def begin_read(self) -> None:
        """One read of the child's output: the records until `end_read` share its number and time."""

    def end_read(self) -> None:
        """All lines of the read have been recorded."""

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        """Adjacent text deltas with their texts and owners: the same as `rpc` for each line, but cheaper."""

    def rpc(
        self, direction: str, kind: str, line: bytes, *, method: str | None = None, rpc_id: int | str | None = None,
        key: str | None = None, req_id: str | None = None,
    ) -> None:  # fmt: skip
        """One line of the wire. `direction` is `in` or `out`, `key` the thread or conversation."""

    def claim(self, key: str, req_id: str | None) -> None:
        """What comes for this thread from now on belongs to this request."""

    def forget(self, key: str) -> None:
        """Nothing more will come for this thread or conversation."""

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        """Something happened to the child itself."""
