"""The answers of an earlier run, scored again from its event log: no model is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bridge.backends.replay.backend import ReplayBackend, recorded_end
from bridge.errors import BridgeError
from bridge.lab.ask import PATH, make_turn
from bridge.lab.case import Case
from bridge.lab.result import Cell, Result
from bridge.lab.runner import score_sample
from bridge.lab.sample import Sample, failure_of, sample_of
from bridge.lab.variant import LabVariant
from bridge.protolog.recording import Recording
from bridge.turn.events import Finished, TurnEvent


def cell_of(recording: Recording) -> Cell | None:
    """The cell that a recorded request was for; None when the laboratory did not ask it."""
    body = recording.body if recording.path == PATH else None
    if body is None:
        return None
    names = [body.get(name) for name in ("model", "variant", "case")]
    repeat = body.get("repeat")
    if not all(isinstance(name, str) for name in names) or not isinstance(repeat, int):
        return None
    return Cell(str(names[0]), str(names[1]), str(names[2]), repeat)


async def rescore(
    recording: Recording,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    models: Collection[str] = (),
    *,
    narrowed: bool = False,
) -> Result | str | None:
    """The result of a recorded cell, or why it has none; None for a request that is not the laboratory's.

    Only of these `models`, unless there are none. `narrowed`: the cases are some that were chosen of a suite.
    """
    cell = cell_of(recording)
    if cell is None:
        return None
    case, variant = cases.get(cell.case), variants.get(cell.variant)
    if case is None:
        return "their cases are not chosen" if narrowed else f"the suite has no case {cell.case}"
    if variant is None:
        return f"the variant {cell.variant} is not chosen; -V takes its name, or its file"
    if models and cell.model not in models:
        return f"they are of another model, {cell.model}"
    if not recording.complete:
        return "the log ends before they do"
    return score_sample(cell, case, variant, await _sample(recording, case, variant), recording.id)


async def _sample(recording: Recording, case: Case, variant: LabVariant) -> Sample:
    backend = ReplayBackend(recording, new_id=lambda prefix: f"{prefix}_replayed")
    try:
        choice = backend.resolve(str((recording.start or {}).get("requested_model", "")))
        # What the frames show was offered is what decides how they are read.
        natively_read = any(
            frame.kind.startswith("upstream") for frames in recording.attempts.values() for frame in frames
        )
        # The text has been sent; it is not needed again.
        turn = make_turn(case, variant, choice, "", offers_text=not natively_read)
        stream = await backend.start(turn, recording.id)
        events: list[TurnEvent] = await stream.next()
        while not isinstance(events[-1], Finished):
            events += await stream.next()
    except BridgeError as error:
        return Sample(failure=failure_of(error))
    sample = sample_of(events, _seconds(recording.end))
    end = recorded_end(recording)
    if sample.failure is None and end.error is not None:
        return Sample(failure=failure_of(end.error))
    return sample


def _seconds(end: dict[str, Any] | None) -> float:
    total = (end or {}).get("total_s")
    return float(total) if isinstance(total, int | float) else 0.0
