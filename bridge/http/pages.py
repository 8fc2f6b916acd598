"""Pages: answers that are not streams, and the requests for them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge import exact_json
from bridge.errors import BridgeError, InvalidRequest
from bridge.http.request import Headers, Request, Sink
from bridge.urls import is_header_safe


def provider_key(request: Request) -> str | None:
    """The client's own key for the provider. Raises InvalidRequest if it cannot be sent in a header."""
    value = request.header(b"x-provider-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not is_header_safe(key):
        raise InvalidRequest("X-Provider-Key must contain only visible ASCII characters.", code="invalid_provider_key")
    return key


@dataclass(frozen=True, slots=True)
class Page:
    """A complete answer."""

    body: bytes
    status: int = 200
    headers: Headers = ()
    kind: bytes = b"application/json"


async def send_page(sink: Sink, page: Page) -> None:
    length = (b"content-length", str(len(page.body)).encode())
    sink.start(page.status, [(b"content-type", page.kind), length, *page.headers])
    await sink.send(page.body, last=True)


def error_headers(error: BridgeError) -> Headers:
    extra = []
    if error.retry_after is not None:
        extra.append((b"retry-after", str(math.ceil(error.retry_after)).encode()))
    if error.http_status == 429 and error.severity == "fatal":
        # OpenAI's SDKs retry after any 429, but a used-up quota stays used up.
        extra.append((b"x-should-retry", b"false"))
    if error.http_status == 401 and error.code == "invalid_api_key":
        extra.append((b"www-authenticate", b"Bearer"))
    return extra


def error_page(error: BridgeError, headers: Headers = (), body: dict[str, Any] | None = None) -> Page:
    """An error, in OpenAI's format unless it comes with another `body`."""
    return Page(
        orjson.dumps(error.body() if body is None else body), error.http_status, [*headers, *error_headers(error)]
    )


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request whose body has been read."""

    url: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    key: str
    body: bytes = b""
    provider_key: str | None = field(default=None, repr=False)


def json_page(value: Any, status: int = 200, headers: Headers = ()) -> Page:
    return Page(exact_json.dumps(value), status, headers)


def query_number(query: Mapping[str, str], name: str, *, default: int, largest: int) -> int:
    """A number from 1 to `largest` in a query. Raises InvalidRequest for anything else."""
    given = query.get(name, str(default))
    if re.fullmatch("[0-9]{1,9}", given) is None or not 1 <= int(given) <= largest:
        raise InvalidRequest(f"{name!r} must be a number from 1 to {largest}.", param=name)
    return int(given)


def list_page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> Page:
    """A page of a list of objects with ids; the query has `order`, `limit`, `after` and `before`, as in OpenAI."""
    limit = query_number(query, "limit", default=20, largest=100)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("'order' must be asc or desc.", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if (after := query.get("after")) is not None:
        ordered = ordered[_position(ordered, after, "after") + 1 :]
    if (before := query.get("before")) is not None:
        ordered = ordered[: _position(ordered, before, "before")]
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


def _position(items: Sequence[Mapping[str, Any]], name: str, param: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == name:
            return index
    raise InvalidRequest(f"{param!r} is not the id of an item in this list.", param=param)
