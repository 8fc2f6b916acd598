"""One run, from its options to its exit code."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bridge.app.tool_loop import ToolLoop
from bridge.cli.exec import STOPPING
from bridge.cli.exec.backends import Choice, choose, open_backend, resolve
from bridge.cli.exec.options import Options, check_options, make_turn
from bridge.cli.exec.output import Output
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.core.turn import Turn
from bridge.errors import BridgeError, ConfigError
from bridge.ids import new_id
from bridge.protocols.wire import WireEncoder, error_line, read_outputs
from bridge.terminal import OutputError, StdoutClosed, say, write_stdout

if TYPE_CHECKING:
    from bridge.cli.exec.recording import RunLog

OK, FAILED, MISUSED = 0, 1, 2
BY_SIGNAL = 128
MAX_SIGNALS = 2
"""Signals after which one more ends the program at once."""
LAST_WORDS = 2.0
"""Seconds that a reader has to take the last line of a run that was stopped."""


class Stopped(BridgeError, code="interrupted"):
    """The run was stopped by a signal."""


class TimedOut(BridgeError, code="timeout"):
    """--timeout is over."""


class Signals:
    """The first signal lets the run end in order, a third one ends the program at once.

    `listen` is a task beside the run, not within it: a second signal must not kill what the first one lets end.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        """The first signal."""

    async def listen(
        self, run: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Cancel `run` at the first signal. Until now, signals were held back."""
        with trio.open_signal_receiver(*STOPPING) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            task_status.started()
            count = 0
            async for number in signals:
                count += 1
                self.received = self.received or number
                run.cancel()
                if count > MAX_SIGNALS:
                    os._exit(BY_SIGNAL + number)


def execute(options: Options) -> int:
    """Run, and return the exit code. Errors go to stderr, and with --json to the last line of stdout."""
    return trio.run(Run(options).run)


def report(error: BridgeError, *, json: bool) -> int:
    """Report a failure before the run; returns the exit code."""
    say("error", error.message)
    if json:
        try:
            write_stdout(error_line(error) + b"\n")
        except OutputError:
            return FAILED
    return MISUSED if isinstance(error, ConfigError) else FAILED


@dataclass(frozen=True, slots=True)
class Prepared:
    """What follows from the options before any backend is started."""

    choice: Choice
    turn: Turn
    tool_outputs: Mapping[str, str]
    output: Output


def prepare(options: Options) -> Prepared:
    """Check the options, and read the files that they name. Raises a BridgeError."""
    check_options(options)
    outputs = read_outputs(options.tool_output)
    choice = choose(options)
    # Codex's own client asks for one call at a time; where tools are offered as text, several do no harm.
    one_by_one = choice.kind in ("mock", "url") or (choice.plan is not None and choice.plan.kind == "codex")
    turn = make_turn(options, verbatim=choice.speaks_responses, parallel=not one_by_one)
    return Prepared(choice, turn, outputs, Output(options))


class Run:
    """What happens between the first line and the last."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._prepared: Prepared | None = None
        self._new_id: Callable[[str], str] = new_id
        self._encoder: WireEncoder | None = None
        self._calls: list[str] = []
        self._signals = Signals()
        self._trace_error: OutputError | None = None
        self._log: RunLog | None = None

    async def run(self) -> int:
        """The whole run; returns its exit code."""
        async with trio.open_nursery() as recording:  # the event log ends last
            failure = await self._run_within_limits(recording)
            with trio.move_on_after(LAST_WORDS):
                failure = await self._end(failure)
            if self._log is not None:
                self._log.end(_end_of(failure))
            recording.cancel_scope.cancel()
        if failure is None and (failure := self._log_failure()) is not None:
            await _say("error", failure.message)
        if self._signals.received is not None:
            return BY_SIGNAL + self._signals.received
        if failure is None:
            return OK
        return MISUSED if isinstance(failure, ConfigError) else FAILED

    async def _run_within_limits(self, recording: trio.Nursery) -> BridgeError | None:
        """Run until the end, a signal or the time limit; returns the failure."""
        timeout, failure = self._options.timeout, None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(deadline=trio.current_time() + timeout if timeout else float("inf")) as scope:
                await nursery.start(self._signals.listen, scope)
                try:
                    failure = await self._serve(scope, nursery, recording)
                except BridgeError as error:
                    failure = error
            nursery.cancel_scope.cancel()
        if self._signals.received is not None:
            return Stopped("The run was interrupted.")
        if (incomplete := self._trace_error or self._log_failure()) is not None:
            return incomplete
        if scope.cancelled_caught:
            return TimedOut(f"The run took longer than {timeout:g} s (--timeout) and was stopped.")
        return failure

    async def _serve(
        self, scope: trio.CancelScope, beside: trio.Nursery, recording: trio.Nursery
    ) -> BridgeError | None:
        # In a thread: an input that does not come must not delay a signal.
        prepared = await trio.to_thread.run_sync(prepare, self._options, abandon_on_cancel=True)
        self._prepared, output = prepared, prepared.output
        beside.start_soon(self._follow_trace, output, scope)
        if prepared.choice.kind == "mock":
            self._new_id = fixed_ids()
        if self._options.log_events is not None:
            from bridge.cli.exec.recording import RunLog

            self._log = output.log = RunLog(self._options, prepared.choice)
            with trio.CancelScope(shield=True):
                await recording.start(self._log.run, scope.cancel)
        async with open_backend(self._options, prepared.choice, output) as (backend, named):
            # Caught within the nursery of the backend, which would wrap the error in a group.
            try:
                turn = await resolve(backend, prepared.choice, prepared.turn, named)
                await self._answer(backend, turn, output)
                await output.flush()
            except BridgeError as error:
                return error
        return None

    async def _follow_trace(self, output: Output, scope: trio.CancelScope) -> None:
        """Show the trace as it comes. When it cannot be shown any more, the run is over."""
        try:
            await output.follow_trace()
        except OutputError as error:
            self._trace_error = error
            scope.cancel()

    def _log_failure(self) -> BridgeError | None:
        """Why the event log is not complete."""
        try:
            if self._log is not None:
                self._log.check()
        except BridgeError as error:
            return error
        return None

    async def _answer(self, backend: Backend, turn: Turn, output: Output) -> None:
        dropped = await backend.drops(turn)
        # Encrypted reasoning is requested in case the backend supports it; a warning would help no one.
        left_out = [name for name in dropped if not name.startswith("include:")]
        if turn.session is not None and backend.name == "app-server":
            left_out.append("--session-id (Codex names its own threads)")
        for name in left_out:
            say("warning", f"left out: {name}")
        self._encoder = encoder = WireEncoder(turn.requested_model, self._new_id)
        self._record_request(turn)
        if self._log is not None:
            self._log.start(turn, backend.name, dropped)
        stream = await self._start(backend, turn)
        try:
            await output.lines(encoder.begin())
            while not encoder.finished:
                await self._show(encoder, await stream.next(), output)
            if self._log is not None:
                self._log.end(_end_of(encoder.failure))
        finally:
            output.end_trace()
            stream.close()

    def _record_request(self, turn: Turn) -> None:
        if self._log is not None and self._prepared is not None:
            self._log.request(turn, self._prepared.tool_outputs)

    async def _start(self, backend: Backend, turn: Turn) -> EventStream:
        req_id = self._log.id if self._log is not None else self._new_id("req")
        if not self._options.auto_tools:
            return await backend.start(turn, req_id)
        from bridge.app.answers import attempt_id

        steps = 0

        async def start(step: Turn) -> EventStream:
            nonlocal steps
            steps += 1
            return await backend.start(step, attempt_id(req_id, steps - 1))

        return ToolLoop(start, turn, self._handle, max_steps=self._options.max_steps)

    async def _handle(self, call: ToolCall) -> str:
        assert self._prepared is not None
        output = self._prepared.tool_outputs.get(call.name)
        if output is None:
            say("warning", f"{call.name} was called, but no --tool-output is given for it")
            raise LookupError(f"there is no output for {call.name}")
        return call.arguments if output == "$args" else output

    async def _show(self, encoder: WireEncoder, events: list[TurnEvent], output: Output) -> None:
        if not self._options.json and not self._options.trace:
            await output.text([piece for event in events if isinstance(event, TextDelta) for piece in event.pieces])
        self._calls += [event.name for event in events if isinstance(event, ToolCall)]
        if self._log is not None:
            self._log.record_events(events)
        await output.lines(encoder.feed(events))

    async def _end(self, failure: BridgeError | None) -> BridgeError | None:
        """Write the last line, on stdout and on stderr; returns what the run failed of."""
        encoder = self._encoder
        output = self._prepared.output if self._prepared is not None else Output(Options(json=self._options.json))
        if self._prepared is not None:
            self._record_request(self._prepared.turn)
        try:
            if failure is not None:
                await output.lines([error_line(failure)] if encoder is None else encoder.fail(failure))
            await output.end_text()
            await output.end()
        except OutputError as error:
            failure = failure or error
        if encoder is not None and encoder.failure is not None:
            failure = encoder.failure
        if failure is not None and not isinstance(failure, StdoutClosed):
            await _say("error", failure.message or f"The run failed ({failure.code}).")
        elif self._calls and not self._options.auto_tools and not self._options.json:
            names = ", ".join(dict.fromkeys(self._calls))
            await _say("note", f"the model calls {names}; --json shows the calls, --auto-tools answers them")
        return failure


def _end_of(failure: BridgeError | None) -> Finished:
    """How a run ended, in the words of the event log."""
    if failure is None:
        return Finished("completed")
    if isinstance(failure, Stopped | StdoutClosed):
        return Finished("cancelled", "interrupted" if isinstance(failure, Stopped) else "client_gone", failure)
    return Finished("failed", error=failure)


async def _say(kind: str, message: str) -> None:
    """Write a line to stderr, in a thread: its reader may have stopped reading."""
    await trio.to_thread.run_sync(say, kind, message, abandon_on_cancel=True)


def fixed_ids() -> Callable[[str], str]:
    """Ids that are the same in every run: `msg_mock`, then `msg_mock_2`."""
    used: Counter[str] = Counter()

    def fixed_id(prefix: str) -> str:
        used[prefix] += 1
        return f"{prefix}_mock" if used[prefix] == 1 else f"{prefix}_mock_{used[prefix]}"

    return fixed_id
