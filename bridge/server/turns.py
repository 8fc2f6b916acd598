"""POST of a turn over HTTP: a stream of events, or a JSON object.

Until the first piece of the answer the status is still open, so that a failure can be an HTTP error; but no longer than
`hold` seconds, then the stream begins and a failure is an event in it. Silence is broken by comments.
"""

from __future__ import annotations

from typing import Any

import trio

from bridge.api.reading import parse_json
from bridge.api.sse import KEEPALIVE
from bridge.backends.tool_modes import HEADER as TOOL_MODE
from bridge.errors import BridgeError
from bridge.server.background import run_in_background
from bridge.server.http import (
    ClientGone,
    Headers,
    Page,
    Receive,
    Scope,
    Send,
    cancel_when_gone,
    error_page,
    header,
    key_label,
    provider_key,
    read_whole_body,
    send_page,
    send_page_early,
    send_start,
)
from bridge.server.openai_exchange import OpenAiExchange
from bridge.server.service import Service
from bridge.turn.events import TextDelta, TurnEvent
from bridge.turn.turn import Endpoint

SSE = b"text/event-stream; charset=utf-8"
SSE_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class TurnEndpoint:
    """An ASGI application that answers turns in one protocol."""

    def __init__(self, path: Endpoint, service: Service) -> None:
        self._path = path
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = OpenAiExchange(self._service, self._path, key_label(scope), scope["path"])
        request = _Request(self._service, exchange, send)
        try:
            exchange.provider_key = provider_key(scope)
            exchange.tool_mode = header(scope, TOOL_MODE)
            body = await read_whole_body(scope, receive, self._service.max_body)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope, lambda: request.answered)
                await request.serve(body)
                nursery.cancel_scope.cancel()
        except ClientGone:
            pass
        except BridgeError as error:
            await request.refuse(error, receive)
        finally:
            if not request.handed_over:
                exchange.end()


class _Request:
    """An exchange over one HTTP connection."""

    __slots__ = ("_exchange", "_send", "_service", "answered", "handed_over")

    def __init__(self, service: Service, exchange: OpenAiExchange, send: Send) -> None:
        self._service = service
        self._exchange = exchange
        self._send = send
        self.answered = False
        """The last bytes of the answer are on their way."""
        self.handed_over = False
        """The exchange goes on without us."""

    async def serve(self, body: bytes) -> None:
        """Answer the request, whatever happens."""
        exchange = self._exchange
        try:
            data = self._read(body)
            del body  # it may be large, and a turn may be long
            await exchange.open(data)
            assert exchange.turn is not None
            if exchange.in_background:
                await self._background()
            elif exchange.turn.stream:
                await self._stream()
            else:
                await self._collect()
        except BridgeError as error:
            await self._answer_error(error)
        except Exception:
            await self._answer_error(exchange.mistake())

    def _read(self, body: bytes) -> dict[str, Any]:
        try:
            data = parse_json(body)
        except BridgeError:
            self._exchange.arrived({"unreadable": len(body)})
            raise
        self._exchange.arrived({"body": data})
        return data

    async def _answer_error(self, error: BridgeError) -> None:
        self._exchange.fail(error)
        self.answered = True
        await send_page(self._send, self._recorded(error_page(error, self._exchange.headers)))

    async def refuse(self, error: BridgeError, receive: Receive) -> None:
        """Answer a request whose body was not read to its end."""
        self._exchange.arrived({"unread": True})
        self._exchange.fail(error)
        page = self._recorded(error_page(error, self._exchange.headers))
        await send_page_early(self._send, receive, page)

    def _recorded(self, page: Page) -> Page:
        self._exchange.record_start(page.status, page.headers)
        self._exchange.record_json(page.body)
        return page

    async def _background(self) -> None:
        body = await run_in_background(self._service, self._exchange)
        self.handed_over = True
        await self._send_json(body)

    async def _collect(self) -> None:
        exchange = self._exchange
        assert exchange.encoder is not None
        exchange.encoder.begin()
        while not exchange.finished:
            await exchange.next()
        if exchange.failure is not None:
            raise exchange.failure
        await self._send_json(exchange.encoder.body())

    async def _send_json(self, body: bytes) -> None:
        self.answered = True
        await send_page(self._send, self._recorded(Page(body, 200, self._exchange.headers)))

    async def _stream(self) -> None:
        exchange = self._exchange
        out = await exchange.begin()
        headers = [*SSE_HEADERS, *exchange.headers]
        exchange.record_start(200, headers)
        await send_start(self._send, 200, SSE, headers)
        await self._write(out, exchange.finished)
        while not exchange.finished:
            out, events = await exchange.next(self._service.keepalive)
            said = _said(events) if self._service.recorder and events else None
            await self._write(out if events else KEEPALIVE, exchange.finished, said)

    async def _write(self, out: bytes, last: bool, said: str | None = None) -> None:
        self._exchange.record_sse(out, said)
        self.answered = last
        await self._send({"type": "http.response.body", "body": out, "more_body": not last})


def _said(events: list[TurnEvent]) -> str | None:
    """The text of a batch that is nothing but text."""
    texts = ["".join(event.pieces) for event in events if isinstance(event, TextDelta)]
    return "".join(texts) if len(texts) == len(events) else None
