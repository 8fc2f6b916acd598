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
from bridge.http.request import ClientGone, Request
from bridge.server.cap.accept import choose_form
from bridge.server.cap.assists import Assists
from bridge.server.cap.live import HEADERS, LiveAssist, Reader
from bridge.server.cap.refusals import cap_error_page, named_id
from bridge.server.exchange import Exchange
from bridge.server.http import Page, PageRequest, json_page, provider_key, send_page
from bridge.server.service import Service


class AssistEndpoint:
    """What is served under /v1/assist. Each error is a StreamError."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.assists = Assists(service)

    async def post(self, request: Request) -> None:
        """POST: a ServiceRequest. The same one again joins its answer."""
        service = self._service
        known: dict[str, Any] = {"unread": True}
        try:
            form, kind = choose_form(
                request.header(b"accept"), streams=False, default="sse" if service.cap.streams_by_default else "json"
            )
            own_key = provider_key(request)
            body = await request.read_body(service.max_body)
            known = {"unreadable": len(body)}
            data = parse_json(body)
            known = {"body": data}
            reader = self.begin(request, data, form, own_key, resumes=form != "json")
        except ClientGone:
            return
        except BridgeError as error:
            await send_page(request, self.refusal(request, error, known))
            return
        await self._answer(request, reader, form, kind)

    async def resume(self, request: Request) -> None:
        """GET: the packets after the one that `Last-Event-ID` names, or all of them."""
        try:
            form, kind = choose_form(request.header(b"accept"), streams=True, default="sse")
            request_id = _request_id(request.params)
            live = self.assists.find(request.key, request_id)
            reader = live.read(_resume_point(request, request_id))
        except BridgeError as error:
            await send_page(request, cap_error_page(request, error))
            return
        await self._answer(request, reader, form, kind)

    async def cancel(self, request: PageRequest) -> Page:
        """DELETE: the answer ends now, with nothing but its close packet."""
        request_id = _request_id(request.path)
        live = self.assists.find(request.key, request_id)
        state = "ended" if live.over or live.exchange.finished else "ending"
        live.cancel()
        return json_page({"request_id": str(request_id), "status": state}, 202)

    def begin(self, request: Request, data: Any, form: Form, own_key: str | None, *, resumes: bool = False) -> Reader:
        """A reader of the answer to a request, which is begun, or joined when it is there already.

        With `resumes` an answer that is joined goes on after the packet that `Last-Event-ID` names. To be closed.
        Raises BridgeError for what is no request, or not this client's to make.
        """
        asked = read_request(data)
        check_caller(asked, self._service.cap.caller(request.key))
        point = _resume_point(request, asked.request_id) if resumes else None
        live = self.assists.same(request.key, asked)
        if live is not None:
            return live.read(point)
        return self.assists.start(request.key, request.path, asked, data, form, own_key).read()

    def refusal(self, request: Request, error: BridgeError, known: dict[str, Any]) -> Page:
        """The answer to a request that comes to no turn, noted in the event log. `known` is what is known of it."""
        exchange = Exchange(self._service, request.key, request.path)
        exchange.arrived(known)
        exchange.fail(error)
        page = cap_error_page(request, error, request_id=named_id(known))
        exchange.record_start(page.status, page.headers)
        exchange.record_json(page.body)
        exchange.end()
        return page

    async def _answer(self, request: Request, reader: Reader, form: Form, kind: bytes) -> None:
        answer = _Answer(request, reader, kind, self._service)
        try:
            with trio.CancelScope() as answering:
                request.on_gone(answering.cancel)
                if form == "json":
                    await answer.whole()
                else:
                    await answer.stream(form)
        finally:
            reader.close()


class _Answer:
    """An answer over one HTTP connection."""

    def __init__(self, request: Request, reader: Reader, kind: bytes, service: Service) -> None:
        self._request = request
        self._reader = reader
        self._live: LiveAssist = reader.live
        self._kind = kind
        self._service = service

    async def whole(self) -> None:
        """A ServiceResponse, or why there is none."""
        try:
            body = await self._reader.body()
        except BridgeError as error:
            await send_page(self._request, self._refusal(error))
        else:
            page = Page(body, 200, [*HEADERS, *self._live.exchange.headers], self._kind)
            await send_page(self._request, page)

    async def stream(self, form: Form) -> None:
        """Packets, as they come; why there are none, when that is known before the first."""
        live, reader, request_id = self._live, self._reader, self._live.exchange.request.request_id
        try:
            await live.begun()
        except BridgeError as error:
            await send_page(self._request, self._refusal(error))
            return
        # A line of NDJSON is a packet: there, nothing can be said to keep a connection alive.
        writer, silence = (SseWriter(request_id, live.attempt), KEEPALIVE) if form == "sse" else (LineWriter(), b"")
        self._request.start(200, [(b"content-type", self._kind), *HEADERS, *live.exchange.headers])
        await self._request.send(b"")  # a stream that is resumed may have nothing to say for long
        is_whole = False
        while not is_whole:
            out = silence
            with trio.move_on_after(self._service.keepalive) as waiting:
                out = writer.write(*await reader.next())
            if waiting.cancelled_caught and silence:
                self._service.counts.keepalives += 1
            is_whole = reader.done
            if out or is_whole:
                await self._request.send(out, last=is_whole)

    def _refusal(self, error: BridgeError) -> Page:
        exchange = self._live.exchange
        return cap_error_page(self._request, error, exchange.headers, exchange.request.request_id)


def _request_id(path: Any) -> UUID:
    try:
        return UUID(path["request_id"])
    except ValueError:
        raise InvalidRequest(
            "The path ends in the 'request_id' of a request, which is a UUID.", param="request_id", http_status=422
        ) from None


def _resume_point(request: Request, request_id: UUID) -> tuple[int, int] | None:
    value = request.header(b"last-event-id")
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
