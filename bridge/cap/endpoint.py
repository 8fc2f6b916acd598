"""CAP over HTTP and WebSocket: requests, answers in the form that `Accept` asks for, resumption and cancellation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from bridge.app.exchange import Exchange
from bridge.app.service import Service
from bridge.cap.exchange import HEADERS
from bridge.cap.live import Assists, Reader
from bridge.errors import BridgeError, InvalidRequest, PayloadTooLarge
from bridge.http.pages import Page, PageRequest, json_page, provider_key, send_page
from bridge.http.request import ClientGone, Headers, Request
from bridge.protocols.cap.encoder import Form
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.cap.request import check_caller, parse_service_request
from bridge.protocols.cap.stream import LineWriter, SseWriter, resume_point
from bridge.protocols.reading import parse_json
from bridge.protocols.sse import KEEPALIVE

if TYPE_CHECKING:
    from bridge.http.websocket import WebSocket

# The form of an answer, by the client's `Accept`. Pure.

ERROR_TYPE = b"application/vnd.coreason.error+json"
SSE_TYPE = b"text/event-stream"

_FORMS: dict[bytes, tuple[Form, bytes]] = {
    b"application/json": ("json", b"application/json"),
    SSE_TYPE: ("sse", b"text/event-stream; charset=utf-8"),
    b"application/x-ndjson": ("ndjson", b"application/x-ndjson"),
    b"application/jsonl": ("ndjson", b"application/jsonl"),
    b"application/vnd.coreason.stream+json": ("ndjson", b"application/vnd.coreason.stream+json"),
}
"""The form and the `Content-Type` for each accepted media type."""

_QUALITY = re.compile(rb"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def choose_form(accept: bytes | None, *, streams: bool, default: Form) -> tuple[Form, bytes]:
    """(form, content type) of an answer. With `streams` only streams are offered.

    `default` is for a client without a preference. Raises InvalidRequest (406) if nothing is acceptable.
    """
    served = {kind: form for kind, form in _FORMS.items() if not streams or form[0] != "json"}
    usual = next(kind for kind, (form, _) in served.items() if form == default)
    # `max` returns the first of several maxima: the default, then the others in the order of the table. Of two types
    # with the same weight, the one that is named precedes the one that a wildcard admits.
    order = sorted(served, key=lambda kind: kind != usual)
    chosen = max(order, key=lambda kind: _quality(kind, accept))
    if not _quality(chosen, accept)[0]:
        raise InvalidRequest(
            f"None of the types in 'Accept' is available. Choose from {', '.join(kind.decode() for kind in served)}.",
            code="not_acceptable",
            http_status=406,
        )
    return served[chosen]


def _quality(kind: bytes, accept: bytes | None) -> tuple[float, int]:
    """(weight of a type, precision of the entry: 3 its name, 2 `type/*`, 1 `*/*`, 0 none)."""
    if accept is None or not accept.strip():
        return 1.0, 1
    major = kind.split(b"/")[0] + b"/*"
    found: tuple[float, int] = (0.0, 0)
    for entry in accept.split(b","):
        name, *parameters = (part.strip().lower() for part in entry.split(b";"))
        precision = {kind: 3, major: 2, b"*/*": 1}.get(name, 0)
        # The most precise entry decides.
        if precision > found[1]:
            found = _weight(parameters), precision
    return found if found[0] > 0 else (0.0, 0)


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            return float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return 1.0


# Errors


def id_in_body(body: Any) -> UUID | None:
    """The id of a request that failed before it was parsed, if its body has one."""
    try:
        return UUID(body["request_id"]) if isinstance(body, dict) else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def cap_error_page(request: Request, error: BridgeError, headers: Headers = (), request_id: UUID | None = None) -> Page:
    """The HTTP answer for an error: a bare StreamError."""
    failure = failure_from(error, now=time(), request_id=request_id)
    extra = [(b"cache-control", b"no-store")]
    if failure.retry_after is not None:
        extra.append((b"retry-after", str(failure.retry_after).encode()))
    if failure.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    # Only for a client that names this type, or `application/*`.
    accepts = _quality(ERROR_TYPE, request.header(b"accept"))[1] > 1
    kind = ERROR_TYPE if accepts else b"application/json"
    return Page(failure.body, failure.status, [*headers, *extra], kind)


FIRST_MESSAGE_TIMEOUT = 60.0
"""Seconds within which the first message of a WebSocket must arrive."""
DONE, WENT_WRONG, TRY_LATER, BROKEN = 1000, 1008, 1013, 1011
"""Close codes of a WebSocket: after the answer; fault of the client; overload or shutdown; other failures."""


class AssistEndpoint:
    """Serves /v1/assist and what is below it. Every error is a StreamError."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.assists = Assists(service)

    async def post(self, request: Request) -> None:
        """POST: a ServiceRequest. The same request again joins its answer."""
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
            reader = self.assists.find(request.key, request_id).read(_resume_point(request, request_id))
        except BridgeError as error:
            await send_page(request, cap_error_page(request, error))
            return
        await self._answer(request, reader, form, kind)

    async def cancel(self, request: PageRequest) -> Page:
        """DELETE: end the answer now. Its stream gets only the close packet."""
        request_id = _request_id(request.path)
        live = self.assists.find(request.key, request_id)
        state = "ended" if live.over or live.exchange.finished else "ending"
        live.exchange.cancel()
        return json_page({"request_id": str(request_id), "status": state}, 202)

    async def socket(self, request: Request) -> None:
        """WebSocket: the first message is a ServiceRequest, and each packet of the answer is a message.

        One request per connection. A client that is disconnected sends the same request again and joins it.
        """
        socket = request.socket
        assert socket is not None
        await socket.accept()
        known: dict[str, Any] = {"unread": True}
        try:
            message = await self._first_message(request, socket)
            known = {"unreadable": len(message)}
            data = parse_json(message)
            known = {"body": data}
            reader = self.begin(request, data, "ndjson", provider_key(request))
        except ClientGone:
            return
        except BridgeError as error:
            self.refusal(request, error, known)
            await _refuse_socket(socket, error, id_in_body(known.get("body")))
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_wait_until_gone, socket, nursery.cancel_scope)
                await _answer_socket(socket, reader)
                nursery.cancel_scope.cancel()
        finally:
            reader.close()

    def begin(self, request: Request, data: Any, form: Form, own_key: str | None, *, resumes: bool = False) -> Reader:
        """Start the turn of a request, or join it if it runs already. The caller closes the reader.

        With `resumes`, a joined answer continues after the packet that `Last-Event-ID` names. Raises BridgeError.
        """
        assist = parse_service_request(data)
        check_caller(assist, self._service.cap.caller(request.key))
        point = _resume_point(request, assist.request_id) if resumes else None
        live = self.assists.same(request.key, assist)
        if live is not None:
            return live.read(point)
        return self.assists.start(request.key, request.path, assist, data, form, own_key).read()

    def refusal(self, request: Request, error: BridgeError, known: Mapping[str, Any]) -> Page:
        """The answer to a request that starts no turn, written to the event log with what is known of the request."""
        exchange = Exchange(self._service, request.key, request.path)
        exchange.arrived(dict(known))
        exchange.fail(error)
        page = cap_error_page(request, error, request_id=id_in_body(known.get("body")))
        exchange.record_start(page.status, page.headers)
        exchange.record_json(page.body)
        exchange.end()
        return page

    async def _answer(self, request: Request, reader: Reader, form: Form, kind: bytes) -> None:
        exchange = reader.live.exchange
        try:
            with trio.CancelScope() as answering:
                request.on_gone(answering.cancel)
                try:
                    if form == "json":
                        page = Page(await reader.body(), 200, [*HEADERS, *exchange.headers], kind)
                    else:
                        await reader.live.begun()
                except BridgeError as error:
                    page = cap_error_page(request, error, exchange.headers, exchange.request.request_id)
                    form = "json"
                if form == "json":
                    await send_page(request, page)
                else:
                    await self._stream(request, reader, form, kind)
        finally:
            reader.close()

    async def _stream(self, request: Request, reader: Reader, form: Form, kind: bytes) -> None:
        exchange, attempt = reader.live.exchange, reader.live.attempt
        # NDJSON has no comments, so there nothing can keep a silent connection alive.
        writer, silence = (
            (SseWriter(exchange.request.request_id, attempt), KEEPALIVE) if form == "sse" else (LineWriter(), b"")
        )
        request.start(200, [(b"content-type", kind), *HEADERS, *exchange.headers])
        await request.send(b"")  # a resumed stream may have no packet for a long time
        is_whole = False
        while not is_whole:
            out = silence
            with trio.move_on_after(self._service.keepalive) as waiting:
                out = writer.write(*await reader.next())
            if waiting.cancelled_caught and silence:
                self._service.counts.keepalives += 1
            is_whole = reader.done
            if out or is_whole:
                await request.send(out, last=is_whole)

    async def _first_message(self, request: Request, socket: WebSocket) -> bytes:
        limit = self._service.max_body if request.max_body is None else min(request.max_body, self._service.max_body)
        with trio.move_on_after(FIRST_MESSAGE_TIMEOUT):
            message = await socket.receive()
            if len(message) <= limit:
                return message
            raise PayloadTooLarge(
                f"The message is larger than {limit:,} bytes (PROXY_MAX_BODY, or the limit of this key)."
            )
        raise InvalidRequest("The request did not arrive in time.", code="timeout", http_status=408)


async def _wait_until_gone(socket: WebSocket, scope: trio.CancelScope) -> None:
    """Cancel the scope when the client disconnects, or sends a second message, which is an error."""
    with suppress(ClientGone):
        await socket.receive()
        await socket.close(WENT_WRONG, "one request per connection")
    scope.cancel()


async def _answer_socket(socket: WebSocket, reader: Reader) -> None:
    try:
        await reader.live.begun()
    except BridgeError as error:
        await _refuse_socket(socket, error, reader.live.exchange.request.request_id)
        return
    while not reader.done:
        for packet in (await reader.next())[0]:
            await socket.send(packet.decode())
    await socket.close(DONE)


async def _refuse_socket(socket: WebSocket, error: BridgeError, request_id: UUID | None) -> None:
    failure = failure_from(error, now=time(), request_id=request_id)
    for packet in failure.packets:
        await socket.send(packet.decode())
    code = WENT_WRONG if failure.status < 500 else BROKEN
    await socket.close(TRY_LATER if failure.status in (429, 503) else code)


def _request_id(path: Any) -> UUID:
    try:
        return UUID(path["request_id"])
    except ValueError:
        raise InvalidRequest(
            "The path must end in the 'request_id' of a request, a UUID.", param="request_id", http_status=422
        ) from None


def _resume_point(request: Request, request_id: UUID) -> tuple[int, int] | None:
    value = request.header(b"last-event-id")
    if value is None or not value.strip():
        return None
    point = resume_point(value.decode("latin-1").strip(), request_id)
    if point is None:
        raise InvalidRequest(
            "'Last-Event-ID' must be the id of a packet of this request: REQUEST_ID:NUMBER.",
            param="last-event-id",
            http_status=422,
        )
    return point
