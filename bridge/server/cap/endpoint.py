"""CAP over HTTP: a request and its answer in the form that `Accept` asks for; an answer joined again, or ended."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trio

from bridge.api.cap.events import Form
from bridge.api.cap.request import check_caller, read_request
from bridge.api.cap.writers import LineWriter, SseWriter, resume_point
from bridge.api.reading import parse_json
from bridge.api.sse import KEEPALIVE
from bridge.errors import BridgeError, InvalidRequest
from bridge.server.cap.accept import choose_form
from bridge.server.cap.assists import Assists
from bridge.server.cap.live import HEADERS, LiveAssist, Reader
from bridge.server.cap.refusals import cap_error_page, named_id
from bridge.server.exchange import Exchange
from bridge.server.http import (
    ClientGone,
    Page,
    Receive,
    Request,
    Scope,
    Send,
    cancel_when_gone,
    has_body,
    header,
    json_page,
    key_label,
    provider_key,
    read_whole_body,
    send_page,
    send_page_early,
    send_start,
)
from bridge.server.service import Service


class AssistEndpoint:
    """What is served under /v1/assist. Each error is a StreamError."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.assists = Assists(service)

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST: a ServiceRequest. The same one again joins its answer."""
        service = self._service
        known: dict[str, Any] = {"unread": True}
        try:
            form, kind = choose_form(
                header(scope, b"accept"), streams=False, default="sse" if service.cap.streams_by_default else "json"
            )
            own_key = provider_key(scope)
            body = await read_whole_body(scope, receive, service.max_body)
            known = {"unreadable": len(body)}
            data = parse_json(body)
            known = {"body": data}
            reader = self.begin(scope, data, form, own_key, resumes=form != "json")
        except ClientGone:
            return
        except BridgeError as error:
            page = self.refusal(scope, error, known)
            if "unread" in known and has_body(scope):
                await send_page_early(send, receive, page)
            else:
                await send_page(send, page)
            return
        await self._answer(scope, receive, send, reader, form, kind)

    async def resume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET: the packets after the one that `Last-Event-ID` names, or all of them."""
        try:
            form, kind = choose_form(header(scope, b"accept"), streams=True, default="sse")
            request_id = _request_id(scope["path_params"])
            live = self.assists.find(key_label(scope), request_id)
            reader = live.read(_resume_point(scope, request_id))
        except BridgeError as error:
            await send_page(send, cap_error_page(scope, error))
            return
        await self._answer(scope, receive, send, reader, form, kind)

    async def cancel(self, request: Request) -> Page:
        """DELETE: the answer ends now, with nothing but its close packet."""
        request_id = _request_id(request.path)
        live = self.assists.find(request.key, request_id)
        state = "ended" if live.over or live.exchange.finished else "ending"
        live.cancel()
        return json_page({"request_id": str(request_id), "status": state}, 202)

    def begin(self, scope: Scope, data: Any, form: Form, own_key: str | None, *, resumes: bool = False) -> Reader:
        """A reader of the answer to a request, which is begun, or joined when it is there already.

        With `resumes` an answer that is joined goes on after the packet that `Last-Event-ID` names. To be closed.
        Raises BridgeError for what is no request, or not this client's to make.
        """
        request = read_request(data)
        key = key_label(scope)
        check_caller(request, self._service.cap.caller(key))
        point = _resume_point(scope, request.request_id) if resumes else None
        live = self.assists.same(key, request)
        if live is not None:
            return live.read(point)
        return self.assists.start(key, scope["path"], request, data, form, own_key).read()

    def refusal(self, scope: Scope, error: BridgeError, known: dict[str, Any]) -> Page:
        """The answer to a request that comes to no turn, noted in the event log. `known` is what is known of it."""
        exchange = Exchange(self._service, key_label(scope), scope["path"])
        exchange.arrived(known)
        exchange.fail(error)
        page = cap_error_page(scope, error, request_id=named_id(known))
        exchange.record_start(page.status, page.headers)
        exchange.record_json(page.body)
        exchange.end()
        return page

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, reader: Reader, form: Form, kind: bytes
    ) -> None:
        answer = _Answer(scope, send, reader, kind)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope, answer.is_made)
                if form == "json":
                    await answer.whole()
                else:
                    await answer.stream(form, self._service.keepalive)
                nursery.cancel_scope.cancel()
        finally:
            reader.close()


class _Answer:
    """An answer over one HTTP connection."""

    def __init__(self, scope: Scope, send: Send, reader: Reader, kind: bytes) -> None:
        self._scope = scope
        self._send = send
        self._reader = reader
        self._live: LiveAssist = reader.live
        self._kind = kind
        self._made = False

    def is_made(self) -> bool:
        """Whether the last bytes are on their way."""
        return self._made

    async def whole(self) -> None:
        """A ServiceResponse, or why there is none."""
        try:
            body = await self._reader.body()
        except BridgeError as error:
            await self._page(self._refusal(error))
        else:
            await self._page(Page(body, 200, [*HEADERS, *self._live.exchange.headers], self._kind))

    async def stream(self, form: Form, keepalive: float) -> None:
        """Packets, as they come; why there are none, when that is known before the first."""
        live, reader, request_id = self._live, self._reader, self._live.exchange.request.request_id
        try:
            await live.begun()
        except BridgeError as error:
            await self._page(self._refusal(error))
            return
        # A line of NDJSON is a packet: there, nothing can be said to keep a connection alive.
        writer, silence = (SseWriter(request_id, live.attempt), KEEPALIVE) if form == "sse" else (LineWriter(), b"")
        await send_start(self._send, 200, self._kind, [*HEADERS, *live.exchange.headers])
        while not self._made:
            out = silence
            with trio.move_on_after(keepalive):
                out = writer.write(*await reader.next())
            self._made = reader.done
            if out or self._made:
                await self._send({"type": "http.response.body", "body": out, "more_body": not self._made})

    def _refusal(self, error: BridgeError) -> Page:
        exchange = self._live.exchange
        return cap_error_page(self._scope, error, exchange.headers, exchange.request.request_id)

    async def _page(self, page: Page) -> None:
        self._made = True
        await send_page(self._send, page)


def _request_id(path: Any) -> UUID:
    try:
        return UUID(path["request_id"])
    except ValueError:
        raise InvalidRequest(
            "The path ends in the 'request_id' of a request, which is a UUID.", param="request_id", http_status=422
        ) from None


def _resume_point(scope: Scope, request_id: UUID) -> tuple[int, int] | None:
    value = header(scope, b"last-event-id")
    if value is None or not value.strip():
        return None
    point = resume_point(value.decode("latin-1").strip(), request_id)
    if point is None:
        raise InvalidRequest(
            "'Last-Event-ID' is the id of a packet of this request: REQUEST_ID:NUMBER.",
            param="last-event-id",
            http_status=422,
        )
    return point
