"""Ask cells, or score recorded answers again.

A cell is one case, in one variant, asked of one model. Tools are offered as the variant says, and the answer comes back
as the model wrote it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import trio

from bridge.app.app import App
from bridge.appserver.backend import AppServerBackend
from bridge.appserver.prompt import client_instructions, flatten, system_texts
from bridge.core.backend import Backend
from bridge.core.events import Finished, TurnEvent, Usage
from bridge.core.items import Item, Message, Text
from bridge.core.models import ModelChoice
from bridge.core.observer import TurnFacts
from bridge.core.turn import AUTO, Turn
from bridge.errors import BackendProtocolError, BridgeError
from bridge.ids import new_id
from bridge.lab.case import Case, Sample, sample_of
from bridge.lab.episode import run_episode
from bridge.lab.examine import AskModel, Examiner
from bridge.lab.result import Cell, Result, score_sample
from bridge.lab.variant import LabVariant
from bridge.log.record import LogObserver
from bridge.log.recording import Recording
from bridge.playback.backend import ReplayBackend, recorded_end
from bridge.tools.instructions import join_developer_text

PATH = "lab"
"""The path of the lab's requests in an event log."""


def make_turn(case: Case, variant: LabVariant, choice: ModelChoice, text: str, *, offers_text: bool) -> Turn:
    """The turn of a cell. A backend that does not offer tools in text itself gets `text` as instructions."""
    # Verbatim: calls stay in the text and are scored by the parser that clients get. Otherwise the form could not be
    # judged, nor the same text be scored again from a log.
    case = variant.apply(case)
    turn = Turn(
        model=choice.effective,
        requested_model=choice.requested,
        items=case.items,
        instructions=case.instructions,
        tools=case.tools,
        tool_choice=case.tool_choice,
        effort=variant.changes.effort or choice.effort,
        temperature=variant.changes.temperature,
        stream=True,
        parallel=case.parallel,
        backend=choice.backend,
        native=variant.native,
        verbatim=True,
        tool_text=None if variant.native else text,
    )
    if variant.native or offers_text or not case.tools:
        return turn
    # As for a child without history: system messages become part of the instructions.
    system = system_texts(case.items, guard_tags=True)
    instructions = join_developer_text(turn.tool_text, client_instructions(turn, guard_tags=True), *system)
    message = Message("user", tuple(flatten(case.items, guard_tags=True)))
    return replace(turn, items=(message,), instructions=instructions, tools=(), tool_choice=AUTO, tool_text=None)


class Asker:
    """Asks cells of the backends that serve their models, and records them if there is an event log."""

    def __init__(self, app: App, *, timeout: float, examiner: Examiner | None = None) -> None:
        self._router = app.router
        self._examiner = examiner or Examiner()
        self._timeout = timeout
        self._log = None if app.log is None else LogObserver(app.log.recorder)
        # Kept, because building the text for many tools takes a while.
        self._texts: dict[tuple[str, str], str] = {}

    async def ask(self, cell: Cell, case: Case, variant: LabVariant) -> tuple[Sample, str]:
        """The answer and its request id in the log. An error becomes the sample's failure."""
        facts = TurnFacts(new_id("req"), "", trio.current_time())
        if self._log is not None:
            self._log.arrived(facts, {"path": PATH, "body": cell._asdict()})
        try:
            with trio.fail_after(self._timeout):
                sample = await self._answer(cell, case, variant, facts)
        except trio.TooSlowError:
            sample = Sample(failure=BridgeError(f"No answer within {self._timeout:g} s.", code="timeout"))
        except BridgeError as error:
            sample = Sample(failure=error)
        sample = await self._examiner.examine(case, variant, sample)
        if self._log is not None:
            end = Finished("completed" if sample.failure is None else "failed", error=sample.failure)
            self._log.ended(facts, end, Usage(sample.input_tokens, 0, sample.output_tokens), trio.current_time())
        return sample, facts.id

    async def _answer(self, cell: Cell, case: Case, variant: LabVariant, facts: TurnFacts) -> Sample:
        await self._router.wait_for(cell.model)
        choice = self._router.resolve(cell.model)
        backend = self._router.backend(choice.backend)
        key = case.id, variant.name
        if key not in self._texts:
            self._texts[key] = variant.text_for(case)
        turn = make_turn(case, variant, choice, self._texts[key], offers_text=isinstance(backend, AppServerBackend))
        await check_native(backend, turn)
        facts.turn, facts.backend, facts.dropped = turn, backend.name, tuple(await backend.drops(turn))
        if self._log is not None:
            self._log.starting(facts)
        if case.loop is None:
            return sample_of(await _collect(backend, turn, facts.id), trio.current_time() - facts.arrived)
        sample = await self._episode(case, variant, choice, key, backend, facts.id)
        return replace(sample, seconds=trio.current_time() - facts.arrived)

    async def _episode(
        self,
        case: Case,
        variant: LabVariant,
        choice: ModelChoice,
        key: tuple[str, str],
        backend: Backend,
        req_id: str,
    ) -> Sample:
        asked = variant.apply(case)
        assert asked.loop is not None
        offers_text = isinstance(backend, AppServerBackend)

        async def ask(items: tuple[Item, ...], number: int) -> list[TurnEvent]:
            now = replace(asked, items=items)
            turn = make_turn(now, variant.after_apply(), choice, self._texts[key], offers_text=offers_text)
            return await _collect(backend, turn, req_id if not number else f"{req_id}#{number}")

        return await run_episode(ask, asked, variant, asked.loop, self._examiner.python)


def ask_judge(app: App, model: str, timeout: float) -> AskModel:
    """What asks a judge model. It raises BridgeError if there is no answer."""

    async def ask(instructions: str, prompt: str) -> str:
        await app.router.wait_for(model)
        choice = app.router.resolve(model)
        turn = Turn(
            model=choice.effective,
            requested_model=choice.requested,
            items=(Message("user", (Text(prompt),)),),
            instructions=instructions,
            effort=choice.effort,
            stream=True,
            backend=choice.backend,
            verbatim=True,
        )
        try:
            with trio.fail_after(timeout):
                sample = sample_of(await _collect(app.router.backend(choice.backend), turn, new_id("req")))
        except trio.TooSlowError:
            raise BridgeError(f"The judge gave no answer within {timeout:g} s.", code="timeout") from None
        if sample.failure is not None:
            raise sample.failure
        return "\n".join(sample.texts)

    return ask


async def check_native(backend: Backend, turn: Turn) -> None:
    """Raise BackendProtocolError if a native turn would be offered its tools in text: that is another variant."""
    if not turn.native or not turn.functions or not isinstance(backend, AppServerBackend):
        return
    await backend.wait_until_known()
    child = backend.pool.child
    if child is not None and not child.offers_natively(turn):
        raise BackendProtocolError(
            "This Codex does not support native tools (Codex 0.145 and later does; a mock does not).",
            code="not_native",
        )


async def _collect(backend: Backend, turn: Turn, req_id: str) -> list[TurnEvent]:
    stream = await backend.start(turn, req_id)
    try:
        events = await stream.next()
        while not isinstance(events[-1], Finished):
            events += await stream.next()
    finally:
        stream.close()
    return events


# Recorded cells


def cell_of(recording: Recording) -> Cell | None:
    """The cell of a recorded request; None if the request does not come from the lab."""
    match recording.body if recording.path == PATH else None:
        case {"model": str(model), "variant": str(variant), "case": str(name), "repeat": int(repeat)}:
            return Cell(model, variant, name, repeat)
    return None


async def rescore(
    recording: Recording,
    cases: Mapping[str, Case],
    variants: Mapping[str, LabVariant],
    models: Collection[str] = (),
    *,
    narrowed: bool = False,
    examiner: Examiner | None = None,
) -> Result | str | None:
    """The result of a recorded cell, or why it has none; None for a request that does not come from the lab.

    `models` limits the models, if there are any. `narrowed`: the cases are only some of the suite's.
    """
    cell = cell_of(recording)
    if cell is None:
        return None
    case, variant = cases.get(cell.case), variants.get(cell.variant)
    if case is None:
        return "their cases are not selected" if narrowed else f"the suite has no case {cell.case}"
    if variant is None:
        return f"the variant {cell.variant} is not selected; use -V with its name or file"
    if case.loop is not None:
        return "their cases are episodes, which are not scored again"
    if models and cell.model not in models:
        return f"they come from another model, {cell.model}"
    if not recording.complete:
        return "the log ends before they do"
    sample = await (examiner or Examiner()).examine(case, variant, await _replay(recording, case, variant))
    return score_sample(cell, case, variant, sample, recording.id)


async def _replay(recording: Recording, case: Case, variant: LabVariant) -> Sample:
    backend = ReplayBackend(recording, new_id=lambda prefix: f"{prefix}_replayed")
    try:
        choice = backend.resolve(str((recording.start or {}).get("requested_model", "")))
        # The recorded frames decide how they are read: those of an upstream hold native calls.
        upstream = any(frame.kind.startswith("upstream") for frames in recording.attempts.values() for frame in frames)
        turn = make_turn(case, variant, choice, "", offers_text=not upstream)
        events = await _collect(backend, turn, recording.id)
    except BridgeError as error:
        return Sample(failure=error)
    total = (recording.end or {}).get("total_s")
    sample = sample_of(events, float(total) if isinstance(total, int | float) else 0.0)
    end = recorded_end(recording)
    if sample.failure is None and end.error is not None:
        return Sample(failure=end.error)
    return sample
