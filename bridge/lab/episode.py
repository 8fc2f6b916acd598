"""Episodes: a model is asked again with the outputs of its calls, which are simulated, until it is done.

An episode is one sample. Its calls are those of all answers in their order, and its text is that of the last answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from bridge.core.collect import collect
from bridge.core.events import TurnEvent
from bridge.core.items import FunctionCall, FunctionOutput, Item, Message, Text
from bridge.exact_json import text_of
from bridge.lab.case import Called, Case, Ended, Loop, Reaction, Sample, sample_of
from bridge.lab.checks import read_arguments
from bridge.lab.examine import CheckFailed, call_python
from bridge.lab.rules import matches
from bridge.lab.score import read_answer
from bridge.lab.variant import LabVariant

AskOnce = Callable[[tuple[Item, ...], int], Awaitable[list[TurnEvent]]]
"""Asks with a conversation; the number of the answer, from 0. The events of the answer."""


async def run_episode(ask: AskOnce, case: Case, variant: LabVariant, loop: Loop, python: Path | None = None) -> Sample:
    """The sample of a whole episode. `case` is the case as it is asked, so its variant changes nothing more."""
    tools, variant = Simulation(loop, python), variant.after_apply()
    items, waiting = list(case.items), list(loop.then)
    found = Sample()
    for number in range(loop.max_steps):
        events = await ask(tuple(items), number)
        answer = sample_of(events)
        found = _joined(found, answer, number)
        if answer.failure is not None:
            return found
        made, said = _made(events, answer, case, variant, number)
        if said.strip():
            items.append(Message("assistant", (Text(said),)))
        items += made
        for call in made:
            items.append(FunctionOutput(call.call_id, (Text(await tools.output(call)),)))
        if not made:
            if not waiting:
                return found
            items.append(Message("user", (Text(waiting.pop(0)),)))
    return replace(found, ended=replace(found.ended or Ended(), cut=True))


def _joined(before: Sample, answer: Sample, number: int) -> Sample:
    return Sample(
        before.texts + answer.texts,
        before.calls + answer.calls,
        before.input_tokens + answer.input_tokens,
        before.output_tokens + answer.output_tokens,
        failure=answer.failure,
        ended=Ended(number + 1, len(before.texts)),
    )


def _made(
    events: Iterable[TurnEvent], answer: Sample, case: Case, variant: LabVariant, number: int
) -> tuple[list[FunctionCall], str]:
    """The calls of an answer as items of the conversation, and its visible text."""
    native = collect(events).calls
    reading = read_answer(case, variant, answer)
    written = reading.calls[len(answer.calls) :]
    ids = [call.call_id for call in native] + [f"call_{number}_{index}" for index in range(len(written))]
    return [
        FunctionCall(name, call.name, call.arguments) for name, call in zip(ids, reading.calls, strict=True)
    ], reading.visible


class Simulation:
    """Answers calls by the scripts of a loop. Each reaction is used once, in order; the last one that fits repeats."""

    def __init__(self, loop: Loop, python: Path | None = None) -> None:
        self._loop = loop
        self._python = python
        self._used: Counter[tuple[str, int]] = Counter()

    async def output(self, call: FunctionCall) -> str:
        """What the tool returns, as text. Raises CheckFailed if a function in Python fails."""
        arguments = read_arguments(Called(call.name, call.arguments))
        reaction = self._reaction(call.name, arguments)
        if reaction is None:
            return f"Error: {call.name} has no result for these arguments."
        await trio.sleep(reaction.delay)
        if reaction.error is not None:
            return f"Error: {reaction.error}"
        if reaction.python is None:
            return text_of(reaction.result)
        if self._python is None:
            raise CheckFailed(f"The tool {call.name} is a function in Python, which is not allowed to run.")
        return text_of(await call_python(reaction.python, self._python, arguments))

    def _reaction(self, name: str, arguments: Any) -> Reaction | None:
        fitting = [(index, each) for index, each in enumerate(self._loop.tools.get(name, ())) if _fits(each, arguments)]
        for index, each in fitting:
            if not self._used[name, index]:
                self._used[name, index] += 1
                return each
        return fitting[-1][1] if fitting else None


def _fits(reaction: Reaction, arguments: Any) -> bool:
    return not reaction.when or (
        isinstance(arguments, dict)
        and all(name in arguments and matches(rule, arguments[name]) for name, rule in reaction.when.items())
    )


def uses_python(loop: Loop | None) -> bool:
    """Whether a tool of a loop is a function in Python."""
    return loop is not None and any(each.python for reactions in loop.tools.values() for each in reactions)
