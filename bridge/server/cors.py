"""Web pages: whose pages may use the bridge, and what their browser must be told so that it lets them.

A browser asks first (a preflight) and then looks for headers in every answer; without them the page can neither send a
key nor read a byte. A page is allowed by its exact origin and then needs a key like everybody. Cookies are not
used here, so credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Container

from bridge.server.http import Headers, Scope, Send, has_body, header

METHODS = b"GET, POST, DELETE, OPTIONS"
MAX_AGE = b"7200"
"""Seconds that a browser may remember a preflight. The requests themselves are checked each time."""

MAX_HEADERS = 64
MAX_HEADERS_SIZE = 2048
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")

HEADERS = b", ".join(
    [
        *(b"accept", b"authorization", b"content-type", b"x-api-key", b"api-key", b"user-agent", b"idempotency-key"),
        *(b"openai-organization", b"openai-project", b"openai-beta", b"x-client-request-id", b"x-request-id"),
        *(b"dangerously-allow-browser", b"x-requested-with", b"http-referer", b"x-title"),
        *(b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang", b"x-stainless-os"),
        *(b"x-stainless-package-version", b"x-stainless-runtime", b"x-stainless-runtime-version"),
        *(b"x-stainless-retry-count", b"x-stainless-timeout", b"x-stainless-read-timeout"),
        *(b"x-stainless-helper-method", b"x-stainless-stream-helper", b"x-stainless-raw-response"),
        *(b"x-stainless-poll-helper", b"x-stainless-custom-poll-interval", b"x-stainless-custom-event-handler"),
    ]
)
"""What OpenAI's clients send; for a browser that does not say which headers it means, or says it badly."""

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
"""The headers of an answer that a page may read, beside the few that it always may."""


def origins_of(scope: Scope) -> list[bytes]:
    """Every Origin that a request names, in lower case. A browser sends one at most."""
    return [value.lower() for name, value in scope["headers"] if name == b"origin"]


def listed_origin(scope: Scope, allowed: Container[bytes]) -> bytes | None:
    """The origin of a request as it was sent, when it is on the list; None for all others."""
    named = origins_of(scope)
    return header(scope, b"origin") if len(named) == 1 and named[0] in allowed else None


def is_own_page(scope: Scope) -> bool:
    """Whether a request comes from a page that the bridge has served itself.

    Its origin is then the one that it was asked for under. This tells nothing unless the Host has been checked.
    """
    host = header(scope, b"host")
    return (
        host is not None
        and origins_of(scope) == [b"http://" + host.lower()]
        and scope.get("method", "GET") in ("GET", "POST")  # a WebSocket has no method, and begins with a GET
        and not is_cross_site(scope)
    )


def is_cross_site(scope: Scope) -> bool:
    """Whether the browser itself says that another site's page is behind a request."""
    return any(name == b"sec-fetch-site" and value.lower() == b"cross-site" for name, value in scope["headers"])


def is_preflight(scope: Scope) -> bool:
    """Whether a request is a browser's question and nothing else; one with a body is none."""
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and header(scope, b"access-control-request-method") is not None
        and not has_body(scope)
    )


async def answer_preflight(scope: Scope, send: Send, origin: bytes) -> None:
    """Tell the browser of a listed origin that its page may send what it wants to."""
    headers = [
        *_open_to(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", _requested_headers(scope) or HEADERS),
        (b"access-control-max-age", MAX_AGE),
    ]
    if (header(scope, b"access-control-request-private-network") or b"").lower() == b"true":
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def readable_by(origin: bytes, send: Send) -> Send:
    """`send`, with the headers that let a page of `origin` read the answer."""
    extra = [*_open_to(origin), (b"access-control-expose-headers", EXPOSED)]

    async def send_readable(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return send_readable


def _open_to(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _requested_headers(scope: Scope) -> bytes | None:
    """The header names that a preflight asks for, to be sent back; None unless they are few, and names all of them."""
    asked = b",".join(value for name, value in scope["headers"] if name == b"access-control-request-headers")
    if len(asked) > MAX_HEADERS_SIZE:
        return None
    names = [name.strip(b" \t").lower() for name in asked.split(b",")]
    if len(names) > MAX_HEADERS or not all(_TOKEN.fullmatch(name) for name in names):
        return None
    return b", ".join(names)
