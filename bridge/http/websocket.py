"""A WebSocket on a connection (RFC 6455). Its handler reads the socket itself, whenever it waits for a message."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import trio
from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token, split_comma_header

from bridge.http.request import ClientGone, Request

if TYPE_CHECKING:
    from bridge.http.connection import Connection
    from bridge.http.wire import Edge

FAREWELL = 5.0
"""Seconds that a client has to answer our close frame."""


class WebSocket:
    """`accept` it, then `receive` and `send` messages. No extension is negotiated: a compressed message could be
    unpacked to any size."""

    def __init__(self, connection: Connection, edge: Edge, request: Request) -> None:
        self._connection = connection
        self._edge = edge
        self._request = request
        self._key = request.header(b"sec-websocket-key") or b""
        request.subprotocols = split_comma_header(request.header(b"sec-websocket-protocol") or b"")
        self.default_subprotocol: str | None = None
        """The one that is accepted if the handler names none."""
        self._frames: Frames | None = None
        self._events: Iterator[Event] = iter(())
        self._parts: list[bytes] = []
        self._size = 0
        self._ends_at = math.inf
        """When the connection is closed even if the client has not answered our close frame."""
        self.is_open = False

    async def accept(self, subprotocol: str | None = None) -> None:
        """Answer the handshake."""
        lines = [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"]
        lines.append(b"sec-websocket-accept: %b\r\n" % generate_accept_token(self._key))
        chosen = subprotocol or self.default_subprotocol
        if chosen is not None:
            lines.append(b"sec-websocket-protocol: %b\r\n" % chosen.encode())
        self._request.status = 101
        self._frames = Frames(ConnectionType.SERVER)
        self.is_open = True
        await self._connection.write(b"".join([*lines, self._edge.date(), b"\r\n"]))

    async def receive(self) -> bytes:
        """The next message, text or not. Raises ClientGone at the end."""
        assert self._frames is not None
        ping_at = trio.current_time() + self._edge.ping_interval
        while not self._connection.is_gone:
            for event in self._events:
                if isinstance(event, TextMessage | BytesMessage):
                    if (message := await self._add(event)) is not None:
                        await trio.lowlevel.checkpoint()  # so that messages are served in their order
                        return message
                elif isinstance(event, Ping):
                    await self._send_event(event.response())
                elif isinstance(event, CloseConnection):
                    await self._answer_close(event)
                    raise ClientGone
            data = await self._connection.receive(min(ping_at, self._ends_at))
            if data:
                self._frames.receive_data(data)
                self._events = iter(self._frames.events())
            elif data is not None or trio.current_time() >= self._ends_at:
                break
            elif trio.current_time() >= ping_at:
                ping_at = trio.current_time() + self._edge.ping_interval
                await self._send_event(Ping())
        self.is_open = False
        raise ClientGone

    async def _add(self, event: TextMessage | BytesMessage) -> bytes | None:
        """Add a part of a message. Returns the whole message if this is the last part."""
        if self._ends_at < math.inf:
            return None  # we have sent a close frame
        data = event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
        self._size += len(data)
        if self._size > self._edge.max_message:
            self._parts = []
            await self.close(
                CloseReason.MESSAGE_TOO_BIG, f"a message may have at most {self._edge.max_message:,} bytes"
            )
            return None
        self._parts.append(data)
        if not event.message_finished:
            return None
        parts, self._parts, self._size = self._parts, [], 0
        return b"".join(parts)

    async def _answer_close(self, event: CloseConnection) -> None:
        """The client closes the WebSocket, or has broken a rule; wsproto says which, and why."""
        assert self._frames is not None
        self.is_open = False
        is_theirs = self._frames.state is ConnectionState.REMOTE_CLOSING
        await self._send_event(event.response() if is_theirs else CloseConnection(event.code, event.reason))

    async def send(self, text: str) -> None:
        """Send a message. Nothing happens if the client has left: `receive` reports that."""
        await self._send_event(TextMessage(data=text))

    async def close(self, code: int, reason: str | None = None) -> None:
        """Send a close frame. `receive` then waits for the client's answer for a while."""
        if self._ends_at == math.inf:
            self._ends_at = trio.current_time() + FAREWELL
            self.is_open = False
            await self._send_event(CloseConnection(code, reason))

    async def _send_event(self, event: Event) -> None:
        assert self._frames is not None
        try:
            data = self._frames.send(event)
        except LocalProtocolError:
            return  # it has been closed
        await self._connection.write(data)
