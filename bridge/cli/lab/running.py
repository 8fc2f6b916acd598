"""A run of the laboratory, from what was typed to its exit code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from bridge.backends.setup import check_binary, new_id, prepare_workdir
from bridge.cli.exec.output import say
from bridge.cli.lab.options import choose_cases
from bridge.cli.lab.progress import Progress
from bridge.cli.lab.reporting import Reports, Thresholds, report
from bridge.config import Settings
from bridge.config_file import FileConfig
from bridge.errors import UsageError
from bridge.lab.ask import Asker
from bridge.lab.case import Case
from bridge.lab.offline import rescore
from bridge.lab.result import Result, ResultFile
from bridge.lab.runner import Budget, Run, plan_cells
from bridge.lab.variant import LabVariant
from bridge.lab.variant_file import find_variant
from bridge.protolog.read import RecordReader, log_files
from bridge.protolog.recording import read_recordings
from bridge.server.run import Bridge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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


def run_lab(wanted: Wanted, settings: Settings, config: FileConfig, reports: Reports, thresholds: Thresholds) -> int:
    """Ask or score again, then report; the exit code."""
    chosen = choose_cases(wanted.suite, wanted.cases, wanted.categories, wanted.tags)
    cases = {case.id: case for case in chosen}
    variants = {found.name: found for found in map(find_variant, wanted.variants)}
    file = _open(wanted, cases)
    try:
        if wanted.log is not None:
            trio.run(_rescore_all, wanted.log, cases, variants, file)
        else:
            trio.run(_ask_all, wanted, cases, variants, file, settings, config)
    finally:
        file.close()
    return report(file, cases, variants, reports, thresholds)


def _open(wanted: Wanted, cases: Mapping[str, Case]) -> ResultFile:
    """The file of results: a new one, or one of the same cases. Raises UsageError for one of others."""
    path = wanted.results or Path(f"lab-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl")
    file = ResultFile(path)
    prints = {name: fingerprint(case) for name, case in cases.items()}
    if path.exists() and path.stat().st_size:
        if wanted.log is not None:
            raise UsageError(f"{path} exists already; name another file with --results.")
        known = file.header().get("cases")
        if not isinstance(known, dict) or any(known.get(name) != print_ for name, print_ in prints.items()):
            raise UsageError(f"{path} holds results of other cases, or of cases that have changed; name another file.")
    file.open({"suite": str(wanted.suite), "cases": prints})
    return file


def fingerprint(case: Case) -> str:
    """The same while nothing of a case changes that matters to its results."""
    matters = (case.items, case.expect, case.tools, case.instructions, case.tool_choice, case.parallel)
    return blake2b(repr(matters).encode("utf-8", "replace"), digest_size=8).hexdigest()


async def _ask_all(
    wanted: Wanted,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    file: ResultFile,
    settings: Settings,
    config: FileConfig,
) -> None:
    done = {result.cell for result in file if result.status == "scored"}
    planned = plan_cells(list(cases.values()), list(variants), wanted.models, wanted.repeat)
    cells = [cell for cell in planned if cell not in done]
    if done and cells:
        say("note", f"{file.path}: {len(done)} result(s) are there already, {len(cells)} cell(s) are left")
    progress = Progress(len(cells))

    def keep(result: Result) -> None:
        file.append(result)
        progress.told(result)

    async with open_backends(settings, config) as bridge:
        recorder = bridge.log.recorder if bridge.log is not None else None
        asker = Asker(bridge.router, new_id, timeout=wanted.timeout, recorder=recorder)
        budget = Budget(wanted.max_requests, wanted.max_tokens)
        run = Run(asker, cases, variants, keep, concurrency=wanted.concurrency, budget=budget)
        await run.run(cells)
    progress.clear()
    if progress.count < len(cells):
        say("note", f"the budget is spent: {len(cells) - progress.count} cell(s) were not asked")


@asynccontextmanager
async def open_backends(settings: Settings, config: FileConfig) -> AsyncIterator[Bridge]:
    """Everything of a bridge but its HTTP side."""
    if not settings.mock_only:
        check_binary(settings)
        prepare_workdir(settings.workdir)
    bridge = Bridge(settings, (), config)
    async with trio.open_nursery() as outer:
        if bridge.log is not None:
            await outer.start(bridge.log.run)
        async with trio.open_nursery() as nursery:
            for runner in bridge.runners:
                nursery.start_soon(runner.run)
            yield bridge
            nursery.cancel_scope.cancel()
        outer.cancel_scope.cancel()


async def _rescore_all(
    log: Path, cases: Mapping[str, Case], variants: Mapping[str, LabVariant], file: ResultFile
) -> None:
    reader = RecordReader(log_files(log))
    others, reasons = 0, dict[str, int]()
    for recording in read_recordings(reader):
        found = await rescore(recording, cases, variants)
        if isinstance(found, Result):
            file.append(found)
        elif found is None:
            others += 1
        else:
            reasons[found] = reasons.get(found, 0) + 1
    for why, count in reasons.items():
        say("note", f"{count} answer(s) are not scored: {why}")
    if others:
        say("note", f"{others} request(s) in {log} are not the laboratory's")
    for sentence in reader.trouble.sentences():
        say("note", sentence)
