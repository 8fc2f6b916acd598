"""A provider's answer, played again from its recorded events through the code that reads a live one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge import exact_json
from bridge.backends.anthropic.api import MessagesApi
from bridge.backends.openai_compatible.backend import ChatApi
from bridge.backends.openai_compatible.presets import CUSTOM, PRESETS
from bridge.backends.responses.backend import ResponsesApi
from bridge.backends.upstream.backend import Api
from bridge.errors import BridgeError
from bridge.protolog.recording import Frame
from bridge.turn.events import Finished, TurnEvent
from bridge.turn.turn import Turn


class UpstreamPlayback:
    """`feed` it the frames in their order; `take` what they mean. `backend` is the name that it had."""

    in_text = False

    def __init__(self, turn: Turn, frames: Sequence[Frame], backend: str) -> None:
        self._buffer = _api(frames, backend).buffer(turn)

    def feed(self, frame: Frame) -> None:
        """What the provider said next."""
        if frame.kind != "upstream_event" or self._buffer.finished:
            return
        payload = frame.payload
        data = payload.encode("utf-8", "replace") if isinstance(payload, str) else exact_json.dumps(payload)
        try:
            self._buffer.receive(data)
        except BridgeError as error:
            self._buffer.fail(error)

    def take(self) -> list[TurnEvent]:
        """The events since the last call."""
        return self._buffer.take()

    def finish(self, end: Finished) -> None:
        """Nothing more was recorded."""
        if end.outcome in ("completed", "incomplete"):
            self._buffer.over(told=True)
        self._buffer.finish(end)


def _api(frames: Sequence[Frame], backend: str) -> Api:
    """Whose words these are, from how they look."""
    for frame in frames:
        payload: Any = frame.payload
        if not isinstance(payload, dict):
            continue
        if frame.kind == "upstream_request" and "input" in payload:
            return ResponsesApi()
        if frame.kind == "upstream_event":
            kind = payload.get("type")
            if isinstance(kind, str) and kind.startswith(("message", "content_block", "ping")):
                return MessagesApi()
            if "choices" in payload:
                break
    return ChatApi(PRESETS.get(backend, CUSTOM))
