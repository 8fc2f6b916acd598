"""Where CAP is spoken."""

from __future__ import annotations

PLACES = ("/v1/assist", "/assist", "/cap/v1/assist")
"""Where requests are taken: the first is its name, the others are what older clients know."""
SOCKET = "/v1/assist/ws"
"""Where they are taken over a WebSocket."""
RUN = "cap run"
"""The place of requests that a command answers itself."""


def speaks_cap(path: str) -> bool:
    """Whether a path is one of CAP's, so that errors there are told in its words."""
    return any(path == place or path.startswith(f"{place}/") for place in (*PLACES, "/health", "/v1/health"))
