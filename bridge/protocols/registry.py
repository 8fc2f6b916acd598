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
    return (Variant(protocol.path, protocol.api.operation, protocol.members), *protocol.variants)


class _Paths:
    """Protocols by path. Most paths are fixed; the others are tried in order."""

    def __init__(self, paths: Iterable[tuple[str, ClientProtocol]]) -> None:
        self._fixed: dict[str, ClientProtocol] = {}
        self._variable: list[tuple[re.Pattern[str], ClientProtocol]] = []
        for path, protocol in paths:
            if "{" in path:
                self._variable.append((re.compile(re.sub(r"{\w+(:path)?}", ".+", path)), protocol))
            else:
                self._fixed[path] = protocol

    def find(self, path: str) -> ClientProtocol | None:
        if (found := self._fixed.get(path)) is not None:
            return found
        return next((protocol for pattern, protocol in self._variable if pattern.fullmatch(path)), None)


def _count_paths(protocol: ClientProtocol) -> tuple[Variant, ...]:
    return () if protocol.token_count is None else protocol.token_count.variants


_TURNS = _Paths((each.path, protocol) for protocol in PROTOCOLS.values() for each in turn_paths(protocol))
_ALL = _Paths(
    (each.path, protocol)
    for protocol in PROTOCOLS.values()
    for each in (*turn_paths(protocol), *_count_paths(protocol))
)


def protocol_at(path: str) -> ClientProtocol | None:
    """The protocol whose turns run on this path."""
    return _TURNS.find(path)


def protocol_of(path: str, headers: Iterable[tuple[bytes, bytes]]) -> ClientProtocol | None:
    """The protocol that a client speaks, by its path or by a header that only its clients send."""
    if (found := _ALL.find(path)) is not None:
        return found
    for protocol in PROTOCOLS.values():
        base = protocol.base or protocol.path
        if path == base or path.startswith(f"{base}/"):
            return protocol
    names = {name for name, _ in headers}
    return next((protocol for protocol in PROTOCOLS.values() if protocol.mark in names), None)
