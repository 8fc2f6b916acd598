"""The live page in front of a running bridge."""

from __future__ import annotations

from collections.abc import Awaitable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from bridge import exact_json
from bridge.app.app import App
from bridge.app.protocol_exchange import ProtocolExchange
from bridge.errors import ConfigError, InvalidRequest, NotReady
from bridge.http.request import Headers, Request
from bridge.page.history import History
from bridge.page.ring import Ring
from bridge.page.sessions import Sessions
from bridge.protocols.registry import protocol_at
from bridge.server.turns import Delivery
from bridge.settings import Settings
from bridge.threads import in_thread
from bridge.urls import is_loopback

if TYPE_CHECKING:
    from bridge.page.live import Watchers
    from bridge.server.dispatch import Routes


def serves_page(settings: Settings) -> bool:
    """Whether there is a page: unless it is asked for, only where no other machine can connect.

    Raises ConfigError where a web page could reach it under a name of its own.
    """
    if is_loopback(settings.host):
        return settings.page is not False
    if settings.page and not settings.allowed_hosts:
        raise ConfigError(
            f"--page with --host {settings.host} needs the names under which browsers reach this machine: set "
            "PROXY_ALLOWED_HOSTS, so that no web page can reach the bridge under a name of its own."
        )
    return bool(settings.page)


class Nowhere:
    """The client of a request that the page sends: its answer is seen in the ring."""

    def start(self, status: int, headers: Headers) -> None:
        """See Sink."""

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """See Sink."""


class LivePage:
    """The handler of the page's paths. Most of its code is loaded by the first request."""

    def __init__(
        self, app: App, ring: Ring, history: History, keys: tuple[str, ...], port: int, *, secure: bool
    ) -> None:
        self.sessions = Sessions(app.keyring, port, secure=secure)
        self._app = app
        self._ring = ring
        self._history = history
        history.prices = app.service.prices
        self._keys = keys
        self._routes: Routes | None = None
        self._loading = trio.Lock()
        self._watchers: Watchers | None = None
        app.keyring.on_gone.append(self.stop)

    def __call__(self, request: Request) -> Awaitable[object]:
        return self._first(request) if self._routes is None else self._routes(request)

    async def _first(self, request: Request) -> None:
        # Loading takes a tenth of a second, in which no client may wait.
        async with self._loading:
            if self._routes is None:
                await in_thread(import_module, "bridge.page.site")
                await in_thread(import_module, "bridge.page.overview")
                self._routes = self._load()
        await self._routes(request)

    def stop(self, label: str | None = None) -> None:
        """Send off everyone who watches, or those with this key."""
        if self._watchers is not None:
            self._watchers.end(label)

    def _load(self) -> Routes:
        from bridge.log.log import cache_dir
        from bridge.page.live import Watchers
        from bridge.page.overview import overview
        from bridge.page.site import Site, routes_of
        from bridge.page.turns import Turns
        from bridge.server.dispatch import Routes

        settings, ring = self._app.settings, self._ring
        watchers = self._watchers = Watchers()
        ring.on_change, ring.on_gone = watchers.note, watchers.note_gone
        log = None if settings.log_events is None else Path(settings.log_events)
        turns = Turns(ring, log, cache_dir(), self._keys)
        notes = []
        if log is None:
            notes.append("Only recent turns are shown. An event log (--log-events) keeps all.")
        site = Site(
            turns,
            self.sessions,
            watchers,
            "turnbridge",
            live=True,
            notes=notes,
            overview=lambda hours, key: overview(self._app, self._history, ring, watchers, hours=hours, key=key),
            send=self._send,
            cancel=self._cancel,
        )
        return Routes(routes_of(site, settings.max_body), {})

    # What the page does

    def _send(self, path: str, body: dict[str, Any], key: str, tool_mode: str | None) -> str:
        """Answer a request in the background. Returns the id of its turn. Raises BridgeError if it cannot be sent."""
        protocol, service = protocol_at(path), self._app.service
        if protocol is None:
            raise InvalidRequest(
                f"Requests to {path} cannot be sent again from the page: only turns of the Responses, chat, Messages "
                "and Gemini API can.",
                http_status=422,
            )
        if service.background is None:
            raise NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
        exchange = ProtocolExchange(service, protocol, key, path)
        exchange.tool_mode = None if tool_mode is None else tool_mode.encode()
        service.background.start_soon(self._deliver, exchange, exact_json.dumps(body))
        return exchange.id

    async def _deliver(self, exchange: ProtocolExchange, body: bytes) -> None:
        delivery = Delivery(self._app.service, exchange, Nowhere())
        try:
            await delivery.serve(body)
        finally:
            if not delivery.handed_over:
                exchange.end()

    def _cancel(self, name: str) -> bool:
        exchange = self._app.service.exchanges.get(name)
        if exchange is not None:
            exchange.cancel()
        return exchange is not None
