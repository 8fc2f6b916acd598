"""Turns of CAP that outlive their connections: clients may leave, come back, and join the same turn twice.

So a turn is a task of the bridge, not of a request: its clients read a ring of packets, each at its own pace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import trio
from trio.lowlevel import ParkingLot

from bridge.app.service import Service
from bridge.cap.exchange import HEADERS, AssistExchange
from bridge.core.events import CLIENT_GONE, Finished
from bridge.errors import BackendTimeout, BridgeError, InvalidRequest, NotReady
from bridge.protocols.cap.encoder import CapEncoder, Form
from bridge.protocols.cap.models import ServiceRequest

KEPT_STREAMS = 1024
KEPT_BYTES = 64 * 1024 * 1024
"""How much of ended turns is kept for clients that come back."""


class Expired(BridgeError, code="stream_expired", http_status=410, kind="invalid_request_error"):
    """The stream does not exist, or no longer."""


class LiveAssist:
    """One turn. `run` is its task; `read` gives access to its packets, before the task starts or at any time.

    The model is not asked for more while a ring's worth of packets waits for a reader. So packets that no client has
    received are never dropped.
    """

    def __init__(self, exchange: AssistExchange, *, grace: float, attempt: int = 1) -> None:
        self.exchange = exchange
        self.attempt = attempt
        """The number of this turn among those of the same request. A client cannot resume one with another."""
        exchange.on_cut = self._hurry
        self.ring = exchange.ring
        self.fingerprint = exchange.request.compute_hash()
        self.refused: BridgeError | None = None
        """Why the turn failed before its first packet."""
        self.over = False
        """No more packets will come."""
        self.left = False
        """No client came back in time. The answer is truncated, and must not be served as if it were whole."""
        self.ended_at = 0.0
        """On trio's clock."""
        self._grace = grace
        self._readers: set[Reader] = set()
        self._hurries = False
        self._begun = trio.Event()
        self.news = ParkingLot()
        """Wakes readers when there may be more to read."""
        self._progress = ParkingLot()
        """Wakes the turn when a reader has received packets."""
        self._attendance = ParkingLot()
        """Wakes the grace period when a reader comes or leaves."""

    def __repr__(self) -> str:
        return f"<LiveAssist {self.exchange.request.request_id} {self.ring!r} over={self.over}>"

    @property
    def failed(self) -> bool:
        """Whether the same request may be tried again."""
        return self.refused is not None or self.left or (self.exchange.finished and self.exchange.failure is not None)

    def read(self, point: tuple[int, int] | None = None) -> Reader:
        """A reader of the packets after (attempt, number), to be closed. Raises Expired if they are not kept."""
        attempt, after = point or (self.attempt, 0)
        if attempt != self.attempt or self.left or after > self.ring.last or self.ring.after(after) is None:
            raise Expired("The packets after this one are no longer available. Send the request again.")
        reader = Reader(self, after)
        self._readers.add(reader)
        self.ring.read = min(self.ring.read, after)
        self._attendance.unpark_all()
        return reader

    def leave(self, reader: Reader) -> None:
        """Remove a reader. The packets that it has not received are held for the grace period."""
        self._readers.discard(reader)
        if self._readers:
            # The turn may have waited for this reader alone.
            self.moved()
        self._attendance.unpark_all()

    async def begun(self) -> None:
        """Wait until the answer has begun or its status must be sent. Raises the error of a refused request."""
        await self._begun.wait()
        if self.refused is not None:
            raise self.refused

    def moved(self) -> None:
        """A reader has made progress."""
        self.ring.read = max(self.ring.read, min((reader.at for reader in self._readers), default=0))
        self._progress.unpark_all()

    # The turn

    async def run(self) -> None:
        """Run the turn to its end, whatever happens."""
        exchange = self.exchange
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_left)
                # Caught inside the nursery, which would wrap the error in a group.
                try:
                    exchange.find_recording()
                    nursery.start_soon(self._end_in_time, exchange.time_limit())
                    await exchange.open()
                    await (self._collect() if exchange.form == "json" else self._stream())
                except BridgeError as error:
                    self._refuse(error)
                nursery.cancel_scope.cancel()
        except* Exception:
            self._refuse(exchange.mistake())
        finally:
            if self.refused is None and not exchange.finished:
                if self._begun.is_set():
                    exchange.conclude(_shutting_down())
                else:
                    self._refuse(_shutting_down())
            exchange.end()
            self.over = True
            self.ended_at = trio.current_time()
            self._begun.set()
            self.news.unpark_all()

    async def _collect(self) -> None:
        exchange = self.exchange
        with trio.move_on_after(exchange.hold):
            while not exchange.finished:
                await exchange.next()
        # A client that reads this turn as a stream gets no packet before the end, but can get its status.
        self._begun.set()
        while not exchange.finished:
            await exchange.next()
        exchange.publish()
        if exchange.failure is not None:
            raise exchange.failure
        assert exchange.encoder is not None
        exchange.record_start(200, [*HEADERS, *exchange.headers])
        exchange.record_json(exchange.encoder.body())

    async def _stream(self) -> None:
        exchange = self.exchange
        out = await exchange.begin()
        exchange.record_start(200, [*HEADERS, *exchange.headers])
        while True:
            exchange.record_sse(out)
            exchange.publish()
            self._begun.set()
            self.news.unpark_all()
            if exchange.finished:
                return
            while self.ring.is_full and not self._hurries:
                await self._progress.park()
            out, _ = await exchange.next()

    async def _end_when_left(self) -> None:
        while True:
            while self._readers:
                await self._attendance.park()
            with trio.move_on_after(self._grace):
                while not self._readers:
                    await self._attendance.park()
            # A reader may have come in the instant in which the grace period ended.
            if not self._readers:
                self.left = True
                self.exchange.cut(Finished("cancelled", reason=CLIENT_GONE))
                return

    async def _end_in_time(self, limit: float) -> None:
        await trio.sleep(limit)
        late = BackendTimeout(
            "The turn exceeded its time limit ('payload.meta.timeout_ms', or PROXY_TURN_TIMEOUT).",
            code="deadline_exceeded",
        )
        self.exchange.cut(Finished("failed", error=late))

    def _hurry(self) -> None:
        """The end must be published, however many packets wait to be read."""
        self._hurries = True
        self._progress.unpark_all()

    def _refuse(self, error: BridgeError) -> None:
        self.refused = error
        self.exchange.refuse(error)


class Reader:
    """Reads a live turn from one packet on. Close it when the client has left or has everything."""

    def __init__(self, live: LiveAssist, after: int) -> None:
        self.live = live
        self.at = after
        """The number of the last packet that was sent."""
        self._taken = after

    @property
    def done(self) -> bool:
        """Whether all packets have been returned, and no more will come."""
        live = self.live
        return (live.over or live.exchange.finished) and self._taken >= live.ring.last

    async def next(self) -> tuple[list[bytes], int]:
        """(packets, number of the first): at least one packet, or none at the end. Safe to cancel.

        Each call confirms that the packets of the call before have been sent.
        """
        if self.at != self._taken:
            self.at = self._taken
            self.live.moved()
        ring = self.live.ring
        while ring.last <= self._taken and not self.done:
            await self.live.news.park()
        packets = ring.after(self._taken)
        assert packets is not None, "the ring keeps packets until all readers have them"
        first, self._taken = self._taken + 1, self._taken + len(packets)
        return packets, first

    async def body(self) -> bytes:
        """The whole answer as a ServiceResponse, for a reader from the first packet on. Raises why it failed."""
        whole: list[bytes] = []
        while not self.done:
            whole += (await self.next())[0]
        exchange = self.live.exchange
        if (failure := self.live.refused or exchange.failure) is not None:
            raise failure
        assert isinstance(exchange.encoder, CapEncoder)
        return exchange.encoder.response(whole)

    def close(self) -> None:
        self.live.leave(self)


_Name = tuple[str, UUID]


class Assists:
    """The turns that run or have just ended, by client and request id. A client is the label of its key."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: dict[_Name, LiveAssist] = {}
        self._kept: OrderedDict[_Name, LiveAssist] = OrderedDict()
        """Ended turns, in the order in which they ended."""
        self._size = 0
        self._busy: set[tuple[str, str]] = set()
        self._attempts: OrderedDict[_Name, int] = OrderedDict()
        """How many turns of a request have sent packets and failed, for the most recent requests."""

    def find(self, key: str, request_id: UUID) -> LiveAssist:
        """The turn of a request that runs or is kept. Raises Expired for any other request."""
        live = self._find((key, request_id))
        if live is None:
            raise Expired("Unknown or expired request id. Send the request again.")
        return live

    def same(self, key: str, request: ServiceRequest) -> LiveAssist | None:
        """The turn of this request, to be joined; None if a new one is to be started, for example after a failure.

        Raises InvalidRequest if the id belongs to another request.
        """
        live = self._find((key, request.request_id))
        if live is None:
            return None
        if live.fingerprint != request.compute_hash():
            raise InvalidRequest(
                "Another request has the same 'request_id'. Use a new id for each request.",
                param="request_id",
                code="request_id_conflict",
                http_status=409,
            )
        return None if live.failed else live

    def start(
        self, key: str, url: str, request: ServiceRequest, data: Mapping[str, Any], form: Form, provider_key: str | None
    ) -> LiveAssist:
        """A new turn. The caller takes a reader before it awaits anything."""
        service = self._service
        if service.background is None:
            raise _shutting_down()
        name = (key, request.request_id)
        self._forget(name)
        exchange = AssistExchange(service, key, url, request, data, form, self._busy)
        exchange.provider_key = provider_key
        exchange.arrived({"body": data, "form": form})
        live = LiveAssist(exchange, grace=service.cap.grace, attempt=self._next_attempt(name))
        self._running[name] = live
        service.background.start_soon(self._run, name, live)
        return live

    async def _run(self, name: _Name, live: LiveAssist) -> None:
        try:
            await live.run()
        finally:
            # A failed turn may have been started again before its task ended.
            if self._running.get(name) is live:
                del self._running[name]
                self._note_attempt(name, live)
                if live.refused is None and not live.left:
                    self._kept[name] = live
                    self._size += live.ring.size

    def _next_attempt(self, name: _Name) -> int:
        before = self._running.get(name)
        if before is not None:
            self._note_attempt(name, before)
        return self._attempts.get(name, 0) + 1

    def _note_attempt(self, name: _Name, live: LiveAssist) -> None:
        if live.ring.last and live.failed:
            self._attempts[name] = live.attempt
            self._attempts.move_to_end(name)
            if len(self._attempts) > KEPT_STREAMS:
                self._attempts.popitem(last=False)

    def _find(self, name: _Name) -> LiveAssist | None:
        limit = trio.current_time() - self._service.cap.grace
        while self._kept:
            oldest = next(iter(self._kept))
            is_late = self._kept[oldest].ended_at <= limit
            if not is_late and len(self._kept) <= KEPT_STREAMS and self._size <= KEPT_BYTES:
                break
            self._forget(oldest)
        return self._running.get(name) or self._kept.get(name)

    def _forget(self, name: _Name) -> None:
        live = self._kept.pop(name, None)
        if live is not None:
            self._size -= live.ring.size


def _shutting_down() -> NotReady:
    return NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
