"""Access control, as a handler around all others: the Host and the Origin first, then the key.

`request.key` is then the label of the key: `key-` and the first twelve hex digits of its SHA-256, which identifies the
key and may be logged. It is empty on paths that need no key.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import trio

from bridge.app.keys import Keyring
from bridge.cap import ASSIST_PATHS
from bridge.errors import BridgeError, Forbidden, InvalidRequest, KeyLimitReached, Unauthorized
from bridge.http.request import Handler, Headers, Request
from bridge.page.sessions import API, Sessions, is_of_page, is_open
from bridge.protocols.registry import PROTOCOLS, protocol_of
from bridge.server.dispatch import refuse
from bridge.store import key_store
from bridge.store.key_store import ClientKey
from bridge.urls import is_loopback

if TYPE_CHECKING:
    from bridge.http.websocket import WebSocket

# Web pages (CORS): which origins may use the bridge, and the headers that make their browser allow it.
#
# A browser first sends a preflight and then looks for headers in every answer; without them the page can neither send
# a key nor read a byte. A page is allowed by its exact origin, and needs a key like any other client. Cookies are not
# used here, so credentials are never allowed.

METHODS = b"GET, POST, DELETE, OPTIONS"
MAX_AGE = b"7200"
"""Seconds that a browser may cache a preflight. The requests themselves are checked each time."""

MAX_HEADERS = 64
MAX_HEADERS_SIZE = 2048
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")

HEADERS = b", ".join(
    [
        *(b"accept", b"authorization", b"content-type", b"x-api-key", b"api-key", b"user-agent", b"idempotency-key"),
        *(b"openai-organization", b"openai-project", b"openai-beta", b"x-client-request-id", b"x-request-id"),
        *(name for each in PROTOCOLS.values() for name in each.client_headers),
        *(b"dangerously-allow-browser", b"x-requested-with", b"http-referer", b"x-title"),
        *(b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang", b"x-stainless-os"),
        *(b"x-stainless-package-version", b"x-stainless-runtime", b"x-stainless-runtime-version"),
        *(b"x-stainless-retry-count", b"x-stainless-timeout", b"x-stainless-read-timeout"),
        *(b"x-stainless-helper-method", b"x-stainless-stream-helper", b"x-stainless-raw-response"),
        *(b"x-stainless-poll-helper", b"x-stainless-custom-poll-interval", b"x-stainless-custom-event-handler"),
    ]
)
"""What clients send; for a preflight that names no headers, or invalid ones."""

EXPOSED = b", ".join(
    [
        *(
            b"x-request-id",
            b"x-client-request-id",
            b"x-bridge-dropped",
            b"x-bridge-model-rerouted",
            b"retry-after",
            b"retry-after-ms",
            b"x-should-retry",
        ),
        *(b"openai-model", b"openai-organization", b"openai-processing-ms", b"openai-version"),
        *(
            b"x-ratelimit-%b-%b" % (what, unit)
            for what in (b"limit", b"remaining", b"reset")
            for unit in (b"requests", b"tokens")
        ),
        *(
            b"x-codex-%b-%b" % (window, what)
            for window in (b"primary", b"secondary")
            for what in (b"used-percent", b"window-minutes", b"reset-at", b"reset-after-seconds")
        ),
        *(b"x-codex-plan-type", b"x-codex-active-limit", b"x-codex-rate-limit-reached-type"),
        *(b"x-codex-credits-has-credits", b"x-codex-credits-unlimited", b"x-codex-credits-balance"),
    ]
)
"""The headers of an answer that a page may read, besides those that are always readable."""


def origins_of(request: Request) -> list[bytes]:
    """All Origin headers of a request, in lower case. A browser sends at most one."""
    return [value.lower() for name, value in request.headers if name == b"origin"]


def listed_origin(request: Request, allowed: Container[bytes]) -> bytes | None:
    """The origin of a request as it was sent if it is allowed, otherwise None."""
    named = origins_of(request)
    return request.header(b"origin") if len(named) == 1 and named[0] in allowed else None


def is_own_page(request: Request) -> bool:
    """Whether a request comes from a page that the bridge itself has served: its Origin matches its Host.

    This proves nothing unless the Host has been checked.
    """
    host = request.header(b"host")
    return (
        host is not None
        and origins_of(request) == [f"{request.scheme}://".encode() + host.lower()]
        and (request.method in ("GET", "POST") or (request.method == "DELETE" and is_of_page(request.path)))
        and not is_cross_site(request)
    )


def is_cross_site(request: Request) -> bool:
    """Whether the browser reports that a page of another site sent the request."""
    return any(name == b"sec-fetch-site" and value.lower() == b"cross-site" for name, value in request.headers)


def is_preflight(request: Request) -> bool:
    """Whether a request is a CORS preflight. One with a body is not."""
    return (
        request.method == "OPTIONS"
        and request.header(b"access-control-request-method") is not None
        and not request.has_body
    )


async def answer_preflight(request: Request, origin: bytes) -> None:
    """Allow the page of an allowed origin to send its request."""
    headers = [
        *_open_to(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", _requested_headers(request) or HEADERS),
        (b"access-control-max-age", MAX_AGE),
    ]
    if (request.header(b"access-control-request-private-network") or b"").lower() == b"true":
        headers.append((b"access-control-allow-private-network", b"true"))
    request.start(204, headers)
    await request.send(b"", last=True)


def readable_by(origin: bytes) -> Headers:
    """Headers that let a page of `origin` read the answer."""
    return [*_open_to(origin), (b"access-control-expose-headers", EXPOSED)]


def _open_to(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _requested_headers(request: Request) -> bytes | None:
    """The header names in a preflight, to be sent back; None if they are too many or invalid."""
    asked = b",".join(value for name, value in request.headers if name == b"access-control-request-headers")
    if len(asked) > MAX_HEADERS_SIZE:
        return None
    names = [name.strip(b" \t").lower() for name in asked.split(b",")]
    if len(names) > MAX_HEADERS or not all(_TOKEN.fullmatch(name) for name in names):
        return None
    return b", ".join(names)


_HOST = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")

RETRY_AFTER = 2.0
"""Seconds after which a client with too many open requests may retry."""

FAREWELL = 1.0
"""Seconds that a WebSocket has to finish after its key was revoked."""
KEY_ENDED = "The API key was revoked or has expired."

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/health", "/v1/health", "/openapi.json"})
"""Paths without a key: probes, which reveal only the state, and the description of the API."""

_KEY_HEADERS = {b"x-api-key", *(each.key_header for each in PROTOCOLS.values() if each.key_header is not None)}

KEY_PROTOCOL = "openai-insecure-api-key."
"""A page cannot set headers on a WebSocket: OpenAI's clients send the key as a subprotocol with this prefix."""


def label_of(key: str) -> str:
    """The label of a key, which may be logged."""
    return key_store.label_of(hashlib.sha256(key.encode()).digest())


class Gate:
    """Passes a request or a WebSocket to `handler`, or refuses it.

    With `check_host` the Host must be a loopback name or one of `allowed_hosts` (as `Settings` spells them), so that no
    web page can reach the bridge under a name of its own (DNS rebinding). A request with an Origin comes from a web
    page: it is refused, even with a key, unless the origin is one of `allowed_origins` (spelled likewise) or, if the
    Host is checked, the bridge's own.

    With `sessions` there is the live page: its cookies open the page's own paths, and no others.

    A WebSocket is refused with an HTTP answer instead of a handshake. `request.subprotocols` has what it offers,
    without the key. It is closed (1008) when its key is revoked.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        keys: Keyring,
        check_host: bool,
        allowed_origins: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        sessions: Sessions | None = None,
    ) -> None:
        self._handler = handler
        self._keys = keys
        self._sessions = sessions
        self._open: Counter[str] = Counter()
        """Open requests and WebSockets by the label of their key."""
        self._sockets: dict[trio.CancelScope, str] = {}
        keys.on_gone.append(self._end_sockets)
        self._check_host = check_host
        self._allowed_hosts = frozenset(allowed_hosts)
        self._allowed_origins = frozenset(origin.encode() for origin in allowed_origins)

    async def __call__(self, request: Request) -> None:
        page = listed_origin(request, self._allowed_origins)
        refusal = self._wrong_origin(request, page)
        if refusal is None and page is not None and is_preflight(request):
            await answer_preflight(request, page)
            return
        refusal = refusal or await self._wrong_key(request)
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
        """Serve a WebSocket for as long as its key is valid."""
        with trio.CancelScope() as serving:
            self._sockets[serving] = request.key
            try:
                await self._handler(request)
            finally:
                del self._sockets[serving]
        if serving.cancelled_caught:
            if request.status is None:  # it has not been accepted: the client is still waiting for an answer over HTTP
                await refuse(request, Unauthorized(KEY_ENDED))
            else:
                await socket.close(1008, KEY_ENDED)

    def _end_sockets(self, label: str) -> None:
        for serving, key in self._sockets.items():
            if key == label:
                serving.deadline = trio.current_time() + FAREWELL

    def _wrong_origin(self, request: Request, page: bytes | None) -> BridgeError | None:
        """Why a request is refused whatever its key; None if it is not. `page` is its origin, if that is allowed."""
        if self._check_host and not self._is_our_host(request.header(b"host")):
            return Forbidden(
                "Host not allowed. Use http://127.0.0.1 or http://localhost, or add the host to PROXY_ALLOWED_HOSTS.",
                code="host_not_allowed",
            )
        is_from_web = bool(origins_of(request)) or is_cross_site(request)
        if is_from_web and page is None and not (self._check_host and is_own_page(request)):
            return Forbidden(
                "Requests from this web page are not allowed. Add its origin to PROXY_ALLOWED_ORIGINS.",
                code="origin_not_allowed",
            )
        return None

    def _is_our_host(self, host: bytes | None) -> bool:
        found = _HOST.fullmatch((host or b"").decode("latin-1").strip().lower())
        if found is None:
            return False
        name = found["host"].removesuffix(".")
        return name in self._allowed_hosts or is_loopback(name.strip("[]"))

    async def _wrong_key(self, request: Request) -> BridgeError | None:
        """Why a request is refused; None if it is not, and then `request.key` is set."""
        if request.socket is None and (request.path in OPEN_PATHS or (self._sessions and is_open(request.path))):
            return None
        try:
            key = await self._key_used(request)
        except BridgeError as error:
            return error
        request.key, request.max_body = key.label, key.max_body
        is_full = key.max_connections is not None and self._open[key.label] >= key.max_connections
        if is_full and not _ends_an_answer(request):
            return KeyLimitReached(
                f"Too many open requests: this key allows {key.max_connections} at once. Wait for one to end.",
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
        """The key of a request. Raises Unauthorized if it has none, a wrong one, or several.

        Some clients send the same key in both headers: that is one key. The same header twice is refused even so,
        because a proxy in front of the bridge may have checked the other one.
        """
        given = list(_keys_in(request))
        if not given and self._sessions is not None and request.path.startswith(API):
            if (key := await self._sessions.key_of(request)) is not None:
                return key
            raise Unauthorized("This session has ended. Enter an API key.", code="invalid_session")
        places = {place for place, _ in given}
        if len(places) < len(given) or len({key for _, key in given}) > 1:
            raise Unauthorized(
                "The request carries different API keys, or the same header twice. Send one key, as "
                "`Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        return await self._keys.find(given[0][1] if given else b"")


def _ends_an_answer(request: Request) -> bool:
    """Whether a request frees a slot: a client that has reached its limit must be able to end an answer."""
    return request.method == "DELETE" and request.path.startswith(f"{ASSIST_PATHS[0]}/")


def _is_utf_8(parameter: bytes) -> bool:
    """Whether a parameter of a content type is not a charset other than UTF-8."""
    name, _, value = parameter.partition(b"=")
    return name.strip() != b"charset" or value.strip().strip(b'"') in (b"utf-8", b"utf8", b"us-ascii")


def _keys_in(request: Request) -> Iterator[tuple[bytes, bytes]]:
    """(where it is, key) for every key in a request; an Authorization with another scheme counts as an empty key."""
    for name, value in request.headers:
        if name in _KEY_HEADERS:
            yield name, value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            yield name, key.strip() if scheme.lower() == b"bearer" else b""
    for offered in request.subprotocols:
        if offered.startswith(KEY_PROTOCOL):
            yield b"sec-websocket-protocol", offered.removeprefix(KEY_PROTOCOL).encode()
    protocol = protocol_of(request.path, ())
    if protocol is not None and protocol.key_parameter is not None:
        for parameter, given in parse_qsl(request.query.decode("latin-1")):
            if parameter == protocol.key_parameter:
                yield b"the query", given.encode()


def _hide_key(request: Request) -> None:
    """Remove the key from the subprotocols that a WebSocket offers, so that it is never logged.

    A browser closes the connection unless one of the offered subprotocols is accepted. If the handler accepts none, it
    is the first that is not the key, or else the key's own.
    """
    assert request.socket is not None
    keys = [each for each in request.subprotocols if each.startswith(KEY_PROTOCOL)]
    others = [each for each in request.subprotocols if each not in keys]
    if keys:
        request.socket.default_subprotocol = (others or keys)[0]
    request.subprotocols = others
    request.headers = [each for each in request.headers if each[0] != b"sec-websocket-protocol"]
