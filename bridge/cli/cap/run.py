"""One run of `cap run`, from its options to its exit code."""

from __future__ import annotations

import threading
from time import time
from typing import Any

import trio

from bridge.api.cap.failures import failure_from
from bridge.api.cap.request import read_request
from bridge.api.cap.writers import CLOSE_PACKET
from bridge.api.reading import parse_json
from bridge.cli.cap.answering import Answer, open_answer
from bridge.cli.cap.options import Options, check_options
from bridge.cli.cap.requests import Requests
from bridge.cli.exec.run import FAILED, LAST_WORDS, MISUSED, OK, TimedOut
from bridge.cli.exec.signals import BY_SIGNAL, Signals, Stopped
from bridge.cli.streams import OutputError, StdoutClosed, say, write_stdout
from bridge.errors import BridgeError, ConfigError, UsageError
from bridge.server.cap.refusals import named_id


def execute(options: Options) -> int:
    """Run, and tell the exit code."""
    return trio.run(CapRun(options).run)


class CapRun:
    """Requests in, packets out. What a request fails of is told in its packets and on stderr, and the next is read."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._signals = Signals()
        self._failed = False
        self._answering: Any = None
        """The request whose answer has no end yet, as far as it could be read."""
        self._is_open = False
        """Whether the end of an answer is still to be written."""
        self._writing = threading.Lock()

    async def run(self) -> int:
        """The whole run; its exit code."""
        failure = await self._within_limits()
        if failure is not None:
            with trio.move_on_after(LAST_WORDS):
                await self._end(failure)
        if self._signals.heard is not None:
            return BY_SIGNAL + self._signals.heard
        if isinstance(failure, ConfigError):
            return MISUSED
        return FAILED if failure is not None or self._failed else OK

    async def _within_limits(self) -> BridgeError | None:
        """Until the end, a signal or the time limit; what went wrong with the run itself."""
        timeout, failure = self._options.timeout, None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(deadline=trio.current_time() + timeout if timeout else float("inf")) as whole:
                await nursery.start(self._signals.listen, whole)
                failure = await self._serve()
            nursery.cancel_scope.cancel()
        if self._signals.heard is not None:
            return Stopped("The run was interrupted.")
        if whole.cancelled_caught:
            return TimedOut(f"The run took longer than {timeout:g} s (--timeout) and was stopped.")
        return failure

    async def _serve(self) -> BridgeError | None:
        try:
            check_options(self._options)
            async with open_answer(self._options) as answer:
                # Not through the backends' tasks: they would make a group of it.
                try:
                    await self._answer_all(answer)
                except BridgeError as error:
                    return error
        except BridgeError as error:
            return error
        return None

    async def _answer_all(self, answer: Answer) -> None:
        requests, count = Requests(), 0
        while True:
            # Beside the event loop: a request that does not come must not hold a signal up.
            body = await trio.to_thread.run_sync(requests.next, abandon_on_cancel=True)
            if body is None:
                break
            count += 1
            await self._answer(answer, body)
        if not count:
            raise UsageError("stdin holds no request: write a ServiceRequest there, or one a line.")

    async def _answer(self, answer: Answer, body: bytes) -> None:
        self._is_open, self._answering = True, None
        try:
            data = self._answering = parse_json(body)
            told = await answer(read_request(data), data, self._write)
        except OutputError:
            raise
        except BridgeError as error:
            await self._tell(error)
        else:
            if told is not None:
                self._failed = True
                say("error", told)

    async def _tell(self, error: BridgeError) -> None:
        """The end of an answer that fails."""
        self._failed = True
        failure = failure_from(error, now=time(), request_id=named_id({"body": self._answering}))
        await self._write(failure.packets)
        say("error", failure.error.message)

    async def _end(self, failure: BridgeError) -> None:
        """The end of a run that fails."""
        if isinstance(failure, StdoutClosed):
            return
        if self._is_open and not isinstance(failure, OutputError):
            try:
                await self._tell(failure)
            except OutputError:
                return
        else:
            await trio.to_thread.run_sync(say, "error", failure.message, abandon_on_cancel=True)

    async def _write(self, packets: list[bytes]) -> None:
        if packets:
            await trio.to_thread.run_sync(self._write_now, packets, abandon_on_cancel=True)

    def _write_now(self, packets: list[bytes]) -> None:
        # A write that was given up goes on beside the event loop; nothing may follow a close packet.
        with self._writing:
            if self._is_open:
                write_stdout(b"".join(packet + b"\n" for packet in packets))
                self._is_open = packets[-1] != CLOSE_PACKET
