"""One run, from its options to its exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from bridge.api.wire.events import WireEncoder, error_line
from bridge.backends.base import Backend, EventStream
from bridge.backends.toolloop import ToolLoop
from bridge.cli.exec.backends import open_backend
from bridge.cli.exec.choice import Choice, choose
from bridge.cli.exec.options import Options, check_options, make_turn, tool_outputs
from bridge.cli.exec.output import Output
from bridge.cli.exec.signals import BY_SIGNAL, Signals, Stopped
from bridge.cli.streams import OutputError, StdoutClosed, say, write_stdout
from bridge.errors import BridgeError, ConfigError
from bridge.ids import new_id
from bridge.turn.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.turn.turn import Turn

if TYPE_CHECKING:
    from bridge.cli.exec.recording import RunLog

OK, FAILED, MISUSED = 0, 1, 2
LAST_WORDS = 2.0
"""Seconds that a reader has to take the last line of a run that was stopped."""


class TimedOut(BridgeError):
    """--timeout is over."""

    code = "timeout"


def execute(options: Options) -> int:
    """Run, and tell the exit code. Errors are told on stderr, and with --json as the last line of stdout."""
    return trio.run(Run(options).run)


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is known before anybody is asked."""

    choice: Choice
    turn: Turn
    tool_outputs: Mapping[str, str]
    output: Output


def prepare(options: Options) -> Prepared:
    """Look at the options, and read what they name. Raises a BridgeError."""
    check_options(options)
    outputs = tool_outputs(options)
    choice = choose(options)
    # Codex's own client asks for one call at a time; where tools are offered as text, several do no harm.
    one_by_one = choice.kind in ("mock", "url") or (choice.plan is not None and choice.plan.kind == "codex")
    turn = make_turn(options, verbatim=choice.speaks_responses, parallel=not one_by_one)
    output = Output(
        json=options.json,
        trace=options.trace,
        log_requests=options.log_requests,
        log_responses=options.log_responses,
    )
    return Prepared(choice, turn, outputs, output)


def report(error: BridgeError, *, json: bool) -> int:
    """Tell of a failure before the run; the exit code."""
    say("error", error.message)
    if json:
        try:
            write_stdout(error_line(error) + b"\n")
        except OutputError:
            return FAILED
    return MISUSED if isinstance(error, ConfigError) else FAILED


@dataclass(frozen=True, slots=True)
class Around:
    """What a run goes on within."""

    whole: trio.CancelScope
    beside: trio.Nursery
    """For what goes on beside the run, until it is over."""
    recording: trio.Nursery
    """For its log, which ends last."""


class Run:
    """What happens between the first line and the last."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._prepared: Prepared | None = None
        self._new_id: Callable[[str], str] = new_id
        self._encoder: WireEncoder | None = None
        self._calls: list[str] = []
        self._signals = Signals()
        self._unread: OutputError | None = None
        self._log: RunLog | None = None

    async def run(self) -> int:
        """The whole run; its exit code."""
        async with trio.open_nursery() as recording:
            failure = await self._within_limits(recording)
            with trio.move_on_after(LAST_WORDS):
                failure = await self._end(failure)
            if self._log is not None:
                self._log.end(_end_of(failure))
            recording.cancel_scope.cancel()
        if failure is None and (failure := self._unrecorded()) is not None:
            await _tell("error", failure.message)
        if self._signals.heard is not None:
            return BY_SIGNAL + self._signals.heard
        if failure is None:
            return OK
        return MISUSED if isinstance(failure, ConfigError) else FAILED

    async def _within_limits(self, recording: trio.Nursery) -> BridgeError | None:
        """Until the end, a signal or the time limit; what went wrong."""
        timeout, failure = self._options.timeout, None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope(deadline=trio.current_time() + timeout if timeout else float("inf")) as whole:
                await nursery.start(self._signals.listen, whole)
                failure = await self._serve(Around(whole, nursery, recording))
            nursery.cancel_scope.cancel()
        if self._signals.heard is not None:
            return Stopped("The run was interrupted.")
        if self._unread is not None:
            return self._unread
        if (unrecorded := self._unrecorded()) is not None:
            return unrecorded
        if whole.cancelled_caught:
            return TimedOut(f"The run took longer than {timeout:g} s (--timeout) and was stopped.")
        return failure

    async def _follow(self, output: Output, whole: trio.CancelScope) -> None:
        """Show the trace as it comes; when it cannot be shown any more, the run is over."""
        try:
            await output.follow_trace()
        except OutputError as error:
            self._unread = error
            whole.cancel()

    async def _record(self, prepared: Prepared, around: Around) -> None:
        """Begin the log. Raises ConfigError; when it fails later, the run is over."""
        if self._options.log_events is None:
            return
        from bridge.cli.exec.recording import RunLog

        self._log = prepared.output.log = RunLog(self._options, prepared.choice)
        with trio.CancelScope(shield=True):
            await around.recording.start(self._log.run, around.whole.cancel)

    def _unrecorded(self) -> BridgeError | None:
        """Why not everything is in the log."""
        try:
            if self._log is not None:
                self._log.check()
        except BridgeError as error:
            return error
        return None

    async def _serve(self, around: Around) -> BridgeError | None:
        try:
            # Beside the event loop: an input that does not come must not hold a signal up.
            prepared = await trio.to_thread.run_sync(prepare, self._options, abandon_on_cancel=True)
            self._prepared = prepared
            around.beside.start_soon(self._follow, prepared.output, around.whole)
            if prepared.choice.kind == "mock":
                self._new_id = fixed_ids()
            await self._record(prepared, around)
            async with open_backend(self._options, prepared.choice, prepared.output) as (backend, ready):
                # Not through the backend's tasks: they would make a group of it.
                try:
                    await self._answer(backend, await ready(prepared.turn), prepared.output)
                    await prepared.output.flush()
                    return None
                except BridgeError as error:
                    return error
        except BridgeError as error:
            return error

    async def _answer(self, backend: Backend, turn: Turn, output: Output) -> None:
        dropped = await backend.drops(turn)
        for name in self._left_out(backend, turn, dropped):
            say("warning", f"left out: {name}")
        self._encoder = encoder = WireEncoder(turn.requested_model, self._new_id)
        if self._log is not None:
            self._ask(turn)
            self._log.start(turn, backend.name, dropped)
        stream = await self._start(backend, turn)
        try:
            await output.lines(encoder.begin())
            while not encoder.finished:
                await self._show(encoder, await stream.next(), output)
            if self._log is not None:
                self._log.end(_end_of(encoder.failure))
        finally:
            stream.close()

    def _ask(self, turn: Turn) -> None:
        """Record what is asked, if that has not been done."""
        if self._log is not None and self._prepared is not None:
            self._log.request(turn, self._prepared.tool_outputs)

    async def _start(self, backend: Backend, turn: Turn) -> EventStream:
        req_id = self._log.id if self._log is not None else self._new_id("req")
        if not self._options.auto_tools:
            return await backend.start(turn, req_id)
        from bridge.backends.answers import attempt_id

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
        if not output.json and not self._options.trace:
            await output.text(_said(events))
        self._calls += [event.name for event in events if isinstance(event, ToolCall)]
        if self._log is not None:
            self._log.saw(events)
        await output.lines(encoder.feed(events))

    async def _end(self, failure: BridgeError | None) -> BridgeError | None:
        """The last line, on stdout and on stderr; what the run came to."""
        encoder = self._encoder
        output = self._prepared.output if self._prepared is not None else Output(json=self._options.json)
        if self._prepared is not None:
            self._ask(self._prepared.turn)
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
            await _tell("error", failure.message or f"The run failed ({failure.code}).")
        elif self._calls and not self._options.auto_tools and not output.json:
            names = ", ".join(dict.fromkeys(self._calls))
            await _tell("note", f"the model calls {names}; --json shows the calls, --auto-tools answers them")
        return failure

    def _left_out(self, backend: Backend, turn: Turn, dropped: Iterable[str]) -> list[str]:
        # Encrypted reasoning is asked for in case somebody can give it; nobody misses it.
        names = [name for name in dropped if not name.startswith("include:")]
        if turn.session is not None and backend.name == "app-server":
            names.append("--session-id (Codex names its own threads)")
        return names


def _end_of(failure: BridgeError | None) -> Finished:
    """How a run ended, in the words of the log."""
    if failure is None:
        return Finished("completed")
    if isinstance(failure, Stopped | StdoutClosed):
        return Finished("cancelled", "interrupted" if isinstance(failure, Stopped) else "client_gone", failure)
    return Finished("failed", error=failure)


async def _tell(kind: str, message: str) -> None:
    """One line on stderr; who does not read it holds nobody up."""
    await trio.to_thread.run_sync(say, kind, message, abandon_on_cancel=True)


def _said(events: list[TurnEvent]) -> list[str]:
    return [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces]


def fixed_ids() -> Callable[[str], str]:
    """Ids that are the same in every run: `msg_mock`, then `msg_mock_2`."""
    used: Counter[str] = Counter()

    def fixed_id(prefix: str) -> str:
        used[prefix] += 1
        return f"{prefix}_mock" if used[prefix] == 1 else f"{prefix}_mock_{used[prefix]}"

    return fixed_id
