"""CAP, the Coreason Agent Protocol: its paths, and access to the rest, which is loaded by the first request.

The models of CAP take long to import, and few clients speak it. So nothing here imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.app.service import Service
    from bridge.cap.endpoint import AssistEndpoint

ASSIST_PATHS = ("/v1/assist", "/assist", "/cap/v1/assist")
"""Paths of requests: the first is documented, the others are those of older clients."""
SOCKET_PATH = "/v1/assist/ws"
RUN = "cap run"
"""Stands for the path of requests that the command answers."""


def speaks_cap(path: str) -> bool:
    """Whether errors on this path are StreamErrors."""
    return any(path == known or path.startswith(f"{known}/") for known in (*ASSIST_PATHS, "/health", "/v1/health"))


def lazy_endpoint(service: Service) -> Callable[[], AssistEndpoint]:
    """A function that returns the endpoint and creates it on the first call."""

    @cache
    def endpoint() -> AssistEndpoint:
        from bridge.cap.endpoint import AssistEndpoint

        return AssistEndpoint(service)

    return endpoint
