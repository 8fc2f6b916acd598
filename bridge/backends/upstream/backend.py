"""A provider over HTTP as a backend: what is sent and how it is read is its API's, how it gets in is its door's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from bridge import exact_json
from bridge.api.tooling import SEARCHES
from bridge.backends.base import Abilities, EventStream, PlainBackend
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.backends.upstream.client import Asking, Upstream
from bridge.backends.upstream.discovery import ModelList
from bridge.errors import InvalidRequest
from bridge.turn.items import RawTool
from bridge.turn.turn import Turn

JSON_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class Api(Protocol):
    """How one kind of provider is spoken to. Pure."""

    @property
    def takes(self) -> Abilities:
        """What it can be given that not everybody takes."""

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


Record = Callable[[str, str, bytes], None]
"""Told of each body that goes out and each event that comes in: the request's id, `out` or `in`, and the JSON."""


def without_search(turn: Turn) -> Turn:
    """The same turn, without the provider's own web search."""
    left = tuple(tool for tool in turn.tools if not (isinstance(tool, RawTool) and tool.type.startswith(SEARCHES)))
    return replace(turn, tools=left, web_search=None)


class UpstreamBackend(PlainBackend):
    """Turns over one upstream. `new_session` names a conversation that the client did not name.

    Without `web_search` the provider is not asked to search, whatever the client wants.
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
        discovery: ModelList | None = None,
        web_search: bool = True,
        record: Record | None = None,
    ) -> None:
        self.name = name
        self.takes = api.takes
        self._web_search = web_search
        self._upstream = upstream
        self._api = api
        self._door = door
        self._new_session = new_session
        self._models = models
        self._discovery = discovery
        self._record = record

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        turn = turn if self._web_search else without_search(turn)
        session = turn.session or self._new_session()
        try:
            content = exact_json.dumps(self._api.build(turn, session))
        except (TypeError, RecursionError):
            raise InvalidRequest("The request is nested too deep to be passed on.") from None
        asking = self._door.asking(turn, session, content)
        record, trace = self._record, None
        if record is not None:
            record(req_id, "out", content)
            trace = partial(record, req_id, "in")
        return self._upstream.start(asking, self._api.buffer(turn), trace)

    def models(self) -> list[str]:
        found = self._discovery.models() if self._discovery is not None else ()
        return list(dict.fromkeys([*self._models, *found]))

    def lists(self) -> tuple[object, ...] | None:
        return () if self._discovery is None else self._discovery.lists()

    async def wait_until_known(self) -> None:
        if self._discovery is not None:
            await self._discovery.wait()

    async def drops(self, turn: Turn) -> list[str]:
        if self._web_search or turn.web_search is None:
            return self._api.drops(turn)
        name = "web_search_options" if turn.endpoint == "chat" else "tools:web_search"
        return [*self._api.drops(without_search(turn)), name]
