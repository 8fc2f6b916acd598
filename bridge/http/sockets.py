"""Sockets to listen on, and the certificate for them; why they cannot be had, and what to do about it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from pathlib import Path

import orjson

from bridge import APP
from bridge.errors import ConfigError

BACKLOG = 512
PATIENCE = 1.0
"""Seconds that the program on an occupied port has to identify itself."""
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


class AlreadyServing(ConfigError):
    """A bridge listens there already."""


def bind_fault(host: str, port: int, error: OSError) -> ConfigError:
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
    """Whether a bridge answers there: its /livez says so without a key."""
    from http.client import HTTPConnection, HTTPException  # needed only when the port is taken

    connection = HTTPConnection(_EVERYWHERE.get(host, host), port, timeout=PATIENCE)
    try:
        connection.request("GET", "/livez")
        answer = orjson.loads(connection.getresponse().read(1024))
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and answer.get("service") == APP


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host and port (0 picks a free one). Raises ConfigError with what to do."""
    try:
        # As bytes where that is the same: for a text Python loads the tables of all the world's letters.
        name = host.encode() if host.isascii() else host
        places = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"The host {host!r} is not known: {error}. Set --host to an address.") from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in places[:1]:
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise bind_fault(host, port, error) from error
        listener.listen(BACKLOG)
        listener.setblocking(False)
        sockets.append(listener)
    return sockets


def load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What serves https; None where neither file is given. Raises ConfigError with what to do."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise ConfigError(f"{missing} is missing: https needs both --tls-cert and --tls-key.")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.set_alpn_protocols(["http/1.1"])
    for name, path in (("--tls-cert", certificate), ("--tls-key", key)):
        if not path.is_file() or not os.access(path, os.R_OK):
            raise ConfigError(f"{name} {path}: this file cannot be read. Name a PEM file.")
    try:
        # Without a terminal to ask at, a key with a passphrase must not wait for one.
        tls.load_cert_chain(certificate, key, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"--tls-cert {certificate} and --tls-key {key} cannot be used: {why}. "
            "Both must be PEM, belong together, and the key must have no passphrase."
        ) from error
    return tls


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")
