"""Who is let in: Host and Origin first, then the key. A plain ASGI middleware around everything."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

from bridge.errors import Forbidden, InvalidRequest, Unauthorized
from bridge.server.http import Receive, Scope, Send, header, refuse

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::\d{1,5})?")

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
"""Probes carry no key and reveal nothing but up or down."""


class Gate:
    """Lets a request through to `app`, or answers it.

    Behind a loopback address the Host must be a loopback name, so that no web page can reach the bridge by a name of
    its own (DNS rebinding). A request with an Origin comes from a web page: refused, even with a key.
    """

    def __init__(self, app: Any, *, keys: Iterable[str], check_host: bool) -> None:
        self._app = app
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._check_host = check_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self.refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refuse(scope, receive, send, refusal)

    def refusal(self, scope: Scope) -> Forbidden | InvalidRequest | Unauthorized | None:
        """Why a request is not let in; None when it is."""
        if header(scope, b"content-length") is not None and header(scope, b"transfer-encoding") is not None:
            # Two lengths for one body: what a proxy in front of us took for the end of the request may be another.
            return InvalidRequest("A request has one length: Content-Length or chunks, not both.", code="bad_framing")
        if self._check_host and not _is_loopback(header(scope, b"host")):
            return Forbidden(
                "This Host is not served here: use http://127.0.0.1 or http://localhost.",
                code="host_not_allowed",
            )
        if header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") == b"cross-site":
            return Forbidden("Requests from web pages are not allowed.", code="origin_not_allowed")
        if scope["path"] in OPEN_PATHS:
            return None
        if not self._has_key(scope):
            return Unauthorized(
                "Missing or wrong API key. Send it as `Authorization: Bearer KEY`; "
                "unless PROXY_API_KEY sets it, the bridge prints at start where it is kept."
            )
        if scope["method"] == "POST":
            kind = (header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                return InvalidRequest(
                    "Send the body as JSON, with `Content-Type: application/json`.",
                    code="unsupported_media_type",
                    http_status=415,
                )
        return None

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")]
        if len(given) != 1:
            return False
        value = given[0]
        if header(scope, b"authorization") is not None:
            scheme, _, value = value.partition(b" ")
            if scheme.lower() != b"bearer":
                return False
        digest = hashlib.sha256(value.strip()).digest()
        # Every key is compared, in constant time each: nothing is learnt from how long it takes.
        return sum(hmac.compare_digest(digest, key) for key in self._keys) > 0


def _is_loopback(host: bytes | None) -> bool:
    if host is None:
        return False
    found = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    if found is None:
        return False
    name = found["name"] or found["v6"]
    if name.rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
