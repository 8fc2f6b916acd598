"""A request to the Responses or the Chat Completions API: read, continued, answered and stored in its own form."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from bridge import exact_json
from bridge.api.chat.choices import ChoicesEncoder
from bridge.api.chat.events import ChatEncoder
from bridge.api.chat.request import speaks_functions
from bridge.api.dropped import dropped_fields
from bridge.api.responses.events import ResponsesEncoder
from bridge.api.responses.response import conversation_id, echo_of
from bridge.api.shape import parse_request
from bridge.api.sse import Encoder
from bridge.api.tooling import tool_items
from bridge.errors import InvalidRequest, NotReady
from bridge.server.continuation import NOTHING, Continuation, continue_with, find_continuation, item_objects
from bridge.server.exchange import Exchange, wait_for_model
from bridge.server.service import Service
from bridge.server.session import session_of
from bridge.store.base import StoredResponse
from bridge.turn.turn import Endpoint, Turn

log = logging.getLogger("bridge.server")


class OpenAiExchange(Exchange):
    """An exchange in one of OpenAI's protocols. `open` raises BridgeError when the turn cannot be prepared or begun."""

    __slots__ = ("_continued", "_data", "_keeps", "_own_items", "_path")

    def __init__(self, service: Service, path: Endpoint, key: str, url: str, provider_key: str | None = None) -> None:
        super().__init__(service, key, url, provider_key)
        self._path = path
        self._keeps = False
        self._data: dict[str, Any] = {}
        self._continued = NOTHING
        self._own_items: list[dict[str, Any]] | None = None

    @property
    def protocol(self) -> str:
        return self._path

    async def open(self, data: dict[str, Any], known: Continuation | None = None, *, generate: bool = True) -> None:
        """Read the body and start its turn. `known` is what it continues, where that is known already.

        Without `generate` nothing is answered: the input is only taken in, to be continued.
        """
        self._choose(self._path, data)
        service = self._service
        self._keeps = self._path == "responses" and service.keeps_responses and data.get("store") is not False
        if self._path == "responses":
            _check_background(data, keeps=self._keeps)
        await wait_for_model(service.router, data.get("model"))
        continuation = known or await self._find_continuation(data)
        turn = parse_request(data, self._path, self._resolve, continuation.context)
        if self._path == "responses":
            turn = replace(turn, n=None)  # a response is one answer
        if turn.stream is None:
            turn = replace(turn, stream=service.stream_default)
        turn = replace(turn, session=session_of(data, turn, self._key))
        backend = service.router.backend(turn.backend)
        if backend.takes.provider_key:
            turn = replace(turn, provider_key=self.provider_key)
        self._data, self._continued = data, continuation
        takes = backend.takes
        dropped = dropped_fields(
            data,
            turn,
            self._path,
            samples=takes.sampling,
            limits=takes.counts_tokens,
            hosted=takes.hosted_tools,
        )
        encoder = self._make_encoder(data, turn)
        await self._start(turn, encoder, backend, dropped, generate=generate)
        if isinstance(encoder, ResponsesEncoder):
            service.running[self._key, encoder.id] = self

    async def _find_continuation(self, data: dict[str, Any]) -> Continuation:
        service = self._service
        try:
            return await find_continuation(service.store, self._key, data, enabled=service.keeps_responses)
        except InvalidRequest:
            if not service.forgiving:
                raise
            return NOTHING

    def _make_encoder(self, data: dict[str, Any], turn: Turn) -> Encoder:
        service, created_at = self._service, int(self._service.now())
        if self._path == "responses":
            echo = echo_of(data, turn, store=self._keeps)
            return ResponsesEncoder(
                echo, service.new_id, created_at=created_at, streaming=bool(turn.stream), now=service.now
            )
        options: dict[str, Any] = {
            "created_at": created_at,
            "include_usage": turn.include_usage,
            "streaming": bool(turn.stream),
            "reasoning": service.reasoning,
            "functions": speaks_functions(data),
        }
        if turn.n is None or turn.n == 1:
            return ChatEncoder(turn.requested_model, service.new_id, **options)
        shared = service.new_id("chatcmpl").replace("_", "-", 1)
        return ChoicesEncoder(
            [
                ChatEncoder(turn.requested_model, service.new_id, index=index, id=shared, **options)
                for index in range(turn.n)
            ]
        )

    @property
    def in_background(self) -> bool:
        """Whether the client does not want to wait for the answer."""
        return self._path == "responses" and self._data.get("background") is True

    def forget(self) -> None:
        """Its client wants it gone: it is neither stored nor found any more, and ends where nobody listens."""
        self._keeps = False
        self._release()
        if self.in_background:
            self.cancel()

    def snapshot(self) -> dict[str, Any]:
        """The response object as it stands."""
        assert isinstance(self.encoder, ResponsesEncoder)
        return self.encoder.final or self.encoder.snapshot()

    async def _store(self) -> None:
        encoder = self.encoder
        if isinstance(encoder, ResponsesEncoder) and encoder.final is not None:
            if self._keeps:
                await self.keep(encoder.final)
            await self._extend_conversation(encoder)

    async def keep(self, response: dict[str, Any]) -> None:
        """Store the response as it is now."""
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
        await self._service.store.put(self._key, stored)

    async def _extend_conversation(self, encoder: ResponsesEncoder) -> None:
        conversation = conversation_id(self._data)
        if conversation is not None and encoder.failure is None:
            items = [exact_json.dumps(item) for item in (*self._items(), *encoder.output)]
            try:
                await self._service.store.add_items(self._key, conversation, items)
            except NotReady as error:
                # The client has its answer already, all but the end.
                log.warning("the conversation of request %s was not extended: %s", self.id, error.message)

    def continuation(self) -> Continuation:
        """All that was said up to the end of this response."""
        assert isinstance(self.encoder, ResponsesEncoder)
        return continue_with([*self._continued.context, *self._items(), *self.encoder.output])

    def _items(self) -> list[dict[str, Any]]:
        """The request's own input, each item with an id."""
        assert self.turn is not None
        if self._own_items is None:
            new_id = self._service.new_id
            # The turn has the tools that these offer. They are kept for the requests that continue this one.
            offers = [{**item, "id": new_id("item")} for item in tool_items(self._data.get("input"))]
            self._own_items = offers + item_objects(self.turn.items[self._continued.count :], new_id)
        return self._own_items

    def _release(self) -> None:
        if isinstance(self.encoder, ResponsesEncoder):
            self._service.running.pop((self._key, self.encoder.id), None)


def _check_background(data: dict[str, Any], *, keeps: bool) -> None:
    """Raise InvalidRequest for a background request that nobody could ever get the answer of."""
    if data.get("background") is not True:
        return
    if not keeps:
        raise InvalidRequest("'background' needs the response to be stored: leave 'store' out.", param="background")
    if data.get("stream") is True:
        raise InvalidRequest(
            "A background response is polled, not streamed: leave out 'stream', or 'background'.",
            param="background",
            code="unsupported_parameter",
        )
