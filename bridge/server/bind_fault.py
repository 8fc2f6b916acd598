"""Why an address and port cannot be listened on, and what to do about it."""

from __future__ import annotations

import errno

import orjson

from bridge.config import APP
from bridge.errors import ConfigError

PATIENCE = 1.0
"""Seconds that whoever has the port may take to say what it is."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


class AlreadyServing(ConfigError):
    """A bridge listens there already."""


def bind_fault(host: str, port: int, error: OSError) -> ConfigError:
    """The error for an address that cannot be bound."""
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(
            f"This machine has no address {host}. Set --host (PROXY_HOST) to one that it has: 127.0.0.1 for programs "
            "on this machine, 0.0.0.0 for every network."
        )
    if error.errno == errno.EADDRINUSE and is_bridge(host, port):
        return AlreadyServing(
            f"A {APP} already listens on {host} port {port}. Use it, stop it, or choose another port with --port "
            "(0 picks a free one)."
        )
    return ConfigError(
        f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with --port (0 picks a free one)."
    )


def is_bridge(host: str, port: int) -> bool:
    """Whether a bridge answers there: its /livez says so, to anybody."""
    from http.client import HTTPConnection, HTTPException  # needed only when the port is taken

    connection = HTTPConnection(_EVERYWHERE.get(host, host), port, timeout=PATIENCE)
    try:
        connection.request("GET", "/livez")
        told = orjson.loads(connection.getresponse().read(1024))
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(told, dict) and told.get("service") == APP
