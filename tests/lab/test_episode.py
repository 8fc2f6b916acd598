"""Episodes: several answers, simulated tools, and what is expected of the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bridge.core.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.core.items import FunctionCall, FunctionOutput, Item, Message
from bridge.errors import BridgeError, UsageError
from bridge.lab import SHIPPED, Case, Sample, case_from_dict, score
from bridge.lab.case import Ended
from bridge.lab.changes import Changes, ToolChange
from bridge.lab.episode import run_episode
from bridge.lab.examine import CheckFailed
from bridge.lab.result import Cell, from_line, score_sample, to_line
from bridge.lab.variant import LabVariant

SPEC, NATIVE = SHIPPED["spec"], SHIPPED["native"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "parameters": CITY}, {"name": "book", "parameters": CITY}, {"name": "look"}]


def make(loop: dict[str, Any], **expect: Any) -> Case:
    data = {"id": "trip", "category": "c", "input": "A trip.", "tools": TOOLS, "loop": loop}
    return case_from_dict({**data, "expect": {"calls": "none", **expect}})


def wrote(name: str, city: str = "Bern") -> str:
    call = json.dumps({"name": name, "arguments": json.dumps({"city": city})})
    return f"<tool_call>{call}</tool_call>"


class Model:
    """Says what it is told, answer by answer, and keeps what it was asked."""

    def __init__(self, *answers: str | Sequence[tuple[str, str]], failing: int | None = None) -> None:
        self.answers = answers
        self.failing = failing
        self.asked: list[tuple[Item, ...]] = []

    async def ask(self, items: tuple[Item, ...], number: int) -> list[TurnEvent]:
        assert number == len(self.asked)
        self.asked.append(items)
        if number == self.failing:
            return [Finished("failed", error=BridgeError("Not now.", code="overloaded"))]
        answer = self.answers[min(number, len(self.answers) - 1)]
        if isinstance(answer, str):
            return [TextDelta("msg", [answer]), Finished("completed")]
        calls = [ToolCall(f"item_{index}", f"id_{index}", *call) for index, call in enumerate(answer)]
        return [*calls, Finished("completed")]


async def play(case: Case, model: Model, variant: LabVariant = SPEC, python: Path | None = None) -> Sample:
    asked = variant.apply(case)
    assert asked.loop is not None
    return await run_episode(model.ask, asked, variant, asked.loop, python)


async def test_a_call_gets_its_output_and_the_model_goes_on() -> None:
    case = make(
        {"tools": {"weather": [{"result": {"sky": "grey"}}]}},
        calls=[{"name": "weather", "arguments": {"city": "Bern"}}],
        text={"$contains": "grey"},
    )
    model = Model(f"I look. {wrote('weather')}", "It is grey.")
    sample = await play(case, model)
    question, said, call, output = model.asked[1]
    assert isinstance(said, Message)
    assert (said.role, said.text.strip()) == ("assistant", "I look.")
    assert call == FunctionCall("call_0_0", "weather", '{"city": "Bern"}')
    assert isinstance(output, FunctionOutput)
    assert (output.call_id, output.text) == ("call_0_0", '{"sky":"grey"}')
    assert model.asked[0] == (question,)
    assert sample.ended == Ended(2, 1)
    found = score(case, SPEC, sample)
    assert found.passed
    assert found.checks["steps"] is True
    result = score_sample(Cell("m", "spec", "trip", 0), case, SPEC, sample)
    assert from_line(to_line(result)) == result


async def test_native_calls_keep_their_ids() -> None:
    case = make({"tools": {"weather": [{"result": "rain"}]}})
    model = Model([("weather", '{"city":"Bern"}'), ("look", "{}")], "Done.")
    await play(case, model, NATIVE)
    assert [item.call_id for item in model.asked[1][1:] if isinstance(item, FunctionCall | FunctionOutput)] == [
        "id_0",
        "id_1",
        "id_0",
        "id_1",
    ]
    outputs = [item.text for item in model.asked[1] if isinstance(item, FunctionOutput)]
    assert outputs == ["rain", "Error: look has no result for these arguments."]


async def test_reactions_by_arguments_and_in_order() -> None:
    reactions = [
        {"when": {"city": {"$same": "bern"}}, "result": "rain"},
        {"error": "no such city"},
        {"result": "last"},
    ]
    case = make({"tools": {"weather": reactions}})
    cities = ["Bern", "Basel", "Brig", "Brig", "Bern"]
    model = Model(*(wrote("weather", city) for city in cities), "Done.")
    await play(case, model)
    outputs = [item.text for item in model.asked[-1] if isinstance(item, FunctionOutput)]
    assert outputs == ["rain", "Error: no such city", "last", "last", "last"]


async def test_a_delay_takes_its_time(autojump_clock: MockClock) -> None:
    case = make({"tools": {"weather": [{"result": 1, "delay": 30}]}})
    await play(case, Model(wrote("weather"), "Done."))
    assert trio.current_time() >= 30


async def test_the_user_goes_on_when_the_model_is_done() -> None:
    case = make({"then": ["And Basel?", "Thanks."]})
    model = Model("First.", "Second.", "Third.")
    sample = await play(case, model)
    assert [item.text for item in model.asked[2] if isinstance(item, Message)] == [
        "A trip.",
        "First.",
        "And Basel?",
        "Second.",
        "Thanks.",
    ]
    assert score(make({}, text="Third."), SPEC, sample).passed


async def test_an_episode_without_an_end_fails() -> None:
    case = make({"max_steps": 3, "tools": {"weather": [{"result": 1}]}}, others="allowed")
    model = Model(wrote("weather"))
    sample = await play(case, model)
    assert sample.ended == Ended(3, 2, cut=True)
    found = score_sample(Cell("m", "spec", "trip", 0), case, SPEC, sample)
    assert (found.passed, found.failed_checks) == (False, ("steps",))
    assert found.explain(case, SPEC)[1] == [("steps", "The model was not done after 3 answers.")]


async def test_an_error_ends_the_episode_and_is_not_the_models() -> None:
    case = make({"tools": {"weather": [{"result": 1}]}})
    sample = await play(case, Model(wrote("weather"), "Done.", failing=1))
    assert sample.failure is not None
    assert score_sample(Cell("m", "spec", "trip", 0), case, SPEC, sample).status == "error"


async def test_a_tool_in_python(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text("def weather(arguments): return {'in': arguments['city']}\n")
    case = make({"tools": {"weather": [{"python": "world:weather"}]}})
    model = Model(wrote("weather", "Brig"), "Done.")
    await play(case, model, python=tmp_path)
    (output,) = [item.text for item in model.asked[1] if isinstance(item, FunctionOutput)]
    assert json.loads(output) == {"in": "Brig"}
    with pytest.raises(CheckFailed, match="not allowed to run"):
        await play(case, Model(wrote("weather")))


async def test_renamed_tools_are_simulated_under_their_new_names() -> None:
    """Also if two tools swap their names."""
    changes = Changes(tools={"weather": ToolChange("book"), "book": ToolChange("weather")})
    variant = LabVariant("swapped", changes=changes)
    case = make(
        {"tools": {"weather": [{"result": "rain"}], "book": [{"result": "done"}]}},
        calls=[{"name": name, "arguments": {"city": "Bern"}} for name in ("weather", "book")],
        order="exact",
        last_call="book",
    )
    model = Model(wrote("book"), wrote("weather"), "Done.")
    sample = await play(case, model, variant)
    assert [item.text for item in model.asked[2] if isinstance(item, FunctionOutput)] == ["rain", "done"]
    assert [item.name for item in model.asked[2] if isinstance(item, FunctionCall)] == ["book", "weather"]
    assert score(case, variant, sample).passed


# Trajectories

BERN = {"city": "Bern"}


@pytest.mark.parametrize(
    ("made", "expect", "failed"),
    [
        (["weather", "book"], {"order": "exact"}, ()),
        (["book", "weather"], {"order": "exact"}, ("order",)),
        (["book", "weather"], {}, ()),
        (["weather", "look", "book"], {}, ("count",)),
        (["weather", "look", "book"], {"others": "allowed"}, ()),
        (["weather", "look", "book"], {"others": "allowed", "order": "exact"}, ()),
        (["book", "look", "weather"], {"others": "allowed", "order": "exact"}, ("order",)),
        (["book", "weather", "book"], {"others": "allowed", "order": "exact"}, ()),
        (["weather", "look"], {"others": "allowed"}, ("values",)),
        (["weather"], {"others": "allowed"}, ("count",)),
        ([], {"others": "allowed"}, ("count",)),
        (["weather", "book"], {"last_call": "book"}, ()),
        (["weather", "book", "look"], {"others": "allowed", "last_call": "book"}, ("last_call",)),
        (["weather", "book", "weather", "book"], {"others": "allowed", "last_call": "book"}, ("last_call",)),
    ],
)
async def test_expectations_on_the_whole_trajectory(made: list[str], expect: Any, failed: tuple[str, ...]) -> None:
    due = [{"name": name, "arguments": BERN} for name in ("weather", "book")]
    case = make({"tools": {name: [{"result": 1}] for name in ("weather", "book", "look")}}, calls=due, **expect)
    answers = [
        wrote(name) if name != "look" else '<tool_call>{"name":"look","arguments":"{}"}</tool_call>' for name in made
    ]
    sample = await play(case, Model(*answers, "Done."))
    result = score_sample(Cell("m", "spec", "trip", 0), case, SPEC, sample)
    assert set(result.failed_checks) == set(failed)
    assert result.passed is not bool(failed)
    assert all(sentence for _, sentence in result.explain(case, SPEC)[1])


@pytest.mark.parametrize(
    ("loop", "expect", "fault"),
    [
        ({"tools": {"wether": []}}, {}, "loop.tools.wether: the tool wether is not offered; did you mean weather?"),
        ({"tools": {"weather": [{}]}}, {}, "loop.tools.weather[0]: give one of result, error and python"),
        ({"tools": {"weather": [{"result": 1, "error": "x"}]}}, {}, "give one of result, error and python"),
        ({"tools": {"weather": [{"result": 1, "when": {"city": {"$x": 1}}}]}}, {}, "when.city: unknown rule $x"),
        ({"tools": {"weather": [{"python": "x"}]}}, {}, "python: expected module:function of a check in Python"),
        ({"max_steps": 0}, {}, "loop.max_steps: expected a number from 1 to 100"),
        ({"tools": {"weather": [{"result": 1, "delay": 61}]}}, {}, "delay: expected seconds, at most 60"),
        ({}, {"last_call": "gone"}, "expect.last_call: the tool gone is not offered"),
        ({}, {"others": "some"}, "expect.others: expected forbidden or allowed"),
    ],
)
def test_faults_of_loops(loop: Any, expect: Any, fault: str) -> None:
    with pytest.raises(UsageError) as failed:
        make(loop, **expect)
    assert fault in failed.value.message


def test_a_loop_is_part_of_the_fingerprint() -> None:
    assert len({make(loop).fingerprint for loop in ({}, {"then": ["x"]}, {"max_steps": 3})}) == 3
