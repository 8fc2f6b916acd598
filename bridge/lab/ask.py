"""A cell, asked of a backend: the tools are offered as its variant says, the answer comes as the model wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from bridge.appserver.transcript import client_instructions, flatten, system_texts
from bridge.backends.app_server import AppServerBackend
from bridge.backends.base import Backend
from bridge.backends.router import Router
from bridge.errors import BackendProtocolError, BridgeError
from bridge.lab.case import Case
from bridge.lab.result import Cell
from bridge.lab.sample import Failure, Sample, failure_of, sample_of
from bridge.lab.variant import LabVariant
from bridge.protolog.record import Recorder
from bridge.protolog.turn_records import turn_end, turn_start
from bridge.tools.instructions import join_developer_text
from bridge.turn.events import Finished, TurnEvent, Usage
from bridge.turn.items import Message
from bridge.turn.models import ModelChoice
from bridge.turn.turn import AUTO, Turn

PATH = "lab"
"""What the log calls the place that such requests come from."""


class Texts:
    """The injected texts, each made once: it takes a while for many tools."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], str] = {}

    def of(self, case: Case, variant: LabVariant) -> str:
        """What a variant injects for a case."""
        key = case.id, variant.name
        if key not in self._made:
            self._made[key] = variant.text_for(case)
        return self._made[key]


def make_turn(case: Case, variant: LabVariant, choice: ModelChoice, text: str, *, offers_text: bool) -> Turn:
    """The turn of a cell. A backend that does not offer tools in text itself gets the text as instructions."""
    turn = Turn(
        endpoint="responses",
        model=choice.effective,
        requested_model=choice.requested,
        items=case.items,
        instructions=case.instructions,
        tools=case.tools,
        tool_choice=case.tool_choice,
        effort=choice.effort,
        stream=True,
        parallel=case.parallel,
        backend=choice.backend,
        native=variant.native,
        verbatim=True,
        tool_text=None if variant.native else text,
    )
    if variant.native or offers_text or not case.tools:
        return turn
    # As a child that takes no history gets it: what the system says is part of the instructions.
    system = system_texts(case.items, guard_tags=True)
    instructions = join_developer_text(turn.tool_text, client_instructions(turn, guard_tags=True), *system)
    message = Message("user", tuple(flatten(case.items, guard_tags=True)))
    return replace(turn, items=(message,), instructions=instructions, tools=(), tool_choice=AUTO, tool_text=None)


class Asker:
    """Asks cells of whatever backend serves their models; notes them in the log where there is one."""

    def __init__(
        self, router: Router, new_id: Callable[[str], str], *, timeout: float, recorder: Recorder | None = None
    ) -> None:
        self._router = router
        self._new_id = new_id
        self._timeout = timeout
        self._recorder = recorder
        self._texts = Texts()

    async def ask(self, cell: Cell, case: Case, variant: LabVariant) -> tuple[Sample, str]:
        """(what came back, the id under which the log has it). Whatever goes wrong is the sample's failure."""
        req_id = self._new_id("req")
        self._note(req_id, "http_ingress", "in", "client_request", {"path": PATH, "body": cell._asdict()})
        started = trio.current_time()
        try:
            with trio.fail_after(self._timeout):
                await self._router.wait_for(cell.model)
                choice = self._router.resolve(cell.model)
                backend = self._router.backend(choice.backend)
                text = self._texts.of(case, variant)
                turn = make_turn(case, variant, choice, text, offers_text=isinstance(backend, AppServerBackend))
                await check_native(backend, turn)
                start = turn_start(turn, backend.name, await backend.drops(turn))
                self._note(req_id, "turn", "none", "turn_start", start)
                sample = sample_of(await _collect(backend, turn, req_id), trio.current_time() - started)
        except trio.TooSlowError:
            sample = Sample(failure=Failure("timeout", f"No answer within {self._timeout:g} s."))
        except BridgeError as error:
            sample = Sample(failure=failure_of(error))
        end = Finished("completed")
        if sample.failure is not None:
            end = Finished("failed", error=BridgeError(sample.failure.message, code=sample.failure.code))
        usage = Usage(sample.input_tokens, 0, sample.output_tokens)
        total = round(trio.current_time() - started, 6)
        self._note(req_id, "turn", "none", "turn_end", turn_end(end, usage, (), None, total))
        return sample, req_id

    def _note(self, req_id: str, phase: str, direction: str, kind: str, payload: dict[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.event(phase, direction, kind, req_id, payload)


async def check_native(backend: Backend, turn: Turn) -> None:
    """A child that cannot be offered tools natively is offered them in text, which is another variant.

    Raises BackendProtocolError.
    """
    if not turn.native or not turn.functions or not isinstance(backend, AppServerBackend):
        return
    await backend.wait_until_known()
    child = backend.pool.child
    if child is not None and not child.offers_natively(turn):
        raise BackendProtocolError(
            "This Codex cannot be offered tools natively (Codex can, from 0.145 on; a mock cannot).", code="not_native"
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
