"""The live page in front of a running bridge."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.app.app import App
from bridge.errors import ConfigError
from bridge.http.request import Request
from bridge.page.ring import Ring
from bridge.page.sessions import Sessions
from bridge.settings import Settings
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


class LivePage:
    """The handler of the page's paths. Most of its code is loaded by the first request."""

    def __init__(self, app: App, ring: Ring, keys: tuple[str, ...], port: int, *, secure: bool) -> None:
        self.sessions = Sessions(app.keyring, port, secure=secure)
        self._app = app
        self._ring = ring
        self._keys = keys
        self._routes: Routes | None = None
        self._watchers: Watchers | None = None
        app.keyring.on_gone.append(self.stop)

    def __call__(self, request: Request) -> Awaitable[object]:
        if self._routes is None:
            self._routes = self._load()
        return self._routes(request)

    def stop(self, label: str | None = None) -> None:
        """Send off everyone who watches, or those with this key."""
        if self._watchers is not None:
            self._watchers.end(label)

    def _load(self) -> Routes:
        from bridge.log.log import cache_dir
        from bridge.page.live import Watchers
        from bridge.page.site import Site, routes_of
        from bridge.page.turns import Turns
        from bridge.server.dispatch import Routes

        settings, ring = self._app.settings, self._ring
        self._watchers = Watchers()
        ring.on_change, ring.on_gone = self._watchers.note, self._watchers.note_gone
        log = None if settings.log_events is None else Path(settings.log_events)
        turns = Turns(ring, log, cache_dir(), self._keys)
        notes = []
        if log is None:
            notes.append("Only recent turns are shown. An event log (--log-events) keeps all.")
        return Routes(routes_of(Site(turns, self.sessions, self._watchers, "turnbridge", True, notes)), {})
