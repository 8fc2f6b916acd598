"""A turn over HTTP: answers a POST with a stream of events or with a JSON object.

The status stays open until the first piece of the answer, so that a failure can be an HTTP error, but for at most
`hold` seconds: then the stream begins, and a failure is an event in it. Comments keep a silent stream alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import trio

from bridge.app.admission import resolve_visible
from bridge.app.exchange import wait_for_model
from bridge.app.protocol_exchange import ProtocolExchange, run_in_background, served_name
from bridge.app.service import Service
from bridge.core.events import TextDelta, TurnEvent
from bridge.core.turn import estimate_input
from bridge.errors import BridgeError
from bridge.http.pages import Page, PageRequest, json_page, provider_key, send_page
from bridge.http.request import ClientGone, Headers, Request, Sink
from bridge.protocols.client import ClientProtocol, TokenCount
from bridge.protocols.reading import parse_json
from bridge.routing.router import TOOL_MODE_HEADER as TOOL_MODE
from bridge.server.dispatch import protocol_error_page

SSE_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


NO_MEMBERS: Mapping[str, Any] = {}


def members_outside(protocol: ClientProtocol, request: Request) -> dict[str, str]:
    """The members of the body that were sent in the path, in the query and as headers."""
    query = parse_qsl(request.query.decode("latin-1")) if protocol.query_members else ()
    return {
        **request.params,
        **{name: value for name, value in query if name in protocol.query_members},
        **{
            protocol.header_members[name]: value.decode("latin-1")
            for name, value in request.headers
            if name in protocol.header_members
        },
    }


class TurnEndpoint:
    """Answers turns in one protocol."""

    def __init__(self, protocol: ClientProtocol, service: Service, members: Mapping[str, Any] = NO_MEMBERS) -> None:
        self._protocol = protocol
        self._service = service
        self._members = members

    async def __call__(self, request: Request) -> None:
        exchange = ProtocolExchange(self._service, self._protocol, request.key, request.path)
        answer = Delivery(self._service, exchange, request)
        try:
            exchange.provider_key = provider_key(request)
            exchange.tool_mode = request.header(TOOL_MODE)
            members = {**self._members, **members_outside(self._protocol, request)}
            body = await request.read_body(self._service.max_body)
            with trio.CancelScope() as serving:
                request.on_gone(serving.cancel)
                await answer.serve(body, members)
        except ClientGone:
            pass
        except BridgeError as error:
            await answer.refuse(error)
        finally:
            if not answer.handed_over:
                exchange.end()


class Delivery:
    """The answer of an exchange, from its body to the last byte that `sink` gets."""

    __slots__ = ("_exchange", "_service", "_sink", "handed_over")

    def __init__(self, service: Service, exchange: ProtocolExchange, sink: Sink) -> None:
        self._service = service
        self._exchange = exchange
        self._sink = sink
        self.handed_over = False
        """Whether the exchange continues in the background."""

    async def serve(self, body: bytes, members: Mapping[str, Any] = NO_MEMBERS) -> None:
        """Answer the request, whatever happens. `members` are those of the body that were sent elsewhere."""
        exchange = self._exchange
        try:
            data = self._read(body, members)
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

    def _read(self, body: bytes, members: Mapping[str, Any]) -> dict[str, Any]:
        try:
            data = {**parse_json(body), **members}
        except BridgeError:
            self._exchange.arrived({"unreadable": len(body)})
            raise
        self._exchange.arrived({"body": data})
        return data

    async def _answer_error(self, error: BridgeError) -> None:
        self._exchange.fail(error)
        await self._send(protocol_error_page(self._exchange.client_protocol, error, self._exchange.headers))

    async def refuse(self, error: BridgeError) -> None:
        """Answer a request whose body was not read to its end."""
        self._exchange.arrived({"unread": True})
        await self._answer_error(error)

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
        await self._send(Page(body, 200, self._exchange.headers))

    async def _send(self, page: Page) -> None:
        self._exchange.record_start(page.status, page.headers)
        self._exchange.record_json(page.body)
        await send_page(self._sink, page)

    async def _stream(self) -> None:
        exchange, service = self._exchange, self._service
        out = await exchange.begin()
        headers = [*SSE_HEADERS, *exchange.headers]
        exchange.record_start(200, headers)
        form = exchange.stream_form
        self._sink.start(200, [(b"content-type", form.kind), *headers])
        text: str | None = None
        while True:
            exchange.record_sse(out, text)
            await self._sink.send(out, last=exchange.finished)
            if exchange.finished:
                return
            del out, text  # a stream that waits holds nothing
            out, events = await exchange.next(service.keepalive)
            if not events:
                service.counts.keepalives += 1
                out = form.keepalive
            text = _only_text(events) if service.recorder.wants_lines and events else None
            del events


def _only_text(events: list[TurnEvent]) -> str | None:
    """The text of a batch that consists of nothing else."""
    texts = ["".join(event.pieces) for event in events if isinstance(event, TextDelta)]
    return "".join(texts) if len(texts) == len(events) else None


class TokenCounter:
    """The page that estimates the tokens of a request of one protocol: there is no tokenizer."""

    def __init__(self, protocol: ClientProtocol, count: TokenCount, service: Service) -> None:
        self._protocol = protocol
        self._count = count
        self._service = service

    async def __call__(self, request: PageRequest) -> Page:
        router, keyed = self._service.router, request.provider_key is not None
        data = {**parse_json(request.body), **request.path}
        await wait_for_model(router, data.get("model"))
        turn = self._protocol.parse(data, ())
        name = await served_name(router, turn.model, self._protocol, keyed=keyed)
        resolve_visible(router, self._service.admission.key(request.key), name, keyed=keyed)
        return json_page(self._count.body(estimate_input(turn)))
