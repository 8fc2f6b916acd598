"""WebSocket on /v1/responses: each `response.create` is a request, each event of its stream a message.

Requests of one lane (`stream_id`, or none) are answered one after the other; lanes run side by side. A connection can
continue its own responses even when they were not stored, until a request that continues one fails.
"""

from __future__ import annotations

import collections
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import trio

from bridge.app.continuation import Continuation, find_continuation
from bridge.app.protocol_exchange import ProtocolExchange
from bridge.app.service import Service
from bridge.errors import BridgeError, InvalidRequest
from bridge.http.pages import provider_key
from bridge.http.request import ClientGone, Request
from bridge.protocols.reading import parse_json
from bridge.protocols.responses.encoder import RESPONSES, ResponsesEncoder
from bridge.routing.router import TOOL_MODE_HEADER as TOOL_MODE

if TYPE_CHECKING:
    from bridge.http.websocket import WebSocket

MAX_LANES = 16
MAX_WAITING = 64
"""Requests of one connection that may wait or run."""
SPARE = 1024 * 1024
"""Bytes that these requests may have together, in addition to one message of maximum size."""
MAX_IDLE = 3600.0
"""How long a connection may be kept open without a request."""
REMEMBERED = 8
"""How many of its last responses a connection remembers without storing them."""


class ResponsesSocket:
    """The handler."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, request: Request) -> None:
        socket = request.socket
        assert socket is not None
        await socket.accept("realtime" if "realtime" in request.subprotocols else None)
        connection = _Connection(self._service, request, socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.close_in_time)
            with suppress(ClientGone):
                while True:
                    await connection.receive(await socket.receive(), nursery)
            # No one is left to read the rest.
            nursery.cancel_scope.cancel()


class _Connection:
    def __init__(self, service: Service, request: Request, socket: WebSocket) -> None:
        self._service = service
        self._request = request
        self._key = request.key
        self._url = request.path
        self._max_message = service.max_body if request.max_body is None else min(request.max_body, service.max_body)
        self._socket = socket
        self._lanes: dict[str | None, trio.Lock] = {}
        self._waiting = 0
        self._held = 0
        """Bytes of the messages that wait or run."""
        self._closing = False
        self._idle = trio.Event()
        self._used_at = trio.current_time()
        self._remembered: collections.OrderedDict[str, Continuation] = collections.OrderedDict()

    async def receive(self, message: bytes, nursery: trio.Nursery) -> None:
        """Handle one message of the client. Messages after our close frame are ignored."""
        if self._closing:
            return
        self._used_at = trio.current_time()
        lane: str | None = None
        try:
            if len(message) > self._max_message:
                raise InvalidRequest(
                    f"The message is larger than {self._max_message:,} bytes (PROXY_MAX_BODY, or this key's limit)."
                )
            data = parse_json(message)
            lane = _lane(data)
            self._check(data, lane, len(message))
        except BridgeError as error:
            await self._refuse(error, lane)
            return
        self._waiting += 1
        self._held += len(message)
        self._idle = self._idle if self._waiting > 1 else trio.Event()
        nursery.start_soon(self._serve, data, lane, len(message))

    async def close_in_time(self) -> None:
        """Close the connection after a long idle time, or when the bridge stops and no request is left."""
        stopping = self._service.stopping
        while not stopping.is_set() or self._waiting:
            if self._waiting:
                await self._idle.wait()
                continue
            with trio.move_on_at(self._used_at + MAX_IDLE):
                await stopping.wait()
            if not self._waiting and trio.current_time() >= self._used_at + MAX_IDLE:
                break
        self._closing = True
        await self._socket.close(1001 if stopping.is_set() else 1000)

    def _check(self, data: dict[str, Any], lane: str | None, size: int) -> None:
        kind = data.pop("type", None)
        if kind != "response.create":
            raise InvalidRequest(f"Unknown message type {str(kind)[:100]!r}. Send 'response.create'.", param="type")
        if self._waiting >= MAX_WAITING or self._held + size > self._max_message + SPARE:
            raise InvalidRequest(
                f"At most {MAX_WAITING} requests of {self._max_message + SPARE:,} bytes in total may wait on a "
                "connection. Wait for an answer first.",
                code="rate_limit_exceeded",
                http_status=429,
            )
        if lane not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                raise InvalidRequest(f"A connection has at most {MAX_LANES} lanes.", param="stream_id")
            self._lanes[lane] = trio.Lock()

    async def _serve(self, data: dict[str, Any], lane: str | None, size: int) -> None:
        try:
            async with self._lanes.setdefault(lane, trio.Lock()):
                await self._answer(data, lane)
        finally:
            if lane in self._lanes and not self._lanes[lane].locked():
                del self._lanes[lane]
            self._waiting -= 1
            self._held -= size
            if not self._waiting:
                self._idle.set()

    async def _answer(self, data: dict[str, Any], lane: str | None) -> None:
        exchange = ProtocolExchange(self._service, RESPONSES, self._key, self._url)
        try:
            exchange.arrived({"body": data})
            exchange.provider_key = provider_key(self._request)
            exchange.tool_mode = self._request.header(TOOL_MODE)
            body = _body(data)
            generate = body.pop("generate", True)
            service = self._service
            # The gate checked the key when the connection was opened, which may be long ago.
            await service.admission.check_key(self._key)
            known = await find_continuation(
                service.store, self._key, body, enabled=service.keeps_responses, remembered=self._remembered
            )
            await exchange.open(body, known, generate=generate is not False)
            await self._stream(exchange, lane)
            if exchange.failure is None:
                self._remember(exchange)
            else:
                self._forget(data)
        except BridgeError as error:
            await self._fail(exchange, error, data, lane)
        except Exception:
            await self._fail(exchange, exchange.mistake(), data, lane)
        finally:
            exchange.end()

    async def _fail(
        self, exchange: ProtocolExchange, error: BridgeError, data: dict[str, Any], lane: str | None
    ) -> None:
        self._forget(data)
        exchange.fail(error)
        exchange.record_json(orjson.dumps(error.body()))
        await self._refuse(error, lane)

    async def _stream(self, exchange: ProtocolExchange, lane: str | None) -> None:
        out = await exchange.begin()
        while True:
            exchange.record_sse(out)
            await self._send_events(out, lane)
            if exchange.finished:
                return
            out, _ = await exchange.next()

    async def _send_events(self, stream: bytes, lane: str | None) -> None:
        """Send each event of a piece of a stream as one message. Its JSON contains no line break."""
        for frame in stream.split(b"\n\n"):
            _, found, data = frame.partition(b"data: ")
            if not found:
                continue
            if lane is not None:
                data = orjson.dumps({**orjson.loads(data), "stream_id": lane})
            await self._socket.send(data.decode())

    async def _refuse(self, error: BridgeError, lane: str | None) -> None:
        message = {"type": "error", "status": error.http_status, **error.body()}
        if lane is not None:
            message["stream_id"] = lane
        await self._socket.send(orjson.dumps(message).decode())

    # Continuation within the connection

    def _remember(self, exchange: ProtocolExchange) -> None:
        encoder = exchange.encoder
        assert isinstance(encoder, ResponsesEncoder)
        try:
            self._remembered[encoder.id] = exchange.continuation()
        except InvalidRequest:  # this answer has made the conversation too long to continue
            return
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)

    def _forget(self, data: dict[str, Any]) -> None:
        """A request that continues a response has failed.

        The response could still be continued. But the Open Responses specification demands that it is forgotten, as
        OpenAI's API does, and clients rely on that: they send the whole conversation.
        """
        previous = _body(data).get("previous_response_id")
        if isinstance(previous, str):
            self._remembered.pop(previous, None)


def _body(data: dict[str, Any]) -> dict[str, Any]:
    """The request in a message; some clients nest it in `response`. It is always streamed."""
    nested = data.get("response")
    given = nested if isinstance(nested, dict) else data
    return {name: value for name, value in given.items() if name not in ("stream_id", "background")} | {"stream": True}


def _lane(data: dict[str, Any]) -> str | None:
    lane = data.get("stream_id")
    if lane is not None and (not isinstance(lane, str) or len(lane) > 256):
        raise InvalidRequest("'stream_id' must be a string of at most 256 characters.", param="stream_id")
    return lane
