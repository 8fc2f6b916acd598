"""The outermost handler: gives each request its id, and reports to counts, traces and the log when it has ended.

The answer's `x-request-id` is ours. The client's own id (`X-Client-Request-Id` or `x-request-id`) is logged beside it
and sent back as `x-client-request-id`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from bridge.http.request import Handler, Request
from bridge.logs import ACCESS, RequestNames, current_request
from bridge.telemetry import Counts, method_of

if TYPE_CHECKING:
    from bridge.telemetry.tracing import Tracing

log = logging.getLogger(ACCESS)

NOWHERE = "none"
"""The route of a request that matched none, and the status of one that got no answer."""

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
        names = self._name(request)
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

    def _name(self, request: Request) -> RequestNames:
        """Give a request its id, and have the answer repeat it. Not in `__call__`, whose locals last as long as it."""
        names = RequestNames(
            self._new_id("req") if request.socket is None else None, clients_id(request), request.socket is None
        )
        # A connection has one task, and each of its requests sets this again.
        current_request.set(names)
        if names.id is not None:
            request.answer_headers.append((b"x-request-id", names.id.encode()))
            if names.clients is not None:
                request.answer_headers.append((b"x-client-request-id", names.clients.encode()))
        return names

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
    """The client's own id of a request; None if it has none, or one that cannot be logged safely."""
    for name in (b"x-client-request-id", b"x-request-id"):
        given = request.header(name)
        if given is not None and _CLIENTS_ID.fullmatch(given):
            return given.decode()
    return None
