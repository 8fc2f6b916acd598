"""A client of CAP on trio: streams that survive disconnections, whole answers, cancellation, health.

    async with CapClient("http://127.0.0.1:11435", key) as client:
        async with client.stream(request) as stream:
            async for packet in stream:
                if isinstance(packet, DeltaPacket):
                    print(packet.p, end="")

A request is identified by its `request_id`: sent again, it joins its own answer, so a retry runs no second turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

import httpx2
import trio
from pydantic import ValidationError

from bridge.protocols.cap.models import HealthCheckResponse, ServiceRequest, ServiceResponse
from bridge.protocols.cap.stream import ClosePacket, ErrorPacket, PacketReader, StreamError, StreamPacket, resume_point
from bridge.urls import api_base, is_header_safe, leads_here

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between attempts. Each pause is twice the one before."""
TRIES = 8
PATIENCE = 60.0
CONNECT_SECONDS = 10.0
SILENCE = 60.0
"""Seconds without a byte after which a stream counts as disconnected. A live one sends comments."""
WHOLE_SILENCE = 600.0
"""The same for a whole answer, which sends nothing before its end."""
LAST_BYTES = 1.0
"""Seconds to wait for the end of the HTTP response after the close packet."""
Model = TypeVar("Model", ServiceResponse, HealthCheckResponse)

GATEWAYS = (408, 425, 429, 502, 503, 504)
"""Statuses with which a gateway in front of the service may fail temporarily, without a StreamError."""


class ClientError(Exception):
    """Why an answer is missing or incomplete."""


class AssistFailed(ClientError):
    """The service reported an error: an error packet, or a StreamError with an HTTP `status`."""

    def __init__(self, error: StreamError, status: int | None = None) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether to retry. Not after side effects: repeating them is for a person to decide."""
        details = self.error.details or {}
        return self.error.severity == "transient" and not details.get("side_effects")

    @property
    def retry_after(self) -> float:
        """Seconds that the service asks to wait."""
        wait = (self.error.details or {}).get("retry_after")
        return float(wait) if isinstance(wait, int | float) and wait > 0 else 0.0


class Unreachable(ClientError):
    """The service cannot be reached, or the connection was lost, after all attempts."""


class NotCap(ClientError):
    """The response is not CAP: perhaps the URL leads to another service."""


OnRetry = Callable[[ClientError, float], None]


class CapClient:
    """Talks to the service at `url`, with or without /v1.

    Lost connections and transient errors before the first packet are retried. The pauses are 0.5 s, doubling to 30 s,
    or `retry_after`. After `tries` attempts in a row without a new packet, or if the service asks to wait for more
    than `patience` seconds, the last error is raised. For any other time limit use `trio.move_on_after`.

    Raises ValueError for an invalid URL or key. Plain http to another machine needs `insecure_http`. A client given
    as `http` is not closed. `on_retry` is called with each error and the pause in seconds before the next attempt.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        insecure_http: bool = False,
        tries: int = TRIES,
        patience: float = PATIENCE,
        http: httpx2.AsyncClient | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self._base = api_base(url, insecure_http=insecure_http)
        if key is not None and not is_header_safe(key):
            raise ValueError("a key must contain only visible ASCII characters")
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._attempts = partial(Attempts, tries, patience, on_retry)
        self._own = httpx2.AsyncClient(trust_env=not leads_here(self._base)) if http is None else None
        self._http = http or self._own

    def __repr__(self) -> str:
        return f"<CapClient {self._base}>"

    async def __aenter__(self) -> CapClient:
        return self

    async def __aexit__(self, *exit_details: object) -> None:
        if self._own is not None:
            await self._own.aclose()

    def stream(self, request: ServiceRequest) -> AssistStream:
        """The packets of an answer, for `async with`. The request is sent when the first packet is awaited."""
        return AssistStream(self, request, self._attempts())

    async def assist(self, request: ServiceRequest) -> ServiceResponse:
        """The whole answer. Raises AssistFailed, Unreachable or NotCap."""
        attempts = self._attempts()
        while True:
            try:
                response = await self.send("POST", "/assist", "application/json", request, silence=WHOLE_SILENCE)
                body = await response.aread()
            except httpx2.TransportError as error:
                await attempts.pause(_lost(error))
                continue
            failed = failure_of(response, body)
            if failed is None:
                return _read(ServiceResponse, body)
            if not failed.is_transient:
                raise failed
            await attempts.pause(failed, failed.retry_after)

    async def cancel(self, request_id: UUID) -> bool:
        """End the answer to a request; False if it is unknown or expired."""
        response = await self._once("DELETE", f"/assist/{request_id}")
        if response.status_code == 410:
            return False
        if (failed := failure_of(response, response.content)) is not None:
            raise failed
        return True

    async def health(self) -> HealthCheckResponse:
        """The state of the service, also while it accepts no requests."""
        response = await self._once("GET", "/health")
        if response.status_code not in (200, 503):
            raise failure_of(response, response.content) or _not_cap(response)
        return _read(HealthCheckResponse, response.content)

    async def send(
        self,
        method: Literal["GET", "POST", "DELETE"],
        path: str,
        accept: str,
        request: ServiceRequest | None = None,
        *,
        silence: float = SILENCE,
        **headers: str,
    ) -> httpx2.Response:
        """One HTTP request; the caller reads the body of the response. Raises httpx2.TransportError."""
        assert self._http is not None
        timeout = httpx2.Timeout(silence, connect=CONNECT_SECONDS)
        named = {**self._headers, "accept": accept, "accept-encoding": "identity"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        body: dict[str, Any] = {}
        if request is not None:
            named["content-type"] = "application/json"
            body["content"] = request.to_json().encode()
        made = self._http.build_request(method, self._base + path, headers=named, timeout=timeout, **body)
        return await self._http.send(made, stream=True)

    async def _once(self, method: Literal["GET", "DELETE"], path: str) -> httpx2.Response:
        try:
            response = await self.send(method, path, "application/json")
            await response.aread()
        except httpx2.TransportError as error:
            raise _lost(error) from error
        return response


class AssistStream:
    """The packets of one answer, in order, each once, up to the close packet.

    After a disconnection the stream resumes behind the last packet. `__anext__` is safe to cancel: no packet is lost.
    It raises AssistFailed, Unreachable or NotCap.

    Leaving the `async with` early only disconnects: the turn runs on for the service's grace period. `cancel` ends it.
    """

    def __init__(self, client: CapClient, request: ServiceRequest, attempts: Attempts) -> None:
        self.request_id = request.request_id
        self.conversation_id: str | None = None
        """The id of the conversation, once the answer has begun."""
        self.conversation: str | None = None
        """`new` or `continued`."""
        self.last = 0
        """The number of the last packet."""
        self._client = client
        self._request = request
        self._attempts = attempts
        self._response: httpx2.Response | None = None
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._reader = PacketReader()
        self._last_id = ""
        self._waiting: deque[tuple[str, StreamPacket]] = deque()
        self._over = self._closed = False

    def __repr__(self) -> str:
        return f"<AssistStream {self.request_id} last={self.last} over={self._over}>"

    async def __aenter__(self) -> AssistStream:
        return self

    async def __aexit__(self, *exit_details: object) -> None:
        self._over = True
        await self._hang_up()

    def __aiter__(self) -> AssistStream:
        return self

    async def __anext__(self) -> StreamPacket:
        while not self._over:
            if self._waiting:
                packet = self._take()
                if isinstance(packet, ErrorPacket):
                    await self._fail(AssistFailed(packet.p))
                elif packet is not None:
                    return packet
            elif self._chunks is None:
                await self._connect()
            else:
                await self._read(self._chunks)
        raise StopAsyncIteration

    def _take(self) -> StreamPacket | None:
        """The next packet; None for a duplicate."""
        name, packet = self._waiting.popleft()
        _, number = resume_point(name, self.request_id) or (0, -1)
        if 0 <= number <= self.last:
            return None
        if number != self.last + 1:
            raise NotCap("A packet of the stream is missing or has no number.")
        if not isinstance(packet, ErrorPacket):
            self.last, self._last_id = number, name
            self._attempts.succeeded()
        self._over = self._closed = isinstance(packet, ClosePacket)
        return packet

    async def _connect(self) -> None:
        client, kind = self._client, "text/event-stream"
        try:
            if self.last:
                path = f"/assist/{self.request_id}"
                response = await client.send("GET", path, kind, last_event_id=self._last_id)
            else:
                response = await client.send("POST", "/assist", kind, self._request)
            self._response = response
            if response.status_code != 200:
                failed = failure_of(response, await response.aread())
                if failed is None:
                    raise _not_cap(response)
                await self._fail(failed)
                return
        except httpx2.TransportError as error:
            await self._hang_up()
            await self._attempts.pause(_lost(error))
            return
        if not response.headers.get("content-type", "").startswith(kind):
            raise _not_cap(response)
        self.conversation_id = response.headers.get("x-conversation-id", self.conversation_id)
        self.conversation = response.headers.get("x-conversation", self.conversation)
        self._reader = PacketReader()
        self._chunks = response.aiter_raw()

    async def _read(self, chunks: AsyncGenerator[bytes, None]) -> None:
        why = Unreachable("The connection was lost.")
        try:
            self._waiting += self._reader.packets(await anext(chunks))
            return
        except ValueError:  # pydantic's ValidationError is one
            raise NotCap("The stream contains an invalid packet.") from None
        except StopAsyncIteration:
            pass
        except (httpx2.TransportError, httpx2.StreamError) as error:
            why = _lost(error)
        await self._hang_up()
        await self._attempts.pause(why)

    async def _fail(self, failed: AssistFailed) -> None:
        """Retry if the answer has no packet yet, or if only its resumption failed; otherwise raise."""
        is_end = failed.status is None
        if not failed.is_transient or (is_end and self.last):
            self._over = True
            raise failed
        await self._hang_up()
        self._waiting.clear()
        await self._attempts.pause(failed, failed.retry_after)

    async def _hang_up(self) -> None:
        response, chunks = self._response, self._chunks
        self._response = self._chunks = None
        with trio.CancelScope(shield=True):
            if chunks is not None:
                await _leave(chunks, LAST_BYTES if self._closed else 0)
            if response is not None:
                await response.aclose()


class Attempts:
    """Counts failed attempts in a row, and waits between them."""

    def __init__(self, most: int, patience: float, on_retry: OnRetry | None) -> None:
        self._most = most
        self._patience = patience
        self._on_retry = on_retry
        self._failed = 0

    def succeeded(self) -> None:
        self._failed = 0

    async def pause(self, why: ClientError, retry_after: float = 0.0) -> None:
        """Wait before the next attempt. Raises `why` if there should be none."""
        self._failed += 1
        if self._failed >= self._most or retry_after > self._patience:
            raise why
        pause = max(retry_after, min(FIRST_PAUSE * 2 ** (self._failed - 1), LONGEST_PAUSE))
        if self._on_retry is not None:
            self._on_retry(why, pause)
        await trio.sleep(pause)


def failure_of(response: httpx2.Response, body: bytes) -> AssistFailed | None:
    """The error that a response reports; None if it reports none. Raises NotCap for an unknown body."""
    status = response.status_code
    if response.is_success:
        return None
    try:
        return AssistFailed(StreamError.model_validate_json(body), status)
    except ValidationError:
        if status not in GATEWAYS:
            raise _not_cap(response) from None
    wait = response.headers.get("retry-after", "")
    details = {"retry_after": int(wait[:9])} if wait.isascii() and wait.isdigit() else None
    message = f"The service responded with HTTP status {status}."
    error = StreamError(code="unavailable", message=message, severity="transient", details=details)
    return AssistFailed(error, status)


async def _leave(chunks: AsyncGenerator[bytes, None], seconds: float) -> None:
    """Read to the end, so that the connection can be reused, for at most `seconds`.

    Then the read is cancelled: only that closes the generators which this one reads from.
    """
    with suppress(httpx2.HTTPError, httpx2.StreamError), trio.move_on_after(seconds):
        async for _ in chunks:
            pass


def _read(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError:
        raise NotCap(f"The response is not a {model.__name__}.") from None


def _not_cap(response: httpx2.Response) -> NotCap:
    return NotCap(f"The response is not CAP (HTTP status {response.status_code}).")


def _lost(error: Exception) -> Unreachable:
    return Unreachable(f"The service cannot be reached ({type(error).__name__}).")
