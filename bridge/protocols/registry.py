"""The protocols that clients can use over HTTP. The route table, playback and replay use this list."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.protocols.chat.encoder import CHAT
from bridge.protocols.client import ClientProtocol
from bridge.protocols.responses.encoder import RESPONSES

PROTOCOLS: Mapping[str, ClientProtocol] = {protocol.path: protocol for protocol in (RESPONSES, CHAT)}
"""By path. CAP is not here: its requests, packets and connections have a server of their own in `bridge.cap`."""
