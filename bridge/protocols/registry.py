"""The protocols that clients can use over HTTP. The route table, playback and replay use this list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from bridge.protocols.chat.encoder import CHAT
from bridge.protocols.client import ClientProtocol, Variant
from bridge.protocols.gemini.protocol import GEMINI
from bridge.protocols.messages.protocol import MESSAGES
from bridge.protocols.responses.encoder import RESPONSES

PROTOCOLS: Mapping[str, ClientProtocol] = {protocol.name: protocol for protocol in (RESPONSES, CHAT, MESSAGES, GEMINI)}
"""By name. CAP is not here: its requests, packets and connections have a server of their own in `bridge.cap`."""


def turn_paths(protocol: ClientProtocol) -> tuple[Variant, ...]:
    """The paths of a protocol on which a turn runs."""
    return (Variant(protocol.path, protocol.operation, protocol.members), *protocol.variants)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{\w+(:path)?}", ".+", path))


_TURNS = [(_pattern(each.path), protocol) for protocol in PROTOCOLS.values() for each in turn_paths(protocol)]
_COUNTS = [
    (_pattern(each.path), protocol)
    for protocol in PROTOCOLS.values()
    if protocol.token_count is not None
    for each in protocol.token_count.variants
]


def protocol_at(path: str) -> ClientProtocol | None:
    """The protocol whose turns run on this path."""
    return next((protocol for pattern, protocol in _TURNS if pattern.fullmatch(path)), None)


def protocol_of(path: str, headers: Iterable[tuple[bytes, bytes]]) -> ClientProtocol | None:
    """The protocol that a client speaks, by its path or by a header that only its clients send."""
    for pattern, protocol in (*_TURNS, *_COUNTS):
        if pattern.fullmatch(path):
            return protocol
    for protocol in PROTOCOLS.values():
        base = protocol.base or protocol.path
        if path == base or path.startswith(f"{base}/"):
            return protocol
    names = {name for name, _ in headers}
    return next((protocol for protocol in PROTOCOLS.values() if protocol.mark in names), None)
