"""Every place that the bridge serves, from its own list of routes: a new one is tested without being named here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from harness import KEY

from bridge.app.app import App
from bridge.server.run import Server
from bridge.settings import load_settings

OPEN = frozenset({"/healthz", "/livez", "/readyz", "/health", "/v1/health", "/openapi.json"})
"""The places that need no key, in full: whoever opens another must say so here too."""


class Door(NamedTuple):
    """A place and the methods that it takes; a WebSocket's has none."""

    path: str
    methods: tuple[str, ...]

    @property
    def is_socket(self) -> bool:
        return not self.methods

    @property
    def is_open(self) -> bool:
        return self.path in OPEN and not self.is_socket

    @property
    def url(self) -> str:
        """The place with something in place of its parameters."""
        return re.sub(r"{.*?}", "mock-echo", self.path)


def doors(directory: Path) -> list[Door]:
    """All of them, as a bridge of these settings has them."""
    settings = load_settings(
        {"PROXY_MOCK_ONLY": "1", "PROXY_STORE": "memory", "PROXY_CODEX_WORKDIR": str(directory / "work")}
    )
    routes = Server(App(settings, keys=(KEY,))).routes
    found = [Door(path, tuple(sorted(methods))) for path, methods in routes.patterns.items()]
    found += [Door(path, ()) for path in routes.sockets]
    assert len(found) > 20
    return found
