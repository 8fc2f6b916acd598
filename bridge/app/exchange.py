"""One request for one turn, from its arrival to its end. The transport pulls the answer, piece by piece.

HTTP, WebSocket and background requests differ only in how the bytes get to the client.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import trio

from bridge.app.admission import Slot, resolve_visible
from bridge.app.answers import OnlyEnd, start_answer
from bridge.app.budgets import HEADER as BUDGET_HEADER
from bridge.app.budgets import budget_headers
from bridge.app.fallback import ANSWERED_BY, Candidate, Failure, FallbackStream, is_worth
from bridge.app.rate_limits import add_reset_time, limit_headers
from bridge.app.service import AnswerSettings, Service
from bridge.budgets import Claim
from bridge.core.backend import Backend, EventStream
from bridge.core.events import CANCELLED, CLIENT_GONE, Finished, TurnEvent
from bridge.core.models import ModelChoice
from bridge.core.observer import Fallback, TurnFacts
from bridge.core.turn import Turn
from bridge.counts import OTHER
from bridge.errors import BridgeError, ModelNotFound, NotReady
from bridge.http.request import Headers
from bridge.log.record import TURNS_PER_MODEL, calls_in, rerouted_in
from bridge.logs import RequestNames, current_request
from bridge.protocols.client import Encoder
from bridge.protocols.dropped import HEADER, apply_policy
from bridge.routing.router import Router

log = logging.getLogger("bridge.server")

Ignored = Callable[[Turn, Backend], Iterable[str]]


class Exchange:
    """The life of one request in any protocol, and what its observers (log, metrics, traces) learn about it.

    A subclass reads the body and calls `_start`; then `next` until `finished`; `end` in any case. `key` is the label of
    the client's key: what is stored belongs to this key alone. `provider_key` is the client's own key for the provider;
    only the backend sees it.
    """

    # A bridge may hold thousands of waiting streams.
    __slots__ = (
        "_arrived",
        "_backend",
        "_claim",
        "_cut",
        "_end",
        "_ended",
        "_facts",
        "_key",
        "_ready",
        "_recorder",
        "_service",
        "_settings",
        "_slot",
        "_stream",
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
        self._settings: AnswerSettings = service
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
        self._slot: Slot | None = None
        self._claim: Claim | None = None
        self._facts = TurnFacts(self.id, key, trio.current_time())
        if service.tracing is not None:
            self._facts.trace = service.tracing.here()

    @property
    def protocol(self) -> str:
        """The protocol's name in metrics and traces."""
        return OTHER

    # Beginning

    def arrived(self, what: dict[str, Any]) -> None:
        """Report the request to the observers."""
        self._arrived = True
        self._service.exchanges[self.id] = self
        names = current_request.get()
        if names.clients is not None:
            what = {**what, "client_request_id": names.clients}
        for observer in self._service.observers:
            observer.arrived(self._facts, {"path": self._url, **what})

    def _choose(self, spoken: str, data: dict[str, Any]) -> None:
        """Where recordings are played, answer this request from its recording."""
        if self._service.player is not None:
            self._settings = self._service.player.choose(self._service, spoken, data)

    def _resolve(self, name: str) -> ModelChoice:
        """The model behind a name, as this client may use it. Raises ModelNotFound."""
        key = self._service.admission.key(self._key)
        return resolve_visible(self._settings.router, key, name, keyed=self.provider_key is not None)

    async def _wait_for_model(self, name: Any) -> None:
        """As `wait_for_model`; but a backend that cannot list its models stops no request that has a fallback."""
        try:
            await wait_for_model(self._settings.router, name)
        except NotReady as error:
            if not (is_worth(error) and self._stand_ins(name)):
                raise
            try:
                self._resolve(name)
            except ModelNotFound:
                raise error from None

    def _stand_ins(self, *names: str) -> tuple[str, ...]:
        """The models that may answer instead of this one. A client's own key is for its own provider only."""
        if self.provider_key is not None or self._settings is not self._service:
            return ()
        return self._service.fallbacks.of(*names)

    async def _start(
        self, turn: Turn, encoder: Encoder, backend: Backend, ignored: Ignored, *, generate: bool = True
    ) -> None:
        """Begin the turn. `ignored` names the fields of the request that have no effect on a backend.

        Without `generate` there is no answer: the input is only stored, so that another request can continue it.
        """
        start = _Start(self, turn, encoder, ignored)
        first = Candidate(turn.requested_model, turn, backend)
        others = self._stand_ins(turn.requested_model, turn.model) if generate else ()
        if others:
            breakers = self._service.fallbacks.breakers
            self._stream = stream = FallbackStream(start, breakers, first, others, self._settings.now)
            await stream.open()
        elif generate:
            await start.admit(first)
            self._stream = await start.begin()
        else:
            await self._admit(first, encoder, ignored, generate=False)
            self._stream = OnlyEnd(Finished("completed"))
            self._started()

    async def _admit(
        self,
        candidate: Candidate,
        encoder: Encoder,
        ignored: Ignored,
        *,
        generate: bool = True,
        failure: Failure | None = None,
    ) -> None:
        """Take a slot for the candidate's turn and report its start. `failure` is that of the model before it."""
        service, turn, backend = self._service, candidate.turn, candidate.backend
        native = service.tool_modes.offers_natively(self._key, turn.model, self.tool_mode)
        if native is not None and turn.native is None:
            turn = replace(turn, native=native)
        names = list(dict.fromkeys([*ignored(turn, backend), *turn.client_names(await backend.drops(turn))]))
        if self.provider_key is not None and not backend.takes.provider_key:
            names.append("x-provider-key")
        apply_policy(self._settings.policy, names)
        service.memory.check()
        n, admission = turn.n or 1, service.admission
        if failure is not None:
            self._slot = admission.move(self._slot, self._key, backend.name, n, self._revoke)
            self.headers = [each for each in self.headers if not _is_about_backend(each[0])]
            self.headers.append((ANSWERED_BY, visible(candidate.name)))
        if names:
            self.headers.append((HEADER, ",".join(names).encode()))
        self.headers += limit_headers(backend.rate_limits())
        if self._settings.answered_by is not None:
            self.headers.append((ANSWERED_BY, visible(self._settings.answered_by)))
        if not generate:
            await admission.count(self._key)
        elif failure is None:
            self._slot = await admission.enter(self._key, backend.name, n, self._revoke)
        if generate and service.budgets is not None:
            # Another model has another price, or none, which a budget in money must not cover.
            service.budgets.settle(self._claim)
            self._claim, left = await service.budgets.claim(self._key, turn)
            # Not the time of the answer, which a recording determines.
            self.headers += budget_headers(left, service.now())
        facts = self._facts
        if failure is not None:
            facts.fallbacks += 1
            failed = failure.candidate
            fallback = Fallback(failed.name, failed.backend.name, candidate.name, failure.error)
            for observer in service.observers:
                observer.fell_back(facts, fallback)
        facts.protocol, facts.backend, facts.turn, facts.dropped = self.protocol, backend.name, turn, tuple(names)
        facts.counts_tokens = backend.takes.counts_tokens
        for observer in service.observers:
            observer.starting(facts)
        self.turn, self.encoder, self._backend = turn, encoder, backend

    def _started(self) -> None:
        facts = self._facts
        if facts.begun is None:
            facts.begun = trio.current_time()
            for observer in self._service.observers:
                observer.started(facts)

    # Running

    @property
    def finished(self) -> bool:
        """Whether `next` has returned the last bytes of the answer."""
        return self.encoder is not None and self.encoder.finished and self._ready is None

    @property
    def failure(self) -> BridgeError | None:
        """Why the answer failed."""
        return self.encoder.failure if self.encoder is not None else None

    async def begin(self) -> bytes:
        """The first bytes of the answer, as soon as some of it is visible, but after `hold` seconds at the latest.

        Raises the error of an answer that fails before that: it can still become an HTTP status.
        """
        assert self.encoder is not None
        out = self.encoder.begin()
        held_until = trio.current_time() + self._settings.hold
        while not self.encoder.visible and not self.finished and (patience := held_until - trio.current_time()) > 0:
            out += (await self.next(patience))[0]
        if self.encoder.failure is not None and not self.encoder.visible:
            raise self.encoder.failure
        return out

    async def next(self, patience: float = math.inf) -> tuple[bytes, list[TurnEvent]]:
        """The next bytes of the answer, and their events; neither if no event arrives within `patience` seconds.

        Safe to cancel: nothing is lost.
        """
        if self._ready is None:
            events: list[TurnEvent] = []
            # One scope for the time limit and for `cut`: a slow stream comes here once per event.
            with trio.CancelScope(deadline=trio.current_time() + patience) as self._waiting:
                if self._cut is None:
                    assert self._stream is not None
                    events = await self._stream.next()
            if self._cut is not None:
                events = [self._cut]
            elif not events:
                return b"", events
            self._observe(events)
            self._ready = self._encode(events), events
        if self.encoder is not None and self.encoder.finished:
            # Before the client hears of its end: the next request may continue it.
            await self._store()
        ready, self._ready = self._ready, None
        return ready

    def _observe(self, events: list[TurnEvent]) -> None:
        facts = self._facts
        self._service.counts.took_batch(len(events))
        if facts.first is None:
            facts.first = trio.current_time()
            for observer in self._service.observers:
                observer.answering(facts)
        if calls := calls_in(events):
            facts.calls += calls
        is_visible = self.encoder is not None and self.encoder.visible
        if facts.rerouted is None and (self._recorder.wants_lines or not is_visible):
            self._note_reroute(events)
        end = events[-1]
        if isinstance(end, Finished):
            self._end = end
            self._release_slot()  # however long the client takes to read the rest
            if end.error is not None and self._backend is not None:
                add_reset_time(end.error, self._backend.rate_limits(), self._settings.now())

    def _note_reroute(self, events: list[TurnEvent]) -> None:
        """Report to the client and the log that another model than the requested one answers.

        The header is useful until the answer begins. A provider reports the model before its first text, so later
        batches are searched only for the log.
        """
        rerouted = self._facts.rerouted = rerouted_in(events)
        if rerouted is not None:
            self.headers.append((b"x-bridge-model-rerouted", visible(rerouted)))

    async def wait_ended(self) -> None:
        """Return when `end` has been called."""
        if self._ended is None:
            self._ended = trio.Event()
        await self._ended.wait()

    def cancel(self) -> None:
        """End the answer as cancelled."""
        self.cut(Finished("cancelled", reason=CANCELLED))

    def cut(self, end: Finished) -> None:
        """End the answer with this event, unless it has already ended."""
        self._cut = self._cut or end
        if self._waiting is not None:
            self._waiting.cancel()

    def _release_slot(self) -> None:
        if self._slot is not None:
            self._slot.free()
            self._slot = None  # it refers to this exchange: a reference cycle

    def _revoke(self, error: BridgeError) -> None:
        self.cut(Finished("failed", error=error))

    def _encode(self, events: list[TurnEvent]) -> bytes:
        """The events as bytes. A bug in an encoder ends the stream with an error like any other."""
        assert self.encoder is not None
        try:
            return self.encoder.feed(events)
        except Exception:
            self._end = Finished("failed", error=self.mistake())
            return self.encoder.feed([self._end])

    # The end

    async def _store(self) -> None:
        """Store what another request may continue. Called before the client sees the end."""

    def fail(self, error: BridgeError) -> None:
        """The request ended before its turn could."""
        # The traceback refers to this request: a cycle that would keep both alive until the next garbage collection.
        error.__traceback__ = None
        self._end = Finished("failed", error=error)

    def mistake(self) -> BridgeError:
        """Log the present exception as a bug, and return the error to send."""
        log.exception("request %s failed in the bridge itself", self.id)
        return BridgeError(f"Internal error of the bridge. Its log has the details under {self.id}.")

    def end(self) -> None:
        """The request is over: release everything and report it."""
        if self._ended is not None:
            self._ended.set()
        if self._stream is not None:
            self._stream.close()
            self._stream = None  # it may refer to this exchange: a reference cycle
        self._release_slot()
        self._release()
        if not self._arrived:
            return
        self._service.exchanges.pop(self.id, None)
        failed = Finished("failed", error=self.failure) if self.failure else None
        end = failed or self._end or Finished("cancelled", reason=CLIENT_GONE)
        usage = self.encoder.usage if self.encoder is not None else None
        for observer in self._service.observers:
            observer.ended(self._facts, end, usage, trio.current_time())
        if self._service.budgets is not None:
            self._service.budgets.settle(self._claim)

    def _release(self) -> None:
        """Release what a subclass holds while the answer runs."""

    def record(self, phase: str, direction: str, kind: str, payload: dict[str, Any]) -> None:
        """Record one event."""
        self._recorder.event(phase, direction, kind, self.id, payload)

    def record_start(self, status: int, headers: Headers) -> None:
        """Record the head of an HTTP answer."""
        shown = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
        self.record("client_egress", "out", "client_start", {"status": status, "headers": shown})

    def record_sse(self, out: bytes, text: str | None = None) -> None:
        """Record a piece of a stream; `text` is its text if it contains nothing else that is foreign."""
        self._recorder.client_sse(self.id, out, text)
        if self.finished:
            self.record("client_egress", "out", "client_sse_done", {})

    def record_json(self, body: bytes) -> None:
        """Record a whole answer."""
        self._recorder.client_json(self.id, body)


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of an exchange's turn, for each candidate that is tried. Only kept while one is."""

    exchange: Exchange
    turn: Turn
    encoder: Encoder
    ignored: Ignored

    def candidate(self, name: str) -> Candidate | None:
        exchange = self.exchange
        try:
            choice = exchange._resolve(name)
        except ModelNotFound:
            return None
        return Candidate.of(name, self.turn, choice, exchange._settings.router.backend(choice.backend))

    async def admit(self, candidate: Candidate, failure: Failure | None = None) -> None:
        await self.exchange._admit(candidate, self.encoder, self.ignored, failure=failure)

    async def begin(self) -> EventStream:
        exchange = self.exchange
        assert exchange.turn is not None
        assert exchange._backend is not None
        number = exchange._facts.fallbacks * TURNS_PER_MODEL
        stream = await start_answer(exchange._backend, exchange.turn, exchange.id, number)
        exchange._started()
        return stream

    def settle(self, stream: EventStream) -> None:
        self.exchange._stream = stream


def _is_about_backend(header: bytes) -> bool:
    return header in (HEADER, ANSWERED_BY, BUDGET_HEADER) or header.startswith(b"x-codex-")


def visible(text: str) -> bytes:
    """A text as the value of a header."""
    return re.sub(r"[^!-~]", "?", text)[:100].encode()


async def wait_for_model(router: Router, model: Any) -> None:
    """Wait until the model's name can be resolved: names may be unknown until a child has listed its models."""
    if isinstance(model, str):
        await router.wait_for(model)
