"""Who is let in: Host and Origin first, then the key. A handler around everything.

The handler behind it finds in `request.key` which key was used: `key-` and the first twelve hex digits of its SHA-256.
That tells keys apart and can be written down. It is empty for the paths that need no key.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import trio

from bridge.auth import key_store
from bridge.auth.key_store import ClientKey
from bridge.errors import BridgeError, Forbidden, InvalidRequest, KeyLimitReached, Unauthorized
from bridge.http.request import Handler, Request
from bridge.server.cap.places import PLACES
from bridge.server.cors import (
    answer_preflight,
    is_cross_site,
    is_own_page,
    is_preflight,
    listed_origin,
    origins_of,
    readable_by,
)
from bridge.server.keys import Keyring
from bridge.server.refusals import refuse
from bridge.urls import is_loopback

if TYPE_CHECKING:
    from bridge.http.websocket import WebSocket

_HOST = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")

RETRY_AFTER = 2.0
"""Seconds after which a client with too many open requests may ask again."""

FAREWELL = 1.0
"""Seconds in which a WebSocket whose key is gone can still tell how its answers ended."""

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/health", "/v1/health", "/openapi.json"})
"""Probes carry no key and reveal nothing but up or down and which bridge it is, nor does the description of the API."""

KEY_PROTOCOL = "openai-insecure-api-key."
"""A page cannot set headers on a WebSocket; OpenAI's clients put the key behind this, among the subprotocols."""


def label_of(key: str) -> str:
    """The name under which a key may be written down."""
    return key_store.label_of(hashlib.sha256(key.encode()).digest())


class Gate:
    """Lets a request or a WebSocket through to `handler`, or answers it.

    With `check_host` the Host must be a loopback name or one of `allowed_hosts` (as `Settings` spells them), so that no
    web page can reach the bridge by a name of its own (DNS rebinding). A request with an Origin comes from a web page:
    it is refused, even with a key, unless the origin is one of `allowed_origins` (spelled likewise) or, where the Host
    is checked, the bridge's own.

    A WebSocket is refused by an HTTP answer in place of its handshake. What it offers is in `request.subprotocols`
    alone, without the key. One whose key is revoked is closed (1008).
    """

    def __init__(
        self,
        handler: Handler,
        *,
        keys: Keyring,
        check_host: bool,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._handler = handler
        self._keys = keys
        self._open: Counter[str] = Counter()
        """Requests and WebSockets that are being served, by the labels of their keys."""
        self._sockets: dict[trio.CancelScope, str] = {}
        keys.on_gone.append(self._end_sockets)
        self._check_host = check_host
        self._allowed_hosts = frozenset(allowed_hosts)
        self._allowed_origins = frozenset(origin.encode() for origin in allowed_origins)

    async def __call__(self, request: Request) -> None:
        page = listed_origin(request, self._allowed_origins)
        refusal = self._wrong_place(request, page)
        if refusal is None and page is not None and is_preflight(request):
            await answer_preflight(request, page)
            return
        refusal = refusal or await self._wrong_visitor(request)
        if request.socket is not None:
            _hide_key(request)
        elif page is not None:
            request.answer_headers += readable_by(page)
        if refusal is not None:
            await refuse(request, refusal)
            return
        self._open[request.key] += 1
        try:
            if request.socket is None:
                await self._handler(request)
            else:
                await self._serve_socket(request, request.socket)
        finally:
            self._open[request.key] -= 1
            if not self._open[request.key]:
                del self._open[request.key]

    async def _serve_socket(self, request: Request, socket: WebSocket) -> None:
        """Serve a WebSocket for as long as its key is let in."""
        with trio.CancelScope() as serving:
            self._sockets[serving] = request.key
            try:
                await self._handler(request)
            finally:
                del self._sockets[serving]
        if serving.cancelled_caught:
            await socket.close(1008, "The API key is not let in any more.")

    def _end_sockets(self, label: str) -> None:
        for serving, key in self._sockets.items():
            if key == label:
                serving.deadline = trio.current_time() + FAREWELL

    def _wrong_place(self, request: Request, page: bytes | None) -> BridgeError | None:
        """Why a request is refused whoever sends it; None when it is not. `page` is its origin, if that is listed."""
        if self._check_host and not self._is_our_host(request.header(b"host")):
            return Forbidden(
                "This Host is not served here: use http://127.0.0.1 or http://localhost. "
                "PROXY_ALLOWED_HOSTS lists the other names that are.",
                code="host_not_allowed",
            )
        is_from_web = bool(origins_of(request)) or is_cross_site(request)
        if is_from_web and page is None and not (self._check_host and is_own_page(request)):
            return Forbidden(
                "Requests from this web page are not allowed. PROXY_ALLOWED_ORIGINS lists the origins that are.",
                code="origin_not_allowed",
            )
        return None

    def _is_our_host(self, host: bytes | None) -> bool:
        found = _HOST.fullmatch((host or b"").decode("latin-1").strip().lower())
        if found is None:
            return False
        name = found["host"].removesuffix(".")
        return name in self._allowed_hosts or is_loopback(name.strip("[]"))

    async def _wrong_visitor(self, request: Request) -> BridgeError | None:
        """Why a request that came the right way is refused; None when it is not, and then it names its key."""
        if request.socket is None and request.path in OPEN_PATHS:
            return None
        try:
            key = await self._key_used(request)
        except BridgeError as error:
            return error
        request.key, request.max_body = key.label, key.max_body
        is_full = key.max_connections is not None and self._open[key.label] >= key.max_connections
        if is_full and not _ends_an_answer(request):
            return KeyLimitReached(
                f"This key may have {key.max_connections} request(s) open at once, and has. Wait for one to end.",
                retry_after=RETRY_AFTER,
            )
        if request.method == "POST" and request.has_body:
            kind, *parameters = (request.header(b"content-type") or b"").lower().split(b";")
            if kind.strip() != b"application/json" or not all(map(_is_utf_8, parameters)):
                return InvalidRequest(
                    "Send the body as JSON in UTF-8, with `Content-Type: application/json`.",
                    code="unsupported_media_type",
                    http_status=415,
                )
            if request.header(b"content-encoding") not in (None, b"identity"):
                return InvalidRequest(
                    "Compressed request bodies are not supported. Send the body without Content-Encoding.",
                    code="unsupported_encoding",
                    http_status=415,
                )
        return None

    async def _key_used(self, request: Request) -> ClientKey:
        """The one key that a request carries. Raises Unauthorized when it carries none, several, or a wrong one.

        Some clients send the same key in both headers: that is one key. The same header twice is refused all the same,
        because a proxy in front of us may have checked the other one.
        """
        given = list(_keys_in(request))
        places = {place for place, _ in given}
        if len(places) < len(given) or len({key for _, key in given}) > 1:
            raise Unauthorized(
                "The request carries different API keys, or the same header twice. Send one key, as "
                "`Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        return await self._keys.find(given[0][1] if given else b"")


def _ends_an_answer(request: Request) -> bool:
    """Whether a request makes room: a client with as many open as it may have must be able to end one of them."""
    return request.method == "DELETE" and request.path.startswith(f"{PLACES[0]}/")


def _is_utf_8(parameter: bytes) -> bool:
    """Whether a parameter of a content type names no other charset than JSON's."""
    name, _, value = parameter.partition(b"=")
    return name.strip() != b"charset" or value.strip().strip(b'"') in (b"utf-8", b"utf8", b"us-ascii")


def _keys_in(request: Request) -> Iterator[tuple[bytes, bytes]]:
    """(header, key) for every key in a request; an Authorization of another kind is an empty key."""
    for name, value in request.headers:
        if name == b"x-api-key":
            yield name, value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            yield name, key.strip() if scheme.lower() == b"bearer" else b""
    for protocol in request.subprotocols:
        if protocol.startswith(KEY_PROTOCOL):
            yield b"sec-websocket-protocol", protocol.removeprefix(KEY_PROTOCOL).encode()


def _hide_key(request: Request) -> None:
    """Leave only what is no key of the subprotocols that a WebSocket offers, so that it is never written down.

    Whoever sends the key as a subprotocol must be answered with one: a browser closes the connection otherwise. When
    the handler names none, it is the first that is not the key, or else the key's own.
    """
    assert request.socket is not None
    keys = [each for each in request.subprotocols if each.startswith(KEY_PROTOCOL)]
    others = [each for each in request.subprotocols if each not in keys]
    if keys:
        request.socket.default_subprotocol = (others or keys)[0]
    request.subprotocols = others
    request.headers = [each for each in request.headers if each[0] != b"sec-websocket-protocol"]
