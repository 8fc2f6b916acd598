"""One request, one turn, one answer: from a body to a stream of events or a JSON object.

Until the first piece of the answer the status is still open, so that a failure can be an HTTP error; but no longer than
HOLD seconds, then the stream begins and a failure is an event in it. Silence is broken by comments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from time import time
from typing import Any

import trio

from bridge.api.dropped import HEADER, dropped_fields
from bridge.api.reading import parse_json
from bridge.api.sse import KEEPALIVE, Encoder
from bridge.backends.base import EventStream
from bridge.backends.router import MOCK_MODELS, Router
from bridge.errors import BridgeError, InvalidRequest
from bridge.protolog.record import Recorder
from bridge.server.http import (
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    read_body,
    send_error,
    send_json,
    send_refusal,
    send_start,
)
from bridge.turn.events import Finished, TextDelta, TurnEvent
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

log = logging.getLogger("bridge.server")

HOLD = 2.0
BODY_SECONDS = 60.0
SSE = b"text/event-stream; charset=utf-8"
SSE_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

NewId = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One client protocol: how its body is read and how its answer is written."""

    parse: Callable[[dict[str, Any], Callable[[str], ModelChoice]], Turn]
    encoder: Callable[[dict[str, Any], Turn, NewId, int], Encoder]


@dataclass(frozen=True, slots=True)
class Service:
    """What every request needs."""

    router: Router
    new_id: NewId
    max_body: int
    keepalive: float
    stream_default: bool = False
    recorder: Recorder | None = None
    notes: Callable[[Turn], Headers] = lambda turn: ()
    """Response headers that tell what the configuration does to this turn."""


class TurnEndpoint:
    """An ASGI application for one protocol."""

    def __init__(self, protocol: Protocol, service: Service) -> None:
        self._protocol = protocol
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(self._service, self._protocol, scope["path"], send)
        try:
            body = None
            with trio.move_on_after(BODY_SECONDS):
                body = await read_body(scope, receive, self._service.max_body)
            if body is None:
                raise InvalidRequest("The request's body did not come in time.", code="timeout", http_status=408)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, receive, request, nursery.cancel_scope)
                await request.serve(body)
                nursery.cancel_scope.cancel()
        except ClientGone:
            pass
        except BridgeError as error:
            await request.refuse(error, receive)
        finally:
            request.end()


async def _watch(receive: Receive, request: _Request, scope: trio.CancelScope) -> None:
    """Cancel the request when its client leaves before it has its answer.

    hypercorn says `disconnect` after every answer too, and finishes its own work with the connection in our task.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    if not request.answered:
        scope.cancel()


class _Request:
    """The life of one request, and what the log gets to know of it."""

    def __init__(self, service: Service, protocol: Protocol, path: str, send: Send) -> None:
        self._service = service
        self._protocol = protocol
        self._path = path
        self._send = send
        self._recorder = service.recorder
        self.id = service.new_id("req")
        self._headers: list[tuple[bytes, bytes]] = [(b"x-request-id", self.id.encode())]
        self.answered = False
        """The last bytes of the answer are on their way."""
        self._has_arrived = False
        self._end: Finished | None = None
        self._encoder: Encoder | None = None
        self._committed = False
        """The status has gone out; a failure can only be an event from now on."""
        self._started = trio.current_time()
        self._first: float | None = None

    async def serve(self, body: bytes) -> None:
        """Answer the request, whatever happens."""
        try:
            data = self._read(body)
            del body  # it may be large, and a turn may be long
            await self._wait_for_models(data.get("model"))
            turn = self._protocol.parse(data, self._service.router.resolve)
            if turn.stream is None:
                turn = replace(turn, stream=self._service.stream_default)
            await self._run(data, turn)
        except BridgeError as error:
            await self._answer_error(error)
        except Exception:
            await self._answer_error(self._mistake())

    def _read(self, body: bytes) -> dict[str, Any]:
        try:
            data = parse_json(body)
        except BridgeError:
            self._arrived({"unreadable": len(body)})
            raise
        self._arrived({"body": data})
        return data

    def _arrived(self, what: dict[str, Any]) -> None:
        self._has_arrived = True
        self._record("http_ingress", "in", "client_request", {"path": self._path, **what})

    def _mistake(self) -> BridgeError:
        log.exception("request %s failed in the bridge itself", self.id)
        return BridgeError(f"The bridge made a mistake; its log has the details under {self.id}.")

    async def _answer_error(self, error: BridgeError) -> None:
        self._end = Finished("failed", error=error)
        self.answered = True
        self._record_json(await send_error(self._send, error, self._headers))

    async def refuse(self, error: BridgeError, receive: Receive) -> None:
        """Answer a request whose body was not read to its end."""
        self._arrived({"unread": True})
        self._end = Finished("failed", error=error)
        self._record_json(await send_refusal(self._send, receive, error, self._headers))

    def end(self) -> None:
        """The request is over, one way or the other."""
        if not self._has_arrived:
            return
        encoder = self._encoder
        failed = Finished("failed", error=encoder.failure) if encoder and encoder.failure else None
        end = failed or self._end or Finished("cancelled", reason="client_gone")
        usage = encoder.usage if encoder else None
        self._record(
            "turn",
            "none",
            "turn_end",
            {
                "outcome": end.outcome,
                "reason": end.reason,
                "error": {"code": end.error.code, "message": end.error.message} if end.error else None,
                "usage": None
                if usage is None
                else {
                    "input_tokens": usage.input,
                    "cached_tokens": usage.cached,
                    "output_tokens": usage.output,
                    "reasoning_tokens": usage.reasoning,
                },
                "first_event_s": self._first,
                "total_s": round(trio.current_time() - self._started, 6),
            },
        )

    async def _wait_for_models(self, model: Any) -> None:
        """Until the child has told its models, none but the mock ones can be known."""
        codex = self._service.router.codex
        if codex is None or codex.pool.child is not None or not isinstance(model, str):
            return
        if model.lower() not in MOCK_MODELS:
            await codex.pool.acquire()

    async def _run(self, data: dict[str, Any], turn: Turn) -> None:
        dropped = dropped_fields(data, turn)
        if dropped:
            self._headers.append((HEADER, ",".join(dropped).encode()))
        self._headers.extend(self._service.notes(turn))
        encoder = self._encoder = self._protocol.encoder(data, turn, self._service.new_id, int(time()))
        backend = self._service.router.backend(turn.model)
        about = {"model": turn.model, "requested_model": turn.requested_model, "backend": backend.name}
        self._record("turn", "none", "turn_start", about | {"dropped": dropped})
        with closing(await backend.start(turn, self.id)) as stream:
            if turn.stream:
                await self._stream(encoder, stream)
            else:
                await self._collect(encoder, stream)

    async def _collect(self, encoder: Encoder, stream: EventStream) -> None:
        encoder.begin()
        while not encoder.finished:
            encoder.feed(self._seen(await stream.next()))
        if encoder.failure is not None:
            raise encoder.failure
        body = encoder.body()
        self.answered = True
        self._record_json(body)
        await send_json(self._send, 200, body, self._headers)

    async def _stream(self, encoder: Encoder, stream: EventStream) -> None:
        out = encoder.begin()
        hold_until = trio.current_time() + HOLD
        while not encoder.finished:
            events: list[TurnEvent] = []
            with trio.move_on_at(trio.current_time() + self._service.keepalive if self._committed else hold_until):
                events = await stream.next()
            out += self._encode(encoder, self._seen(events)) if events else KEEPALIVE if self._committed else b""
            if self._committed:
                await self._write(out, encoder.finished, _said(events) if self._recorder else None)
            elif encoder.failure is not None and not encoder.visible:
                raise encoder.failure
            elif events and not encoder.visible and not encoder.finished:
                continue
            else:
                self._committed = True
                await send_start(self._send, 200, SSE, [*SSE_HEADERS, *self._headers])
                await self._write(out, encoder.finished)
            out = b""

    def _encode(self, encoder: Encoder, events: list[TurnEvent]) -> bytes:
        """The events as bytes. A mistake of ours ends the stream as a failure, like everything else that can happen."""
        try:
            return encoder.feed(events)
        except Exception:
            self._end = Finished("failed", error=self._mistake())
            return encoder.feed([self._end])

    async def _write(self, out: bytes, last: bool, said: str | None = None) -> None:
        if self._recorder is not None:
            self._recorder.client_sse(self.id, out, said)
            if last:
                self._record("client_egress", "out", "client_sse_done", {})
        self.answered = last
        await self._send({"type": "http.response.body", "body": out, "more_body": not last})

    def _seen(self, events: list[TurnEvent]) -> list[TurnEvent]:
        if self._first is None:
            self._first = round(trio.current_time() - self._started, 6)
        if isinstance(events[-1], Finished):
            self._end = events[-1]
        return events

    def _record(self, phase: str, direction: str, kind: str, payload: dict[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.event(phase, direction, kind, self.id, payload)

    def _record_json(self, body: bytes) -> None:
        if self._recorder is not None:
            self._recorder.client_json(self.id, body)


def _said(events: list[TurnEvent]) -> str | None:
    """The text of a batch that is nothing but text."""
    texts = ["".join(event.pieces) for event in events if isinstance(event, TextDelta)]
    return "".join(texts) if len(texts) == len(events) else None
