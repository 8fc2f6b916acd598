"""The head of a request as bytes: what two servers could read in two ways is read by neither.

h11 takes line ends without CR and folded header lines, as old servers did. Whoever stands in front of us may not, and
then a part of one client's request is another request to us (request smuggling).
"""

from __future__ import annotations

import re

import h11

_END = b"\r\n\r\n"
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLD = re.compile(rb"\r\n[ \t]")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def fault_of_head(received: bytes) -> str | None:
    """What is wrong with a head of which this much has been received (and maybe some of the body); None if nothing."""
    end = received.find(_END)
    head = received if end < 0 else received[: end + len(_END)]
    if _BARE_LINE_END.search(head):
        return "Lines of a request end with CR LF."
    if _FOLD.search(head):
        return "A header is one line: folded ones are not taken."
    return None


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
