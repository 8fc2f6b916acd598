"""What `turnbridge lab judge` does: see whether a judge model agrees with the verdicts that people gave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from bridge.lab.case import Case
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig


class Graded(NamedTuple):
    """An example: what a person says, what the judge says (None if it failed), and why."""

    case: str
    label: bool
    verdict: bool | None
    reason: str


class Agreement(NamedTuple):
    agreed: int
    judged: int
    kappa: float | None
    """Cohen's: 1 is perfect, 0 is what chance gives; None if one side always says the same."""


def agreement(graded: Sequence[Graded]) -> Agreement:
    """How often the judge says what people say, and how much more often than by chance."""
    pairs = [(each.label, each.verdict) for each in graded if each.verdict is not None]
    agreed, count = sum(label == verdict for label, verdict in pairs), len(pairs)
    if not count:
        return Agreement(0, 0, None)
    labelled, passed = (sum(side) / count for side in zip(*pairs, strict=True))
    chance = labelled * passed + (1 - labelled) * (1 - passed)
    return Agreement(agreed, count, None if chance == 1 else (agreed / count - chance) / (1 - chance))


def judge_examples(
    suite: Path, model: str, concurrency: int, timeout: float, settings: Settings, config: FileConfig
) -> None:
    """Ask the judge about every example of a suite, and print how well it agrees. Raises Exit(1) for failures."""
    import trio

    from bridge.errors import UsageError
    from bridge.lab.stats import wilson
    from bridge.lab.suite import load_suite
    from bridge.terminal import escape_line, printing

    cases = [case for case in load_suite(suite).cases if case.expect.judge and case.expect.judge.examples]
    if not cases:
        raise UsageError(f"No case of {suite} has expect.judge.examples.")
    graded = trio.run(_grade, cases, model, concurrency, timeout, settings, config)
    found = agreement(graded)
    with printing() as screen:
        for each in graded:
            if each.verdict != each.label:
                said = "no verdict" if each.verdict is None else "pass" if each.verdict else "fail"
                wanted = "pass" if each.label else "fail"
                screen.line(escape_line(f"{each.case}: labelled {wanted}, judged {said}: {each.reason}"))
        if found.judged:
            low, high = wilson(found.agreed, found.judged)
            kappa = "not defined" if found.kappa is None else f"{found.kappa:.2f}"
            rate = f"{found.agreed / found.judged:.0%}, 95 % interval {low:.0%} to {high:.0%}"
            screen.line(f"{model} agrees with {found.agreed} of {found.judged} labels ({rate}; Cohen's kappa {kappa})")
    if found.judged < len(graded):
        raise typer.Exit(1)


async def _grade(
    cases: Sequence[Case], model: str, concurrency: int, timeout: float, settings: Settings, config: FileConfig
) -> list[Graded]:
    import trio

    from bridge.app.app import open_app
    from bridge.errors import BridgeError
    from bridge.lab.ask import ask_judge
    from bridge.lab.case import Example, JudgeExpect
    from bridge.lab.examine import judge_answer

    examples = [
        (case, case.expect.judge, each) for case in cases if case.expect.judge for each in case.expect.judge.examples
    ]
    graded: dict[int, Graded] = {}
    limit = trio.CapacityLimiter(concurrency)

    async with open_app(settings, config) as app:
        ask = ask_judge(app, model, timeout)

        async def grade(number: int, case: Case, judge: JudgeExpect, example: Example) -> None:
            label = example.verdict == "pass"
            async with limit:
                try:
                    verdict = await judge_answer(judge, case, example.answer, ask)
                    graded[number] = Graded(case.id, label, verdict.passed, verdict.reason)
                except BridgeError as error:
                    graded[number] = Graded(case.id, label, None, error.message)

        async with trio.open_nursery() as nursery:
            for number, (case, judge, example) in enumerate(examples):
                nursery.start_soon(grade, number, case, judge, example)
    return [graded[number] for number in sorted(graded)]
