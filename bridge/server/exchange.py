"""One request for one turn, from its arrival to its end; whoever sends the answer pulls it, piece by piece.

HTTP, WebSocket and background requests differ only in how the bytes get to the client.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from bridge.api.dropped import HEADER, apply_policy
from bridge.api.sse import Encoder
from bridge.backends.answers import start_answer
from bridge.backends.base import Backend, EventStream
from bridge.backends.router import Router
from bridge.counts import OTHER
from bridge.errors import BridgeError
from bridge.http.request import Headers
from bridge.logs import RequestNames, current_request
from bridge.protolog.match import Spoken
from bridge.protolog.turn_records import calls_in, invalid_arguments, rerouted_in, turn_end, turn_start
from bridge.server.admission import Place
from bridge.server.ratelimits import limit_headers, tell_reset
from bridge.server.service import Service
from bridge.server.visible import resolve_visible
from bridge.store.base import UsageRow
from bridge.turn.events import CANCELLED, CLIENT_GONE, Finished, ToolCall, TurnEvent, Usage
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

if TYPE_CHECKING:
    from bridge.server.tracing import EndedTurn

log = logging.getLogger("bridge.server")


class Exchange:
    """The life of one request in any protocol, and what the log and the count of usage get to know of it.

    A protocol of its own reads the body and calls `_start`; then `next` until `finished`; `end` in any case. `key` is
    the label of the client's key: what is stored is this key's alone. `provider_key` is what the client brings for the
    provider; nothing but its backend gets to see it.
    """

    # A stream that waits should cost little.
    __slots__ = (
        "_arrived",
        "_backend",
        "_begun",
        "_calls",
        "_cut",
        "_end",
        "_ended",
        "_first",
        "_key",
        "_place",
        "_ready",
        "_recorder",
        "_rerouted",
        "_service",
        "_started",
        "_stream",
        "_trace",
        "_url",
        "_waiting",
        "encoder",
        "headers",
        "id",
        "provider_key",
        "tool_mode",
        "turn",
    )

    def __init__(self, service: Service, key: str, url: str, provider_key: str | None = None) -> None:
        names = current_request.get()
        self.id = names.id if names.is_http and names.id is not None else service.new_id("req")
        if not names.is_http:
            current_request.set(RequestNames(self.id, names.clients))
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", self.id.encode())]
        self.encoder: Encoder | None = None
        self.turn: Turn | None = None
        self._service = service
        self._key = key
        self._url = url
        self.provider_key = provider_key
        self.tool_mode: bytes | None = None
        """The request's X-Bridge-Tool-Mode."""
        self._recorder = service.recorder
        self._arrived = False
        self._stream: EventStream | None = None
        self._end: Finished | None = None
        self._backend: Backend | None = None
        self._ended: trio.Event | None = None
        self._ready: tuple[bytes, list[TurnEvent]] | None = None
        self._cut: Finished | None = None
        self._waiting: trio.CancelScope | None = None
        self._started = trio.current_time()
        self._begun: float | None = None
        self._trace = service.tracing.here() if service.tracing is not None else None
        self._first: float | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._rerouted: str | None = None
        self._place: Place | None = None

    @property
    def protocol(self) -> str:
        """What counts and traces call the protocol."""
        return OTHER

    # Beginning

    def arrived(self, what: dict[str, Any]) -> None:
        """Note in the log that the request is here."""
        self._arrived = True
        self._service.counts.waiting += 1
        names = current_request.get()
        if names.clients is not None:
            what = {**what, "client_request_id": names.clients}
        self.record("http_ingress", "in", "client_request", {"path": self._url, **what})

    def _choose(self, spoken: Spoken, data: dict[str, Any]) -> None:
        """From here on, be served by a recording of this request, where recordings are played."""
        if self._service.player is not None:
            self._service = self._service.player.choose(self._service, spoken, data)

    def _resolve(self, name: str) -> ModelChoice:
        """The model behind a name, as this client may use it. Raises ModelNotFound."""
        service = self._service
        key = service.admission.key(self._key)
        return resolve_visible(service.router, key, name, keyed=self.provider_key is not None)

    async def _start(
        self, turn: Turn, encoder: Encoder, backend: Backend, dropped: Iterable[str], *, generate: bool = True
    ) -> None:
        """Begin the turn. `dropped` are the names of what the protocol cannot hand on.

        Without `generate` nothing is answered: the input is only taken in, to be continued.
        """
        service = self._service
        native = service.tool_modes.offers_natively(self._key, turn.model, self.tool_mode)
        if native is not None and turn.native is None:
            turn = replace(turn, native=native)
        names = list(dict.fromkeys([*dropped, *await backend.drops(turn)]))
        if self.provider_key is not None and not backend.takes.provider_key:
            names.append("x-provider-key")
        apply_policy(self._service.policy, names)
        self._service.memory.check()
        self._service.counts.ignored += len(names)
        if names:
            self.headers.append((HEADER, ",".join(names).encode()))
        self.headers += limit_headers(backend.rate_limits())
        if generate:
            self._place = await self._service.admission.enter(self._key, backend.name, turn.n or 1, self._expel)
        else:
            await self._service.admission.count(self._key)
        self.record(
            "turn",
            "none",
            "turn_start",
            turn_start(turn, backend.name, names, counts_tokens=backend.takes.counts_tokens),
        )
        self.turn, self.encoder, self._backend = turn, encoder, backend
        self._stream = await start_answer(backend, turn, self.id) if generate else _Silence()
        self._begun = trio.current_time()
        self._service.counts.waiting -= 1

    # Running

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
        held_until = trio.current_time() + self._service.hold
        while not self.encoder.visible and not self.finished and (patience := held_until - trio.current_time()) > 0:
            out += (await self.next(patience))[0]
        if self.encoder.failure is not None and not self.encoder.visible:
            raise self.encoder.failure
        return out

    async def next(self, patience: float = math.inf) -> tuple[bytes, list[TurnEvent]]:
        """The next bytes of the answer, and the events that they are made of: none if none come within `patience`.

        Safe to cancel: nothing gets lost.
        """
        if self._ready is None:
            events = await self._wait(patience)
            if not events:
                return b"", events
            self._ready = self._encode(events), events
        if self.encoder is not None and self.encoder.finished:
            # Before its client hears of its end: the next request may continue it.
            await self._store()
        ready, self._ready = self._ready, None
        return ready

    async def _wait(self, patience: float) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        # One scope for both: this is done once per event of a slow stream.
        with trio.CancelScope(deadline=trio.current_time() + patience) as self._waiting:
            if self._cut is None:
                assert self._stream is not None
                events = await self._stream.next()
        if self._cut is not None:
            events = [self._cut]
        elif not events:
            return events
        counts = self._service.counts
        counts.took_batch(len(events))
        if self._first is None:
            self._first = round(trio.current_time() - self._started, 6)
            if self._backend is not None:
                counts.first_event.observe(self._backend.name, self._first)
        if calls := calls_in(events):
            counts.invalid_arguments += len(invalid_arguments(calls))
            if self._recorder is not None:
                self._calls += calls
        if self._rerouted is None and (self._recorder is not None or not self._is_visible):
            self._note_reroute(events)
        end = events[-1]
        if isinstance(end, Finished):
            self._end = end
            self._leave_place()  # however long its client takes to read the rest
            if end.error is not None and self._backend is not None:
                tell_reset(end.error, self._backend.rate_limits(), self._service.now())
        return events

    @property
    def _is_visible(self) -> bool:
        return self.encoder is not None and self.encoder.visible

    def _note_reroute(self, events: list[TurnEvent]) -> None:
        """Tell the client and the log which model answers, where it is another one than was asked for.

        The header is of use until the answer begins. A provider says so before its first word, so later batches are
        looked through for the log alone.
        """
        self._rerouted = rerouted_in(events)
        if self._rerouted is not None:
            shown = re.sub(r"[^!-~]", "?", self._rerouted)[:100]
            self.headers.append((b"x-bridge-model-rerouted", shown.encode()))

    async def wait_ended(self) -> None:
        """Until `end` has been called."""
        if self._ended is None:
            self._ended = trio.Event()
        await self._ended.wait()

    def cancel(self) -> None:
        """End the answer as cancelled."""
        self.cut(Finished("cancelled", reason=CANCELLED))

    def cut(self, end: Finished) -> None:
        """End the answer in this way, unless it has ended already."""
        self._cut = self._cut or end
        if self._waiting is not None:
            self._waiting.cancel()

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.free()
            self._place = None  # it knows us, to send us away: a circle

    def _expel(self, error: BridgeError) -> None:
        self.cut(Finished("failed", error=error))

    def _encode(self, events: list[TurnEvent]) -> bytes:
        """The events as bytes. A mistake of ours ends the stream as a failure, like everything else that can happen."""
        assert self.encoder is not None
        try:
            return self.encoder.feed(events)
        except Exception:
            self._end = Finished("failed", error=self.mistake())
            return self.encoder.feed([self._end])

    # The end

    async def _store(self) -> None:
        """Keep what the next request may continue. Called when the end has been written and is not yet told."""

    def fail(self, error: BridgeError) -> None:
        """The request ended before its turn could."""
        # Where it was raised leads back to the request: a circle that would keep both until the collector comes by.
        error.__traceback__ = None
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
        self._leave_place()
        self._release()
        if not self._arrived:
            return
        failed = Finished("failed", error=self.failure) if self.failure else None
        end = failed or self._end or Finished("cancelled", reason=CLIENT_GONE)
        usage = self.encoder.usage if self.encoder is not None else None
        self._count(end, usage or Usage())
        total = round(trio.current_time() - self._started, 6)
        self.record("turn", "none", "turn_end", turn_end(end, usage, self._calls, self._first, total, self._rerouted))

    def _release(self) -> None:
        """Give up what was held for the time of the answer."""

    def _count(self, end: Finished, usage: Usage) -> None:
        service, counts = self._service, self._service.counts
        if self._begun is None:
            counts.waiting -= 1
        counts.failed(end)
        if self.turn is None:
            return
        counts.ended(self.protocol, self._key, counts.known_model(self.turn.model, service.router.models), end, usage)
        if service.tracing is not None and self._trace is not None:
            service.tracing.turn(self._trace, self._seen(self.turn, end, usage))
        tokens = usage.input, usage.cached, usage.output, usage.reasoning
        day = datetime.now(UTC).date().isoformat()
        failed = int(end.outcome == "failed")
        service.store.count(UsageRow(day, self._key, self.turn.model, 1, failed, *tokens))

    def _seen(self, turn: Turn, end: Finished, usage: Usage) -> EndedTurn:
        from bridge.server.tracing import EndedTurn

        return EndedTurn(
            self.id,
            self.protocol,
            self._backend.name if self._backend is not None else OTHER,
            turn,
            end,
            usage,
            arrived=self._started,
            begun=self._begun,
            first=None if self._first is None else self._started + self._first,
            ended=trio.current_time(),
        )

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
