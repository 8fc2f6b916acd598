"""Where a run writes: events or text on stdout, diagnostics on stderr, and its logs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

import trio

from bridge.errors import BridgeError, UsageError

STDOUT, STDERR = 1, 2
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a model, or a provider, could use to play with somebody's terminal."""


class OutputError(BridgeError):
    """What was said cannot be written."""

    code = "output_failed"


class StdoutClosed(OutputError):
    """Nobody reads any more; there is nobody to tell, either."""


class Output:
    """A run's output. Lines are JSON objects without their line ends.

    Writes to stdout wait beside the event loop, so that a reader that stops reading cannot hold a signal up.
    """

    def __init__(self, *, json: bool, log_requests: str | None = None, log_responses: str | None = None) -> None:
        self.json = json
        self._requests = _open(log_requests, "--log-requests", os.O_TRUNC)
        self._responses = _open(log_responses, "--log-responses", os.O_APPEND)
        self._traced: list[bytes] = []
        self._on_terminal = os.isatty(STDOUT)
        self._column = 0

    async def lines(self, lines: list[bytes]) -> None:
        """Events: on stdout with --json, and in the log of responses."""
        await self._flush_trace()
        data = b"".join(line + b"\n" for line in lines)
        if self._responses is not None:
            _write_log(self._responses, data, "--log-responses")
        if self.json:
            await self._stdout(data)

    async def text(self, pieces: Iterable[str]) -> None:
        """A piece of the answer, when stdout is for people."""
        text = "".join(pieces)
        if text:
            self._column = 0 if text.endswith("\n") else 1
            await self._stdout((text.translate(_CONTROLS) if self._on_terminal else text).encode("utf-8", "replace"))

    async def end_text(self) -> None:
        """The newline that ends the answer, unless it has one."""
        if self._column:
            self._column = 0
            await self._stdout(b"\n")

    def trace(self, data: bytes) -> None:
        """A raw event of the upstream; it is written before what is made of it."""
        self._traced.append(data.replace(b"\n", b" ") + b"\n")

    def request(self, payload: bytes) -> None:
        """A payload that is about to be sent."""
        if self._requests is not None:
            _write_log(self._requests, payload + b"\n", "--log-requests")

    async def end(self) -> None:
        """Nothing more comes."""
        await self._flush_trace()
        for descriptor in (self._requests, self._responses):
            if descriptor is not None:
                os.close(descriptor)

    async def _flush_trace(self) -> None:
        if self._traced:
            traced, self._traced = self._traced, []
            data = b"".join(traced)
            if self.json:
                _stderr(data)
            else:
                await self._stdout(data)

    async def _stdout(self, data: bytes) -> None:
        if data:
            await trio.to_thread.run_sync(write_stdout, data, abandon_on_cancel=True)


def write_stdout(data: bytes) -> None:
    """All of it, now. Raises StdoutClosed when nobody reads, OutputError when it cannot be written."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(STDOUT, view) :]
    except BrokenPipeError:
        raise StdoutClosed("stdout was closed.") from None
    except OSError as error:
        what = "is closed" if error.errno == errno.EBADF else f"cannot be written: {error.strerror}"
        raise OutputError(f"stdout {what}.") from None


def say(kind: str, message: str) -> None:
    """One line of diagnostics."""
    line = " ".join(message.translate(_CONTROLS).split("\n"))
    _stderr(f"{kind}: {line}\n".encode("utf-8", "backslashreplace"))


def _stderr(data: bytes) -> None:
    view = memoryview(data)
    with suppress(OSError):
        while view:
            view = view[os.write(STDERR, view) :]


def _open(path: str | None, flag: str, how: int) -> int | None:
    if path is None:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}.") from None


def _write_log(descriptor: int, data: bytes, flag: str) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise OutputError(f"{flag} cannot be written: {error.strerror}.") from None
