"""Which form of an answer a client wants, by its `Accept`. Pure."""

from __future__ import annotations

import re

from bridge.api.cap.events import Form
from bridge.errors import InvalidRequest

ERROR_TYPE = b"application/vnd.coreason.error+json"
SSE_TYPE = b"text/event-stream"

_FORMS: dict[bytes, tuple[Form, bytes]] = {
    b"application/json": ("json", b"application/json"),
    SSE_TYPE: ("sse", b"text/event-stream; charset=utf-8"),
    b"application/x-ndjson": ("ndjson", b"application/x-ndjson"),
    b"application/jsonl": ("ndjson", b"application/jsonl"),
    b"application/vnd.coreason.stream+json": ("ndjson", b"application/vnd.coreason.stream+json"),
}
"""The media types that are served: their forms, and what the answer calls itself."""

_QUALITY = re.compile(rb"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def choose_form(accept: bytes | None, *, streams: bool, default: Form) -> tuple[Form, bytes]:
    """(form, content type) of an answer. With `streams` there are only streams.

    `default` is for a client that takes anything. Raises InvalidRequest (406) when nothing fits.
    """
    served = {kind: form for kind, form in _FORMS.items() if not streams or form[0] != "json"}
    usual = next(kind for kind, (form, _) in served.items() if form == default)
    order = [usual, *(kind for kind in served if kind != usual)]
    best: tuple[float, int] | None = None
    chosen = usual
    for kind in order:
        rank = _quality(kind, accept)
        # Of two that are liked equally the one that is named, not the one that a wildcard lets in.
        if rank > (0.0, 0) and (best is None or rank > best):
            best, chosen = rank, kind
    if best is None:
        raise InvalidRequest(
            f"None of the types in 'Accept' is served here: {', '.join(kind.decode() for kind in served)}.",
            code="not_acceptable",
            http_status=406,
        )
    return served[chosen]


def takes_error_type(accept: bytes | None) -> bool:
    """Whether a client names the type of errors, or everything that is like it."""
    return accept is not None and _quality(ERROR_TYPE, accept)[1] > 1


def _quality(kind: bytes, accept: bytes | None) -> tuple[float, int]:
    """(how much a type is wanted, how exactly it is named: 3 by its name, 2 `type/*`, 1 `*/*`, 0 not at all)."""
    if accept is None or not accept.strip():
        return 1.0, 1
    major = kind.split(b"/")[0] + b"/*"
    found: tuple[float, int] = (0.0, 0)
    for entry in accept.split(b","):
        name, *parameters = (part.strip().lower() for part in entry.split(b";"))
        exactness = {kind: 3, major: 2, b"*/*": 1}.get(name, 0)
        # The most exact entry decides.
        if exactness > found[1]:
            found = _weight(parameters), exactness
    return found if found[0] > 0 else (0.0, 0)


def _weight(parameters: list[bytes]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            return float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return 1.0
