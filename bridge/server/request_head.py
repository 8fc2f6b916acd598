"""The head of a request as bytes: what two servers could read in two ways is read by neither.

h11 takes line ends without CR and folded header lines, as old servers did. Whoever stands in front of us may not, and
then a part of one client's request is another request to us (request smuggling).
"""

from __future__ import annotations

import re

import h11

_END = b"\r\n\r\n"
_LF = ord("\n")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLD = re.compile(rb"\r\n[ \t]")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def fault_of_head(received: bytes, seen: int = 0) -> str | None:
    """What is wrong with a head of which this much has been received (and maybe some of the body); None if nothing.

    The first `seen` bytes have been looked at before: a head may come byte by byte.
    """
    end = received.find(_END, max(0, seen - len(_END)))
    start = max(0, seen - 2)
    while start and received[start] == _LF:
        start -= 1  # never between a CR and its LF
    head = received[start:] if end < 0 else received[start : end + len(_END)]
    if _BARE_LINE_END.search(head):
        return "Lines of a request end with CR LF."
    if _FOLD.search(head):
        return "A header is one line: folded ones are not taken."
    return None


def is_too_long(received: bytes, limit: int) -> bool:
    """Whether a head has more than `limit` bytes, or will have."""
    return len(received) > limit and received.find(_END, 0, limit) < 0


def without_extensions(request: h11.Request) -> h11.Request:
    """A handshake of a WebSocket that offers none. Packed messages are unpacked whole, however large they get."""
    if not any(name == b"sec-websocket-extensions" for name, _ in request.headers):
        return request
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=[each for each in request.headers if each[0] != b"sec-websocket-extensions"],
        http_version=request.http_version,
    )


def in_origin_form(request: h11.Request) -> h11.Request:
    """A request whose target is a whole URL, as it is sent to a proxy, as if its Host had been that URL's.

    So the host is checked where every Host is, whatever the header says (RFC 9112 §3.2.2).
    """
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        return request
    host, path = found.groups()
    headers = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", host), *headers],
        http_version=request.http_version,
    )
