"""The Messages API, for turns."""

from __future__ import annotations

from typing import Any

from bridge.backends.anthropic.body import build_body, dropped
from bridge.backends.anthropic.decode import MessagesBuffer
from bridge.backends.base import Abilities
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.turn.turn import Turn


class MessagesApi:
    """The Messages API, streamed."""

    takes = Abilities(sampling=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return build_body(turn)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return MessagesBuffer(turn)

    def drops(self, turn: Turn) -> list[str]:
        return dropped(turn)
