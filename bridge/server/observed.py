"""Around everything: gives each request its id, and tells counts, traces and the log when it has ended.

The answer's `x-request-id` is ours. What the client calls its request (`X-Client-Request-Id`, or an `x-request-id` of
its own) is written beside it wherever the request is told of, and repeated as `x-client-request-id`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from bridge.http.request import Handler, Request
from bridge.logs import ACCESS, RequestNames, current_request
from bridge.server.counts import Counts, method_of

if TYPE_CHECKING:
    from bridge.server.tracing import Tracing

log = logging.getLogger(ACCESS)

NOWHERE = "none"
"""The route of a request that came to none, and the status of one that got no answer."""

_CLIENTS_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Observed:
    """A handler around `handler`."""

    def __init__(
        self,
        handler: Handler,
        counts: Counts,
        new_id: Callable[[str], str],
        tracing: Tracing | None = None,
    ) -> None:
        self._handler = handler
        self._counts = counts
        self._new_id = new_id
        self._tracing = tracing

    async def __call__(self, request: Request) -> None:
        is_http = request.socket is None
        names = RequestNames(self._new_id("req") if is_http else None, clients_id(request), is_http)
        # A connection has one task, and each of its requests sets this again.
        current_request.set(names)
        named = ((b"x-request-id", names.id), (b"x-client-request-id", names.clients)) if is_http else ()
        request.answer_headers += [(name, value.encode()) for name, value in named if value is not None]
        counts, started = self._counts, trio.current_time()
        span = self._tracing.begin(request, names) if self._tracing is not None else None
        counts.entered(is_http)
        try:
            await self._handler(request)
        finally:
            counts.left(is_http)
            if request.refused is not None:
                counts.refused(request.refused)
            if is_http:
                self._ended(request, trio.current_time() - started)
            if span is not None:
                span.end(method_of(request.method), request.route or NOWHERE, request.status)

    def _ended(self, request: Request, seconds: float) -> None:
        method, route, status = method_of(request.method), request.route or NOWHERE, request.status
        self._counts.requests.add(method, route, str(status or NOWHERE))
        self._counts.seconds.observe(route, seconds)
        if not log.isEnabledFor(logging.INFO):
            return
        about = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        if request.key:
            about["key"] = request.key
        if request.refused is not None:
            about["code"] = request.refused
        shown = "no answer" if status is None else str(status)
        log.info("%s %s: %s in %.3f s", method, request.path[:200], shown, seconds, extra=about)


def clients_id(request: Request) -> str | None:
    """What the client calls its request; None where it has no name for it, or none that can be written down."""
    for name in (b"x-client-request-id", b"x-request-id"):
        given = request.header(name)
        if given is not None and _CLIENTS_ID.fullmatch(given):
            return given.decode()
    return None
