"""Errors in CAP's form: one StreamError."""

from __future__ import annotations

from time import time
from uuid import UUID

from bridge.api.cap.failures import Failure, failure_from
from bridge.errors import BridgeError
from bridge.server.cap.accept import ERROR_TYPE, takes_error_type
from bridge.server.http import Headers, Scope, header

_PLACES = ("/v1/assist", "/assist", "/cap/v1/assist")


def speaks_cap(path: str) -> bool:
    """Whether a path is one of CAP's, so that errors there are told in its words."""
    return path.startswith(_PLACES) and path.removeprefix(next(filter(path.startswith, _PLACES)))[:1] in ("", "/")


def cap_refusal(scope: Scope, error: BridgeError, request_id: UUID | None = None) -> tuple[int, bytes, bytes, Headers]:
    """(status, content type, body, headers) of an answer that is an error."""
    failure = failure_from(error, now=time(), request_id=request_id)
    kind = ERROR_TYPE if takes_error_type(header(scope, b"accept")) else b"application/json"
    return failure.status, kind, failure.body, failure_headers(failure)


def failure_headers(failure: Failure) -> Headers:
    """What a failure says in headers."""
    headers = [(b"cache-control", b"no-store")]
    if failure.retry_after is not None:
        headers.append((b"retry-after", str(failure.retry_after).encode()))
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
