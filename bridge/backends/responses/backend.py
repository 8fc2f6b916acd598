"""Any server that speaks the Responses API as a backend: the turn's items go to it as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from bridge.backends.base import EventStream
from bridge.backends.responses.body import build_body, check_pairs
from bridge.backends.responses.decode import ResponsesBuffer
from bridge.backends.upstream.client import Asking, Upstream
from bridge.turn.turn import Turn

JSON_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class Door(Protocol):
    """How a turn gets in: where to, and as whom."""

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        """The requests of one turn. Raises a BridgeError when there is no login."""


class ResponsesBackend:
    """Turns over one upstream.

    `sent` is told each body that goes out, `trace` each event that comes in; `new_session` names a conversation that
    the client did not name.
    """

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        door: Door,
        *,
        new_session: Callable[[], str],
        models: tuple[str, ...] = (),
        sent: Callable[[bytes], None] | None = None,
        trace: Callable[[bytes], None] | None = None,
    ) -> None:
        self.name = name
        self._upstream = upstream
        self._door = door
        self._new_session = new_session
        self._models = models
        self._sent = sent
        self._trace = trace

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        check_pairs(turn.items)
        session = turn.session or self._new_session()
        content = orjson.dumps(build_body(turn, session))
        asking = self._door.asking(turn, session, content)
        if self._sent is not None:
            self._sent(content)
        return self._upstream.start(asking, ResponsesBuffer(turn.functions), self._trace)

    def models(self) -> list[str]:
        return list(self._models)

    def drops(self, turn: Turn) -> list[str]:
        return []

    def rate_limits(self) -> Mapping[str, Any] | None:
        return None

    def status(self) -> tuple[bool, str]:
        return True, "nothing is known against it"
