"""Around everything: gives each request its id, and tells counts, traces and the log when it has ended.

The answer's `x-request-id` is ours. What the client calls its request (`X-Client-Request-Id`, or an `x-request-id` of
its own) is written beside it wherever the request is told of, and repeated as `x-client-request-id`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from bridge.api.sse import KEEPALIVE
from bridge.logs import ACCESS, RequestNames, current_request
from bridge.server.counts import Counts, method_of
from bridge.server.http import REFUSED, ROUTE, Receive, Scope, Send, header, key_label

if TYPE_CHECKING:
    from bridge.server.tracing import Tracing

log = logging.getLogger(ACCESS)

NOWHERE = "none"
"""The route of a request that came to none, and the status of one that got no answer."""

_CLIENTS_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Observed:
    """An ASGI application around `app`."""

    def __init__(self, app: Any, counts: Counts, new_id: Callable[[str], str], tracing: Tracing | None = None) -> None:
        self._app = app
        self._counts = counts
        self._new_id = new_id
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Each request and each WebSocket has a task, and so a context, of its own. A stream may wait here for long, so
        # little is kept: one frame, and what the answer's head needs.
        is_http = scope["type"] == "http"
        names = RequestNames(self._new_id("req") if is_http else None, clients_id(scope), is_http)
        current_request.set(names)
        counts, started = self._counts, trio.current_time()
        span = self._tracing.begin(scope, names) if self._tracing is not None else None
        answer = _Answer(send, counts, names)
        counts.entered(is_http)
        try:
            await self._app(scope, receive, answer.send if is_http else send)
        finally:
            counts.left(is_http)
            if REFUSED in scope:
                counts.refused(scope[REFUSED])
            if is_http:
                self._ended(scope, answer.status, trio.current_time() - started)
            if span is not None:
                span.end(method_of(scope.get("method", "")), scope.get(ROUTE, NOWHERE), answer.status)

    def _ended(self, scope: Scope, status: int | None, seconds: float) -> None:
        method, route = method_of(scope["method"]), scope.get(ROUTE, NOWHERE)
        self._counts.requests.add(method, route, str(status or NOWHERE))
        self._counts.seconds.observe(route, seconds)
        if not log.isEnabledFor(logging.INFO):
            return
        about = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        if key_label(scope):
            about["key"] = key_label(scope)
        if REFUSED in scope:
            about["code"] = scope[REFUSED]
        shown = "no answer" if status is None else str(status)
        log.info("%s %s: %s in %.3f s", method, scope["path"][:200], shown, seconds, extra=about)


class _Answer:
    """What is sent, with the names of the request in its head."""

    __slots__ = ("_counts", "_names", "_send", "status")

    def __init__(self, send: Send, counts: Counts, names: RequestNames) -> None:
        self._send = send
        self._counts = counts
        self._names = names
        self.status: int | None = None

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = message.get("headers", ())
            known = {name for name, _ in given}
            named = ((b"x-request-id", self._names.id), (b"x-client-request-id", self._names.clients))
            ours = [(name, value.encode()) for name, value in named if value is not None and name not in known]
            message = {**message, "headers": [*given, *ours]}
        elif message.get("body") is KEEPALIVE:
            self._counts.keepalives += 1
        await self._send(message)


def clients_id(scope: Scope) -> str | None:
    """What the client calls its request; None where it has no name for it, or none that can be written down."""
    for name in (b"x-client-request-id", b"x-request-id"):
        given = header(scope, name)
        if given is not None and _CLIENTS_ID.fullmatch(given):
            return given.decode()
    return None
