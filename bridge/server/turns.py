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
from bridge.http.request import ClientGone, Headers, Request
from bridge.server.background import run_in_background
from bridge.server.http import Page, error_page, provider_key, send_page
from bridge.server.openai_exchange import OpenAiExchange
from bridge.server.service import Service
from bridge.turn.events import TextDelta, TurnEvent
from bridge.turn.turn import Endpoint

SSE = b"text/event-stream; charset=utf-8"
SSE_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class TurnEndpoint:
    """Answers turns in one protocol."""

    def __init__(self, path: Endpoint, service: Service) -> None:
        self._path = path
        self._service = service

    async def __call__(self, request: Request) -> None:
        exchange = OpenAiExchange(self._service, self._path, request.key, request.path)
        answer = _Answer(self._service, exchange, request)
        try:
            exchange.provider_key = provider_key(request)
            exchange.tool_mode = request.header(TOOL_MODE)
            body = await request.read_body(self._service.max_body)
            with trio.CancelScope() as serving:
                request.on_gone(serving.cancel)
                await answer.serve(body)
        except ClientGone:
            pass
        except BridgeError as error:
            await answer.refuse(error)
        finally:
            if not answer.handed_over:
                exchange.end()


class _Answer:
    """An exchange over one HTTP connection."""

    __slots__ = ("_exchange", "_request", "_service", "handed_over")

    def __init__(self, service: Service, exchange: OpenAiExchange, request: Request) -> None:
        self._service = service
        self._exchange = exchange
        self._request = request
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
        await send_page(self._request, self._recorded(error_page(error, self._exchange.headers)))

    async def refuse(self, error: BridgeError) -> None:
        """Answer a request whose body was not read to its end."""
        self._exchange.arrived({"unread": True})
        self._exchange.fail(error)
        await send_page(self._request, self._recorded(error_page(error, self._exchange.headers)))

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
        await send_page(self._request, self._recorded(Page(body, 200, self._exchange.headers)))

    async def _stream(self) -> None:
        exchange = self._exchange
        out = await exchange.begin()
        headers = [*SSE_HEADERS, *exchange.headers]
        exchange.record_start(200, headers)
        self._request.start(200, [(b"content-type", SSE), *headers])
        await self._write(out)
        del out  # it would be held for as long as the stream lasts
        while not exchange.finished:
            await self._write_next()

    async def _write_next(self) -> None:
        out, events = await self._exchange.next(self._service.keepalive)
        if not events:
            self._service.counts.keepalives += 1
            out = KEEPALIVE
        await self._write(out, _said(events) if self._service.recorder and events else None)

    async def _write(self, out: bytes, said: str | None = None) -> None:
        self._exchange.record_sse(out, said)
        await self._request.send(out, last=self._exchange.finished)


def _said(events: list[TurnEvent]) -> str | None:
    """The text of a batch that is nothing but text."""
    texts = ["".join(event.pieces) for event in events if isinstance(event, TextDelta)]
    return "".join(texts) if len(texts) == len(events) else None
