"""A CAP turn that runs by itself: its readers come and go, and it ends when nobody has come back in time."""

from __future__ import annotations

import trio

from bridge.api.cap.events import CapEncoder
from bridge.api.cap.failures import failure_from
from bridge.api.cap.fold import TurnFold
from bridge.api.cap.stream import read_packet
from bridge.errors import BackendTimeout, BridgeError, NotReady
from bridge.http.request import Headers
from bridge.server.cap.exchange import AssistExchange
from bridge.turn.events import CLIENT_GONE, Finished

HEADERS: Headers = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class Expired(BridgeError):
    """There is no such stream, or not any more."""

    code = "stream_expired"
    http_status = 410
    kind = "invalid_request_error"


class LiveAssist:
    """One turn. `run` is its task; whoever wants its packets takes a `Reader`, before `run` begins or at any time.

    The model is not asked for more while a ring's worth of packets waits for a reader, so nothing is dropped that
    nobody has had.
    """

    def __init__(self, exchange: AssistExchange, *, grace: float, attempt: int = 1) -> None:
        self.exchange = exchange
        self.attempt = attempt
        """Which of the turns that the same request has had; packets of another are not this one's."""
        exchange.on_cut = self._hurry
        self.ring = exchange.ring
        self.fingerprint = exchange.request.compute_hash()
        self.refused: BridgeError | None = None
        """Why there is no answer at all; what came to nothing before anything was told is refused too."""
        self.over = False
        """Nothing more will come."""
        self.left = False
        """Nobody came back in time: what there is of the answer is cut, and nobody may take it for whole."""
        self.ended_at = 0.0
        """When it was over, on trio's clock."""
        self._grace = grace
        self._readers: set[Reader] = set()
        self._hurries = False
        self._begun = trio.Event()
        self._news = _Bell()
        self._moved = _Bell()
        self._attendance = _Bell()

    def __repr__(self) -> str:
        return f"<LiveAssist {self.exchange.request.request_id} {self.ring!r} over={self.over}>"

    @property
    def failed(self) -> bool:
        """Whether it has come to nothing, so that the same request may be tried again."""
        return self.refused is not None or self.left or (self.exchange.finished and self.exchange.failure is not None)

    def read(self, point: tuple[int, int] | None = None) -> Reader:
        """A reader of all packets after (attempt, number), to be closed. Raises Expired when they are not kept."""
        attempt, after = point or (self.attempt, 0)
        if attempt != self.attempt or self.left or after > self.ring.last or self.ring.after(after) is None:
            raise Expired("What comes after this packet is not kept any more: send the request anew.")
        reader = Reader(self, after)
        self._readers.add(reader)
        self.ring.read = min(self.ring.read, after)
        self._attendance.ring()
        return reader

    def leave(self, reader: Reader) -> None:
        """A reader has gone. What it had not got yet is held for the next, for a while."""
        self._readers.discard(reader)
        if self._readers:
            # The others may have waited for it.
            self.moved()
        self._attendance.ring()

    def cancel(self) -> None:
        """Its client wants it to end."""
        self.exchange.cancel()

    async def begun(self) -> None:
        """Until something of the answer can be told, or it has waited long enough. Raises why there will be none."""
        await self._begun.wait()
        if self.refused is not None:
            raise self.refused

    async def wait_news(self) -> None:
        """Until there may be more to read."""
        await self._news.wait()

    def moved(self) -> None:
        """A reader has got further."""
        self.ring.read = max(self.ring.read, min((reader.at for reader in self._readers), default=0))
        self._moved.ring()

    # The turn

    async def run(self) -> None:
        """The whole turn, whatever happens."""
        exchange = self.exchange
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_left)
                exchange.find_recording()
                nursery.start_soon(self._end_in_time, exchange.time_limit())
                await exchange.open()
                if exchange.form == "json":
                    await self._collect()
                else:
                    await self._stream()
                nursery.cancel_scope.cancel()
        except* BridgeError as errors:
            self._refuse(_one(errors))
        except* Exception:
            self._refuse(exchange.mistake())
        finally:
            if self.refused is None and not exchange.finished:
                self._stop_short()
            exchange.end()
            self.over = True
            self.ended_at = trio.current_time()
            self._begun.set()
            self._news.ring()

    async def _collect(self) -> None:
        exchange = self.exchange
        with trio.move_on_after(exchange.hold):
            while not exchange.finished:
                await exchange.next()
        # Who reads it as a stream has nothing to read before the end, but may hear that it runs.
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
            self._news.ring()
            if exchange.finished:
                return
            while self.ring.is_full and not self._hurries:
                await self._moved.wait()
            out, _ = await exchange.next()

    async def _end_when_left(self) -> None:
        while True:
            while self._readers:
                await self._attendance.wait()
            with trio.move_on_after(self._grace):
                while not self._readers:
                    await self._attendance.wait()
            # Somebody may have come at the very end of it.
            if not self._readers:
                self.left = True
                self.exchange.cut(Finished("cancelled", reason=CLIENT_GONE))
                return

    async def _end_in_time(self, limit: float) -> None:
        await trio.sleep(limit)
        late = BackendTimeout(
            "The turn took longer than it may ('payload.meta.timeout_ms', or PROXY_TURN_TIMEOUT).",
            code="deadline_exceeded",
        )
        self.exchange.cut(Finished("failed", error=late))

    def _hurry(self) -> None:
        """The end is to be told, however much waits to be read."""
        self._hurries = True
        self._moved.ring()

    def _stop_short(self) -> None:
        """The bridge stops while the turn runs."""
        error = NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
        if self._begun.is_set():
            self.exchange.conclude(error)
        else:
            self._refuse(error)

    def _refuse(self, error: BridgeError) -> None:
        exchange = self.exchange
        self.refused = error
        exchange.fail(error)
        failure = failure_from(error, now=exchange.now(), request_id=exchange.request.request_id)
        exchange.record_start(failure.status, [*HEADERS, *exchange.headers])
        exchange.record_json(failure.body)


class Reader:
    """Reads a live turn from one packet on; `close` when its client has gone, or has all."""

    def __init__(self, live: LiveAssist, after: int) -> None:
        self.live = live
        self.at = after
        """The number of the last packet that has been handed out and sent."""
        self._taken = after

    @property
    def done(self) -> bool:
        """Whether all has been handed out, and nothing more will come."""
        live = self.live
        return (live.over or live.exchange.finished) and self._taken >= live.ring.last

    async def next(self) -> tuple[list[bytes], int]:
        """(packets, the number of the first): at least one, or none at the end. Safe to cancel.

        Calling it again says that those before have been sent.
        """
        if self.at != self._taken:
            self.at = self._taken
            self.live.moved()
        ring = self.live.ring
        while ring.last <= self._taken and not self.done:
            await self.live.wait_news()
        packets = ring.after(self._taken)
        assert packets is not None, "nothing is forgotten before all who read have read it"
        first, self._taken = self._taken + 1, self._taken + len(packets)
        return packets, first

    async def body(self) -> bytes:
        """The whole answer as a ServiceResponse; the reader began at the first packet. Raises what it failed of."""
        fold = TurnFold()
        while not self.done:
            packets, _ = await self.next()
            for packet in packets:
                fold.add(read_packet(packet))
        exchange = self.live.exchange
        if self.live.refused is not None or exchange.failure is not None:
            raise self.live.refused or exchange.failure or AssertionError
        assert isinstance(exchange.encoder, CapEncoder)
        return exchange.encoder.response(fold)

    def close(self) -> None:
        """Leave."""
        self.live.leave(self)


class _Bell:
    """Wakes everybody who waits, each time."""

    def __init__(self) -> None:
        self._event = trio.Event()

    async def wait(self) -> None:
        await self._event.wait()

    def ring(self) -> None:
        event, self._event = self._event, trio.Event()
        event.set()


def _one(errors: BaseExceptionGroup[BridgeError]) -> BridgeError:
    first = errors.exceptions[0]
    return _one(first) if isinstance(first, BaseExceptionGroup) else first
