"""Small pieces of HTTP on bare ASGI: reading a body within a limit, sending whole answers."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import trio

from bridge import exact_json
from bridge.errors import BridgeError, InvalidRequest, PayloadTooLarge
from bridge.urls import is_header_safe

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


KEY = "bridge.key"
"""The member of a scope that has the label of the client's key; set by the gate."""


MAX_BODY = "bridge.max_body"
"""The member of a scope that has the limit of bodies that the client's key sets, where it does."""
ROUTE = "bridge.route"
"""The member that has the path of the route which a request came to; set by the application."""
REFUSED = "bridge.refused"
"""The member that has the code of the error which a request was refused with, without a turn."""


def body_limit(scope: Scope, limit: int) -> int:
    """How large a body may be: `limit`, or less where the client's key says so."""
    return min(limit, int(scope.get(MAX_BODY, limit)))


def key_label(scope: Scope) -> str:
    """The label of the key that a request came with."""
    return str(scope.get(KEY, ""))


def provider_key(scope: Scope) -> str | None:
    """The key that a request brings for its provider. Raises InvalidRequest for one that could not be sent on."""
    value = header(scope, b"x-provider-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not is_header_safe(key):
        raise InvalidRequest("X-Provider-Key has visible ASCII characters only.", code="invalid_provider_key")
    return key


class ClientGone(Exception):
    """The client has left before its request was whole."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first value of a request header (names are lower case)."""
    return next((value for key, value in scope["headers"] if key == name), None)


BODY_SECONDS = 60.0
"""How long a request may take to arrive."""


async def read_whole_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, within a time limit.

    Raises PayloadTooLarge as soon as it is clear, InvalidRequest, or ClientGone when the client leaves.
    """
    with trio.move_on_after(BODY_SECONDS):
        return await _read_body(scope, receive, limit)
    raise InvalidRequest("The request's body did not come in time.", code="timeout", http_status=408)


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    limit = body_limit(scope, limit)
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise InvalidRequest(
            "Compressed request bodies are not supported.", code="unsupported_encoding", http_status=415
        )
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {limit:,} bytes (PROXY_MAX_BODY, or this key's own limit)."
    )


async def cancel_when_gone(
    receive: Receive, scope: trio.CancelScope, is_answered: Callable[[], bool] = lambda: False
) -> None:
    """Cancel a request when its client leaves before it has its answer.

    hypercorn says `disconnect` after every answer too, and finishes its own work with the connection in our task.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    if not is_answered():
        scope.cancel()


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is whole."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    kind: bytes = b"application/json"


async def send_start(send: Send, status: int, content_type: bytes, headers: Headers) -> None:
    """Status and headers."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type), *headers],
        }
    )


async def send_json(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    """A whole JSON response."""
    await send_page(send, Page(body, status, headers))


async def send_page(send: Send, page: Page) -> None:
    """A whole response."""
    length = (b"content-length", str(len(page.body)).encode())
    await send_start(send, page.status, page.kind, [length, *page.headers])
    await send({"type": "http.response.body", "body": page.body})


DRAIN_SECONDS = 5.0
DRAIN_BYTES = 256 * 1024 * 1024


async def send_page_early(send: Send, receive: Receive, page: Page) -> None:
    """A response while the client still sends its body: at once, then its bytes are thrown away for a while.

    The answer says that the connection will be closed. Without that the client might send its next request into a
    closing connection; and one that is closed with unread bytes is reset, so that the client never sees why.
    """
    length = (b"content-length", str(len(page.body)).encode())
    close = (b"connection", b"close")
    await send_start(send, page.status, page.kind, [length, close, *page.headers])
    await send({"type": "http.response.body", "body": page.body, "more_body": True})
    drained = 0
    with trio.move_on_after(DRAIN_SECONDS):
        while drained < DRAIN_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            drained += len(message.get("body", b""))
            if not message.get("more_body"):
                break
    await send({"type": "http.response.body", "body": b""})


def has_body(scope: Scope) -> bool:
    """Whether a body follows the head of a request."""
    return header(scope, b"transfer-encoding") is not None or header(scope, b"content-length") not in (None, b"0")


def error_headers(error: BridgeError) -> Headers:
    """What an error says in headers."""
    extra = []
    if error.retry_after is not None:
        extra.append((b"retry-after", str(math.ceil(error.retry_after)).encode()))
    if error.http_status == 429 and error.severity == "fatal":
        # OpenAI's SDKs repeat a request after any 429; a quota that is used up is still used up a second later.
        extra.append((b"x-should-retry", b"false"))
    if error.http_status == 401 and error.code == "invalid_api_key":
        extra.append((b"www-authenticate", b"Bearer"))
    return extra


def error_page(error: BridgeError, headers: Headers = ()) -> Page:
    """An error in OpenAI's form."""
    return Page(orjson.dumps(error.body()), error.http_status, [*headers, *error_headers(error)])


# Pages: everything that is not a turn


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose body has been read."""

    url: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    key: str
    body: bytes = b""
    provider_key: str | None = field(default=None, repr=False)


def json_page(value: Any, status: int = 200, headers: Headers = ()) -> Page:
    """A JSON answer."""
    return Page(exact_json.dumps(value), status, headers)


def query_number(query: Mapping[str, str], name: str, *, default: int, largest: int) -> int:
    """A number from 1 to `largest` in a query. Raises InvalidRequest for anything else."""
    given = query.get(name, str(default))
    if re.fullmatch("[0-9]{1,9}", given) is None or not 1 <= int(given) <= largest:
        raise InvalidRequest(f"{name!r} is a number from 1 to {largest}.", param=name)
    return int(given)


def list_page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> Page:
    """A part of a list of objects with ids, as the API pages them: `order`, `limit`, `after`, `before`."""
    limit = query_number(query, "limit", default=20, largest=100)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("'order' is asc or desc.", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        ordered = ordered[_place(ordered, after, "after") + 1 :]
    if (before := query.get("before")) is not None:
        ordered = ordered[: _place(ordered, before, "before")]
    shown = ordered[:limit]
    return json_page(
        {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(ordered) > len(shown),
        }
    )


def _place(items: Sequence[Mapping[str, Any]], name: str, param: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == name:
            return index
    raise InvalidRequest(f"{param!r} names no item of this list.", param=param)
