"""Refusals, in the words of the protocol that is spoken at a path."""

from __future__ import annotations

from bridge.errors import BridgeError
from bridge.server.cap.places import speaks_cap
from bridge.server.http import (
    REFUSED,
    Headers,
    Page,
    Receive,
    Scope,
    Send,
    error_page,
    has_body,
    send_page,
    send_page_early,
)


def refusal(scope: Scope, error: BridgeError, headers: Headers = ()) -> Page:
    """The answer that is this error: a StreamError on CAP's paths, else in OpenAI's form."""
    scope[REFUSED] = error.code
    if speaks_cap(scope["path"]):
        from bridge.server.cap.refusals import cap_error_page

        return cap_error_page(scope, error, headers)
    return error_page(error, headers)


async def refuse(scope: Scope, receive: Receive, send: Send, error: BridgeError, headers: Headers = ()) -> None:
    """An error for a request of which nothing but the head has been looked at."""
    page = refusal(scope, error, headers)
    if has_body(scope):
        await send_page_early(send, receive, page)
    else:
        await send_page(send, page)
