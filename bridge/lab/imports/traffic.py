"""Cases from an event log: one for each recorded request that matches the filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bridge.errors import UsageError
from bridge.lab.imports import Draft, Json
from bridge.log.case import build_case, input_items, recorded_answer
from bridge.log.export import records_of, summary_of
from bridge.log.filters import Filters
from bridge.log.recording import Recording

MOST_ANSWERS = 10_000
"""How many answers are kept, which later requests of the log may continue."""


class _Answered(NamedTuple):
    """The messages of a request and its answer."""

    previous: str | None
    items: list[Json]


def drafts_of(recordings: Iterable[Recording], filters: Filters) -> Iterator[Draft]:
    """A draft for each request that matches. Those of the lab are left out: they are cases already."""
    answers: dict[str, _Answered] = {}
    for recording in recordings:
        if recording.path == "lab":
            continue
        previous = (recording.body or {}).get("previous_response_id")
        earlier = _chain(answers, previous) if isinstance(previous, str) else []
        _remember(answers, recording, previous if isinstance(previous, str) else None)
        if not filters.accepts(summary_of(recording), lambda _: records_of(recording)):  # noqa: B023
            continue
        try:
            yield build_case(recording, earlier)
        except UsageError as error:
            yield error.message


def _chain(answers: dict[str, _Answered], name: str | None) -> list[Json]:
    """The messages of all answers that this one continues, and its own."""
    found: list[list[Json]] = []
    seen = set[str]()
    while name is not None and name in answers and name not in seen:
        seen.add(name)
        found.append(answers[name].items)
        name = answers[name].previous
    return [item for items in reversed(found) for item in items]


def _remember(answers: dict[str, _Answered], recording: Recording, previous: str | None) -> None:
    name, items = recorded_answer(recording)
    if name is None:
        return
    try:
        answers[name] = _Answered(previous, [*input_items(recording), *items])
    except UsageError:
        return
    if len(answers) > MOST_ANSWERS:
        answers.pop(next(iter(answers)))
