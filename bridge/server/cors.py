"""Web pages: whose pages may use the bridge, and what their browser must be told so that it lets them.

A browser asks first (a preflight) and then looks for headers in every answer; without them the page can neither send a
key nor read a byte. A page is allowed by its exact origin and then needs a key like everybody. Cookies are not
used here, so credentials are never allowed.
"""

from __future__ import annotations

import re
from collections.abc import Container

from bridge.http.request import Headers, Request

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


def origins_of(request: Request) -> list[bytes]:
    """Every Origin that a request names, in lower case. A browser sends one at most."""
    return [value.lower() for name, value in request.headers if name == b"origin"]


def listed_origin(request: Request, allowed: Container[bytes]) -> bytes | None:
    """The origin of a request as it was sent, when it is on the list; None for all others."""
    named = origins_of(request)
    return request.header(b"origin") if len(named) == 1 and named[0] in allowed else None


def is_own_page(request: Request) -> bool:
    """Whether a request comes from a page that the bridge has served itself.

    Its origin is then the one that it was asked for under. This tells nothing unless the Host has been checked.
    """
    host = request.header(b"host")
    return (
        host is not None
        and origins_of(request) == [f"{request.scheme}://".encode() + host.lower()]
        and request.method in ("GET", "POST")
        and not is_cross_site(request)
    )


def is_cross_site(request: Request) -> bool:
    """Whether the browser itself says that another site's page is behind a request."""
    return any(name == b"sec-fetch-site" and value.lower() == b"cross-site" for name, value in request.headers)


def is_preflight(request: Request) -> bool:
    """Whether a request is a browser's question and nothing else; one with a body is none."""
    return (
        request.method == "OPTIONS"
        and request.header(b"access-control-request-method") is not None
        and not request.has_body
    )


async def answer_preflight(request: Request, origin: bytes) -> None:
    """Tell the browser of a listed origin that its page may send what it wants to."""
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
    """The headers that let a page of `origin` read an answer."""
    return [*_open_to(origin), (b"access-control-expose-headers", EXPOSED)]


def _open_to(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def _requested_headers(request: Request) -> bytes | None:
    """The header names that a preflight asks for, to be sent back; None unless they are few, and names all of them."""
    asked = b",".join(value for name, value in request.headers if name == b"access-control-request-headers")
    if len(asked) > MAX_HEADERS_SIZE:
        return None
    names = [name.strip(b" \t").lower() for name in asked.split(b",")]
    if len(names) > MAX_HEADERS or not all(_TOKEN.fullmatch(name) for name in names):
        return None
    return b", ".join(names)
