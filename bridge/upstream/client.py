"""Requests to an upstream over HTTP: retries, time limits, and the stream that comes back.

Nothing is retried once an event has arrived: text that the client has seen cannot be taken back. Before that, a longer
delay than the client would wait is reported at once, and an exhausted quota is never retried.
"""

from __future__ import annotations

import datetime
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
import trio

from bridge.core.events import TurnEvent
from bridge.errors import BackendTimeout, BridgeError, ConfigError, NotReady, Overloaded, UpstreamError
from bridge.protocols.sse import SseReader
from bridge.protocols.upstream import UpstreamBuffer, error_from_status
from bridge.redact import Redactor
from bridge.upstream.credentials import Attempt, Request
from bridge.urls import leads_here

log = logging.getLogger("bridge")

RETRIES = 3
FIRST_DELAY = 0.25
LONGEST_DELAY = 30.0
"""A client waits for the answer: a longer delay is reported to it instead."""
CONNECT_SECONDS = 15.0
LAST_BYTES = 1.0
SHORTEST_SECRET = 10
"""A shorter secret may be a word of the answer."""
MAX_REJECTION = 64 * 1024
REJECTION_SECONDS = 5.0

Clean = Callable[[bytes], bytes]
"""Removes our own secrets from a response."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits in seconds: until the first event, between events, and for the whole turn."""

    first_event: float = 120
    idle: float = 300
    turn: float = 3600


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The message for a server that cannot be reached: fact, then the reason, then remedy."""

    fact: str = "The provider cannot be reached"
    remedy: str = "Check the network and the base URL, then try again."


class Upstream:
    """Connections to one provider. `run` owns its tasks and connections; `start` needs it running."""

    def __init__(
        self,
        base_url: str,
        patience: Patience,
        *,
        jitter: Callable[[], float],
        max_turns: int = 256,
        unreachable: Unreachable | None = None,
    ) -> None:
        self._clients: dict[bool, httpx2.AsyncClient] = {}
        self.client_to(base_url)  # reports an invalid HTTPS_PROXY at once
        self._unreachable = unreachable or Unreachable()
        self._patience = patience
        self._jitter = jitter
        self._max_turns = max_turns
        self._nursery: trio.Nursery | None = None
        self._streams: set[UpstreamStream] = set()
        self._drained = trio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Upstream turns={self.turns}>"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for client in self._clients.values():
                    await client.aclose()

    def client_to(self, url: str) -> httpx2.AsyncClient:
        """The HTTP client for a URL. A provider may have several: a login is renewed elsewhere than it is used.

        Created on first use, so that an invalid proxy does not affect servers on this machine.
        """
        here = leads_here(url)
        if here not in self._clients:
            self._clients[here] = _make_client(uses_proxies=not here)
        return self._clients[here]

    def start(
        self, attempt: Attempt, buffer: UpstreamBuffer, trace: Callable[[bytes], None] | None = None
    ) -> UpstreamStream:
        """Start a turn. Raises Overloaded or NotReady; every other error ends the stream."""
        if self._closed or self._nursery is None:
            raise NotReady("The bridge is stopping.", code="shutdown_initiated")
        if self.turns >= self._max_turns:
            raise Overloaded(f"{self._max_turns} turns are running already. Try again in a moment.", retry_after=1)
        stream = UpstreamStream(buffer, trace=trace)
        self._streams.add(stream)
        self._nursery.start_soon(self._own, attempt, stream)
        return stream

    def spawn(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Run a task beside the turns; it must not raise. False when `run` is not running."""
        if self._nursery is not None:
            self._nursery.start_soon(work)
        return self._nursery is not None

    @property
    def turns(self) -> int:
        return len(self._streams)

    async def drain(self) -> None:
        while self._streams:
            self._drained = trio.Event()
            await self._drained.wait()

    def shut_down(self) -> None:
        """Fail the running turns and accept no more."""
        self._closed = True
        for stream in list(self._streams):
            stream.buffer.fail(NotReady("The bridge is stopping.", code="shutdown_initiated"))
            stream.wake()
            stream.scope.cancel()

    async def _own(self, attempt: Attempt, stream: UpstreamStream) -> None:
        end = stream.scope.deadline = trio.current_time() + self._patience.turn
        with stream.scope:
            try:
                await self._send_with_retries(attempt, stream, end)
            except BridgeError as error:
                stream.buffer.fail(error)
            except Exception:
                # A bug of ours must fail this turn only.
                log.exception("request to an upstream failed")
                stream.buffer.fail(BridgeError("The bridge failed while it talked to the provider. See its log."))
        if stream.scope.cancelled_caught and trio.current_time() >= end:
            stream.buffer.fail(BackendTimeout(f"The turn took longer than {self._patience.turn:g} s and was stopped."))
        stream.buffer.cancelled()
        stream.wake()
        self._streams.discard(stream)
        self._drained.set()

    async def _send_with_retries(self, attempt: Attempt, stream: UpstreamStream, end: float) -> None:
        retries, renewed = 0, False
        while True:
            try:
                return await self._send(attempt.request(), stream)
            except BridgeError as error:
                if error.http_status == 401 and not renewed and not stream.started:
                    renewed = True
                    if await attempt.renew():
                        continue
                # After a timeout the client has waited long enough.
                may_pass = error.severity == "transient" and not isinstance(error, BackendTimeout)
                if stream.started or retries == RETRIES or not may_pass:
                    raise
                delay = error.retry_after
                if delay is None:
                    delay = FIRST_DELAY * 2**retries * (0.5 + self._jitter())
                if delay > LONGEST_DELAY or trio.current_time() + delay > end:
                    error.message = f"{error.message} Try again in {delay:.0f} s."
                    raise
                retries += 1
                await trio.sleep(delay)

    async def _send(self, request: Request, stream: UpstreamStream) -> None:
        """Send one request and read its stream to the end."""
        clock = _Clock(self._patience)
        clean = Redactor(request.secrets, shortest=SHORTEST_SECRET).without_known
        try:
            with clock.scope:
                sending = self.client_to(request.url).stream(
                    "POST", request.url, headers=dict(request.headers), content=request.content
                )
                async with sending as response:
                    if response.status_code != 200:
                        raise await _rejection(response, clean)
                    await self._read(response, clean, stream, clock)
        except httpx2.TransportError as error:
            raise _broken(error, stream.started, self._unreachable) from None
        except httpx2.HTTPError as error:
            raise UpstreamError(f"The provider's response cannot be read: {_name(error)}.") from None
        except (httpx2.InvalidURL, UnicodeError):
            raise UpstreamError("The provider's URL is invalid. Check the base URL.") from None
        if clock.scope.cancelled_caught and not stream.buffer.finished:
            what = "sent nothing more" if stream.started else "did not begin to answer"
            raise BackendTimeout(f"The model {what} for {clock.wait:g} s. The turn was stopped.")
        if not stream.buffer.finished:
            raise UpstreamError(
                "The provider's stream ended before the answer was complete. Try again.",
                code="stream_truncated",
                severity="transient",
            )

    async def _read(self, response: httpx2.Response, clean: Clean, stream: UpstreamStream, clock: _Clock) -> None:
        if "html" in response.headers.get("content-type", ""):
            raise UpstreamError("The provider answers with a web page. Check the base URL and proxies on the way.")
        reader = stream.buffer.reader()
        chunks = response.aiter_bytes()
        try:
            async for chunk in chunks:
                if not stream.buffer.finished:
                    _take(stream, reader, chunk, clean)
                if stream.buffer.finished:
                    # The rest is read and dropped: a connection can be reused only after the end of its response.
                    clock.finish()
                    continue
                clock.stop()
                await stream.wait_for_room()
                clock.restart(stream.started)
        finally:
            await _abandon(chunks)
        if not stream.buffer.finished:
            stream.read([clean(data) for data in reader.finish()])
            stream.over(told=reader.done)


async def _abandon(chunks: AsyncIterator[bytes]) -> None:
    """End a body that is not read to its end. Only its iterator closes all that httpx2 has opened for it."""
    with trio.CancelScope(shield=True) as scope:
        scope.cancel()
        with suppress(httpx2.HTTPError):
            async for _ in chunks:
                pass


def _take(stream: UpstreamStream, reader: SseReader, chunk: bytes, clean: Clean) -> None:
    """Read one piece of the body. An invalid event fails the answer; an exception would leave the body open."""
    try:
        stream.read([clean(data) for data in reader.feed(chunk)])
        if reader.done:
            stream.over(told=True)
    except BridgeError as error:
        stream.buffer.fail(error)
        stream.wake()


class _Clock:
    """The limit of silence while one attempt is read."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._started = trio.current_time()
        self.wait = patience.first_event
        self.scope = trio.CancelScope(deadline=self._started + self.wait)

    def stop(self) -> None:
        """The bridge waits for its own client, not for the provider."""
        self.scope.deadline = float("inf")

    def finish(self) -> None:
        """The answer is complete; only its last bytes are still to come."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + LAST_BYTES)

    def restart(self, started: bool) -> None:
        """Data has come. Comments alone do not count as the first event."""
        self.wait = self._patience.idle if started else self._patience.first_event
        self.scope.deadline = (trio.current_time() if started else self._started) + self.wait


def _make_client(*, uses_proxies: bool) -> httpx2.AsyncClient:
    """An HTTP client that keeps no cookies and follows no redirects."""
    for name in ("httpx2", "httpcore2"):
        # At lower levels they log the headers of a response, in which a provider may repeat ours.
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        return httpx2.AsyncClient(
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=uses_proxies,
        )
    except (ValueError, ImportError, OSError, httpx2.InvalidURL) as error:
        raise ConfigError(
            f"Cannot set up HTTP connections: {error}. Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        ) from None


async def _rejection(response: httpx2.Response, clean: Clean) -> BridgeError:
    body = b""
    # The rest of a long body is read and discarded for a moment, so that the connection can be reused.
    with suppress(httpx2.HTTPError), trio.move_on_after(REJECTION_SECONDS):
        async for chunk in response.aiter_bytes():
            body = (body + chunk)[:MAX_REJECTION]
    now = datetime.datetime.now(datetime.UTC)
    return error_from_status(response.status_code, response.headers, clean(body), now)


def _broken(error: httpx2.TransportError, started: bool, unreachable: Unreachable) -> UpstreamError:
    if started:
        return UpstreamError(
            f"The connection to the provider broke in the middle of the answer ({_name(error)}). Try again.",
            code="stream_truncated",
            severity="transient",
        )
    return UpstreamError(
        f"{unreachable.fact} ({_name(error)}). {unreachable.remedy}",
        code="upstream_unreachable",
        severity="fatal" if _is_about_certificates(error) else "transient",
    )


def _name(error: Exception) -> str:
    """The kind of failure, in our own words: the library's may repeat received bytes or the provider's address."""
    if isinstance(error, httpx2.ConnectError):
        return "its certificate is not trusted" if _is_about_certificates(error) else "no connection"
    return type(error).__name__


def _is_about_certificates(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


MAX_WAITING = 4 * 1024 * 1024
"""Characters that may wait for the consumer before reading pauses."""


class UpstreamStream:
    """The stream of a turn: an owner task reads it, the consumer takes its events.

    The consumer does not read by itself: httpx2 closes the connection when a read is cancelled, and a consumer may
    cancel its wait at any time, for a keepalive for example.

    The consumer calls `next` until the batch that ends with Finished, then `close`. The owner task calls `read` and
    `wait_for_room`; it runs within `scope`, which `close` cancels.
    """

    def __init__(self, buffer: UpstreamBuffer, *, trace: Callable[[bytes], None] | None = None) -> None:
        self.buffer = buffer
        self.scope = trio.CancelScope()
        self.started = False
        """An event has arrived: from now on nothing is retried."""
        self._trace = trace
        self._changed = trio.Event()
        self._taken = trio.Event()

    async def next(self) -> list[TurnEvent]:
        """The events since the last call, waiting for at least one; safe to cancel."""
        while not (events := self.buffer.take()):
            self._changed = trio.Event()
            await self._changed.wait()
        self._taken.set()
        return events

    def close(self) -> None:
        """The consumer is done or gone. An unfinished response is cancelled."""
        if not self.buffer.ended:
            self.scope.cancel()

    # For the owner task

    def read(self, events: list[bytes]) -> None:
        for data in events:
            self.started = True
            if self._trace is not None:
                self._trace(data)
            self.buffer.receive(data)
        self.wake()

    def over(self, *, told: bool) -> None:
        """The upstream's response has ended; `told` if the stream itself said so."""
        self.buffer.over(told=told)
        self.wake()

    def wake(self) -> None:
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Wait for a slow consumer: it slows down its own upstream, and nothing is lost."""
        while self.buffer.size > MAX_WAITING and not self.buffer.finished:
            self._taken = trio.Event()
            await self._taken.wait()
