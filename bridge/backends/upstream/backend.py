"""A provider over HTTP as a backend: what is sent and how it is read is its API's, how it gets in is its door's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from bridge.backends.base import EventStream
from bridge.backends.upstream.client import Asking, Upstream
from bridge.backends.upstream.stream import UpstreamBuffer
from bridge.turn.turn import Turn

JSON_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class Api(Protocol):
    """How one kind of provider is spoken to. Pure."""

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        """The body of a request, which is always streamed. Raises InvalidRequest for what it cannot be given."""

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        """What reads the events of the answer."""

    def drops(self, turn: Turn) -> list[str]:
        """What a turn asks for that has no place in the body, in words for a response header."""


class Door(Protocol):
    """How a turn gets in: where to, and as whom."""

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        """The requests of one turn. Raises a BridgeError when there is no login."""


class UpstreamBackend:
    """Turns over one upstream.

    `sent` is told each body that goes out, `trace` each event that comes in; `new_session` names a conversation that
    the client did not name.
    """

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        api: Api,
        door: Door,
        *,
        new_session: Callable[[], str],
        models: tuple[str, ...] = (),
        sent: Callable[[bytes], None] | None = None,
        trace: Callable[[bytes], None] | None = None,
    ) -> None:
        self.name = name
        self._upstream = upstream
        self._api = api
        self._door = door
        self._new_session = new_session
        self._models = models
        self._sent = sent
        self._trace = trace

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        session = turn.session or self._new_session()
        content = orjson.dumps(self._api.build(turn, session))
        asking = self._door.asking(turn, session, content)
        if self._sent is not None:
            self._sent(content)
        return self._upstream.start(asking, self._api.buffer(turn), self._trace)

    def models(self) -> list[str]:
        return list(self._models)

    def drops(self, turn: Turn) -> list[str]:
        return self._api.drops(turn)

    def rate_limits(self) -> Mapping[str, Any] | None:
        return None

    def status(self) -> tuple[bool, str]:
        return True, "nothing is known against it"
