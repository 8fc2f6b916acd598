"""Refusals, in the words of the protocol that is spoken at a path."""

from __future__ import annotations

from bridge.errors import BridgeError
from bridge.http.request import Headers, Request
from bridge.server.cap.places import speaks_cap
from bridge.server.http import Page, error_page, send_page


def refusal(request: Request, error: BridgeError, headers: Headers = ()) -> Page:
    """The answer that is this error: a StreamError on CAP's paths, else in OpenAI's form."""
    request.refused = error.code
    if speaks_cap(request.path):
        from bridge.server.cap.refusals import cap_error_page

        return cap_error_page(request, error, headers)
    return error_page(error, headers)


async def refuse(request: Request, error: BridgeError, headers: Headers = ()) -> None:
    """Answer a request with an error."""
    await send_page(request, refusal(request, error, headers))
