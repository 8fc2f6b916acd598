"""HTTP/1.1 of one connection: hypercorn's, stricter, and listening while it answers.

hypercorn stops reading when anything follows the request that is being answered, and then does not notice that the
client leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import h11
import orjson
import trio
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WebsocketBuffer, WSStream
from hypercorn.utils import suppress_body
from wsproto.events import Message, Ping

from bridge.errors import InvalidRequest
from bridge.server.request_head import fault_of_head, in_origin_form, is_too_long, without_extensions

HEADER_LIMIT = 64 * 1024
AT_ONCE = 64
"""So many pieces of a body are taken before others have their turn: a read may hold ten thousand of a byte each."""

_NO_HTTP = "This is no valid HTTP/1.1."
_BAD_HTTP = {
    431: f"The head of a request has {HEADER_LIMIT:,} bytes at most.",
    501: "A body comes with its length or in chunks, and in no other coding.",
}


class _Unused:
    """For hypercorn's event of each connection, for which nothing waits here."""

    async def set(self) -> None:
        pass


_UNUSED: Any = _Unused()


class _MessageBuffer(WebsocketBuffer):
    """A message of a WebSocket. hypercorn's goes on to keep what comes after the limit."""

    def extend(self, event: Message[Any]) -> None:
        if self.length + len(event.data) > self.max_length:
            self.value, self.length = None, self.max_length
            raise FrameTooLargeError
        super().extend(event)


class Http11(H11Protocol):
    """HTTP/1.1 alone. hypercorn would change over to HTTP/2, whose flow control knows nothing of our limits.

    A WebSocket handshake that cannot be accepted ends the connection, and what a client sends before it is accepted
    waits: hypercorn would leave the one open, and answer the other together with the application.

    One request may wait behind the one that is being answered. A connection on which more wait, or more than
    `HEADER_LIMIT` bytes, ends after the answer that is then under way.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.can_read = _UNUSED
        self._early = bytearray()
        self._closed: trio.Event | None = None
        """Of a WebSocket: its end."""
        self._head_begun: trio.Event | None = None
        self._head_seen = 0
        """Bytes of the head that have been looked at."""
        self.refused: Callable[[str], None] = _nobody
        """Hears of what is refused here, before anybody else could count it."""
        self.answered: Callable[[], None] = _nothing
        """Hears that an answer is out."""
        self._feeding = trio.Lock()
        self._waiting = bytearray()
        self._unsent: int | None = None
        """How much of an answer's body is still to be sent, where its head has told how long it is."""
        self._is_recycling = False
        """The answer is out, and the connection is being made ready for the next request."""
        self._recycled: trio.Event | None = None
        """Where somebody waits for that: it is ready."""
        self._is_last = False
        self._is_over = False

    @property
    def head_begun(self) -> trio.Event:
        """Some of a request's head has come, but not all."""
        # Made when it is asked for: an answer may take long, and there it is not.
        if self._head_begun is None:
            self._head_begun = trio.Event()
        return self._head_begun

    async def handle(self, event: Any) -> None:
        if not isinstance(event, RawData):
            self._is_over = True
            self._wake()
            await super().handle(event)
            return
        async with self._feeding:
            await self._until_ready()
            if self._is_over:
                return
            if self._is_shaking_hands():
                self._early += event.data
                if len(self._early) > HEADER_LIMIT:
                    await self.send(Closed())
            elif self._is_answering():
                self._keep(event.data)
            else:
                data, self._waiting = bytes(self._waiting) + event.data, bytearray()
                await self._feed(data)

    async def stream_send(self, event: Any) -> None:
        if isinstance(event, Response) and event.status_code >= 200 and self._is_last:
            others = [each for each in event.headers if each[0] != b"connection"]
            event = replace(event, headers=[*others, (b"connection", b"close")])
        if isinstance(event, Response):
            self._unsent = self._length_of(event)
        elif isinstance(event, Body) and self._unsent is not None:
            # Who has these bytes may have the whole answer, and go on before hypercorn says that it is at its end.
            self._unsent -= len(event.data)
        await super().stream_send(event)
        if isinstance(event, EndBody):
            self.answered()
        if self._early and isinstance(event, Response) and event.status_code == 101:
            early, self._early = bytes(self._early), bytearray()
            await super().handle(RawData(data=early))

    def _length_of(self, response: Response) -> int | None:
        """How long an answer's body is; None where that is not known at its beginning."""
        if isinstance(self.stream, HTTPStream) and suppress_body(self.stream.scope["method"], response.status_code):
            return 0
        return next((int(value) for name, value in response.headers if name == b"content-length"), None)

    # Requests one after the other

    async def _until_ready(self) -> None:
        """Who has read an answer to its end may be quicker with the next request than we are with the end of this."""
        while (self._is_recycling or self._is_answered()) and not self._is_over:
            self._recycled = self._recycled or trio.Event()
            await self._recycled.wait()

    def _wake(self) -> None:
        if self._recycled is not None:
            self._recycled.set()
            self._recycled = None

    async def _feed(self, data: bytes) -> None:
        """Bytes of a request, or the end of all of them."""
        if self.connection.their_state is h11.IDLE and not self.connection.trailing_data[0]:
            rest = data.removeprefix(b"\r\n")  # some clients send a line end after a body
            if data and not rest:
                return
            data = rest
        await super().handle(RawData(data=data))
        if self.stream is None and isinstance(self.connection, h11.Connection) and self.connection.trailing_data[0]:
            self.head_begun.set()

    async def refuse_slow_head(self) -> None:
        """Tell the client that its request came too slowly."""
        await self._refuse(408, "The head of the request did not come in time.")

    async def _handle_events(self) -> None:
        # hypercorn's, but it looks at a head before h11 does, and nothing is waited for when the request is whole.
        taken = 0
        while not self._is_answering():
            taken += 1
            if not taken % AT_ONCE:
                await trio.lowlevel.checkpoint()
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(
                    h11.InformationalResponse(status_code=100, headers=self.config.response_headers("h11"))
                )
            if self.connection.their_state is h11.IDLE:
                received = self.connection.trailing_data[0]
                if is_too_long(received, HEADER_LIMIT):
                    await self._refuse(431, _BAD_HTTP[431])
                    return
                fault = fault_of_head(received, self._head_seen)
                if fault is not None:
                    await self._refuse(400, fault)
                    return
                self._head_seen = len(received)
            try:
                event: Any = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    # Its words repeat what was sent, and that may be a key.
                    await self._refuse(error.error_status_hint, _BAD_HTTP.get(error.error_status_hint, _NO_HTTP))
                else:
                    await self.send(Closed())
                return
            if isinstance(event, h11.Request):
                if event.http_version not in (b"1.0", b"1.1"):
                    await self._refuse(505, "HTTP/1.1 is spoken here, and 1.0 is understood.")
                    return
                await self.send(Updated(idle=False))
                await self._create_stream(in_origin_form(event))
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed) or self.stream is None:
                return
            elif isinstance(event, h11.Data):
                await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            else:  # of a WebSocket
                await self.stream.handle(event)
        if isinstance(self.connection, h11.Connection):
            self._keep(self.connection.trailing_data[0])

    def _is_answering(self) -> bool:
        """Whether a request has been read to its end, and its answer is not out."""
        unfinished = (h11.IDLE, h11.SEND_BODY, h11.ERROR)
        return isinstance(self.connection, h11.Connection) and self.connection.their_state not in unfinished

    def _is_answered(self) -> bool:
        """Whether the answer is out, and the connection not yet ready for the next request."""
        if not isinstance(self.connection, h11.Connection):
            return False
        is_out = self.connection.our_state is h11.DONE or self._unsent == 0
        return is_out and self.connection.their_state is h11.DONE

    def _keep(self, data: bytes) -> None:
        """What has come behind a request waits for its end, unless it is too much or was not to come at all."""
        if self._is_last or self.connection.their_state is h11.MUST_CLOSE:
            return
        self._waiting += data
        if len(self._waiting) > HEADER_LIMIT:
            self._waiting.clear()
            self._is_last = True

    async def _maybe_recycle(self) -> None:
        # Meanwhile what waits is also in h11's own buffer, and would be read twice.
        self._is_recycling = True
        try:
            if self._is_last:
                await self._close_stream()
                await self.send(Closed())
                return
            await super()._maybe_recycle()
            if self._waiting and self.connection.their_state is h11.IDLE:
                # What is in there was kept apart.
                self.connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_LIMIT)
                self.task_group.spawn(self._go_on)
        finally:
            self._unsent = None
            self._is_recycling = False
            self._wake()

    async def _go_on(self) -> None:
        """Take the request that has been waiting."""
        async with self._feeding:
            await self._until_ready()
            if self._is_over or not self._waiting or self._is_answering():
                return
            data, self._waiting = bytes(self._waiting), bytearray()
            await self._feed(data)
            if self._waiting:
                self._waiting.clear()
                self._is_last = True

    async def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be read as a request, and end the connection."""
        self.refused("bad_http")
        body = orjson.dumps(InvalidRequest(message, code="bad_http", http_status=status).body())
        length, kind = (b"content-length", str(len(body)).encode()), (b"content-type", b"application/json")
        headers = [kind, length, (b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=status, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())

    async def _create_stream(self, request: Any) -> None:
        self._head_begun = None
        self._head_seen = 0
        if _is_bad_handshake(request):
            await self._refuse(400, "This is no handshake of a WebSocket (RFC 6455) that could be accepted.")
            return
        await super()._create_stream(without_extensions(request))
        if isinstance(self.connection, H11WSConnection) and self._is_shaking_hands():
            self._early += self.connection.buffer
            self.connection.buffer.clear()
        if isinstance(self.stream, WSStream):
            self._closed = trio.Event()
            self.stream.buffer = _MessageBuffer(self.config.websocket_max_message_size)
            # hypercorn's own goes on after the connection's end, and keeps it in memory.
            self.stream._send_pings = self._ping  # type: ignore[method-assign]

    async def _close_stream(self) -> None:
        if self._closed is not None:
            self._closed.set()
        await super()._close_stream()

    async def _ping(self) -> None:
        assert self.config.websocket_ping_interval is not None
        assert self._closed is not None
        while True:
            with trio.move_on_after(self.config.websocket_ping_interval):
                await self._closed.wait()
            if self._closed.is_set() or not isinstance(self.stream, WSStream):
                return
            await self.stream._send_wsproto_event(Ping())

    def _is_shaking_hands(self) -> bool:
        return isinstance(self.stream, WSStream) and self.stream.state is ASGIWebsocketState.HANDSHAKE


def _nobody(code: str) -> None:
    pass


def _nothing() -> None:
    pass


def _is_bad_handshake(request: Any) -> bool:
    """Whether a request wants a WebSocket, and will never get one."""
    headers = {name.lower(): value for name, value in request.headers}
    if headers.get(b"upgrade", b"").strip().lower() != b"websocket" or request.method != b"GET":
        return False
    if request.http_version != b"1.1" or headers.get(b"sec-websocket-version") != b"13":
        return True
    told = [value for name, value in request.headers if name.lower().startswith((b"sec-websocket-", b"connection"))]
    return b"sec-websocket-key" not in headers or not all(map(bytes.isascii, told))
