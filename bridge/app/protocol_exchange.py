"""A request in one of the registered protocols: read, continued, answered and stored in its own form."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bridge import exact_json
from bridge.app.continuation import NOTHING, Continuation, continue_with, find_continuation, session_of
from bridge.app.exchange import Exchange
from bridge.app.service import Service
from bridge.core.backend import Backend
from bridge.core.models import MOCK
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest, ModelNotFound, NotReady
from bridge.protocols.client import AnswerContext, ClientProtocol, StreamForm
from bridge.protocols.reading import conversation_id
from bridge.protocols.responses.build import build_stored_items
from bridge.protocols.responses.encoder import ResponsesEncoder
from bridge.protocols.tooling import tool_items
from bridge.routing.router import Router
from bridge.store.base import StoredResponse

log = logging.getLogger("bridge.server")

# Background responses continue without their client: stored at once as in progress, and again at their end.
#
# The client polls GET /v1/responses/{id}. A response that was in progress when the bridge ended is reported as failed.

UNFINISHED = ("queued", "in_progress")


async def run_in_background(service: Service, exchange: ProtocolExchange) -> bytes:
    """Let the exchange continue by itself. Returns the response object to answer with."""
    nursery = service.background
    if nursery is None:
        raise NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
    snapshot = exchange.snapshot()
    await exchange.keep(snapshot)
    nursery.start_soon(_run, exchange)
    return exact_json.dumps(snapshot)


async def _run(exchange: ProtocolExchange) -> None:
    try:
        while not exchange.finished:
            await exchange.next()
    except Exception:
        exchange.fail(exchange.mistake())
    finally:
        exchange.end()


def as_interrupted(body: dict[str, Any]) -> dict[str, Any]:
    """A stored response that was in progress when its bridge ended."""
    error = {"code": "server_error", "message": "The bridge was stopped before the response was complete. Try again."}
    return body | {"status": "failed", "error": error}


class ProtocolExchange(Exchange):
    """An exchange in a registered protocol. `open` raises BridgeError when the turn cannot be prepared or begun."""

    __slots__ = ("_continued", "_data", "_keeps", "_own_items", "_protocol")

    def __init__(
        self, service: Service, protocol: ClientProtocol, key: str, url: str, provider_key: str | None = None
    ) -> None:
        super().__init__(service, key, url, provider_key)
        if protocol.request_id_header is not None:
            self.headers.append((protocol.request_id_header, self.id.encode()))
        self._protocol = protocol
        self._keeps = False
        self._data: dict[str, Any] = {}
        self._continued = NOTHING
        self._own_items: list[dict[str, Any]] | None = None

    @property
    def protocol(self) -> str:
        return self._protocol.name

    @property
    def client_protocol(self) -> ClientProtocol:
        """How this exchange reads and writes."""
        return self._protocol

    @property
    def stream_form(self) -> StreamForm:
        """The form of the stream that the request asks for."""
        return self._protocol.stream_form(self._data)

    async def open(self, data: dict[str, Any], known: Continuation | None = None, *, generate: bool = True) -> None:
        """Read the body and start its turn. `known` is what it continues, if the caller knows that.

        Without `generate` there is no answer: the input is only stored, so that another request can continue it.
        """
        self._choose(self._protocol.name, data)
        service, settings = self._service, self._settings
        self._keeps = self._protocol.keeps_answers and service.keeps_responses and data.get("store") is not False
        if self._protocol.keeps_answers:
            _check_background(data, keeps=self._keeps)
        await self._wait_for_model(data.get("model"))
        continuation = known or await self._find_continuation(data)
        turn = self._protocol.parse(data, continuation.context)
        name = await served_name(settings.router, turn.model, self._protocol, keyed=self.provider_key is not None)
        choice = replace(self._resolve(name), requested=turn.model)
        backend = settings.router.backend(choice.backend)
        turn = turn.for_model(
            choice,
            stream=settings.stream_default if turn.stream is None else turn.stream,
            session=session_of(data, turn, self._key),
            provider_key=self.provider_key if backend.takes.provider_key else None,
        )
        self._data, self._continued = data, continuation
        context = AnswerContext(settings.new_id, settings.now, settings.reasoning, self._keeps)
        encoder = self._protocol.make_encoder(turn, data, context)

        def ignored(turn: Turn, backend: Backend) -> Iterable[str]:
            return self._protocol.dropped_fields(data, turn, backend.takes)

        await self._start(turn, encoder, backend, ignored, generate=generate)
        if isinstance(encoder, ResponsesEncoder):
            service.running[self._key, encoder.id] = self

    async def _find_continuation(self, data: dict[str, Any]) -> Continuation:
        service = self._service
        try:
            return await find_continuation(service.store, self._key, data, enabled=service.keeps_responses)
        except InvalidRequest:
            if not self._settings.forgiving:
                raise
            return NOTHING

    @property
    def in_background(self) -> bool:
        """Whether the client does not want to wait for the answer."""
        return self._protocol.keeps_answers and self._data.get("background") is True

    def forget(self) -> None:
        """The client has deleted this response: do not store it, and cancel it if it runs in the background."""
        self._keeps = False
        self._release()
        if self.in_background:
            self.cancel()

    def snapshot(self) -> dict[str, Any]:
        """The response object in its present state."""
        assert isinstance(self.encoder, ResponsesEncoder)
        return self.encoder.final or self.encoder.snapshot()

    async def _store(self) -> None:
        encoder = self.encoder
        if isinstance(encoder, ResponsesEncoder) and encoder.final is not None:
            if self._keeps and not await self.keep(encoder.final) and self._ready is not None:
                out, events = self._ready
                self._ready = encoder.without_storage(out), events
            await self._extend_conversation(encoder)

    async def keep(self, response: dict[str, Any]) -> bool:
        """Store the response as it is now; whether it can be relied on."""
        items = self._items()
        stored = StoredResponse(
            response["id"],
            response["created_at"],
            exact_json.dumps(response),
            exact_json.dumps(items),
            self._data.get("previous_response_id"),
            conversation_id(self._data),
            tuple(dict.fromkeys(item["id"] for item in (*response["output"], *items))),
        )
        return await self._service.store.put(self._key, stored)

    async def _extend_conversation(self, encoder: ResponsesEncoder) -> None:
        conversation = conversation_id(self._data)
        if conversation is not None and encoder.failure is None:
            items = [exact_json.dumps(item) for item in (*self._items(), *encoder.output)]
            try:
                await self._service.store.add_items(self._key, conversation, items)
            except NotReady as error:
                # The client has already received everything but the end.
                log.warning("the conversation of request %s was not extended: %s", self.id, error.message)

    def continuation(self) -> Continuation:
        """The whole conversation up to the end of this response."""
        assert isinstance(self.encoder, ResponsesEncoder)
        return continue_with([*self._continued.context, *self._items(), *self.encoder.output])

    def _items(self) -> list[dict[str, Any]]:
        """The request's own input, each item with an id."""
        assert self.turn is not None
        if self._own_items is None:
            new_id = self._settings.new_id
            # The turn has the tools that these offer. They are kept for the requests that continue this one.
            offers = [{**item, "id": new_id("item")} for item in tool_items(self._data.get("input"))]
            self._own_items = offers + build_stored_items(self.turn.items[self._continued.count :], new_id)
        return self._own_items

    def _release(self) -> None:
        if isinstance(self.encoder, ResponsesEncoder):
            self._service.running.pop((self._key, self.encoder.id), None)


async def served_name(router: Router, name: str, protocol: ClientProtocol, *, keyed: bool) -> str:
    """A model's name; the default's in place of one that the protocol's clients have built in and no backend serves."""
    if name.lower().startswith(protocol.own_models) and router.default.name != MOCK:
        try:
            router.resolve(name, keyed=keyed)
        except ModelNotFound:
            return await router.default_model()
    return name


def _check_background(data: dict[str, Any], *, keeps: bool) -> None:
    """Raise InvalidRequest for a background request whose answer could never be retrieved."""
    if data.get("background") is not True:
        return
    if not keeps:
        raise InvalidRequest("'background' requires a stored response. Remove 'store'.", param="background")
    if data.get("stream") is True:
        raise InvalidRequest(
            "A background response is polled, not streamed. Remove 'stream' or 'background'.",
            param="background",
            code="unsupported_parameter",
        )
