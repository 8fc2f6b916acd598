"""CAP over a WebSocket: the first message is a ServiceRequest, each packet of the answer is a message."""

from __future__ import annotations

from time import time
from typing import Any
from uuid import UUID

import trio

from bridge.api.cap.failures import failure_from
from bridge.api.reading import parse_json
from bridge.errors import BridgeError, InvalidRequest, PayloadTooLarge
from bridge.server.cap.endpoint import AssistEndpoint
from bridge.server.cap.live import Reader
from bridge.server.cap.refusals import named_id
from bridge.server.http import BODY_SECONDS, ClientGone, Receive, Scope, Send, body_limit, provider_key
from bridge.server.service import Service

DONE, WENT_WRONG, TRY_LATER, BROKEN = 1000, 1008, 1013, 1011
"""How a connection is closed: after the answer; because of the client; because of a moment; because of the bridge."""


class AssistSocket:
    """The ASGI application. One request a connection; whoever is cut off sends the same one again, and joins it."""

    def __init__(self, service: Service, endpoint: AssistEndpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        known: dict[str, Any] = {"unread": True}
        try:
            message = await self._first(scope, receive)
            known = {"unreadable": len(message)}
            data = parse_json(message)
            known = {"body": data}
            reader = self._endpoint.begin(scope, data, "ndjson", provider_key(scope))
        except ClientGone:
            return
        except BridgeError as error:
            self._endpoint.refusal(scope, error, known)
            await _refuse(send, error, named_id(known))
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, receive, send, nursery.cancel_scope)
                await _answer(send, reader)
                nursery.cancel_scope.cancel()
        finally:
            reader.close()

    async def _first(self, scope: Scope, receive: Receive) -> bytes:
        limit = body_limit(scope, self._service.max_body)
        with trio.move_on_after(BODY_SECONDS):
            message = await receive()
            if message["type"] == "websocket.disconnect":
                raise ClientGone
            text = message.get("text")
            given: bytes = message.get("bytes") or b"" if text is None else text.encode()
            if len(given) > limit:
                raise PayloadTooLarge(
                    f"The message is larger than {limit:,} bytes (PROXY_MAX_BODY, or this key's own)."
                )
            return given
        raise InvalidRequest("The request did not come in time.", code="timeout", http_status=408)


async def _listen(receive: Receive, send: Send, scope: trio.CancelScope) -> None:
    """Until the client leaves; it has nothing more to say."""
    if (await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.close", "code": WENT_WRONG, "reason": "one request a connection"})
    scope.cancel()


async def _answer(send: Send, reader: Reader) -> None:
    try:
        await reader.live.begun()
    except BridgeError as error:
        await _refuse(send, error, reader.live.exchange.request.request_id)
        return
    while not reader.done:
        for packet in (await reader.next())[0]:
            await send({"type": "websocket.send", "text": packet.decode()})
    await send({"type": "websocket.close", "code": DONE})


async def _refuse(send: Send, error: BridgeError, request_id: UUID | None) -> None:
    failure = failure_from(error, now=time(), request_id=request_id)
    for packet in failure.packets:
        await send({"type": "websocket.send", "text": packet.decode()})
    code = WENT_WRONG if failure.status < 500 else BROKEN
    await send({"type": "websocket.close", "code": TRY_LATER if failure.status in (429, 503) else code})
