"""Clients on raw sockets that cost little: they look at no more of an answer than where it ends."""

from __future__ import annotations

import base64
import json
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from bridge_process import Bridge, message
from side_by_side import Unsupported

Scan = Callable[[bytes], bool]
"""Whether these bytes, all that came since a request was sent, are a whole answer. Anything but a success is raised."""


@dataclass(frozen=True)
class Kind:
    """A request, how its answer is read, and what a connection has to begin with."""

    request: bytes
    is_whole: Scan
    greeting: bytes = b""

    def connect(self, bridge: Bridge) -> socket.socket:
        connection = bridge.connect()
        if self.greeting:
            connection.sendall(self.greeting)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                piece = connection.recv(1 << 16)
                head += piece
                if not piece or not b"HTTP/1.1 101".startswith(head[:12]):
                    raise Unsupported(f"no WebSocket: {head[:200]!r}")
        return connection


def websocket(path: str, body: dict[str, object]) -> Kind:
    """One message on a WebSocket, masked with zeros, which changes nothing."""
    payload = json.dumps(body).encode()
    key = base64.b64encode(bytes(16)).decode()
    upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    greeting = message("GET", path)[:-2] + f"{upgrade}sec-websocket-key: {key}\r\n\r\n".encode()
    assert len(payload) < 126
    return Kind(bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload, is_whole_websocket, greeting)


def is_whole_http(data: bytes) -> bool:
    if not data.startswith(b"HTTP/1.1 200"):
        if len(data) < 12:
            return False
        raise Unsupported(f"refused: {data[:600]!r}")
    if data.endswith(b"\r\n0\r\n\r\n"):
        return True
    end = data.find(b"\r\n\r\n")
    at = data.find(b"content-length: ", 0, max(0, end))
    return at >= 0 and len(data) >= end + 4 + int(data[at + 16 : data.index(b"\r", at)])


def http(method: str, path: str, body: object = None, is_whole: Scan = is_whole_http) -> Kind:
    return Kind(message(method, path, body), is_whole)


def is_whole_websocket(data: bytes) -> bool:
    """Whether the last message is there and says that the response is complete."""
    last = data.rfind(b'{"type":"response.completed"')
    if last < 0:
        if b'{"type":"error"' in data or b'{"type":"response.failed"' in data:
            raise Unsupported(f"refused: {data[:600]!r}")
        return False
    # The length before it tells where it ends: one byte, or 126 and two, or 127 and eight.
    if last >= 10 and data[last - 10 : last - 8] == b"\x81\x7f":
        length = int.from_bytes(data[last - 8 : last])
    elif data[last - 3] == 126:
        length = int.from_bytes(data[last - 2 : last])
    else:
        length = data[last - 1]
    return len(data) >= last + length


def ask_many(bridge: Bridge, kind: Kind, total: int, concurrency: int = 16) -> None:
    """Send requests on kept connections, `concurrency` at a time, and read all answers."""
    poll = select.epoll()
    connections: dict[int, socket.socket] = {}
    received: dict[int, bytes] = {}
    try:
        for _ in range(min(total, concurrency)):
            connection = kind.connect(bridge)
            connections[connection.fileno()] = connection
            received[connection.fileno()] = b""
            poll.register(connection, select.EPOLLIN)
        left, under_way = total, 0
        for connection in connections.values():
            connection.sendall(kind.request)
            left, under_way = left - 1, under_way + 1
        while under_way:
            ready = poll.poll(60)
            if not ready:
                raise TimeoutError("the bridge has sent nothing for a minute")
            for number, _ in ready:
                connection = connections[number]
                piece = connection.recv(1 << 18)
                if not piece:
                    raise ConnectionError("the bridge has closed a connection in the middle of an answer")
                data = received[number] + piece
                if not kind.is_whole(data):
                    received[number] = data
                    continue
                received[number] = b""
                if left:
                    connection.sendall(kind.request)
                    left -= 1
                else:
                    under_way -= 1
    finally:
        poll.close()
        for connection in connections.values():
            connection.close()
