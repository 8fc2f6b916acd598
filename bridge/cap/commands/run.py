"""`cap run`: requests on stdin, packets on stdout, diagnostics on stderr."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

import trio

from bridge.appserver.standin import MODES
from bridge.cap import RUN
from bridge.cap.commands import MAX_INPUT, RunFlags
from bridge.cap.endpoint import id_in_body
from bridge.cap.exchange import AssistExchange
from bridge.cap.live import LiveAssist
from bridge.cli.exec.options import base_url, check_shared
from bridge.cli.exec.run import FAILED, LAST_WORDS, RunScope
from bridge.cli.flags import check_choice
from bridge.errors import BridgeError, UpstreamError, UsageError
from bridge.exact_json import is_json
from bridge.protocols.cap.failures import Failure, failure_from
from bridge.protocols.cap.models import ServiceRequest
from bridge.protocols.cap.request import parse_service_request
from bridge.protocols.cap.stream import CLOSE_PACKET
from bridge.protocols.dropped import HEADER
from bridge.protocols.reading import parse_json
from bridge.terminal import OutputError, StdoutClosed, read_some, say, write_stdout

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig


@dataclass(frozen=True, slots=True)
class Options(RunFlags):
    @property
    def default_model(self) -> str | None:
        """The model for requests that name none."""
        return self.model or (f"mock-{self.mock_mode or 'echo'}" if self.mock else None)

    def check(self) -> None:
        """Raise UsageError for invalid values and combinations."""
        check_choice("--mock-mode", self.mock_mode, MODES)
        if self.mock_mode is not None and not self.mock:
            raise UsageError("--mock-mode requires --mock.")
        if self.url is not None and (self.mock or self.model is not None or self.log_events is not None):
            raise UsageError("--url uses a running bridge. It excludes --mock, --model and --log-events.")
        check_shared(self.url, self.insecure_http, self.log_events, self.provider_key)


def execute(options: Options) -> int:
    """Run the command; returns its exit code."""
    return trio.run(CapRun(options).run)


class CapRun:
    """One run. The failure of a request is reported in its packets and on stderr; then the next request is read."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scope = RunScope()
        self._failed = False
        self._answering: Any = None
        """The body of the request that is being answered, if it could be parsed."""
        self._is_open = False
        """Whether an answer still lacks its close packet."""
        self._writing = threading.Lock()

    async def run(self) -> int:
        failure = await self._scope.run(self._options.timeout, self._serve)
        if failure is not None:
            with trio.move_on_after(LAST_WORDS):
                await self._end(failure)
        return self._scope.exit_code(failure) or (FAILED if self._failed else 0)

    async def _serve(self) -> None:
        self._options.check()
        async with open_answer(self._options) as answer:
            await self._answer_all(answer)

    async def _answer_all(self, answer: Answer) -> None:
        requests, count = read_requests(), 0
        # In a thread: waiting for a request must not delay a signal.
        while body := await trio.to_thread.run_sync(next, requests, None, abandon_on_cancel=True):
            count += 1
            await self._answer(answer, body)
        if not count:
            raise UsageError("stdin holds no request. Write one ServiceRequest, or one per line.")

    async def _answer(self, answer: Answer, body: bytes) -> None:
        self._is_open, self._answering = True, None
        try:
            data = self._answering = parse_json(body)
            failed = await answer(parse_service_request(data), data, self._write)
        except OutputError:
            raise
        except BridgeError as error:
            await self._fail(error)
        else:
            if failed is not None:
                self._failed = True
                say("error", failed)

    async def _fail(self, error: BridgeError) -> None:
        """End the current answer with an error."""
        self._failed = True
        failure = failure_from(error, now=time(), request_id=id_in_body(self._answering))
        await self._write(failure.packets)
        say("error", failure.error.message)

    async def _end(self, failure: BridgeError) -> None:
        """End the run with an error."""
        if isinstance(failure, StdoutClosed):
            return
        if self._is_open and not isinstance(failure, OutputError):
            try:
                await self._fail(failure)
            except OutputError:
                return
        else:
            await trio.to_thread.run_sync(say, "error", failure.message, abandon_on_cancel=True)

    async def _write(self, packets: list[bytes]) -> None:
        if packets:
            await trio.to_thread.run_sync(self._write_now, packets, abandon_on_cancel=True)

    def _write_now(self, packets: list[bytes]) -> None:
        # An abandoned write continues in its thread, so the check for the close packet must be made under the lock.
        with self._writing:
            if self._is_open:
                write_stdout(b"".join(packet + b"\n" for packet in packets))
                self._is_open = packets[-1] != CLOSE_PACKET


def read_requests() -> Iterator[bytes]:
    """The requests on stdin: one per line, or a single one over several lines. Blocks; raises UsageError."""
    lines = (line for line in _read_lines() if line.strip())
    first = next(lines, b"")
    if not first or is_json(first):
        yield first
    else:
        rest, size = [first], len(first)
        for line in lines:
            rest.append(line)
            size = _bounded(size + len(line))
        whole = b"\n".join(rest)
        yield from [whole] if is_json(whole) else rest
    yield from lines


def _read_lines() -> Iterator[bytes]:
    """The lines of stdin as they arrive; the last may lack its end."""
    tail: list[bytes] = []
    size = 0
    while piece := read_some():
        head, *lines = piece.split(b"\n")
        tail.append(head)
        size = _bounded(size + len(head))
        if lines:
            yield b"".join(tail)
            yield from lines[:-1]
            tail, size = lines[-1:], len(lines[-1])
    yield b"".join(tail)


def _bounded(size: int) -> int:
    if size > MAX_INPUT:
        raise UsageError(f"A request on stdin is larger than {MAX_INPUT:,} bytes.")
    return size


# Answers: from this process, as the server would give them, or from a running bridge

Write = Callable[[list[bytes]], Awaitable[None]]
Answer = Callable[[ServiceRequest, dict[str, Any], Write], Awaitable[str | None]]
"""Writes the packets for one request and its body; returns the message of a failure that the packets report.

Raises BridgeError for a failure before the first packet.
"""


def open_answer(options: Options) -> AbstractAsyncContextManager[Answer]:
    """What answers the requests of a run, started and stopped with it. Entering raises BridgeError."""
    from bridge.settings.file import load_configuration

    settings, config = load_configuration(
        config=options.config,
        codex_bin=options.codex_bin,
        codex_home=options.codex_home,
        native_tools=options.native_tools or None,
        mock_only=options.mock or None,
        cap_model=options.default_model,
    )
    return _here(options, settings, config) if options.url is None else _elsewhere(options, settings)


@asynccontextmanager
async def _here(options: Options, settings: Settings, config: FileConfig) -> AsyncIterator[Answer]:
    """Answers as the server does, for one client that reads everything."""
    from bridge.app.app import open_app

    busy: set[tuple[str, str]] = set()
    own = {"store": "memory", "log_events": options.log_events}
    async with open_app(settings.model_copy(update=own), config) as app:

        async def answer(request: ServiceRequest, data: dict[str, Any], write: Write) -> str | None:
            exchange = AssistExchange(app.service, "", RUN, request, data, "ndjson", busy)
            exchange.provider_key = options.provider_key
            exchange.arrived({"body": data, "form": "ndjson"})
            live = LiveAssist(exchange, grace=math.inf)
            reader = live.read()
            failed: BridgeError | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live.run)
                # Caught inside the nursery, which would wrap the error in a group.
                try:
                    await live.begun()
                    if (names := dict(exchange.headers).get(HEADER)) is not None:
                        say("warning", f"ignored: {names.decode()}")
                    while not reader.done:
                        await write((await reader.next())[0])
                except BridgeError as error:
                    failed = error
                    nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
            return None if exchange.failure is None else exchange.failure.message

        yield answer


@asynccontextmanager
async def _elsewhere(options: Options, settings: Settings) -> AsyncIterator[Answer]:
    from bridge.cap.client import AssistFailed, CapClient, ClientError
    from bridge.cli.exec.backends import bridge_key

    assert options.url is not None
    url = base_url(options.url, insecure_http=options.insecure_http)
    key = bridge_key(url, options.provider_key, settings)

    def report_retry(error: ClientError, pause: float) -> None:
        say("warning", f"{error} Retrying in {pause:g} s.")

    async with CapClient(url, key, insecure_http=options.insecure_http, on_retry=report_retry) as client:

        async def answer(request: ServiceRequest, data: dict[str, Any], write: Write) -> str | None:
            try:
                async with client.stream(request) as stream:
                    async for packet in stream:
                        await write([packet.to_json().encode()])
            except AssistFailed as failed:
                await write(Failure(failed.error, 0).packets)
                return failed.error.message
            except ClientError as error:
                message = f"{error} Check that --url leads to a running bridge; `turnbridge serve` starts one."
                raise UpstreamError(message, code="upstream_unreachable", severity="transient") from None
            return None

        yield answer
