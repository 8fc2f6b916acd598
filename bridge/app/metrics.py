"""GET /metrics: the numbers of this bridge in Prometheus' text format. Names and meanings are in docs/operations.md.

Nothing is counted here. The numbers are collected on request, and the Prometheus client is imported on the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bridge.app.admission import Admission
from bridge.app.fallback import Breakers
from bridge.errors import Forbidden
from bridge.http.pages import Page, PageRequest
from bridge.redact import Redactor
from bridge.telemetry import Counts, MemoryLimit, Watchdog

if TYPE_CHECKING:
    from bridge.app.prometheus import Exposition
    from bridge.log.event_log import EventLog


class RunsTurns(Protocol):
    """A pool of children, or the connections to a provider."""

    @property
    def turns(self) -> int:
        """Turns running now."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that count."""

    counts: Counts = field(default_factory=Counts)
    runners: Mapping[str, RunsTurns] = field(default_factory=dict)
    """By the names of their backends."""
    is_ready: Callable[[], bool] = lambda: False
    watchdog: Watchdog = field(default_factory=Watchdog)
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(0))
    admission: Admission = field(default_factory=Admission)
    breakers: Breakers = field(default_factory=Breakers)
    log: EventLog | None = None
    redactors: tuple[Redactor, ...] = ()


class Metrics:
    """The page."""

    def __init__(self, sources: Sources | None = None) -> None:
        self._sources = sources or Sources()
        self._exposition: Exposition | None = None

    async def page(self, request: PageRequest) -> Page:
        """GET /metrics. Raises Forbidden for a key that is restricted to some models."""
        key = self._sources.admission.key(request.key)
        if key is not None and key.models:
            raise Forbidden(
                "This key is restricted to some models, and the metrics cover all of them. Use an unrestricted key."
            )
        from bridge.app.prometheus import CONTENT_TYPE, Exposition

        if self._exposition is None:
            self._exposition = Exposition(self._sources)
        return Page(self._exposition.text(), 200, [(b"cache-control", b"no-store")], CONTENT_TYPE)
