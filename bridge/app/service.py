"""What every request needs: the router, the store, and the operator's choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any, Protocol

import trio

from bridge.app.admission import Admission
from bridge.app.fallback import Fallbacks
from bridge.app.metrics import Metrics
from bridge.app.recorders import Recorders, Sink
from bridge.core.events import Finished, Usage
from bridge.core.observer import Fallback, Observer, TurnFacts
from bridge.core.prices import NO_PRICES, Prices
from bridge.counts import as_name
from bridge.log.record import invalid_arguments
from bridge.protocols.cap import CapOptions, ConversationState
from bridge.protocols.client import ReasoningDisplay
from bridge.protocols.dropped import Policy
from bridge.routing.router import Router, ToolModes
from bridge.store.base import Store, UsageRow
from bridge.telemetry import Counts, MemoryLimit

if TYPE_CHECKING:
    from bridge.app.exchange import Exchange
    from bridge.app.protocol_exchange import ProtocolExchange
    from bridge.telemetry.tracing import Tracing

NewId = Callable[[str], str]


class Player(Protocol):
    """Answers from recordings."""

    def check(self, path: str) -> None:
        """Raise a BridgeError if requests to this path can neither be played nor answered live."""

    def choose(self, service: Service, spoken: str, data: dict[str, Any]) -> AnswerSettings:
        """The settings that give the recorded answer to a body, or `service` itself if it is to be answered live.

        Raises a BridgeError if there is no recording.
        """


class Recordings(Player, Protocol):
    """A log whose recordings answer for the whole program."""

    @property
    def forwards(self) -> bool:
        """Whether requests that are not in the log are answered live."""

    @property
    def router(self) -> Router:
        """Serves the names of the recorded models, where nothing is answered live."""


@dataclass(slots=True)
class AnswerSettings:
    """What decides about an answer besides its request: the operator's settings, or those of a recording."""

    router: Router
    new_id: NewId
    _: KW_ONLY
    now: Callable[[], float] = time
    hold: float = 2.0
    """Seconds for which the status stays open while nothing is visible: a failure can still be an HTTP error."""
    stream_default: bool = False
    policy: Policy = "drop"
    reasoning: ReasoningDisplay = "content"
    cap: CapOptions = field(default_factory=CapOptions)
    forgiving: bool = False
    """The answer is a recorded one: what the request continues need not exist, and its time is not measured."""
    recorded_state: ConversationState | None = None
    """Whether the conversation of the recorded CAP request was new."""
    answered_by: str | None = None
    """The model that the recorded answer was sent as that of, instead of the requested one."""
    keeps_empty: bool = False
    """Whether CAP sends empty pieces, as a redacted recording contains them."""


@dataclass(slots=True)
class Service(AnswerSettings):
    """What every request needs, and the operator's settings."""

    max_body: int
    keepalive: float
    store: Store
    keeps_responses: bool = True
    shared_for: float = 0
    """For how many seconds a response in the store may be in progress at another bridge."""
    lists_aliases: bool = True
    """Whether GET /v1/models has aliases and names with efforts beside the models."""
    tool_modes: ToolModes = field(default_factory=ToolModes)
    """How tools are offered, by model and key."""
    recorder: Sink = field(default_factory=Recorders)
    prices: Prices = NO_PRICES
    fallbacks: Fallbacks = field(default_factory=Fallbacks)
    player: Player | None = None
    running: dict[tuple[str, str], ProtocolExchange] = field(default_factory=dict)
    """The responses in progress, by key and id."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    """All requests in progress, by id."""
    background: trio.Nursery | None = None
    """Runs background responses; None before the bridge runs and while it stops."""
    admission: Admission = field(default_factory=Admission)
    counts: Counts = field(default_factory=Counts)
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(0))
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing | None = None
    stopping: trio.Event = field(default_factory=trio.Event)
    """Set when the bridge stops: kept connections are closed after their current answers."""
    observers: tuple[Observer, ...] = field(init=False)
    """Metrics, traces if they are enabled, and those of the recorder."""

    def __post_init__(self) -> None:
        meter = Meter(self.counts, self.store, lambda: self.router.models(), self.prices, self.fallbacks)
        tracing = () if self.tracing is None else (self.tracing,)
        self.observers = (meter, *tracing, *self.recorder.observers(self.prices))


class Meter(Observer):
    """Counts requests for the metrics, and their usage for the store."""

    def __init__(
        self,
        counts: Counts,
        store: Store,
        models: Callable[[], Iterable[str]],
        prices: Prices = NO_PRICES,
        fallbacks: Fallbacks | None = None,
    ) -> None:
        self._counts = counts
        self._store = store
        self._models = models
        self._prices = prices
        self._fallbacks = fallbacks or Fallbacks()

    def arrived(self, facts: TurnFacts, request: dict[str, Any]) -> None:
        self._counts.waiting += 1

    def starting(self, facts: TurnFacts) -> None:
        self._counts.ignored += len(facts.dropped)

    def started(self, facts: TurnFacts) -> None:
        self._counts.waiting -= 1

    def fell_back(self, facts: TurnFacts, fallback: Fallback) -> None:
        is_named = self._fallbacks.names_model(fallback.model)
        model = fallback.model if is_named else self._counts.known_model(fallback.model, self._models)
        self._counts.fallbacks.add(model, fallback.to, as_name(fallback.error.code))

    def answering(self, facts: TurnFacts) -> None:
        assert facts.first is not None
        self._counts.first_event.observe(facts.backend, facts.first - facts.arrived)

    def ended(self, facts: TurnFacts, end: Finished, usage: Usage | None, now: float) -> None:
        counts, turn = self._counts, facts.turn
        if facts.begun is None:
            counts.waiting -= 1
        counts.failed(end)
        counts.invalid_arguments += len(invalid_arguments(facts.calls))
        if turn is None:
            return
        usage = usage or Usage()
        model = counts.known_model(turn.model, self._models)
        counts.ended(facts.protocol, facts.key, model, end, usage)
        if cost := self._prices.cost(turn.model, usage):
            counts.costs.add(model, by=cost)
        tokens = usage.input, usage.cached, usage.output, usage.reasoning
        day = datetime.now(UTC).date().isoformat()
        self._store.count(UsageRow(day, facts.key, turn.model, 1, int(end.outcome == "failed"), *tokens))
