"""`lab run`: ask all cells, or score a log again, then report."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from shlex import quote
from sys import intern
from typing import Any

import trio

from bridge.app.app import App, open_app
from bridge.errors import BackendProtocolError, BridgeError, ConfigError, ModelNotFound, UsageError
from bridge.lab.ask import Asker, check_native, make_turn, rescore
from bridge.lab.case import Case, Failure, Sample, some
from bridge.lab.report import FAILED, Reports, report
from bridge.lab.result import Cell, Only, Result, ResultFile, score_sample
from bridge.lab.variant import LabVariant
from bridge.log.read import RecordReader, log_files
from bridge.log.recording import read_recordings
from bridge.settings import Settings, lab_results_dir
from bridge.settings.file import FileConfig
from bridge.terminal import say

BY_SIGNAL = 128
"""Added to the number of the signal that ended a run, to make the exit code."""
REFRESH = 0.2
MAX_MESSAGE = 400
"""Characters of an error message that are shown."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `lab run`."""

    suite: Path
    cases: Mapping[str, Case]
    narrowed: bool
    """Whether the cases are only some of the suite's."""
    models: tuple[str, ...]
    variants: Mapping[str, LabVariant]
    repeat: int
    concurrency: int
    results: Path | None
    log: Path | None
    max_requests: int | None
    max_tokens: int | None
    timeout: float
    keep_going: bool

    def cells(self) -> Iterator[Cell]:
        return plan_cells(self.cases, self.variants, self.models, self.repeat)

    @property
    def size(self) -> int:
        return len(self.cases) * len(self.variants) * len(self.models) * self.repeat


def run_lab(options: RunOptions, settings: Settings, config: FileConfig, reports: Reports) -> int:
    """The exit code. Nothing is asked or written if the command line is wrong."""
    if options.results is not None:
        file = ResultFile(options.results)
    else:
        # To the microsecond: of two runs that start in the same second the second would continue the first.
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
        file = ResultFile(lab_results_dir() / name, own_directory=True)
    reports.check(file.path)
    header = _header(file, options)
    stopped = None
    try:
        if options.log is not None:
            trio.run(_rescore_log, options.log, options, file, header)
        else:
            stopped = _ask(options, file, header, settings, config)
    except (BridgeError, ExceptionGroup) as error:
        failure: BaseException = error
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        if isinstance(failure, ConfigError) or not isinstance(failure, BridgeError):
            raise failure from None
        for line in failure.message.splitlines():
            say("error", line)
        return FAILED
    finally:
        file.close()
    if stopped is not None:
        kept = f" To continue, run the same command with --results {quote(str(file.path))}."
        say("error", "Interrupted." + (kept if file.path.exists() else ""))
        return BY_SIGNAL + stopped
    if options.results is None:
        say("note", f"results are in {file.path}")
    only = Only(options.cases, options.variants, options.models)
    planned = options.size if options.log is None else 0
    return report(file, options.cases, options.variants, reports, only=only, planned=planned)


def _header(file: ResultFile, options: RunOptions) -> dict[str, Any]:
    """What the header of the results must say beyond what it says already.

    A run may add cases and variants. Raises UsageError if known ones have changed, or the file is about other cases.
    """
    exists = file.path.exists() and file.path.stat().st_size > 0
    prints = {
        "cases": {name: case.fingerprint for name, case in options.cases.items()},
        "variants": {name: variant.fingerprint for name, variant in options.variants.items()},
    }
    if options.log is not None:
        # A log can be scored again at any time; answers that were paid for must not be overwritten.
        if exists and "from" not in file.header():
            raise UsageError(f"{file.path} holds answers from a model. Choose another file with --results.")
        return {"from": str(options.log), "suite": str(options.suite), **prints}
    plan: dict[str, dict[str, int]] = {
        model: dict.fromkeys(options.variants, options.repeat) for model in options.models
    }
    if not exists:
        return {"suite": str(options.suite), **prints, "plan": plan}
    added: dict[str, dict[str, Any]] = {}
    for kind, current in prints.items():
        known = file.known(kind)
        if kind == "cases" and not known.keys() & current.keys():
            raise UsageError(f"{file.path} holds results of other cases. Choose another file with --results.")
        if changed := [name for name, digest in current.items() if known.get(name, digest) != digest]:
            raise UsageError(
                f"{file.path} holds results of {kind} that have changed: {some(changed)}. Choose another file."
            )
        added[kind] = {name: digest for name, digest in current.items() if name not in known}
    planned = file.known("plan")
    more = {model: planned.get(model, {}) | repeats for model, repeats in plan.items()}
    added["plan"] = {model: repeats for model, repeats in more.items() if repeats != planned.get(model)}
    return {kind: members for kind, members in added.items() if members}


def plan_cells(cases: Iterable[str], variants: Iterable[str], models: Iterable[str], repeat: int) -> Iterator[Cell]:
    """All cells of a run, one at a time, so that a long run takes no more memory than a short one.

    Repetitions come last, and all variants of a case come together: a run that is cut short has seen as many cases as
    possible, each in every variant.
    """
    for number, case, model, variant in product(range(repeat), cases, models, variants):
        yield Cell(model, variant, case, number)


# Asking


def _ask(
    options: RunOptions, file: ResultFile, header: Mapping[str, Any], settings: Settings, config: FileConfig
) -> int | None:
    """Ask all cells without a score; those that failed are asked again. Returns the signal that ended it, if any."""
    done: set[Cell] = set()
    if file.path.exists() and file.path.stat().st_size:
        # Names are interned: a long run has few names, and many cells.
        done = {
            Cell(intern(cell.model), intern(cell.variant), intern(cell.case), cell.repeat)
            for cell in (result.cell for result in file if result.status == "scored")
        }
    left = sum(cell not in done for cell in options.cells())
    if left < options.size:
        say("note", f"{file.path} already has {options.size - left} result(s); {left} left")
    if not left:
        return None
    cells = (cell for cell in options.cells() if cell not in done)
    return trio.run(_ask_cells, cells, left, options, file, header, settings, config)


async def _ask_cells(
    cells: Iterable[Cell],
    count: int,
    options: RunOptions,
    file: ResultFile,
    header: Mapping[str, Any],
    settings: Settings,
    config: FileConfig,
) -> int | None:
    """Ask until all is done or the budget is spent."""
    stopped: int | None = None
    progress = Progress(count)

    async def listen(task_status: trio.TaskStatus[None]) -> None:
        nonlocal stopped
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            stopped = await anext(signals)
        # Only the first signal is awaited: a second one ends a shutdown that takes too long.
        nursery.cancel_scope.cancel()

    def keep(result: Result) -> None:
        file.append(result)
        progress.add(result)

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        async with open_app(settings, config) as app:
            await _check_models(app, options)
            file.open(header)
            run = Run(Asker(app, timeout=options.timeout).ask, options.cases, options.variants, keep)
            run.concurrency, run.keep_going = options.concurrency, options.keep_going
            run.max_requests, run.max_tokens = options.max_requests, options.max_tokens
            try:
                async with trio.open_nursery() as showing:
                    showing.start_soon(progress.run)
                    await run.run(cells)
                    showing.cancel_scope.cancel()
            finally:
                progress.end()
            if (failure := run.stopped_by) is not None:
                raise BridgeError(
                    f"Stopped after {progress.count} of {count} request(s), because {failure.code} is permanent. "
                    f"Fix it, then run the same command with --results {quote(str(file.path))} to continue. "
                    "--keep-going sends the remaining requests all the same.",
                    code="run_stopped",
                )
            if progress.count < count:
                say("note", f"the budget is spent; {count - progress.count} cell(s) were not asked")
        nursery.cancel_scope.cancel()
    return stopped


async def _check_models(app: App, options: RunOptions) -> None:
    """Before anything is asked. Raises UsageError for an unknown model, NotReady if none can be known yet.

    Also raises UsageError if a native variant is wanted and a model does not support native tools.
    """
    native = next((each for each in options.variants.values() if each.native), None)
    case = next((each for each in options.cases.values() if each.tools), None)
    for model in options.models:
        await app.router.wait_for(model)
        try:
            choice = app.router.resolve(model)
        except ModelNotFound as error:
            raise UsageError(f"--model {model}: {error.message}") from None
        if native is not None and case is not None:
            turn = make_turn(case, native, choice, "", offers_text=True)
            try:
                await check_native(app.router.backend(choice.backend), turn)
            except BackendProtocolError as error:
                wrong = f"--variant {native.name}, --model {model}: {error.message} Leave one of them out."
                raise UsageError(wrong) from None


@dataclass(slots=True)
class Run:
    """Asks cells, several at a time, and passes each result to `keep` at once.

    A permanent failure ends the run, unless `keep_going` is set. When it ends, or one of its limits is reached, running
    requests are finished, so the tokens may exceed their limit.
    """

    ask: Callable[[Cell, Case, LabVariant], Awaitable[tuple[Sample, str]]]
    cases: Mapping[str, Case]
    variants: Mapping[str, LabVariant]
    keep: Callable[[Result], None]
    concurrency: int = 4
    max_requests: int | None = None
    max_tokens: int | None = None
    keep_going: bool = False
    requests: int = 0
    tokens: int = 0
    stopped_by: Failure | None = None
    """The permanent failure that ended the run."""

    async def run(self, cells: Iterable[Cell]) -> None:
        waiting = iter(cells)

        async def work() -> None:
            while self._may_ask() and (cell := next(waiting, None)) is not None:
                self.requests += 1
                case, variant = self.cases[cell.case], self.variants[cell.variant]
                sample, req_id = await self.ask(cell, case, variant)
                if sample.failure is not None and sample.failure.permanent and not self.keep_going:
                    self.stopped_by = self.stopped_by or sample.failure
                self.tokens += sample.input_tokens + sample.output_tokens
                self.keep(score_sample(cell, case, variant, sample, req_id))
                # A request that fails at once waits for nothing; other tasks and signals must still get a chance.
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(self.concurrency):
                nursery.start_soon(work)

    def _may_ask(self) -> bool:
        return (
            self.stopped_by is None
            and (self.max_requests is None or self.requests < self.max_requests)
            and (self.max_tokens is None or self.tokens < self.max_tokens)
        )


# Scoring again


async def _rescore_log(log: Path, options: RunOptions, file: ResultFile, header: Mapping[str, Any]) -> None:
    reader = RecordReader(log_files(log))
    progress = Progress(0)
    others, reasons = 0, Counter[str]()
    for recording in read_recordings(reader):
        found = await rescore(recording, options.cases, options.variants, options.models, narrowed=options.narrowed)
        if isinstance(found, Result):
            if not progress.count:
                file.open(header, truncate=True)
            file.append(found)
            progress.add(found)
        elif found is None:
            others += 1
        else:
            reasons[found] += 1
    progress.end()
    for why, count in reasons.items():
        say("note", f"{count} answer(s) not scored: {why}")
    if others:
        say("note", f"{others} request(s) in {log} do not come from the lab")
    for sentence in reader.trouble.sentences():
        say("note", sentence)
    if not progress.count:
        remedy = "Choose the suite, cases, variants and models that the log was made with."
        make = "Use `lab run --log-events` to make a log of answers."
        raise UsageError(f"Nothing to score in {log}. {remedy if reasons else make}")


class Progress:
    """A status line on a terminal and, at the end, one note per kind of error."""

    def __init__(self, total: int) -> None:
        self.count = 0
        self._total = total
        self._passed = self._failed = self._tokens = 0
        self._errors: dict[str, tuple[int, str]] = {}
        """By code: how many, and the first message."""
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def add(self, result: Result) -> None:
        self.count += 1
        self._passed += result.passed
        self._tokens += result.input_tokens + result.output_tokens
        if result.error is not None:
            self._failed += 1
            code = result.error["code"]
            count, message = self._errors.get(code, (0, result.error["message"]))
            self._errors[code] = count + 1, message

    async def run(self) -> None:
        """Show the status line until cancelled, also while no answer comes."""
        while self._terminal:
            self._show()
            await trio.sleep(REFRESH)

    def end(self) -> None:
        """Remove the status line and report errors."""
        if self._terminal:
            self._write("\r\x1b[K")
        for code, (count, message) in self._errors.items():
            shown = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
            say("note", f"{count} request(s) failed and are not counted: {code}: {shown}")

    def _show(self) -> None:
        done = self.count / max(self._total, 1)
        bar = ("█" * int(done * 20)).ljust(20, "░")
        parts = [f"{bar} {self.count}/{self._total}", f"{self._passed} passed", f"{self._failed} errors"]
        if self.count:
            left = (time.monotonic() - self._started) * (1 / done - 1)
            parts += [f"{left:.0f} s left", f"{self._tokens:,} tokens"]
        # One column less than the terminal has: some begin a new line after a full one.
        self._write("\r\x1b[K" + "  ".join(parts)[: shutil.get_terminal_size((80, 24)).columns - 1])

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
