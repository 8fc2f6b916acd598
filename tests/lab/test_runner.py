"""Runs: every cell once, with limited concurrency and within a budget. A fake answers as each test asks."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import pytest
import trio
from lab.report.making import CASES
from lab.scripted_model import answer
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.errors import BridgeError
from bridge.lab import run as lab_run
from bridge.lab.case import Case, Sample
from bridge.lab.commands import Limits
from bridge.lab.result import Cell, Result
from bridge.lab.run import Run, plan_cells
from bridge.lab.variant import SHIPPED, LabVariant


class Answering:
    """Answers rightly, when it is let; counts how many wait."""

    def __init__(
        self, *, tokens: int = 0, failing: Callable[[int], bool] = lambda number: False, permanent: bool = False
    ) -> None:
        self.waiting: list[trio.Event] = []
        self.asked: list[Cell] = []
        self.held = False
        self._tokens = tokens
        self._failing = failing
        self._failure = BridgeError("Not now.", code="overloaded", severity="transient")
        if permanent:
            self._failure = BridgeError("Not now.", code="upstream_unauthorized", http_status=401)

    async def ask(self, cell: Cell, case: Case, variant: LabVariant) -> tuple[Sample, str]:
        self.asked.append(cell)
        number = len(self.asked)
        if self.held:
            let = trio.Event()
            self.waiting.append(let)
            await let.wait()
        if self._failing(number):
            return Sample(failure=self._failure), f"req_{number}"
        texts = answer(case, variant).texts
        return Sample(texts, (), self._tokens, 0), f"req_{number}"


def make_run(answering: Answering, kept: list[Result], concurrency: int, **limits: Any) -> Run:
    return Run(answering.ask, CASES, SHIPPED, kept.append, Limits(concurrency=concurrency, **limits))


def cells(repeat: int = 2) -> list[Cell]:
    return list(plan_cells(CASES, ["spec", "short"], ["m"], repeat))


def test_repetitions_come_last() -> None:
    planned = cells(3)
    first = planned[: len(planned) // 3]
    assert {cell.repeat for cell in first} == {0}
    assert {(cell.variant, cell.case) for cell in first} == {
        (name, case) for name in ("spec", "short") for case in CASES
    }
    assert len(set(planned)) == len(planned) == 3 * 2 * len(CASES)


def test_a_run_that_is_cut_short_has_asked_each_of_its_cases_in_every_variant_of_every_model() -> None:
    planned = list(plan_cells(CASES, ["spec", "short"], ["m", "n"], 2))
    for start in range(0, len(planned), 4):
        asked = planned[start : start + 4]
        assert len({(cell.case, cell.repeat) for cell in asked}) == 1
        assert {(cell.model, cell.variant) for cell in asked} == {(m, v) for m in "mn" for v in ("spec", "short")}


@pytest.mark.parametrize("concurrency", [1, 3, 64])
async def test_concurrency_is_exact(concurrency: int) -> None:
    ask, kept = Answering(), list[Result]()
    ask.held = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make_run(ask, kept, concurrency).run, cells())
        for done in count():
            await wait_all_tasks_blocked()
            assert len(ask.waiting) == min(concurrency, len(cells()) - done)
            if not ask.waiting:
                break
            ask.waiting.pop().set()  # the last one first: the order does not matter
    assert sorted(result.cell for result in kept) == sorted(cells())
    assert sorted(ask.asked) == sorted(cells())
    assert all(result.passed for result in kept)


async def test_a_budget_of_requests_counts_those_that_fail() -> None:
    ask, kept = Answering(failing=lambda number: number % 2 == 0), list[Result]()
    run = make_run(ask, kept, 4, max_requests=7)
    await run.run(cells())
    assert len(ask.asked) == len(kept) == run.requests == 7
    assert [result.status for result in kept].count("error") == 3


async def test_running_requests_are_finished_when_the_tokens_are_spent() -> None:
    ask, kept = Answering(tokens=100), list[Result]()
    ask.held = True
    run = make_run(ask, kept, 3, max_tokens=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run, cells())
        await wait_all_tasks_blocked()
        ask.waiting.pop().set()
        await wait_all_tasks_blocked()
        assert len(kept) == 1
        for let in ask.waiting:
            let.set()
    assert len(kept) == 3
    assert run.tokens == 300


async def test_a_permanent_failure_ends_the_run_after_running_requests() -> None:
    ask, kept = Answering(failing=lambda number: number == 2, permanent=True), list[Result]()
    ask.held = True
    run = make_run(ask, kept, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.run, cells())
        await wait_all_tasks_blocked()
        ask.waiting[1].set()
        await wait_all_tasks_blocked()
        assert run.stopped_by is not None
        assert run.stopped_by.code == "upstream_unauthorized"
        for let in ask.waiting:
            let.set()
    assert [result.status for result in kept].count("scored") == 2
    assert len(ask.asked) == len(kept) == 3


@pytest.mark.parametrize(("permanent", "keep_going"), [(True, True), (False, False)])
async def test_other_failures_and_keep_going_do_not_end_the_run(permanent: bool, keep_going: bool) -> None:
    ask, kept = Answering(failing=lambda number: True, permanent=permanent), list[Result]()
    run = make_run(ask, kept, 3, keep_going=keep_going)
    await run.run(cells())
    assert len(kept) == len(cells())
    assert run.stopped_by is None


async def test_requests_that_fail_at_once_let_other_tasks_run() -> None:
    """A run that never waits could not be stopped."""
    ask = Answering(failing=lambda number: True)
    with trio.move_on_after(0.05) as scope:
        await make_run(ask, [], 1).run(Cell("m", "spec", "weather-bern", number) for number in count())
    assert scope.cancelled_caught


def test_a_second_signal_ends_a_shutdown_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = False

    @asynccontextmanager
    async def slow_app(*_: object) -> AsyncIterator[None]:
        nonlocal finished
        signal.raise_signal(signal.SIGINT)
        try:
            yield await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                signal.raise_signal(signal.SIGINT)
                await trio.sleep(60)
                finished = True

    monkeypatch.setattr(lab_run, "open_app", slow_app)
    nothing = cast(Any, None)
    with pytest.raises(BaseExceptionGroup) as raised:
        trio.run(lab_run._ask_cells, [], 0, *[nothing] * 4, clock=MockClock(autojump_threshold=0))
    assert raised.group_contains(KeyboardInterrupt)
    assert not finished
