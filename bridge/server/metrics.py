"""GET /metrics: the numbers of this bridge in Prometheus' text format. Names and meanings are in docs/operations.md.

Nothing is counted here. What others count is read when somebody looks, and what the reading needs is loaded then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bridge.errors import Forbidden
from bridge.redact import Redactor
from bridge.server.admission import Admission
from bridge.server.counts import Counts
from bridge.server.http import Page, PageRequest
from bridge.server.memory import MemoryLimit
from bridge.server.watchdog import Watchdog

if TYPE_CHECKING:
    from bridge.protolog.event_log import EventLog
    from bridge.server.exposition import Exposition


class Busy(Protocol):
    """Whoever runs turns."""

    @property
    def turns(self) -> int:
        """Turns running now."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the numbers are."""

    counts: Counts = field(default_factory=Counts)
    runners: Mapping[str, Busy] = field(default_factory=dict)
    """Who runs turns, by the names of their backends."""
    is_ready: Callable[[], bool] = lambda: False
    watchdog: Watchdog = field(default_factory=Watchdog)
    memory: MemoryLimit = field(default_factory=lambda: MemoryLimit(0))
    admission: Admission = field(default_factory=Admission)
    log: EventLog | None = None
    redactors: tuple[Redactor, ...] = ()


class Metrics:
    """The page."""

    def __init__(self, sources: Sources | None = None) -> None:
        self._sources = sources or Sources()
        self._exposition: Exposition | None = None

    async def page(self, request: PageRequest) -> Page:
        """GET /metrics. Raises Forbidden for a key that must not know of all models."""
        key = self._sources.admission.key(request.key)
        if key is not None and key.models:
            raise Forbidden("This key is for some models alone, and the metrics tell of all: use another key.")
        from bridge.server.exposition import CONTENT_TYPE, Exposition

        if self._exposition is None:
            self._exposition = Exposition(self._sources)
        return Page(self._exposition.text(), 200, [(b"cache-control", b"no-store")], CONTENT_TYPE)
