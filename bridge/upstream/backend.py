"""A provider over HTTP as a backend: its API builds and decodes the bodies, its credentials make the requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bridge import exact_json
from bridge.core.backend import Backend, EventStream
from bridge.core.items import RawTool
from bridge.core.models import FALLBACK_MODEL, ModelChoice, resolve_model, unlisted_model
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.tooling import SEARCHES
from bridge.upstream.apis import Api
from bridge.upstream.client import Upstream
from bridge.upstream.credentials import Credentials
from bridge.upstream.discovery import ModelList

Record = Callable[[str, str, bytes], None]
"""Called with each body sent and each event received: the request's id, `out` or `in`, and the JSON."""


def without_search(turn: Turn) -> Turn:
    """The same turn, without the provider's own web search."""
    left = tuple(tool for tool in turn.tools if not (isinstance(tool, RawTool) and tool.type.startswith(SEARCHES)))
    return replace(turn, tools=left, web_search=None)


class UpstreamBackend(Backend):
    """Turns over one upstream. `new_session` makes an id for a conversation without one.

    Without `web_search`, requests for the provider's web search are dropped.
    """

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        api: Api,
        credentials: Credentials,
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
        self._credentials = credentials
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
            raise InvalidRequest("The request is nested too deep.") from None
        attempt = self._credentials.attempt(turn, session, content)
        record, trace = self._record, None
        if record is not None:
            record(req_id, "out", content)
            trace = partial(record, req_id, "in")
        return self._upstream.start(attempt, self._api.buffer(turn), trace)

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
        return [*self._api.drops(without_search(turn)), "tools:web_search"]


class CodexBackend(UpstreamBackend):
    """Turns with Codex's login, without Codex. A model's name may end with an effort."""

    def resolve(self, name: str) -> ModelChoice:
        return resolve_model(name, known=self.models(), default=FALLBACK_MODEL) or unlisted_model(name)
