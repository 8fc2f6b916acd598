"""Who is let in: Host and Origin first, then the key. A plain ASGI middleware around everything.

The application behind it finds in `scope["bridge.key"]` which key was used: `key-` and the first twelve hex digits of
its SHA-256. That tells keys apart and can be written down. It is missing for the paths that need no key.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import trio

from bridge.auth import key_store
from bridge.auth.key_store import ClientKey
from bridge.errors import BridgeError, Forbidden, InvalidRequest, KeyLimitReached, Unauthorized
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
from bridge.server.http import KEY, MAX_BODY, Receive, Scope, Send, has_body, header, key_label
from bridge.server.keys import Keyring
from bridge.server.refusals import refuse
from bridge.urls import is_loopback

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
    """Lets a request or a WebSocket through to `app`, or answers it.

    With `check_host` the Host must be a loopback name or one of `allowed_hosts` (as `Settings` spells them), so that no
    web page can reach the bridge by a name of its own (DNS rebinding). A request with an Origin comes from a web page:
    it is refused, even with a key, unless the origin is one of `allowed_origins` (spelled likewise) or, where the Host
    is checked, the bridge's own.

    A WebSocket is refused by an HTTP answer in place of its handshake. `app` may do the same: until it accepts, it can
    answer as it answers a request. What a WebSocket offers is in `scope["subprotocols"]` alone, without the key. One
    whose key is not let in any more is closed (1008).
    """

    def __init__(
        self,
        app: Any,
        *,
        keys: Keyring,
        check_host: bool,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._open: Counter[str] = Counter()
        """Requests and WebSockets that are being served, by the labels of their keys."""
        self._sockets: dict[trio.CancelScope, str] = {}
        keys.on_gone.append(self._end_sockets)
        self._check_host = check_host
        self._allowed_hosts = frozenset(allowed_hosts)
        self._allowed_origins = frozenset(origin.encode() for origin in allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        page = listed_origin(scope, self._allowed_origins)
        refusal = self._wrong_place(scope, page)
        if refusal is None and page is not None and is_preflight(scope):
            await answer_preflight(scope, send, page)
            return
        refusal = refusal or await self._wrong_visitor(scope)
        if scope["type"] == "websocket":
            send = _before_handshake(scope, send)
            _hide_key(scope)
        elif page is not None:
            send = readable_by(page, send)
        if refusal is not None:
            await refuse(scope, receive, send, refusal)
            return
        label = key_label(scope)
        self._open[label] += 1
        try:
            if scope["type"] == "http":
                await self._app(scope, receive, send)
            else:
                await self._serve_socket(scope, receive, send)
        finally:
            self._open[label] -= 1
            if not self._open[label]:
                del self._open[label]

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket for as long as its key is let in."""
        with trio.CancelScope() as serving:
            self._sockets[serving] = key_label(scope)
            try:
                await self._app(scope, receive, send)
            finally:
                del self._sockets[serving]
        if serving.cancelled_caught:
            await send({"type": "websocket.close", "code": 1008, "reason": "The API key is not let in any more."})

    def _end_sockets(self, label: str) -> None:
        for serving, key in self._sockets.items():
            if key == label:
                serving.deadline = trio.current_time() + FAREWELL

    def _wrong_place(self, scope: Scope, page: bytes | None) -> BridgeError | None:
        """Why a request is refused whoever sends it; None when it is not. `page` is its origin, if that is listed."""
        if self._check_host and not self._is_our_host(header(scope, b"host")):
            return Forbidden(
                "This Host is not served here: use http://127.0.0.1 or http://localhost. "
                "PROXY_ALLOWED_HOSTS lists the other names that are.",
                code="host_not_allowed",
            )
        is_from_web = bool(origins_of(scope)) or is_cross_site(scope)
        if is_from_web and page is None and not (self._check_host and is_own_page(scope)):
            return Forbidden(
                "Requests from this web page are not allowed. PROXY_ALLOWED_ORIGINS lists the origins that are.",
                code="origin_not_allowed",
            )
        if header(scope, b"content-length") is not None and header(scope, b"transfer-encoding") is not None:
            # Two lengths for one body: what a proxy in front of us took for the end of the request may be another.
            return InvalidRequest("A request has one length: Content-Length or chunks, not both.", code="bad_framing")
        return None

    def _is_our_host(self, host: bytes | None) -> bool:
        found = _HOST.fullmatch((host or b"").decode("latin-1").strip().lower())
        if found is None:
            return False
        name = found["host"].removesuffix(".")
        return name in self._allowed_hosts or is_loopback(name.strip("[]"))

    async def _wrong_visitor(self, scope: Scope) -> BridgeError | None:
        """Why a request that came the right way is refused; None when it is not, and then the scope names its key."""
        if scope["type"] == "http" and scope["path"] in OPEN_PATHS:
            return None
        try:
            key = await self._key_used(scope)
        except BridgeError as error:
            return error
        scope[KEY] = key.label
        if key.max_body is not None:
            scope[MAX_BODY] = key.max_body
        is_full = key.max_connections is not None and self._open[key.label] >= key.max_connections
        if is_full and not _ends_an_answer(scope):
            return KeyLimitReached(
                f"This key may have {key.max_connections} request(s) open at once, and has. Wait for one to end.",
                retry_after=RETRY_AFTER,
            )
        if scope.get("method") == "POST" and has_body(scope):
            kind, *parameters = (header(scope, b"content-type") or b"").lower().split(b";")
            if kind.strip() != b"application/json" or not all(map(_is_utf_8, parameters)):
                return InvalidRequest(
                    "Send the body as JSON in UTF-8, with `Content-Type: application/json`.",
                    code="unsupported_media_type",
                    http_status=415,
                )
        return None

    async def _key_used(self, scope: Scope) -> ClientKey:
        """The one key that a request carries. Raises Unauthorized when it carries none, several, or a wrong one.

        Some clients send the same key in both headers: that is one key. The same header twice is refused all the same,
        because a proxy in front of us may have checked the other one.
        """
        given = list(_keys_in(scope))
        places = {place for place, _ in given}
        if len(places) < len(given) or len({key for _, key in given}) > 1:
            raise Unauthorized(
                "The request carries different API keys, or the same header twice. Send one key, as "
                "`Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        return await self._keys.find(given[0][1] if given else b"")


def _ends_an_answer(scope: Scope) -> bool:
    """Whether a request makes room: who has as many open as may be must be able to end one of them."""
    return scope.get("method") == "DELETE" and scope["path"].startswith(f"{PLACES[0]}/")


def _is_utf_8(parameter: bytes) -> bool:
    """Whether a parameter of a content type names no other charset than JSON's."""
    name, _, value = parameter.partition(b"=")
    return name.strip() != b"charset" or value.strip().strip(b'"') in (b"utf-8", b"utf8", b"us-ascii")


def _keys_in(scope: Scope) -> Iterator[tuple[bytes, bytes]]:
    """(header, key) for every key in a request; an Authorization of another kind is an empty key."""
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield name, value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            yield name, key.strip() if scheme.lower() == b"bearer" else b""
    for protocol in scope.get("subprotocols", ()):
        if protocol.startswith(KEY_PROTOCOL):
            yield b"sec-websocket-protocol", protocol.removeprefix(KEY_PROTOCOL).encode()


def _hide_key(scope: Scope) -> None:
    """Leave only what is no key of the subprotocols that a WebSocket offers, so that it is never written down."""
    scope["subprotocols"] = [each for each in scope["subprotocols"] if not each.startswith(KEY_PROTOCOL)]
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"sec-websocket-protocol"]


def _before_handshake(scope: Scope, send: Send) -> Send:
    """`send`, for a WebSocket that has not been accepted: it takes the messages of an HTTP answer too.

    Whoever sends the key as a subprotocol must be answered with one: a browser closes the connection otherwise. When
    the application names none, it is the first that is not the key, or else the key's own.
    """
    offered = scope["subprotocols"]
    keys = [each for each in offered if each.startswith(KEY_PROTOCOL)]
    others = [each for each in offered if each not in keys]
    subprotocol = (others or keys)[0] if keys else None

    async def send_handshake(message: Scope) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            headers = [each for each in message.get("headers", ()) if each[0] != b"connection"]
            message = {**message, "type": f"websocket.{kind}", "headers": [*headers, (b"connection", b"close")]}
        elif kind == "http.response.body":
            message = {**message, "type": f"websocket.{kind}"}
        elif kind == "websocket.accept" and subprotocol is not None and message.get("subprotocol") is None:
            message = {**message, "subprotocol": subprotocol}
        await send(message)

    return send_handshake
