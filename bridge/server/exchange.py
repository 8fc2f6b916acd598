"""One request for one turn, from its body to its end; whoever sends the answer pulls it, piece by piece.

HTTP, WebSocket and background requests differ only in how the bytes get to the client.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
import trio

from bridge.api.chat.choices import ChoicesEncoder
from bridge.api.chat.events import ChatEncoder
from bridge.api.chat.request import speaks_functions
from bridge.api.dropped import HEADER, apply_policy, dropped_fields
from bridge.api.responses.events import CANCELLED, ResponsesEncoder
from bridge.api.responses.response import conversation_id, echo_of
from bridge.api.shape import parse_request
from bridge.api.sse import Encoder
from bridge.backends.answers import start_answer
from bridge.backends.base import Backend, EventStream
from bridge.backends.router import Router
from bridge.errors import BridgeError, InvalidRequest, NotReady
from bridge.protolog.turn_records import calls_in, turn_end, turn_start
from bridge.server.continuation import NOTHING, Continuation, continue_with, find_continuation, item_objects
from bridge.server.ratelimits import limit_headers, tell_reset
from bridge.server.service import Service
from bridge.server.session import session_of
from bridge.store.base import StoredResponse, UsageRow
from bridge.turn.events import Finished, ToolCall, TurnEvent, Usage
from bridge.turn.turn import Endpoint, Turn

log = logging.getLogger("bridge.server")

Headers = list[tuple[bytes, bytes]]


class Exchange:
    """The life of one request, and what the log, the store and the count of usage get to know of it.

    `open` prepares and starts the turn and raises BridgeError when that fails; then `next` until `finished`; `end` in
    any case. `key` is the label of the client's key: what is stored is this key's alone. `provider_key` is what the
    client brings for the provider; nothing but its backend gets to see it.
    """

    # A stream that waits should cost little.
    __slots__ = (
        "_arrived",
        "_backend",
        "_calls",
        "_cancelled",
        "_continued",
        "_data",
        "_end",
        "_ended",
        "_first",
        "_keeps",
        "_key",
        "_own_items",
        "_path",
        "_ready",
        "_recorder",
        "_service",
        "_started",
        "_stream",
        "_url",
        "_waiting",
        "encoder",
        "headers",
        "id",
        "provider_key",
        "turn",
    )

    def __init__(self, service: Service, path: Endpoint, key: str, url: str, provider_key: str | None = None) -> None:
        self.id = service.new_id("req")
        self.headers: Headers = [(b"x-request-id", self.id.encode())]
        self.encoder: Encoder | None = None
        self.turn: Turn | None = None
        self._service = service
        self._path = path
        self._key = key
        self._url = url
        self.provider_key = provider_key
        self._recorder = service.recorder
        self._arrived = False
        self._stream: EventStream | None = None
        self._end: Finished | None = None
        self._keeps = False
        self._data: dict[str, Any] = {}
        self._continued = NOTHING
        self._own_items: list[dict[str, Any]] | None = None
        self._backend: Backend | None = None
        self._ended: trio.Event | None = None
        self._ready: tuple[bytes, list[TurnEvent]] | None = None
        self._cancelled = False
        self._waiting: trio.CancelScope | None = None
        self._started = trio.current_time()
        self._first: float | None = None
        self._calls: tuple[ToolCall, ...] = ()

    # Beginning

    def arrived(self, what: dict[str, Any]) -> None:
        """Note in the log that the request is here."""
        self._arrived = True
        self.record("http_ingress", "in", "client_request", {"path": self._url, **what})

    async def open(self, data: dict[str, Any], known: Continuation | None = None, *, generate: bool = True) -> None:
        """Read the body and start its turn. `known` is what it continues, where that is known already.

        Without `generate` nothing is answered: the input is only taken in, to be continued.
        """
        if self._service.player is not None:
            self._service = self._service.player.choose(self._service, self._path, data)
        service = self._service
        self._keeps = self._path == "responses" and service.keeps_responses and data.get("store") is not False
        if self._path == "responses":
            _check_background(data, keeps=self._keeps)
        await wait_for_model(service.router, data.get("model"))
        continuation = known or await self._find_continuation(data)
        resolve = partial(service.router.resolve, keyed=self.provider_key is not None)
        turn = parse_request(data, self._path, resolve, continuation.context)
        if self._path == "responses":
            turn = replace(turn, n=None)  # a response is one answer
        if turn.stream is None:
            turn = replace(turn, stream=service.stream_default)
        backend = service.router.backend(turn.backend)
        if backend.takes.provider_key:
            turn = replace(turn, provider_key=self.provider_key, session=session_of(data, turn, self._key))
        self._announce(data, turn, backend)
        self.turn, self._data, self._backend, self._continued = turn, data, backend, continuation
        self.encoder = self._make_encoder(data, turn)
        self._stream = await start_answer(backend, turn, self.id) if generate else _Silence()
        if isinstance(self.encoder, ResponsesEncoder):
            service.running[self._key, self.encoder.id] = self

    async def _find_continuation(self, data: dict[str, Any]) -> Continuation:
        service = self._service
        try:
            return await find_continuation(service.store, self._key, data, enabled=service.keeps_responses)
        except InvalidRequest:
            if not service.forgiving:
                raise
            return NOTHING

    def _announce(self, data: dict[str, Any], turn: Turn, backend: Backend) -> None:
        takes = backend.takes
        dropped = dropped_fields(data, turn, self._path, samples=takes.sampling, hosted=takes.hosted_tools)
        dropped = list(dict.fromkeys([*dropped, *backend.drops(turn)]))
        if self.provider_key is not None and not takes.provider_key:
            dropped.append("x-provider-key")
        apply_policy(self._service.policy, dropped)
        if dropped:
            self.headers.append((HEADER, ",".join(dropped).encode()))
        self.headers += limit_headers(backend.rate_limits())
        self.record("turn", "none", "turn_start", turn_start(turn, backend.name, dropped))

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

    # Running

    @property
    def in_background(self) -> bool:
        """Whether the client does not want to wait for the answer."""
        return self._path == "responses" and self._data.get("background") is True

    @property
    def finished(self) -> bool:
        """Whether the last bytes of the answer have been made, and taken."""
        return self.encoder is not None and self.encoder.finished and self._ready is None

    @property
    def failure(self) -> BridgeError | None:
        """Why the answer failed."""
        return self.encoder.failure if self.encoder is not None else None

    async def begin(self) -> bytes:
        """The first bytes of the answer, once something of it is visible, but after `hold` seconds at the latest.

        Raises the failure of an answer that fails before that.
        """
        assert self.encoder is not None
        out = self.encoder.begin()
        with trio.move_on_after(self._service.hold):
            while not self.encoder.visible and not self.finished:
                out += (await self.next())[0]
        if self.encoder.failure is not None and not self.encoder.visible:
            raise self.encoder.failure
        return out

    async def next(self) -> tuple[bytes, list[TurnEvent]]:
        """The next bytes of the answer, and the events that they are made of. Safe to cancel: nothing gets lost."""
        if self._ready is None:
            events = await self._wait()
            self._ready = self._encode(events), events
        encoder = self.encoder
        if isinstance(encoder, ResponsesEncoder) and encoder.final is not None:
            # Before its client hears of its end: the next request may continue it.
            if self._keeps:
                await self.keep(encoder.final)
            await self._extend_conversation(encoder)
        ready, self._ready = self._ready, None
        return ready

    async def _wait(self) -> list[TurnEvent]:
        assert self._stream is not None
        events: list[TurnEvent] = []
        with trio.CancelScope() as self._waiting:
            if not self._cancelled:
                events = await self._stream.next()
        if self._cancelled:
            events = [Finished("cancelled", reason=CANCELLED)]
        if self._first is None:
            self._first = round(trio.current_time() - self._started, 6)
        if self._recorder is not None:
            self._calls += calls_in(events)
        end = events[-1]
        if isinstance(end, Finished):
            self._end = end
            if end.error is not None and self._backend is not None:
                tell_reset(end.error, self._backend.rate_limits(), self._service.now())
        return events

    async def wait_ended(self) -> None:
        """Until `end` has been called."""
        if self._ended is None:
            self._ended = trio.Event()
        await self._ended.wait()

    def cancel(self) -> None:
        """End the answer as cancelled."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    def forget(self) -> None:
        """Its client wants it gone: it is neither stored nor found any more, and ends where nobody listens."""
        self._keeps = False
        self._unregister()
        if self.in_background:
            self.cancel()

    def snapshot(self) -> dict[str, Any]:
        """The response object as it stands."""
        assert isinstance(self.encoder, ResponsesEncoder)
        return self.encoder.final or self.encoder.snapshot()

    def _encode(self, events: list[TurnEvent]) -> bytes:
        """The events as bytes. A mistake of ours ends the stream as a failure, like everything else that can happen."""
        assert self.encoder is not None
        try:
            return self.encoder.feed(events)
        except Exception:
            self._end = Finished("failed", error=self.mistake())
            return self.encoder.feed([self._end])

    # The end

    async def keep(self, response: dict[str, Any]) -> None:
        """Store the response as it is now."""
        stored = StoredResponse(
            response["id"],
            response["created_at"],
            orjson.dumps(response),
            orjson.dumps(self._items()),
            self._data.get("previous_response_id"),
            conversation_id(self._data),
        )
        await self._service.store.put(self._key, stored)

    async def _extend_conversation(self, encoder: ResponsesEncoder) -> None:
        conversation = conversation_id(self._data)
        if conversation is not None and encoder.failure is None:
            items = [orjson.dumps(item) for item in (*self._items(), *encoder.output)]
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
            self._own_items = item_objects(self.turn.items[self._continued.count :], self._service.new_id)
        return self._own_items

    def fail(self, error: BridgeError) -> None:
        """The request ended before its turn could."""
        self._end = Finished("failed", error=error)

    def mistake(self) -> BridgeError:
        """The error for what should never happen."""
        log.exception("request %s failed in the bridge itself", self.id)
        return BridgeError(f"The bridge made a mistake; its log has the details under {self.id}.")

    def end(self) -> None:
        """The request is over, one way or the other."""
        if self._ended is not None:
            self._ended.set()
        if self._stream is not None:
            self._stream.close()
        self._unregister()
        if not self._arrived:
            return
        failed = Finished("failed", error=self.failure) if self.failure else None
        end = failed or self._end or Finished("cancelled", reason="client_gone")
        self._count(end)
        usage = self.encoder.usage if self.encoder is not None else None
        total = round(trio.current_time() - self._started, 6)
        self.record("turn", "none", "turn_end", turn_end(end, usage, self._calls, self._first, total))

    def _unregister(self) -> None:
        if isinstance(self.encoder, ResponsesEncoder):
            self._service.running.pop((self._key, self.encoder.id), None)

    def _count(self, end: Finished) -> None:
        if self.turn is None:
            return
        usage = (self.encoder.usage if self.encoder is not None else None) or Usage()
        tokens = usage.input, usage.cached, usage.output, usage.reasoning
        day = datetime.now(UTC).date().isoformat()
        failed = int(end.outcome == "failed")
        self._service.store.count(UsageRow(day, self._key, self.turn.model, 1, failed, *tokens))

    def record(self, phase: str, direction: str, kind: str, payload: dict[str, Any]) -> None:
        """One line of the event log."""
        if self._recorder is not None:
            self._recorder.event(phase, direction, kind, self.id, payload)

    def record_start(self, status: int, headers: Headers) -> None:
        """The head of an HTTP answer, in the log."""
        shown = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
        self.record("client_egress", "out", "client_start", {"status": status, "headers": shown})

    def record_sse(self, out: bytes, said: str | None = None) -> None:
        """A piece of a stream, in the log; `said` where it is nothing but this text."""
        if self._recorder is not None:
            self._recorder.client_sse(self.id, out, said)
            if self.finished:
                self.record("client_egress", "out", "client_sse_done", {})

    def record_json(self, body: bytes) -> None:
        """A whole answer, in the log."""
        if self._recorder is not None:
            self._recorder.client_json(self.id, body)


async def wait_for_model(router: Router, model: Any) -> None:
    """Until it can be told what the model of a request is; until a child has told its own, that may not be known."""
    if isinstance(model, str):
        await router.wait_for(model)


class _Silence:
    """The answer to a request that wants none."""

    async def next(self) -> list[TurnEvent]:
        return [Finished("completed")]

    def close(self) -> None:
        pass


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
