"""What a request costs the bridge: CPU µs of its process, for requests of several kinds on kept connections."""

from __future__ import annotations

import json
import re
import selectors
import socket
from typing import Protocol

KEY = "bench-key-0123456789"


class Measured(Protocol):
    """A bridge that runs."""

    port: int

    def cpu(self) -> float:
        """Seconds of CPU used so far."""


def message(method: str, path: str, body: object = None) -> bytes:
    """A whole request."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
    if content:
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


SHORT = {"model": "bench-short", "input": "hi"}
KINDS = {
    "GET /v1/models": message("GET", "/v1/models"),
    "short turn": message("POST", "/v1/responses", SHORT),
    "short turn, streamed": message("POST", "/v1/responses", SHORT | {"stream": True}),
    "short turn, chat": message(
        "POST", "/v1/chat/completions", {"model": "bench-short", "messages": [{"role": "user", "content": "hi"}]}
    ),
}
"""A short turn has ten deltas."""


def cost(running: Measured, kind: str, total: int = 800, concurrency: int = 16) -> float:
    """CPU µs per request."""
    request = KINDS[kind]
    selector = selectors.DefaultSelector()
    received: dict[socket.socket, bytes] = {}
    for _ in range(concurrency):
        connection = socket.create_connection(("127.0.0.1", running.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        received[connection] = b""
    before = running.cpu()
    for connection in received:
        connection.sendall(request)
    done, sent = 0, concurrency
    while done < total:
        for key, _ in selector.select():
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            data = received[connection] + connection.recv(1 << 16)
            received[connection] = data
            if not is_whole(data):
                continue
            assert data.startswith(b"HTTP/1.1 200"), data[:600]
            received[connection] = b""
            done += 1
            if sent < total:
                connection.sendall(request)
                sent += 1
    used = running.cpu() - before
    selector.close()
    for connection in received:
        connection.close()
    return used / total * 1e6


def is_whole(data: bytes) -> bool:
    """Whether an answer has come to its end."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return False
    length = re.search(rb"content-length: (\d+)", head)
    return len(rest) >= int(length[1]) if length is not None else rest.endswith(b"0\r\n\r\n")
