"""`lab run`: ask all cells, or score a log again, then report."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import trio

from bridge.app.app import App, open_app
from bridge.errors import BackendProtocolError, BridgeError, ConfigError, ModelNotFound, UsageError
from bridge.lab.ask import Asker, ask_judge, check_native, make_turn, rescore
from bridge.lab.case import Case, Sample, is_permanent, some
from bridge.lab.episode import uses_python
from bridge.lab.examine import Examiner
from bridge.lab.matrix import build_variants
from bridge.lab.progress import Progress
from bridge.lab.report import FAILED, check_files, report_results
from bridge.lab.result import Cell, Only, Result, ResultFile, score_sample
from bridge.lab.variant import SHIPPED, LabVariant
from bridge.log.read import RecordReader, log_files
from bridge.log.recording import read_recordings
from bridge.settings import Settings, lab_results_dir
from bridge.settings.file import FileConfig
from bridge.terminal import say

if TYPE_CHECKING:
    from bridge.lab.commands import Limits, RunOptions

BY_SIGNAL = 128
"""Added to the number of the signal that ended a run, to make the exit code."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and the file of its results."""

    options: RunOptions
    cases: Mapping[str, Case]
    variants: Mapping[str, LabVariant]
    models: tuple[str, ...]
    file: ResultFile

    def cells(self) -> Iterator[Cell]:
        return plan_cells(self.cases, self.variants, self.models, self.options.repeat)

    @property
    def size(self) -> int:
        return len(self.cases) * len(self.variants) * len(self.models) * self.options.repeat


def run_lab(suite: Path, options: RunOptions, settings: Settings, config: FileConfig) -> int:
    """The exit code. Nothing is asked or written if the command line is wrong."""
    if options.log is None and not options.model:
        raise UsageError("Missing --model. Name at least one; `turnbridge models` lists them.")
    cases = options.cases(suite)
    _check_allowed(cases, options)
    variants = build_variants(options, SHIPPED if options.log is not None else ("spec",))
    if options.results is not None:
        file = ResultFile(options.results)
    elif options.log is not None:
        # The whole name of the log, so that no two logs share a file.
        file = ResultFile(Path(f"{options.log}.results.jsonl"))
    else:
        # To the microsecond: of two runs that start in the same second the second would continue the first.
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl"
        file = ResultFile(lab_results_dir() / name, own_directory=True)
    check_files(options, file.path)
    plan = Plan(options, cases, variants, tuple(dict.fromkeys(options.model)), file)
    header = _header(plan, suite)
    stopped = None
    try:
        if options.log is not None:
            trio.run(_rescore_log, options.log, plan, header)
        else:
            stopped = _ask(plan, header, settings, config)
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
    if options.results is None and options.log is None:
        say("note", f"results are in {file.path}")
    only = Only(cases, variants, plan.models)
    planned = plan.size if options.log is None else 0
    return report_results(file, cases, variants, options, only=only, planned=planned)


def _check_allowed(cases: Mapping[str, Case], options: RunOptions) -> None:
    """Raise UsageError for cases whose code or judge the command line does not allow: a suite is untrusted."""
    python = [case.id for case in cases.values() if case.expect.check or uses_python(case.loop)]
    if options.python_checks is None and (named := python):
        raise UsageError(
            f"Cases with code in Python: {some(named)}. Read it, then allow it with --python-checks DIR, "
            "the directory of its modules; or choose other cases."
        )
    if options.python_checks is not None and not options.python_checks.is_dir():
        raise UsageError(f"--python-checks {options.python_checks}: no such directory.")
    if options.judge is None and (named := [case.id for case in cases.values() if case.expect.judge]):
        if options.log is None:
            raise UsageError(f"Cases with a rubric: {some(named)}. Name the judge with --judge, or choose other cases.")
        say("note", f"no judge is asked when a log is scored again; {len(named)} rubric(s) are left out")


def _examiner(app: App | None, options: RunOptions) -> Examiner:
    judge = ask_judge(app, options.judge, options.timeout) if app is not None and options.judge is not None else None
    return Examiner(python=options.python_checks, judge=judge)


def _header(plan: Plan, suite: Path) -> dict[str, Any]:
    """What the file of results must say about this run beyond what it says already.

    A run may add cases and variants. Raises UsageError if known ones have changed, or the file is about other cases.
    """
    file, log = plan.file, plan.options.log
    exists = file.path.exists() and file.path.stat().st_size > 0
    prints = {
        "cases": {name: case.fingerprint for name, case in plan.cases.items()},
        "variants": {name: variant.fingerprint for name, variant in plan.variants.items()},
    }
    levels = {name: dict(variant.levels) for name, variant in plan.variants.items() if variant.levels}
    described = {"levels": levels} if levels else {}
    if log is not None:
        # A log can be scored again at any time; answers that were paid for must not be overwritten.
        if exists and file.head().log is None:
            raise UsageError(f"{file.path} holds answers from a model. Choose another file with --results.")
        return {"from": str(log), "suite": str(suite), **prints, **described}
    repeats = dict.fromkeys(plan.variants, plan.options.repeat)
    if not exists:
        return {"suite": str(suite), **prints, **described, "plan": dict.fromkeys(plan.models, repeats)}
    about = file.about()
    if not about.cases.keys() & plan.cases.keys():
        raise UsageError(f"{file.path} holds results of other cases. Choose another file with --results.")
    for kind, current in prints.items():
        if changed := [name for name, digest in current.items() if getattr(about, kind).get(name, digest) != digest]:
            raise UsageError(
                f"{file.path} holds results of {kind} that have changed: {some(changed)}. Choose another file."
            )
    wanted: dict[str, Mapping[str, Any]] = {
        **prints,
        **described,
        "plan": {model: about.plan.get(model, {}) | repeats for model in plan.models},
    }
    added = {
        kind: {name: value for name, value in members.items() if getattr(about, kind).get(name) != value}
        for kind, members in wanted.items()
    }
    return {kind: members for kind, members in added.items() if members}


def plan_cells(cases: Iterable[str], variants: Iterable[str], models: Iterable[str], repeat: int) -> Iterator[Cell]:
    """All cells of a run, one at a time, so that a long run takes no more memory than a short one.

    Repetitions come last, and all variants of a case come together: a run that is cut short has seen as many cases as
    possible, each in every variant.
    """
    for number, case, model, variant in product(range(repeat), cases, models, variants):
        yield Cell(model, variant, case, number)


# Asking


def _ask(plan: Plan, header: Mapping[str, Any], settings: Settings, config: FileConfig) -> int | None:
    """Ask all cells without a score; those that failed are asked again. Returns the signal that ended it, if any."""
    file, done = plan.file, set[Cell]()
    if file.path.exists() and file.path.stat().st_size:
        done = {result.cell for result in file if result.status == "scored"}
    left = sum(cell not in done for cell in plan.cells())
    if left < plan.size:
        say("note", f"{file.path} already has {plan.size - left} result(s); {left} left")
    if not left:
        return None
    cells = (cell for cell in plan.cells() if cell not in done)
    return trio.run(_ask_cells, cells, left, plan, header, settings, config)


async def _ask_cells(
    cells: Iterable[Cell],
    count: int,
    plan: Plan,
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
        plan.file.append(result)
        progress.add(result)

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        async with open_app(settings, config) as app:
            await _check_models(app, plan)
            plan.file.open(header)
            examiner = _examiner(app, plan.options)
            run = Run(
                Asker(app, timeout=plan.options.timeout, examiner=examiner).ask,
                plan.cases,
                plan.variants,
                keep,
                plan.options,
            )
            try:
                async with trio.open_nursery() as showing:
                    showing.start_soon(progress.run)
                    await run.run(cells)
                    showing.cancel_scope.cancel()
            finally:
                progress.end()
            if (failure := run.stopped_by) is not None:
                raise BridgeError(
                    f"Stopped after {progress.count.asked} of {count} request(s), because {failure.code} is permanent. "
                    f"Fix it, then run the same command with --results {quote(str(plan.file.path))} to continue. "
                    "--keep-going sends the remaining requests anyway.",
                    code="run_stopped",
                )
            if left := count - progress.count.asked:
                say("note", f"the budget is spent; {left} cell(s) were not asked")
        nursery.cancel_scope.cancel()
    return stopped


async def _check_models(app: App, plan: Plan) -> None:
    """Before anything is asked. Raises UsageError for an unknown model, NotReady if none can be known yet.

    Also raises UsageError if a native variant is wanted and a model does not support native tools.
    """
    native = next((each for each in plan.variants.values() if each.native), None)
    warm = next((each for each in plan.variants.values() if each.changes.temperature is not None), None)
    case = next((each for each in plan.cases.values() if each.tools), None)
    for model in plan.models:
        await app.router.wait_for(model)
        try:
            choice = app.router.resolve(model)
        except ModelNotFound as error:
            raise UsageError(f"--model {model}: {error.message}") from None
        if warm is not None and not app.router.backend(choice.backend).takes.sampling:
            raise UsageError(
                f"--model {model}: its backend, {choice.backend}, takes no temperature. Leave one of them out."
            )
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

    A permanent error ends the run, unless `keep_going` is set. When it ends, or one of its limits is reached, running
    requests are finished, so the tokens may exceed their limit.
    """

    ask: Callable[[Cell, Case, LabVariant], Awaitable[tuple[Sample, str]]]
    cases: Mapping[str, Case]
    variants: Mapping[str, LabVariant]
    keep: Callable[[Result], None]
    limits: Limits
    requests: int = 0
    tokens: int = 0
    stopped_by: BridgeError | None = None
    """The permanent error that ended the run."""

    async def run(self, cells: Iterable[Cell]) -> None:
        waiting = iter(cells)

        async def work() -> None:
            while self._may_ask() and (cell := next(waiting, None)) is not None:
                self.requests += 1
                case, variant = self.cases[cell.case], self.variants[cell.variant]
                sample, req_id = await self.ask(cell, case, variant)
                if sample.failure is not None and not self.limits.keep_going and is_permanent(sample.failure):
                    self.stopped_by = self.stopped_by or sample.failure
                self.tokens += sample.input_tokens + sample.output_tokens
                self.keep(score_sample(cell, case, variant, sample, req_id))
                # A request that fails at once waits for nothing; other tasks and signals must still get a chance.
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(self.limits.concurrency):
                nursery.start_soon(work)

    def _may_ask(self) -> bool:
        requests, tokens = self.limits.max_requests, self.limits.max_tokens
        within = (requests is None or self.requests < requests) and (tokens is None or self.tokens < tokens)
        return within and self.stopped_by is None


# Scoring again


async def _rescore_log(log: Path, plan: Plan, header: Mapping[str, Any]) -> None:
    reader = RecordReader(log_files(log))
    progress = Progress(0)
    others, reasons = 0, Counter[str]()
    examiner = _examiner(None, plan.options)
    for recording in read_recordings(reader):
        found = await rescore(
            recording, plan.cases, plan.variants, plan.models, narrowed=plan.options.narrowed, examiner=examiner
        )
        if isinstance(found, Result):
            if not progress.count.asked:
                plan.file.open(header, truncate=True)
            plan.file.append(found)
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
    if not progress.count.asked:
        remedy = "Choose the suite, cases, variants and models that the log was made with."
        make = "Use `lab run --log-events` to make a log of answers."
        raise UsageError(f"Nothing to score in {log}. {remedy if reasons else make}")
