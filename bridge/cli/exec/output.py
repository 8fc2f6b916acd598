"""The output of a run: events or text on stdout, diagnostics on stderr, and its logs.

What only the event log needs is imported when there is one: a run should begin quickly.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import trio

from bridge.errors import UsageError
from bridge.terminal import STDOUT, OutputError, write_all, write_stderr, write_stdout
from bridge.terminal import remove_controls as visible

if TYPE_CHECKING:
    from bridge.cli.exec.backends import Choice
    from bridge.cli.exec.options import Options
    from bridge.log.event_log import EventLog
    from bridge.log.record import Recorder


class Output:
    """A run's output. Lines are JSON objects without their line ends.

    Writes to stdout wait in a thread, so that a reader that stops reading cannot delay a signal.
    """

    def __init__(self, options: Options) -> None:
        self.recorder: Recorder | None = None
        """Records the frames of the backend; None without an event log."""
        self._json = options.json
        self._traces = options.trace
        self._requests = _open(options.log_requests, "--log-requests", os.O_TRUNC)
        self._responses = _open(options.log_responses, "--log-responses", os.O_APPEND)
        self._traced: list[bytes] = []
        self._something_traced = trio.Event()
        self._tracing = trio.Lock()
        self._on_terminal = os.isatty(STDOUT)
        self._column = 0

    async def lines(self, lines: list[bytes]) -> None:
        """Events: on stdout with --json, and in --log-responses."""
        await self.flush()
        data = b"".join(line + b"\n" for line in lines)
        if data:
            await trio.to_thread.run_sync(self._write_lines, data, abandon_on_cancel=True)

    def _write_lines(self, data: bytes) -> None:
        try:
            if self._responses is not None:
                _write_log(self._responses, data, "--log-responses")
        except OutputError:
            self._responses = None  # one that fails is not tried again
            raise
        if self._json:
            write_stdout(data)

    async def text(self, pieces: Iterable[str]) -> None:
        """A piece of the answer, when stdout is for people."""
        text = "".join(pieces)
        if text:
            self._column = 0 if text.endswith("\n") else 1
            await self._stdout((visible(text) if self._on_terminal else text).encode("utf-8", "replace"))

    async def end_text(self) -> None:
        """The newline that ends the answer, unless it has one."""
        if self._column:
            self._column = 0
            await self._stdout(b"\n")

    def record(self, req_id: str, direction: str, data: bytes) -> None:
        """A payload that is about to be sent (`out`), or a raw event of the upstream (`in`)."""
        if self.recorder is not None:
            self.recorder.upstream(req_id, direction, data)
        if direction == "out":
            self.request(data)
        else:
            self.trace(data)

    def trace(self, data: bytes) -> None:
        """A raw event of the upstream, for --trace. It is written before the output that is made of it."""
        if self._traces:
            self._traced.append(data.replace(b"\n", b" ") + b"\n")
            self._something_traced.set()

    def end_trace(self) -> None:
        """The turn is over: what the upstream still sends is about its clean-up."""
        self._traces = False

    async def follow_trace(self) -> None:
        """Show raw events also while no output is made of them; until cancelled. Raises OutputError."""
        while True:
            await self._something_traced.wait()
            self._something_traced = trio.Event()
            await self.flush()

    def request(self, payload: bytes) -> None:
        """A payload that is about to be sent."""
        if self._requests is not None:
            _write_log(self._requests, payload + b"\n", "--log-requests")

    async def end(self) -> None:
        """Write what is left, and close the logs."""
        await self.flush()
        for descriptor in (self._requests, self._responses):
            if descriptor is not None:
                os.close(descriptor)

    async def flush(self) -> None:
        """Write the trace so far. One caller at a time, so that it stays in order."""
        async with self._tracing:
            data, self._traced = b"".join(self._traced), []
            if self._json and data:
                await trio.to_thread.run_sync(write_stderr, data, abandon_on_cancel=True)
            else:
                await self._stdout(data)

    async def _stdout(self, data: bytes) -> None:
        if data:
            await trio.to_thread.run_sync(write_stdout, data, abandon_on_cancel=True)


def _open(path: str | None, flag: str, how: int) -> int | None:
    if path is None:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}.") from None


def _write_log(descriptor: int, data: bytes, flag: str) -> None:
    try:
        write_all(descriptor, data)
    except OSError as error:
        raise OutputError(f"{flag} cannot be written: {error.strerror}.") from None


def open_log(options: Options, choice: Choice) -> EventLog:
    """The event log of a run, without its keys. Raises ConfigError when it cannot be written."""
    from bridge.log.event_log import EventLog, about
    from bridge.redact import Redactor
    from bridge.settings import load_settings

    assert options.log_events is not None
    settings = choice.settings or load_settings({})
    keys = tuple(key for key in (options.provider_key, choice.key, *settings.api_keys) if key)
    return EventLog(options.log_events, Redactor(keys), about(settings), max_bytes=0, on_error="stop")
