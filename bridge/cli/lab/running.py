"""A run of the laboratory, from what was typed to its exit code."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from shlex import quote
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from bridge.backends.router import Router
from bridge.backends.setup import check_codex, prepare_workdir
from bridge.cli.lab.options import choose_cases
from bridge.cli.lab.progress import Progress
from bridge.cli.lab.reporting import FAILED, Reports, Thresholds, report
from bridge.cli.streams import say
from bridge.config import Settings, lab_results_dir
from bridge.config_file import FileConfig
from bridge.errors import BackendProtocolError, BridgeError, ConfigError, ModelNotFound, UsageError
from bridge.ids import new_id
from bridge.lab.ask import Asker, check_native, make_turn
from bridge.lab.case import Case
from bridge.lab.offline import rescore
from bridge.lab.report.counted import Only
from bridge.lab.result import Cell, Result, ResultFile
from bridge.lab.runner import Budget, Run, plan_cells
from bridge.lab.variant import LabVariant
from bridge.lab.variant_file import find_variant
from bridge.protolog.read import RecordReader, log_files
from bridge.protolog.recording import read_recordings
from bridge.server.run import Bridge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NO_ANSWERS = "Make a log with answers with `lab run --log-events`."
BY_SIGNAL = 128
"""What is added to the number of the signal that ended a run."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed."""

    suite: Path
    cases: list[str] | None
    categories: list[str] | None
    tags: list[str] | None
    models: tuple[str, ...]
    variants: tuple[str, ...]
    repeat: int
    concurrency: int
    results: Path | None
    log: Path | None
    max_requests: int | None
    max_tokens: int | None
    timeout: float
    keep_going: bool


class RunStopped(BridgeError):
    """A failure was permanent, so nothing more was asked."""

    code = "run_stopped"


def run_lab(wanted: Wanted, settings: Settings, config: FileConfig, reports: Reports, thresholds: Thresholds) -> int:
    """Ask or score again, then report; the exit code. Nothing is asked, or written, when something was typed wrong."""
    chosen = choose_cases(wanted.suite, wanted.cases, wanted.categories, wanted.tags)
    cases = {case.id: case for case in chosen}
    variants = _find_variants(wanted)
    file = _result_file(wanted)
    reports.refuse(file.path, "the results themselves")
    about = _tell_about(file, wanted, cases, variants)
    stopped = None
    try:
        if wanted.log is not None:
            trio.run(_rescore_all, wanted, cases, variants, file, about)
        else:
            plan = _plan(file, wanted, chosen, list(variants))
            run = _Asking(wanted, cases, variants, file, about)
            stopped = trio.run(run.ask_all, plan, settings, config) if plan.size else None
    except (BridgeError, ExceptionGroup) as error:
        return _tell_failure(error)
    finally:
        file.close()
    if stopped is not None:
        kept = f" The results so far are kept: with --results {quote(str(file.path))} the same command goes on."
        say("error", "Interrupted." + (kept if file.path.exists() else ""))
        return BY_SIGNAL + stopped
    if wanted.results is None:
        say("note", f"the results are in {file.path}")
    planned = 0 if wanted.log is not None else len(cases) * len(variants) * len(wanted.models) * wanted.repeat
    only = Only(cases, variants, wanted.models)
    return report(file, cases, variants, reports, thresholds, only=only, planned=planned)


def _result_file(wanted: Wanted) -> ResultFile:
    if wanted.results is not None:
        return ResultFile(wanted.results)
    # To the microsecond: of two runs that start in the same second the second one would continue the first.
    return ResultFile(lab_results_dir() / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.jsonl", own_directory=True)


def _find_variants(wanted: Wanted) -> dict[str, LabVariant]:
    """By name. Raises UsageError for what is none, and for two of one name."""
    found: dict[str, LabVariant] = {}
    for text in wanted.variants:
        variant = find_variant(text)
        if found.setdefault(variant.name, variant) != variant:
            raise UsageError(f"--variant {text}: another one is called {variant.name}, too. Give it a `name`.")
    return found


def _tell_about(
    file: ResultFile, wanted: Wanted, cases: Mapping[str, Case], variants: Mapping[str, LabVariant]
) -> dict[str, Any]:
    """What the results will be about that their file does not tell yet. Raises UsageError when it is of something else.

    Cases and variants may come to those that are there; what is there must be what it was.
    """
    told = {"cases": {name: fingerprint(case) for name, case in cases.items()}}
    told["variants"] = {name: _print(repr((each.wording, each.nonce))) for name, each in variants.items()}
    plan = {model: dict.fromkeys(variants, wanted.repeat) for model in wanted.models}
    begun = {"suite": str(wanted.suite), **told}
    if wanted.log is not None:
        # What was scored again can be scored again; what was asked for cannot be asked for nothing.
        if file.path.exists() and file.path.stat().st_size and "from" not in file.header():
            raise UsageError(f"{file.path} holds answers that were asked for; name another file with --results.")
        return {"from": str(wanted.log), **begun}
    if not file.path.exists() or not file.path.stat().st_size:
        return {**begun, "plan": plan}
    known = {kind: file.known(kind) for kind in told}
    if not known["cases"].keys() & cases.keys():
        raise UsageError(f"{file.path} holds results of other cases; name another file with --results.")
    for kind, prints in told.items():
        changed = [name for name, print_ in prints.items() if known[kind].get(name, print_) != print_]
        if changed:
            some = ", ".join(changed[:5]) + (" and more" if len(changed) > 5 else "")
            raise UsageError(f"{file.path} holds results of {kind} that have changed since: {some}. Name another file.")
    new: dict[str, dict[str, Any]]
    new = {kind: {name: prints[name] for name in prints if name not in known[kind]} for kind, prints in told.items()}
    planned = file.known("plan")
    new["plan"] = {
        model: planned.get(model, {}) | repeats
        for model, repeats in plan.items()
        if planned.get(model, {}) | repeats != planned.get(model)
    }
    return {kind: prints for kind, prints in new.items() if prints}


def fingerprint(case: Case) -> str:
    """The same while nothing of a case changes that matters to its results."""
    return _print(repr((case.items, case.expect, case.tools, case.instructions, case.tool_choice, case.parallel)))


def _print(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


class _Plan(NamedTuple):
    """What is to be asked. Cells are made when their turn comes, so that a long run takes no more memory."""

    cells: Iterable[Cell]
    size: int


def _plan(file: ResultFile, wanted: Wanted, cases: Sequence[Case], variants: Sequence[str]) -> _Plan:
    """All cells that have no result yet; errors of the machinery are none."""
    planned = plan_cells(cases, variants, wanted.models, wanted.repeat)
    count = len(cases) * len(variants) * len(wanted.models) * wanted.repeat
    if not file.path.exists() or not file.path.stat().st_size:
        return _Plan(planned, count)
    done = {_interned(result.cell) for result in file if result.status == "scored"}
    left = sum(cell not in done for cell in plan_cells(cases, variants, wanted.models, wanted.repeat))
    if left < count:
        say("note", f"{file.path}: {count - left} result(s) are there already, {left} cell(s) are left")
    return _Plan((cell for cell in planned if cell not in done), left)


def _interned(cell: Cell) -> Cell:
    """The same, with names that are kept once for all cells."""
    return Cell(intern(cell.model), intern(cell.variant), intern(cell.case), cell.repeat)


def _tell_failure(error: Exception) -> int:
    """What has ended a run. Raises what was typed wrong, and what nobody has thought of."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConfigError) or not isinstance(error, BridgeError):
        raise error
    for line in error.message.splitlines():
        say("error", line)
    return FAILED


class _Asking:
    """A run that asks."""

    def __init__(
        self,
        wanted: Wanted,
        cases: Mapping[str, Case],
        variants: Mapping[str, LabVariant],
        file: ResultFile,
        about: Mapping[str, Any],
    ) -> None:
        self._wanted = wanted
        self._cases = cases
        self._variants = variants
        self._file = file
        self._about = about
        self._stopped: int | None = None

    async def ask_all(self, plan: _Plan, settings: Settings, config: FileConfig) -> int | None:
        """Until all is asked, or the budget spent; the signal that ended it, if one did."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._listen, nursery.cancel_scope)
            async with open_backends(settings, config) as bridge:
                await _check_models(bridge.router, self._wanted.models)
                await self._check_native(bridge.router)
                self._file.open(self._about)
                await self._ask(plan, bridge)
            nursery.cancel_scope.cancel()
        return self._stopped

    async def _ask(self, plan: _Plan, bridge: Bridge) -> None:
        wanted, progress = self._wanted, Progress(plan.size)

        def keep(result: Result) -> None:
            self._file.append(result)
            progress.told(result)

        recorder = bridge.log.recorder if bridge.log is not None else None
        asker = Asker(bridge.router, new_id, timeout=wanted.timeout, recorder=recorder)
        budget = Budget(wanted.max_requests, wanted.max_tokens)
        run = Run(
            asker,
            self._cases,
            self._variants,
            keep,
            concurrency=wanted.concurrency,
            budget=budget,
            keep_going=wanted.keep_going,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(progress.run)
                await run.run(plan.cells)
                nursery.cancel_scope.cancel()
        finally:
            progress.end()
        if (failure := run.stopped_by) is not None:
            raise RunStopped(
                f"Stopped after {progress.count} of {plan.size} request(s), because {failure.code} is permanent. "
                f"Fix it, then run the same command with --results {quote(str(self._file.path))} to continue. "
                "--keep-going sends the remaining requests all the same."
            )
        if progress.count < plan.size:
            say("note", f"the budget is spent: {plan.size - progress.count} cell(s) were not asked")

    async def _check_native(self, router: Router) -> None:
        """Raises UsageError for a model that cannot be offered tools natively, where that is wanted."""
        variant = next((each for each in self._variants.values() if each.native), None)
        case = next((each for each in self._cases.values() if each.tools), None)
        if variant is None or case is None:
            return
        for model in self._wanted.models:
            choice = router.resolve(model)
            turn = make_turn(case, variant, choice, "", offers_text=True)
            try:
                await check_native(router.backend(choice.backend), turn)
            except BackendProtocolError as error:
                raise UsageError(
                    f"--variant {variant.name}, --model {model}: {error.message} Leave one of them out."
                ) from None

    async def _listen(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                self._stopped = number
                scope.cancel()
                return


async def _check_models(router: Router, models: Sequence[str]) -> None:
    """Before anything is asked. Raises UsageError for a model that does not exist, NotReady when nobody can tell."""
    for model in models:
        await router.wait_for(model)
        try:
            router.resolve(model)
        except ModelNotFound as error:
            raise UsageError(f"--model {model}: {error.message}") from None


@asynccontextmanager
async def open_backends(settings: Settings, config: FileConfig) -> AsyncIterator[Bridge]:
    """Everything of a bridge but its HTTP side. Raises LogFailed where nothing may go unrecorded, and something did."""
    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    bridge = Bridge(settings.model_copy(update={"replay": None}), (), config)
    async with trio.open_nursery() as outer:
        if bridge.log is not None:
            await outer.start(bridge.log.run, outer.cancel_scope.cancel)
        async with trio.open_nursery() as nursery:
            for runner in bridge.runners:
                nursery.start_soon(runner.run)
            # Before they run they take no turns.
            await trio.lowlevel.checkpoint()
            yield bridge
            nursery.cancel_scope.cancel()
        outer.cancel_scope.cancel()
    if bridge.log is not None:
        bridge.log.check()


async def _rescore_all(
    wanted: Wanted,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    file: ResultFile,
    about: Mapping[str, Any],
) -> None:
    assert wanted.log is not None
    reader = RecordReader(log_files(wanted.log))
    progress = Progress(0)
    narrowed = bool(wanted.cases or wanted.categories or wanted.tags)
    others, reasons = 0, dict[str, int]()
    for recording in read_recordings(reader):
        found = await rescore(recording, cases, variants, wanted.models, narrowed=narrowed)
        if isinstance(found, Result):
            if not progress.count:
                file.open(about, anew=True)
            file.append(found)
            progress.told(found)
        elif found is None:
            others += 1
        else:
            reasons[found] = reasons.get(found, 0) + 1
    progress.end()
    for why, count in reasons.items():
        say("note", f"{count} answer(s) are not scored: {why}")
    if others:
        say("note", f"{others} request(s) in {wanted.log} are not the laboratory's")
    for sentence in reader.trouble.sentences():
        say("note", sentence)
    if not progress.count:
        raise UsageError(
            f"There is nothing to score in {wanted.log}. "
            + ("Choose the suite, the cases, variants and models that it was made with." if reasons else NO_ANSWERS)
        )
