"""A provider over HTTP as a backend: its API builds and decodes the bodies, its credentials make the requests."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import trio

from bridge import exact_json
from bridge.core.backend import Abilities, Backend, EventStream
from bridge.core.items import RawTool
from bridge.core.models import FALLBACK_MODEL, ModelChoice, resolve_model, unlisted_model
from bridge.core.thoughts import seal
from bridge.core.turn import CODEX_TIERS, Turn
from bridge.errors import InvalidRequest, UpstreamError
from bridge.protocols.chat import build as chat
from bridge.protocols.chat.decoder import ChatBuffer
from bridge.protocols.chat.presets import CUSTOM, Preset
from bridge.protocols.messages import build as messages
from bridge.protocols.messages.decoder import MessagesBuffer
from bridge.protocols.responses import build as responses
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.protocols.tooling import SEARCHES
from bridge.protocols.upstream import UpstreamBuffer

if TYPE_CHECKING:
    from bridge.upstream.client import Upstream
    from bridge.upstream.credentials import Credentials

log = logging.getLogger("bridge")


class Api(Protocol):
    """The API of one kind of provider."""

    @property
    def takes(self) -> Abilities:
        """The optional features that it supports."""

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        """The body of a request, which is always streamed. Raises InvalidRequest for a turn that it cannot express."""

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        """The decoder of the answer's events."""

    def drops(self, turn: Turn) -> list[str]:
        """The fields of a turn that the body cannot express, for a response header."""


class ResponsesApi:
    """The Responses API as Codex uses it (seed 001), streamed and not stored. Items are passed on as they are."""

    takes = Abilities(counts_tokens=True, hosted_tools=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        responses.check_pairs(turn.items)
        return responses.build_codex_request(turn, session)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return ResponsesBuffer(turn.functions, partial(seal, turn))

    def drops(self, turn: Turn) -> list[str]:
        return ["service_tier"] if turn.service_tier is not None and turn.service_tier not in CODEX_TIERS else []


class PlainResponsesApi(ResponsesApi):
    """The Responses API of other servers: without what Codex adds to each request."""

    takes = Abilities(sampling=True, hosted_tools=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        responses.check_pairs(turn.items)
        return responses.build_provider_request(turn, session)

    def drops(self, turn: Turn) -> list[str]:
        return []


class ChatApi:
    """Chat completions, streamed: Gemini, Groq, OpenRouter, Ollama, LM Studio, vLLM, OpenAI, …"""

    def __init__(self, preset: Preset = CUSTOM) -> None:
        self._preset = preset
        self.takes = Abilities(sampling=True, documents=preset.documents is not None, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return chat.build_body(turn, self._preset)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        signs = self._preset.signatures and turn.encrypted_reasoning
        return ChatBuffer(turn.functions, parallel=turn.parallel, signs=signs)

    def drops(self, turn: Turn) -> list[str]:
        return chat.dropped(turn, self._preset)


def chat_url(base_url: str) -> str:
    """The URL of chat completions. The base URL includes the version, as in OpenAI's clients."""
    return f"{base_url.rstrip('/')}/chat/completions"


class MessagesApi:
    """Anthropic's Messages API, streamed."""

    takes = Abilities(sampling=True, documents=True, provider_key=True)

    def build(self, turn: Turn, session: str) -> dict[str, Any]:
        return messages.build_body(turn)

    def buffer(self, turn: Turn) -> UpstreamBuffer:
        return MessagesBuffer(turn)

    def drops(self, turn: Turn) -> list[str]:
        return messages.dropped(turn)


# The models that a provider lists

FRESH = 300.0
PATIENCE = 10.0
"""Seconds for a provider to respond."""
MAX_LIST = 8 * 1024 * 1024
MAX_MODELS = 5000
MAX_NAME = 256


class ModelList:
    """The models that one provider lists, by GET `url`. `headers` is called for each request, since a login expires.

    A list is fresh for five minutes. An older one is served while a new one is fetched; if the provider does not
    respond, its last list stays. Only the first caller waits for it.
    """

    def __init__(
        self, name: str, upstream: Upstream, url: str, headers: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> None:
        self._name = name
        self._upstream = upstream
        self._url = url
        self._headers = headers
        self._models: tuple[str, ...] = ()
        self._fetched_at: float | None = None
        self._fetching: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<ModelList {self._name} models={len(self._models)}>"

    def models(self) -> tuple[str, ...]:
        """The list as far as it is known; when it is old, a new one is fetched in the background."""
        if self._fetching is None and not self._is_fresh():
            self._fetching = trio.Event()
            if not self._upstream.spawn(self._refresh):
                self._fetching = None  # too early, or too late
        return self._models

    def lists(self) -> tuple[object, ...] | None:
        """The list, after the first request for it; see Backend."""
        models = self.models()
        return None if self._fetched_at is None else (models,)

    async def wait(self) -> None:
        """Wait for the first request for the list, whether it succeeds or fails."""
        self.models()
        if self._fetched_at is None and self._fetching is not None:
            await self._fetching.wait()

    def _is_fresh(self) -> bool:
        return self._fetched_at is not None and trio.current_time() - self._fetched_at < FRESH

    async def _refresh(self) -> None:
        assert self._fetching is not None
        try:
            with trio.move_on_after(PATIENCE) as patience:
                self._models = await self._fetch()
            if patience.cancelled_caught:
                log.warning("%s did not list its models within %g s", self._name, PATIENCE)
        except Exception as error:
            # The list stays as it was. Only the type is logged: a message may hold what was sent.
            log.warning("%s did not list its models (%s)", self._name, type(error).__name__)
        finally:
            self._fetched_at = trio.current_time()
            self._fetching.set()
            self._fetching = None

    async def _fetch(self) -> tuple[str, ...]:
        client = self._upstream.client_to(self._url)
        async with client.stream("GET", self._url, headers=dict(await self._headers())) as answer:
            if answer.status_code != 200:
                raise UpstreamError(f"status {answer.status_code}")
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_LIST:
                    raise ValueError("the list is too long")
        return read_models(body)


def read_models(body: bytes) -> tuple[str, ...]:
    """The ids in a list of models, as OpenAI and Anthropic write it; Gemini's begin with `models/`."""
    data: Any = orjson.loads(body)
    entries = data.get("data") or data.get("models") or ()
    names = [entry.get("id") or entry.get("name") for entry in entries if isinstance(entry, dict)]
    # Names are shown on terminals: control characters are not accepted.
    known = [name for name in names if isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable()]
    kept = [name.removeprefix("models/") for name in known if name not in ("", "models/")]
    return tuple(dict.fromkeys(kept))[:MAX_MODELS]


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
