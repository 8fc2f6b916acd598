"""All cells of a run, several at a time, within a budget; results are kept as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import trio

from bridge.lab.case import Case
from bridge.lab.result import Cell, Result, failed, scored
from bridge.lab.sample import Failure, Sample
from bridge.lab.score import score
from bridge.lab.variant import LabVariant


class Ask(Protocol):
    """Whoever answers a cell."""

    async def ask(self, cell: Cell, case: Case, variant: LabVariant) -> tuple[Sample, str]:
        """(what came back, the id under which the log has it)."""


def plan_cells(cases: Sequence[Case], variants: Sequence[str], models: Sequence[str], repeat: int) -> Iterator[Cell]:
    """The whole matrix.

    Repetitions come last, and all that is compared for a case comes together: a run that is cut short has seen as many
    cases as it could, each in every variant.
    """
    for number, case, model, variant in product(range(repeat), cases, models, variants):
        yield Cell(model, variant, case.id, number)


@dataclass(slots=True)
class Budget:
    """What a run may cost; None is without limit. Requests that run already are finished, so tokens may exceed it."""

    requests: int | None = None
    tokens: int | None = None
    spent_requests: int = 0
    spent_tokens: int = 0

    @property
    def left(self) -> bool:
        """Whether one more request may be made."""
        return (self.requests is None or self.spent_requests < self.requests) and (
            self.tokens is None or self.spent_tokens < self.tokens
        )


class Run:
    """Works off cells. `keep` is given each result as soon as it is there.

    A permanent failure ends the run, unless it is to keep going; requests that run already are finished.
    """

    def __init__(
        self,
        ask: Ask,
        cases: Mapping[str, Case],
        variants: Mapping[str, LabVariant],
        keep: Callable[[Result], None],
        *,
        concurrency: int = 4,
        budget: Budget | None = None,
        keep_going: bool = False,
    ) -> None:
        self._ask = ask
        self._cases = cases
        self._variants = variants
        self._keep = keep
        self._concurrency = concurrency
        self._keep_going = keep_going
        self.budget = budget or Budget()
        self.stopped_by: Failure | None = None
        """The permanent failure that ended the run."""

    async def run(self, cells: Iterable[Cell]) -> None:
        """Until nothing is left to do, the budget is spent, or a failure is permanent."""
        waiting = iter(cells)

        async def work() -> None:
            while self.budget.left and self.stopped_by is None and (cell := next(waiting, None)) is not None:
                self.budget.spent_requests += 1
                result = await self._one(cell)
                self.budget.spent_tokens += result.input_tokens + result.output_tokens
                self._keep(result)
                # An answer that is refused at once waits for nothing: others, and signals, must have their turn.
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for _ in range(self._concurrency):
                nursery.start_soon(work)

    async def _one(self, cell: Cell) -> Result:
        case, variant = self._cases[cell.case], self._variants[cell.variant]
        sample, req_id = await self._ask.ask(cell, case, variant)
        if sample.failure is not None and sample.failure.permanent and not self._keep_going:
            self.stopped_by = self.stopped_by or sample.failure
        return score_sample(cell, case, variant, sample, req_id)


def score_sample(cell: Cell, case: Case, variant: LabVariant, sample: Sample, req_id: str | None) -> Result:
    """The result of whatever came back."""
    if sample.failure is not None:
        return failed(cell, sample, req_id)
    return scored(cell, sample, score(case, variant, sample), req_id)
