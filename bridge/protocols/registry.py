"""The protocols that clients can use over HTTP. The route table, playback and replay use this list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bridge.protocols.chat.encoder import CHAT
from bridge.protocols.client import ClientProtocol
from bridge.protocols.messages.protocol import MESSAGES
from bridge.protocols.responses.encoder import RESPONSES

PROTOCOLS: Mapping[str, ClientProtocol] = {protocol.path: protocol for protocol in (RESPONSES, CHAT, MESSAGES)}
"""By path. CAP is not here: its requests, packets and connections have a server of their own in `bridge.cap`."""


def protocol_of(path: str, headers: Iterable[tuple[bytes, bytes]]) -> ClientProtocol | None:
    """The protocol that a client speaks, by its path or by a header that only its clients send."""
    names = {name for name, _ in headers}
    for protocol in PROTOCOLS.values():
        if path == protocol.path or path.startswith(f"{protocol.path}/"):
            return protocol
    return next((protocol for protocol in PROTOCOLS.values() if protocol.mark in names), None)
