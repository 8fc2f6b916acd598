"""CAP over a WebSocket: the first message is a ServiceRequest, each packet of the answer is a message."""

from __future__ import annotations

from contextlib import suppress
from time import time
from typing import Any
from uuid import UUID

import trio

from bridge.api.cap.failures import failure_from
from bridge.api.reading import parse_json
from bridge.errors import BridgeError, InvalidRequest, PayloadTooLarge
from bridge.http.request import ClientGone, Request
from bridge.http.websocket import WebSocket
from bridge.server.cap.endpoint import AssistEndpoint
from bridge.server.cap.live import Reader
from bridge.server.cap.refusals import named_id
from bridge.server.http import provider_key
from bridge.server.service import Service

FIRST_SECONDS = 60.0
"""How long the first message may take."""
DONE, WENT_WRONG, TRY_LATER, BROKEN = 1000, 1008, 1013, 1011
"""How a connection is closed: after the answer; because of the client; because of a moment; because of the bridge."""


class AssistSocket:
    """The handler. One request a connection; a client that is cut off sends the same one again, and joins it."""

    def __init__(self, service: Service, endpoint: AssistEndpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, request: Request) -> None:
        socket = request.socket
        assert socket is not None
        await socket.accept()
        known: dict[str, Any] = {"unread": True}
        try:
            message = await self._first(request, socket)
            known = {"unreadable": len(message)}
            data = parse_json(message)
            known = {"body": data}
            reader = self._endpoint.begin(request, data, "ndjson", provider_key(request))
        except ClientGone:
            return
        except BridgeError as error:
            self._endpoint.refusal(request, error, known)
            await _refuse(socket, error, named_id(known))
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, socket, nursery.cancel_scope)
                await _answer(socket, reader)
                nursery.cancel_scope.cancel()
        finally:
            reader.close()

    async def _first(self, request: Request, socket: WebSocket) -> bytes:
        limit = self._service.max_body if request.max_body is None else min(request.max_body, self._service.max_body)
        with trio.move_on_after(FIRST_SECONDS):
            given = await socket.receive()
            if len(given) > limit:
                raise PayloadTooLarge(
                    f"The message is larger than {limit:,} bytes (PROXY_MAX_BODY, or the limit of this key)."
                )
            return given
        raise InvalidRequest("The request did not come in time.", code="timeout", http_status=408)


async def _listen(socket: WebSocket, scope: trio.CancelScope) -> None:
    """Until the client leaves; it has nothing more to say."""
    with suppress(ClientGone):
        await socket.receive()
        await socket.close(WENT_WRONG, "one request a connection")
    scope.cancel()


async def _answer(socket: WebSocket, reader: Reader) -> None:
    try:
        await reader.live.begun()
    except BridgeError as error:
        await _refuse(socket, error, reader.live.exchange.request.request_id)
        return
    while not reader.done:
        for packet in (await reader.next())[0]:
            await socket.send(packet.decode())
    await socket.close(DONE)


async def _refuse(socket: WebSocket, error: BridgeError, request_id: UUID | None) -> None:
    failure = failure_from(error, now=time(), request_id=request_id)
    for packet in failure.packets:
        await socket.send(packet.decode())
    code = WENT_WRONG if failure.status < 500 else BROKEN
    await socket.close(TRY_LATER if failure.status in (429, 503) else code)
