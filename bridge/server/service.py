"""What every request needs: who answers, where things are kept, and how the operator wants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any, Protocol

import trio

from bridge.api.chat.events import ReasoningDisplay
from bridge.api.dropped import Policy
from bridge.backends.router import Router
from bridge.backends.tool_modes import ToolModes
from bridge.protolog.record import Recorder
from bridge.server.admission import Admission
from bridge.server.cap.options import CapOptions
from bridge.server.counts import Counts
from bridge.server.memory import MemoryLimit
from bridge.server.metrics import Metrics
from bridge.store.base import Store

if TYPE_CHECKING:
    from bridge.protolog.match import Spoken
    from bridge.server.openai_exchange import OpenAiExchange
    from bridge.server.tracing import Tracing

NewId = Callable[[str], str]

HOLD = 2.0
"""Seconds for which an answer is held back while nothing of it is visible: so long a failure can be an error."""


class Player(Protocol):
    """Whoever answers from recordings."""

    def check(self, path: str) -> None:
        """Raise a BridgeError when answers of this path are neither played nor given live."""

    def choose(self, service: Service, spoken: Spoken, data: dict[str, Any]) -> Service:
        """The service that plays the answer to a body; `service` itself for one that is to be answered live.

        Raises a BridgeError when there is no recording of it.
        """


@dataclass(slots=True)
class Service:
    """What every request needs."""

    router: Router
    new_id: NewId
    max_body: int
    keepalive: float
    store: Store
    keeps_responses: bool = True
    stream_default: bool = False
    lists_aliases: bool = True
    """Whether GET /v1/models has aliases and names with efforts beside the models."""
    tool_modes: ToolModes = field(default_factory=ToolModes)
    """How tools are offered, where it is not the same for all requests."""
    policy: Policy = "drop"
    reasoning: ReasoningDisplay = "content"
    recorder: Recorder | None = None
    now: Callable[[], float] = time
    hold: float = HOLD
    player: Player | None = None
    """Whoever answers from recordings."""
    forgiving: bool = False
    """What a request continues need not be there, nor is its time measured: its answer is a recorded one."""
    running: dict[tuple[str, str], OpenAiExchange] = field(default_factory=dict)
    """The responses that are being written, by key and id."""
    background: trio.Nursery | None = None
    """Where responses go on without their client; None before the bridge runs, and when it stops."""
    admission: Admission = field(default_factory=Admission)
    """Who may begin a turn, and with which models."""
    cap: CapOptions = field(default_factory=CapOptions)
    """How the operator wants CAP."""
    counts: Counts = field(default_factory=Counts)
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(0))
    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing | None = None
    stopping: trio.Event = field(default_factory=trio.Event)
    """The bridge stops: connections that are kept open for more requests are closed when they have their answers."""
