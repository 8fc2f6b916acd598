"""How the page is answered: its headers, its files, its errors, and which requests are refused."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote

import trio

from bridge.errors import BridgeError, Forbidden, InvalidRequest
from bridge.http.pages import Page, PageRequest, error_page, send_page
from bridge.http.request import ClientGone, Handler, Headers, Request
from bridge.protocols.reading import parse_json

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
HEADERS: Headers = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
"""Of every answer of the page: it runs its own scripts only, sends requests nowhere else, and is in no other page."""
NOT_STORED: Headers = ((b"cache-control", b"no-store"),)
SSE: Headers = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)

_KINDS = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
    "png": b"image/png",
}
_FOLDERS = (("bridge.page", "static"), ("bridge.log.export", "page"))
"""Where its files are. The second are those of the exported file: both show a turn with the same code."""

Show = Callable[[PageRequest], Awaitable[Page]]
Stream = Callable[[Request, PageRequest], AsyncGenerator[bytes, None]]


def guarded(handler: Handler) -> Handler:
    """The handler with the page's headers, for requests that the page itself sends. Others are refused.

    The gate has checked the Host, and refused other origins.
    """

    async def handle(request: Request) -> None:
        request.answer_headers += HEADERS
        try:
            _check_sender(request)
            await handler(request)
        except ClientGone:
            pass
        except BridgeError as error:
            request.refused = error.code
            await send_page(request, error_page(error, NOT_STORED))

    return handle


def _check_sender(request: Request) -> None:
    """Raise Forbidden for what a page of another origin may have sent, even from another port of this host.

    Browsers send cookies to every port.
    """
    site = request.header(b"sec-fetch-site")
    if request.path.startswith("/page/") and site is not None and site.lower() not in (b"same-origin", b"none"):
        raise Forbidden("Open the page itself: other pages cannot use it.", code="origin_not_allowed")
    if request.method in ("POST", "DELETE") and request.header(b"authorization") is None:
        origin, host = request.header(b"origin"), request.header(b"host") or b""
        if origin is None or origin.lower() != f"{request.scheme}://".encode() + host.lower():
            raise Forbidden(
                "This needs the Origin of the page itself, or an API key (Authorization: Bearer KEY).",
                code="origin_not_allowed",
            )
        kind = (request.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            raise InvalidRequest(
                "Send `Content-Type: application/json`.", code="unsupported_media_type", http_status=415
            )


def shows(show: Show, max_body: int) -> Handler:
    """A handler that answers with a page."""

    async def handle(request: Request) -> None:
        page: Page | None = None
        with trio.CancelScope() as showing:
            try:
                page = await show(await _read(request, max_body, showing.cancel))
            except BridgeError as error:
                request.refused = error.code
                page = error_page(error, NOT_STORED)
        if page is not None:
            await send_page(request, page)

    return guarded(handle)


def streams(stream: Stream) -> Handler:
    """A handler that answers with server-sent events, until they or the client end."""

    async def handle(request: Request) -> None:
        with trio.CancelScope() as sending:
            asked = await _read(request, 0, sending.cancel)
            async with aclosing(stream(request, asked)) as batches:
                has_begun = False
                async for batch in batches:
                    if not has_begun:
                        has_begun = True
                        request.start(200, SSE)
                    await request.send(batch)
                if not has_begun:
                    request.start(200, SSE)
                await request.send(b"", last=True)

    return guarded(handle)


async def _read(request: Request, max_body: int, gone: Callable[[], None]) -> PageRequest:
    body = await request.read_body(max_body) if request.method in ("POST", "DELETE") else b""
    request.on_gone(gone)
    query = dict(parse_qsl(request.query.decode("latin-1"), keep_blank_values=True))
    # The page encodes an id once more: one from a log may have slashes.
    path = {name: unquote(value) for name, value in request.params.items()}
    return PageRequest(request.path, path, query, request.key, body)


def members_of(request: PageRequest) -> dict[str, Any]:
    """The JSON object in a body; an empty body is an empty object."""
    return parse_json(request.body) if request.body.strip() else {}


# Files


async def send_file(request: Request) -> None:
    """GET /page/static/NAME."""
    await _send_asset(request, request.params["name"])


async def send_start(request: Request) -> None:
    """GET /."""
    await _send_asset(request, "index.html")


async def _send_asset(request: Request, name: str) -> None:
    content, kind = _asset(name)
    tag = b'"%b"' % hashlib.sha256(content).hexdigest()[:32].encode()
    # The browser asks each time whether it has changed: the files are those of the running version.
    headers = [(b"etag", tag), (b"cache-control", b"no-cache")]
    if request.header(b"if-none-match") == tag:
        request.start(304, headers)
        await request.send(b"", last=True)
        return
    await send_page(request, Page(content, 200, headers, kind))


def _asset(name: str) -> tuple[bytes, bytes]:
    """A file of the page, and its type. Raises InvalidRequest for any other name."""
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is not None and "/" not in name and not name.startswith("."):
        for package, folder in _FOLDERS:
            file = files(package).joinpath(folder, name)
            if file.is_file():
                return file.read_bytes(), kind
    raise InvalidRequest(f"The page has no file {name[:80]!r}.", code="not_found", http_status=404)
