"""Errors in CAP's form: one StreamError."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any
from uuid import UUID

from bridge.api.cap.failures import Failure, failure_from
from bridge.errors import BridgeError
from bridge.http.request import Headers, Request
from bridge.server.cap.accept import ERROR_TYPE, takes_error_type
from bridge.server.http import Page


def named_id(known: Mapping[str, Any]) -> UUID | None:
    """The id of a request that comes to nothing, where its body was read and has one."""
    body = known.get("body")
    try:
        return UUID(body["request_id"]) if isinstance(body, dict) else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def cap_error_page(request: Request, error: BridgeError, headers: Headers = (), request_id: UUID | None = None) -> Page:
    """The answer that is this error."""
    return failure_page(request, failure_from(error, now=time(), request_id=request_id), headers)


def failure_page(request: Request, failure: Failure, headers: Headers = ()) -> Page:
    """The answer that is this failure, under the name for errors that its client takes."""
    extra = [(b"cache-control", b"no-store")]
    if failure.retry_after is not None:
        extra.append((b"retry-after", str(failure.retry_after).encode()))
    if failure.status == 401:
        extra.append((b"www-authenticate", b"Bearer"))
    kind = ERROR_TYPE if takes_error_type(request.header(b"accept")) else b"application/json"
    return Page(failure.body, failure.status, [*headers, *extra], kind)
