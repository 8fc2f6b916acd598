"""One request, one turn, one answer: from a body to a stream of events or a JSON object.

Until the first piece of the answer the status is still open, so that a failure can be an HTTP error; but no longer than
HOLD seconds, then the stream begins and a failure is an event in it. Silence is broken by comments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from time import time
from typing import Any

import trio

from bridge.api.dropped import HEADER, dropped_fields
from bridge.api.reading import parse_json
from bridge.api.sse import KEEPALIVE, Encoder
from bridge.backends.base import EventStream
from bridge.backends.router import MOCK_MODELS, Router
from bridge.errors import BridgeError
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
from bridge.turn.events import Finished, TextDelta, TurnEvent, UsageUpdate
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

log = logging.getLogger("bridge.server")

HOLD = 2.0
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
            body = await read_body(scope, receive, self._service.max_body)
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
        self._end: Finished | None = None
        self._usage: UsageUpdate | None = None
        self._started = trio.current_time()
        self._first: float | None = None

    async def serve(self, body: bytes) -> None:
        """Answer the request, whatever happens."""
        committed = _Commit(self._send)
        try:
            data = parse_json(body)
            self._record("http_ingress", "in", "client_request", {"path": self._path, "body": data})
            await self._wait_for_models(data.get("model"))
            turn = self._protocol.parse(data, self._service.router.resolve)
            await self._run(data, turn, committed)
        except BridgeError as error:
            self._end = self._end or Finished("failed", error=error)
            if committed.done:
                raise
            self.answered = True
            self._record_json(await send_error(self._send, error, self._headers))
        except Exception:
            log.exception("request %s failed in the bridge itself", self.id)
            mistake = BridgeError(f"The bridge made a mistake; its log has the details under {self.id}.")
            self._end = Finished("failed", error=mistake)
            self.answered = True
            if not committed.done:
                await send_error(self._send, mistake, self._headers)
            # Else the connection ends without its terminal chunk, which no client takes for a success.

    async def refuse(self, error: BridgeError, receive: Receive) -> None:
        """Answer a request whose body was not read to its end."""
        self._end = Finished("failed", error=error)
        self._record_json(await send_refusal(self._send, receive, error, self._headers))

    def end(self) -> None:
        """The request is over, one way or the other."""
        end = self._end or Finished("cancelled", reason="client_gone")
        usage = self._usage.usage if self._usage else None
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
        if self._recorder is not None:
            self._recorder.turn_over(self.id)

    async def _wait_for_models(self, model: Any) -> None:
        """Until the child has told its models, none but the mock ones can be known."""
        codex = self._service.router.codex
        if codex is None or codex.pool.child is not None or not isinstance(model, str):
            return
        if model.lower() not in MOCK_MODELS:
            await codex.pool.acquire()

    async def _run(self, data: dict[str, Any], turn: Turn, committed: _Commit) -> None:
        dropped = dropped_fields(data, turn)
        if dropped:
            self._headers.append((HEADER, ",".join(dropped).encode()))
        self._headers.extend(self._service.notes(turn))
        encoder = self._protocol.encoder(data, turn, self._service.new_id, int(time()))
        backend = self._service.router.backend(turn.model)
        self._record(
            "turn",
            "none",
            "turn_start",
            {
                "model": turn.model,
                "requested_model": turn.requested_model,
                "backend": backend.name,
                "dropped": dropped,
            },
        )
        with closing(await backend.start(turn, self.id)) as stream:
            if turn.stream:
                await self._stream(encoder, stream, committed)
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
        await send_json(self._send, 200, body, self._headers)
        self._record_json(body)

    async def _stream(self, encoder: Encoder, stream: EventStream, committed: _Commit) -> None:
        out = encoder.begin()
        started = False
        headers = [*SSE_HEADERS, *self._headers]
        hold_until = trio.current_time() + HOLD
        while not encoder.finished:
            events: list[TurnEvent] = []
            wait_until = trio.current_time() + self._service.keepalive if committed.done else hold_until
            with trio.move_on_at(wait_until):
                events = await stream.next()
            out += encoder.feed(self._seen(events)) if events else KEEPALIVE if committed.done else b""
            if not committed.done:
                if encoder.failure is not None and not encoder.visible:
                    raise encoder.failure
                if events and not encoder.visible and not encoder.finished:
                    continue
                await committed.start(headers)
            if self._recorder is not None:
                self._recorder.client_sse(self.id, out, _said(events) if started else None)
            started = True
            self.answered = encoder.finished
            await self._send({"type": "http.response.body", "body": out, "more_body": not encoder.finished})
            out = b""
        self._record("client_egress", "out", "client_sse_done", {})

    def _seen(self, events: list[TurnEvent]) -> list[TurnEvent]:
        if self._first is None:
            self._first = round(trio.current_time() - self._started, 6)
        for event in events[-2:]:
            if isinstance(event, Finished):
                self._end = event
            elif isinstance(event, UsageUpdate):
                self._usage = event
        return events

    def _record(self, phase: str, direction: str, kind: str, payload: dict[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.event(phase, direction, kind, self.id, payload)

    def _record_json(self, body: bytes) -> None:
        if self._recorder is not None:
            self._recorder.client_json(self.id, body)


def _said(events: list[TurnEvent]) -> str | None:
    """The text of a batch that is nothing but text."""
    if not all(isinstance(event, TextDelta) for event in events):
        return None
    return "".join(piece for event in events if isinstance(event, TextDelta) for piece in event.pieces)


class _Commit:
    """Whether the status has gone out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.done = False

    async def start(self, headers: Headers) -> None:
        self.done = True
        await send_start(self._send, 200, b"text/event-stream; charset=utf-8", headers)
