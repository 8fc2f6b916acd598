"""One run, from its options to its exit code."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from bridge.cli.exec import STOPPING
from bridge.cli.exec.backends import Choice, choose, open_backend, resolve
from bridge.cli.exec.options import Options, check_options, make_turn
from bridge.cli.exec.output import Output, open_log
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.core.observer import Observer, TurnFacts
from bridge.core.turn import Turn
from bridge.errors import BridgeError, ConfigError
from bridge.ids import new_id
from bridge.protocols.responses.build import build_request
from bridge.protocols.wire import WireEncoder, error_line, read_outputs
from bridge.terminal import OutputError, StdoutClosed, say, write_stdout

if TYPE_CHECKING:
    from bridge.log.event_log import EventLog

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


class RunScope:
    """Ends a run at a signal or a time limit.

    The first signal lets the run end in order, a third one ends the program at once. They are received beside the run,
    not within it: a second signal must not kill what the first one lets end.
    """

    def __init__(self) -> None:
        self._scope = trio.CancelScope()
        self._received: int | None = None
        """The first signal."""

    async def run(self, timeout: float | None, work: Callable[[], Awaitable[None]]) -> BridgeError | None:
        """Run `work` until its end, a signal or the time limit; returns the failure."""
        failure: BridgeError | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._listen)
            self._scope.deadline = trio.current_time() + (timeout or math.inf)
            with self._scope:
                try:
                    await work()
                except* BridgeError as group:  # a nursery in `work` wraps the error
                    failure = _first(group)
            nursery.cancel_scope.cancel()
        if self._received is not None:
            return Stopped("The run was interrupted.")
        if timeout is not None and self._scope.cancelled_caught:
            return TimedOut(f"The run took longer than {timeout:g} s (--timeout) and was stopped.")
        return failure

    def cancel(self) -> None:
        """End the run early. The caller knows why."""
        self._scope.cancel()

    def exit_code(self, failure: BridgeError | None) -> int:
        if self._received is not None:
            return BY_SIGNAL + self._received
        if failure is None:
            return OK
        return MISUSED if isinstance(failure, ConfigError) else FAILED

    async def _listen(self, task_status: trio.TaskStatus[None]) -> None:
        """Receive signals. Until now they were held back."""
        with trio.open_signal_receiver(*STOPPING) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            task_status.started()
            count = 0
            async for number in signals:
                count += 1
                self._received = self._received or number
                self._scope.cancel()
                if count > MAX_SIGNALS:
                    os._exit(BY_SIGNAL + number)


def _first(group: BaseExceptionGroup[BridgeError]) -> BridgeError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


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


def prepare(options: Options) -> tuple[Choice, Turn, Mapping[str, str], Output]:
    """What follows from the options: the backend, the turn, the tools' outputs, and the opened logs.

    Raises a BridgeError.
    """
    check_options(options)
    outputs = read_outputs(options.tool_output)
    choice = choose(options)
    # Codex's own client asks for one call at a time; where tools are offered as text, several do no harm.
    one_by_one = choice.kind in ("mock", "url") or (choice.plan is not None and choice.plan.kind == "codex")
    turn = make_turn(
        options, verbatim=choice.speaks_responses, parallel=not one_by_one, default_model=choice.default_model
    )
    return choice, turn, outputs, Output(options)


class Run:
    """What happens between the first line and the last."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scope = RunScope()
        self._output = Output(Options(json=options.json))
        """Until the options are checked, errors are written without logs."""
        self._turn: Turn | None = None
        self._tool_outputs: Mapping[str, str] = {}
        self._encoder: WireEncoder | None = None
        self._log: EventLog | None = None
        self._observer = Observer()
        self._facts: TurnFacts | None = None
        self._end: Finished | None = None
        """The end of the backend's answer."""

    async def run(self) -> int:
        """The whole run; returns its exit code."""
        async with trio.open_nursery() as recording:  # the event log ends last
            failure = await self._scope.run(self._options.timeout, lambda: self._serve(recording))
            if not isinstance(failure, Stopped):
                failure = self._log_failure() or failure
            with trio.move_on_after(LAST_WORDS):
                failure = await self._write_end(failure)
            self._record_end(failure)
            recording.cancel_scope.cancel()
        if failure is None and (failure := self._log_failure()) is not None:
            await _say("error", failure.message)
        return self._scope.exit_code(failure)

    async def _serve(self, recording: trio.Nursery) -> None:
        # In a thread: an input that does not come must not delay a signal.
        prepared = await trio.to_thread.run_sync(prepare, self._options, abandon_on_cancel=True)
        choice, turn, self._tool_outputs, output = prepared
        self._turn, self._output = turn, output
        if self._options.log_events is not None:
            from bridge.log.record import LogObserver

            self._log = open_log(self._options, choice)
            self._observer, output.recorder = LogObserver(self._log.recorder), self._log.recorder
            with trio.CancelScope(shield=True):
                await recording.start(self._log.run, self._scope.cancel)
        async with trio.open_nursery() as beside:
            beside.start_soon(output.follow_trace)
            async with open_backend(self._options, choice, output) as backend:
                self._turn = await resolve(backend, choice, turn)
                await self._answer(backend, self._turn, fixed_ids() if choice.kind == "mock" else new_id)
                await output.flush()
            beside.cancel_scope.cancel()

    async def _answer(self, backend: Backend, turn: Turn, new_id: Callable[[str], str]) -> None:
        dropped = await backend.drops(turn)
        # Encrypted reasoning is requested in case the backend supports it; a warning would help no one.
        left_out = [name for name in dropped if not name.startswith("include:")]
        if turn.session is not None and backend.name == "app-server":
            left_out.append("--session-id (Codex names its own threads)")
        for name in left_out:
            say("warning", f"left out: {name}")
        self._encoder = encoder = WireEncoder(turn.requested_model, new_id)
        self._facts = facts = self._record_request(turn)
        facts.turn, facts.backend, facts.dropped = turn, backend.name, tuple(dropped)
        self._observer.starting(facts)
        stream = await self._start(backend, turn, facts.id)
        try:
            await self._write(encoder.begin())
            while not encoder.finished:
                await self._show(encoder, facts, await stream.next())
            self._record_end(encoder.failure)
        finally:
            self._output.end_trace()
            stream.close()

    async def _start(self, backend: Backend, turn: Turn, req_id: str) -> EventStream:
        if not self._options.auto_tools:
            return await backend.start(turn, req_id)
        from bridge.app.tool_loop import answer_calls

        def warn(name: str) -> None:
            say("warning", f"{name} was called, but no --tool-output is given for it")

        outputs, max_steps = self._tool_outputs, self._options.max_steps
        return answer_calls(backend, turn, req_id, outputs, max_steps=max_steps, on_missing=warn)

    async def _show(self, encoder: WireEncoder, facts: TurnFacts, events: list[TurnEvent]) -> None:
        if not self._options.json and not self._options.trace:
            text = [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces]
            await self._output.text(text)
        facts.first = facts.first or trio.current_time()
        facts.calls += tuple(event for event in events if isinstance(event, ToolCall))
        if isinstance(events[-1], Finished):
            self._end = events[-1]
        await self._write(encoder.feed(events))

    async def _write(self, lines: list[bytes]) -> None:
        """Write events to the event log and to the output."""
        if self._log is not None and self._facts is not None:
            for line in lines:
                self._log.recorder.client_line(self._facts.id, line)
        await self._output.lines(lines)

    async def _write_end(self, failure: BridgeError | None) -> BridgeError | None:
        """Write the last line, on stdout and on stderr; returns why the run failed."""
        encoder, output = self._encoder, self._output
        if self._turn is not None:
            self._facts = self._record_request(self._turn)
        try:
            if failure is not None:
                await self._write([error_line(failure)] if encoder is None else encoder.fail(failure))
            await output.end_text()
            await output.end()
        except OutputError as error:
            failure = failure or error
        if encoder is not None and encoder.failure is not None:
            failure = encoder.failure
        if failure is not None and not isinstance(failure, StdoutClosed):
            await _say("error", failure.message or f"The run failed ({failure.code}).")
        elif self._facts is not None and self._facts.calls and not self._options.auto_tools and not self._options.json:
            names = ", ".join(dict.fromkeys(call.name for call in self._facts.calls))
            await _say("note", f"the model calls {names}; --json shows the calls, --auto-tools answers them")
        return failure

    # The event log

    def _record_request(self, turn: Turn) -> TurnFacts:
        """Record the request, unless that has happened; returns what is known of it."""
        if self._facts is not None:
            return self._facts
        facts = TurnFacts(new_id("req"), "", trio.current_time())
        if self._log is not None:
            request: dict[str, Any] = {"path": "exec", "body": build_request(turn)}
            if self._options.auto_tools:
                request |= {"tool_outputs": dict(self._tool_outputs), "max_steps": self._options.max_steps}
            self._observer.arrived(facts, request)
        return facts

    def _record_end(self, failure: BridgeError | None) -> None:
        """Record how the run ended; only the first call counts."""
        end = _end_of(failure)
        reported = self._end
        if reported is not None and reported.outcome not in ("completed", "failed") and end.outcome == "failed":
            end = Finished(reported.outcome, reported.reason, end.error)  # the backend knows more
        if self._facts is not None:
            usage = self._encoder.usage if self._encoder is not None else None
            self._observer.ended(self._facts, end, usage, trio.current_time())
        self._observer = Observer()

    def _log_failure(self) -> BridgeError | None:
        """Why the event log is not complete."""
        try:
            if self._log is not None:
                self._log.check()
        except BridgeError as error:
            return error
        return None


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
