"""Models, usage, rate limits and health."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

from bridge import APP, __version__
from bridge.app.admission import resolve_visible, visible_models
from bridge.app.rate_limits import codex_usage, limits_object
from bridge.app.service import Service
from bridge.core.events import Usage
from bridge.core.prices import Prices, amount
from bridge.errors import ModelNotFound
from bridge.http.pages import Page, PageRequest, json_page, query_number
from bridge.protocols.client import ClientProtocol
from bridge.store.base import USAGE_DAYS, UsageRow
from bridge.telemetry import MEMORY_PRESSURE

DEFAULT_DAYS = 30
NO_TURNS = ("shutdown_initiated", MEMORY_PRESSURE)
"""Faults with which the bridge accepts no turns."""


class _Listing(NamedTuple):
    """The models that a key may use, and the page that lists them."""

    entries: list[dict[str, Any]]
    page: Page


class Pages:
    """Everything about the bridge itself."""

    def __init__(
        self, service: Service, fault: Callable[[], str | None], started_at: int, now: Callable[[], float]
    ) -> None:
        self._router = service.router
        self._lists_aliases = service.lists_aliases
        self._store = service.store
        self._prices = service.prices
        self._admission = service.admission
        self._fault = fault
        self._started_at = started_at
        self._now = now
        self._began = monotonic()
        self._agent_id = service.cap.agent_id
        self._listed: list[str] = []
        self._listings: dict[tuple[str, ...], _Listing] = {}
        """By the models that a key allows."""

    async def models(self, request: PageRequest) -> Page:
        """GET /v1/models: the models that a request may name now."""
        return (await self._listing(request)).page

    async def models_of(self, protocol: ClientProtocol, request: PageRequest) -> Page:
        """The same in the form of a protocol that has one of its own."""
        assert protocol.models is not None
        return json_page(protocol.models.page((await self._listing(request)).entries, request.query))

    async def _listing(self, request: PageRequest) -> _Listing:
        await self._router.wait_until_known(patience=2)
        listed = self._router.models(aliases=self._lists_aliases)
        if listed is not self._listed:
            # The router returns the same list until a backend's models change.
            self._listed, self._listings = listed, {}
        key = self._admission.key(request.key)
        allowed = () if key is None else key.models
        if allowed not in self._listings:
            names = visible_models(self._router, key, aliases=self._lists_aliases)
            entries = [self._entry(name) for name in names]
            self._listings[allowed] = _Listing(entries, json_page({"object": "list", "data": entries}))
        return self._listings[allowed]

    async def model(self, request: PageRequest) -> Page:
        """GET /v1/models/{id}: any name that a request may use, listed or not."""
        return json_page(await self._named(request))

    async def model_of(self, protocol: ClientProtocol, request: PageRequest) -> Page:
        """The same in the form of a protocol that has one of its own."""
        assert protocol.models is not None
        return json_page(protocol.models.entry(await self._named(request)))

    async def _named(self, request: PageRequest) -> dict[str, Any]:
        await self._router.wait_until_known(patience=2)
        name = request.path["model"]
        try:
            resolve_visible(self._router, self._admission.key(request.key), name)
        except ModelNotFound as error:
            error.http_status = 404
            raise
        return self._entry(name)

    async def usage(self, request: PageRequest) -> Page:
        """GET /v1/usage: what this key has used, by day and model."""
        days = query_number(request.query, "days", default=DEFAULT_DAYS, largest=USAGE_DAYS)
        today = datetime.fromtimestamp(self._now(), UTC).date()
        since = (today - timedelta(days=days - 1)).isoformat()
        rows = [row for row in await self._store.usage(since=since) if row.key == request.key]
        prices = self._prices
        costs = [cost for row in rows if (cost := cost_of(row, prices)) is not None]
        return json_page(
            {
                "object": "list",
                "since": since,
                "currency": prices.currency if prices else None,
                "data": [usage_entry(row, prices) for row in rows],
                "total": _total(rows) | {"cost": amount(sum(costs)) if costs else None},
            }
        )

    async def rate_limits(self, request: PageRequest) -> Page:
        """GET /v1/rate-limits: how much of the account's quota is left."""
        return json_page(limits_object(await self._router.read_rate_limits(), self._now()))

    async def codex_usage(self, request: PageRequest) -> Page:
        """GET /api/codex/usage and /backend-api/wham/usage: the same for the Codex programs behind the bridge."""
        return json_page(codex_usage(await self._router.read_rate_limits(), self._now()))

    async def health(self, request: PageRequest) -> Page:
        """GET /healthz: the state. Always 200 while the program runs; see `ready`."""
        ready, reason = self._status()
        fault = self._fault()
        return json_page({"status": "ok" if ready and fault is None else "degraded", "reason": fault or reason})

    async def cap_health(self, request: PageRequest) -> Page:
        """GET /health: the same in CAP's format."""
        from bridge.protocols.cap.models import HealthCheckResponse, HealthCheckStatus

        fault = self._fault()
        status: HealthCheckStatus = "ok" if self._status()[0] and fault is None else "degraded"
        if fault == "shutdown_initiated":
            status = "maintenance"
        uptime = round(monotonic() - self._began, 3)
        health = HealthCheckResponse(status=status, agent_id=self._agent_id, version=__version__, uptime_seconds=uptime)
        served = status != "maintenance"
        return Page(health.to_json().encode(), 200 if served else 503, [(b"cache-control", b"no-store")])

    async def live(self, request: PageRequest) -> Page:
        """GET /livez. A second bridge on the same port recognizes the first by it."""
        return json_page({"status": "ok", "service": APP})

    async def ready(self, request: PageRequest) -> Page:
        """GET /readyz."""
        ready, reason = self._status()
        return json_page({"status": "ready" if ready else "not_ready", "reason": reason}, 200 if ready else 503)

    def _status(self) -> tuple[bool, str]:
        """Whether turns are accepted, and the name of the state. Not its explanation, which may hold paths."""
        fault = self._fault()
        if fault in NO_TURNS:
            return False, fault
        ready, reason = self._router.default.status()
        return ready, reason.partition(":")[0]

    def _entry(self, name: str) -> dict[str, Any]:
        entry = {"id": name, "object": "model", "created": self._started_at, "owned_by": "turnbridge"}
        with suppress(ModelNotFound):
            entry |= self._router.details(name)
        return entry


def usage_entry(row: UsageRow, prices: Prices) -> dict[str, Any]:
    """One row of GET /v1/usage."""
    return {"day": row.day, "key": row.key, "model": row.model, **_counts(row), "cost": amount(cost_of(row, prices))}


def cost_of(row: UsageRow, prices: Prices) -> int | None:
    """What a row costs at today's prices, whenever its tokens were used."""
    return prices.cost(row.model, Usage(row.input, row.cached, row.output, row.reasoning))


def _total(rows: list[UsageRow]) -> dict[str, int]:
    empty = UsageRow("", "", "", 0, 0, 0, 0, 0, 0)
    return {name: sum(_counts(row)[name] for row in rows) for name in _counts(empty)}


def _counts(row: UsageRow) -> dict[str, int]:
    return {
        "requests": row.requests,
        "failed": row.failed,
        "input_tokens": row.input,
        "cached_tokens": row.cached,
        "output_tokens": row.output,
        "reasoning_tokens": row.reasoning,
        "total_tokens": row.input + row.output,
    }
