"""A cell as a turn: who is given the injected text, and how; and what becomes of everything that goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import scripted_codex, turns
from lab.report.making import CASES

from bridge.app.app import open_app
from bridge.core.items import FunctionCall, FunctionOutput, Message, Text
from bridge.core.models import ModelChoice
from bridge.core.turn import AUTO
from bridge.lab.ask import Asker, make_turn
from bridge.lab.case import Sample
from bridge.lab.result import Cell
from bridge.lab.variant import SHIPPED
from bridge.settings import Settings
from bridge.settings.file import FileConfig

CASE = CASES["weather-by-force"]
SPEC, NATIVE = SHIPPED["spec"], SHIPPED["native"]
CHOICE = ModelChoice("asked", "model", "high", "backend")


def text_parts(text: str) -> tuple[Text, ...]:
    return (Text(text),)


def test_a_backend_that_offers_tools_in_text_gets_the_text_and_the_tools() -> None:
    turn = make_turn(CASE, SPEC, CHOICE, "THE TEXT", offers_text=True)
    assert (turn.tool_text, turn.tools, turn.tool_choice, turn.items) == (
        "THE TEXT",
        CASE.tools,
        CASE.tool_choice,
        CASE.items,
    )
    assert (turn.native, turn.verbatim) == (False, True)
    assert (turn.model, turn.requested_model, turn.effort) == ("model", "asked", "high")


def test_natively_there_is_no_text() -> None:
    for offers_text in (True, False):
        turn = make_turn(CASE, NATIVE, CHOICE, "", offers_text=offers_text)
        assert (turn.native, turn.tool_text, turn.tools, turn.items) == (True, None, CASE.tools, CASE.items)
        assert turn.tool_choice == CASE.tool_choice


def test_any_other_backend_gets_the_text_as_instructions_and_one_message() -> None:
    """Tags in the texts of others are no tags any more."""
    items = (
        Message("system", text_parts("Be brief.")),
        Message("user", text_parts("What is <tool_call>?")),
        FunctionCall("call_1", "get_weather", "{}"),
        FunctionOutput("call_1", text_parts("<tool_call>now</tool_call>")),
    )
    case = replace(CASE, items=items, instructions="I am the client.")
    turn = make_turn(case, SPEC, CHOICE, "THE TEXT", offers_text=False)
    assert (turn.tools, turn.tool_choice, turn.tool_text, turn.verbatim) == ((), AUTO, None, True)
    instructions = turn.instructions or ""
    assert instructions.startswith("THE TEXT")
    assert instructions.index("I am the client.") < instructions.index("Be brief.")
    (message,) = turn.items
    assert isinstance(message, Message)
    assert "<tool_call>" not in message.text
    assert message.text.startswith("[user] What is ")
    assert "[function_call call_id=call_1 name=get_weather arguments={}]" in message.text


def test_without_tools_a_turn_is_left_as_it_is() -> None:
    case = replace(CASE, tools=())
    turn = make_turn(case, SPEC, CHOICE, "", offers_text=False)
    assert (turn.items, turn.instructions) == (case.items, case.instructions)


# Over a real child


@asynccontextmanager
async def asking(directory: Path, *steps: list[dict[str, Any]], timeout: float = 10) -> AsyncIterator[Asker]:
    codex = scripted_codex(directory, turns(*steps))
    settings = Settings(codex_bin=str(codex), models=("scripted",), workdir=directory / "work", store="memory")
    async with open_app(settings, FileConfig()) as app:
        yield Asker(app, timeout=timeout)


async def ask(asker: Asker, variant: str = "spec", model: str = "scripted") -> Sample:
    cell = Cell(model, variant, CASE.id, 0)
    sample, req_id = await asker.ask(cell, CASE, SHIPPED[variant])
    assert req_id.startswith("req_")
    return sample


def why(sample: Sample) -> str:
    assert sample.failure is not None
    assert (sample.texts, sample.calls) == ((), ()) or sample.failure.code != "timeout"
    return sample.failure.code


async def test_answers_are_verbatim_and_errors_become_failures(tmp_path: Path) -> None:
    answer: list[dict[str, Any]] = [
        {"text": 'So: <tool_call>{"name":"x"}</tool_call>', "chunk": 5},
        {"usage": {"input": 7, "output": 3}},
    ]
    limit: list[dict[str, Any]] = [{"error": {"message": "Slow down.", "info": "rateLimitExceeded"}}]
    steps: list[list[dict[str, Any]]] = [answer, limit, [{"interrupted": True}], [], [{"text": "half"}, {"exit": 3}]]
    async with asking(tmp_path, *steps) as asker:
        sample = await ask(asker)
        assert sample.failure is None
        assert (sample.texts, sample.calls) == (('So: <tool_call>{"name":"x"}</tool_call>',), ())
        assert (sample.input_tokens, sample.output_tokens) == (7, 3)
        assert 0 < sample.seconds < 10
        assert why(await ask(asker)) == "rate_limit_exceeded"
        assert why(await ask(asker)) == "cancelled"
        silent = await ask(asker)
        assert (silent.failure, silent.texts) == (None, ()), "saying nothing is the model's doing"
        assert why(await ask(asker)) == "backend_crashed"
        assert (await ask(asker)).failure is None, "the next child"
        assert why(await ask(asker, model="unknown")) == "model_not_found"
        assert why(await ask(asker, "native")) == "not_native"


async def test_an_answer_that_hangs_times_out(tmp_path: Path) -> None:
    async with asking(tmp_path, [{"deltas": ["so "]}, {"hang": True}], timeout=2) as asker:
        assert why(await ask(asker)) == "timeout"
