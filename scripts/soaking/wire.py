"""Clients' ends of HTTP/1.1 and WebSocket on bare sockets: they can be slow, and leave at any byte."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import h11
import trio
import wsproto
from wsproto.events import AcceptConnection, CloseConnection, Ping, RejectConnection, Request, TextMessage

KEY = "soak-key-0123456789abcdef"
PATIENCE = 120.0
"""Seconds after which a client that hears nothing says so: longer than every limit of the bridge."""


class Silent(Exception):
    """Nothing was heard for longer than the bridge may be silent."""


@dataclass
class Answer:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: dict[str, str]
    pieces: AsyncIterator[bytes] = field(repr=False)

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces])


async def connect(port: int, *, buffer: int | None = None) -> trio.SocketStream:
    """A connection; with `buffer` the kernel takes no more than that for a client that does not read."""
    sock = trio.socket.socket()
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


def reset(stream: trio.SocketStream) -> None:
    """Close it so that the other side hears a reset and no end."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def request_bytes(method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """A whole request."""
    told = {"host": "127.0.0.1", "authorization": f"Bearer {KEY}", "content-type": "application/json"}
    told |= headers or {}
    if body:
        told["content-length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value)]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(stream: trio.SocketStream, data: bytes, *, chunk: int = 65536, pause: float = 0.0) -> Answer | None:
    """Send a request and read the head of its answer; None when the connection ends instead. Slow with `pause`."""
    await stream.send_all(data)
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    # h11 wants to have sent a request before it reads an answer; what was sent need not even be one.
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "h")]))
    connection.send(h11.EndOfMessage())

    async def next_event() -> Any:
        while (event := connection.next_event()) is h11.NEED_DATA:
            if pause:
                await trio.sleep(pause)
            with trio.move_on_after(PATIENCE) as waiting:
                connection.receive_data(await stream.receive_some(chunk))
            if waiting.cancelled_caught:
                raise Silent
        return event

    try:
        head = await next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(head, h11.Response):
        return None

    async def pieces() -> AsyncIterator[bytes]:
        while isinstance(event := await next_event(), h11.Data):
            yield bytes(event.data)

    return Answer(head.status_code, {k.decode(): v.decode() for k, v in head.headers}, pieces())


class Socket:
    """A WebSocket on /v1/responses."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._messages: list[dict[str, Any]] = []
        self._parts: list[str] = []

    async def open(self) -> bool:
        """Shake hands; whether that worked."""
        headers = [(b"authorization", f"Bearer {KEY}".encode())]
        hello = Request(host="127.0.0.1", target="/v1/responses", extra_headers=headers)
        await self.stream.send_all(self._connection.send(hello))
        while True:
            for event in await self._events():
                if isinstance(event, AcceptConnection | RejectConnection | CloseConnection):
                    return isinstance(event, AcceptConnection)

    async def send(self, message: str) -> None:
        await self.stream.send_all(self._connection.send(TextMessage(data=message)))

    async def next(self) -> dict[str, Any] | None:
        """The next message; None when the other side has closed."""
        while not self._messages:
            for event in await self._events():
                if isinstance(event, TextMessage):
                    self._parts.append(event.data)
                    if event.message_finished:
                        self._messages.append(json.loads("".join(self._parts)))
                        self._parts = []
                elif isinstance(event, Ping):
                    await self.stream.send_all(self._connection.send(event.response()))
                elif isinstance(event, CloseConnection):
                    return None
        return self._messages.pop(0)

    async def _events(self) -> list[Any]:
        with trio.move_on_after(PATIENCE) as waiting:
            data = await self.stream.receive_some(65536)
        if waiting.cancelled_caught:
            raise Silent
        self._connection.receive_data(data or None)
        return list(self._connection.events())
