"""A small run, made by hand: cases of every kind of outcome, two models, three variants, three repetitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bridge.core.items import FunctionTool, Message, Text, ToolChoice
from bridge.lab.case import Called, Case, Expect, ExpectedCall
from bridge.lab.checks import CHECKS
from bridge.lab.report.summary import Summary, summarise
from bridge.lab.result import Cell, CountedResults, Result, ResultFile

WEATHER = FunctionTool(
    "get_weather",
    "Today's weather of a place.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TRAINS = FunctionTool("find_trains", "Connections.", {"type": "object", "properties": {"to": {"type": "string"}}})
BERN = ExpectedCall("get_weather", {"city": {"$same": "Bern"}}, {"unit": "C"})
THUN = ExpectedCall("find_trains", {"to": "Thun"})


def ask(text: str) -> tuple[Message, ...]:
    return (Message("user", (Text(text),)),)


def make_case(name: str, category: str, *calls: ExpectedCall, **more: Any) -> Case:
    expect = Expect(calls, **{key: more.pop(key) for key in ("order", "contains", "lacks", "leak") if key in more})
    return Case(name, category, ask(more.pop("asked", "How is it in Bern?")), expect, (WEATHER, TRAINS), **more)


CASES = {
    case.id: case
    for case in (
        make_case("weather-bern", "single", BERN, tags=("short",)),
        make_case("two-at-once", "parallel", BERN, THUN, asked="How is it in Bern, and how do I get to Thun?"),
        make_case("weather-by-force", "single", BERN, tool_choice=ToolChoice("named", "get_weather")),
        make_case("only-talk", "no-tool-needed", contains=("hello",), asked="Say hello."),
        make_case("explain-the-tag", "no-tool-needed", asked="What is a <tool_call>?", leak="allowed"),
    )
}

RIGHT = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bern\\"}"}</tool_call>'
FENCED = '<tool_call>\n```json\n{"name":"get_weather","arguments":"{\\"city\\":\\"Bern\\"}",}\n```\n</tool_call>'
WRONG = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Brig\\"}"}</tool_call>'
BROKEN = 'I look. <tool_call>{"name":"get_weather","arguments":{"city":</tool_call>'
TRAIN = '<tool_call>{"name":"find_trains","arguments":"{\\"to\\":\\"Thun\\"}"}</tool_call>'
IN_BERN = Called("get_weather", '{"city":"Bern"}')
IN_BRIG = Called("get_weather", '{"city":"Brig"}')
TO_THUN = Called("find_trains", '{"to":"Thun"}')


def answer(
    cell: Cell,
    form: str,
    *texts: str,
    calls: Sequence[Called] = (),
    failed: Sequence[str] = (),
    repairs: Sequence[str] = (),
    rejections: Sequence[str] = (),
) -> Result:
    """A sample that was scored."""
    due = CASES[cell.case].expects_calls if cell.case in CASES else bool(calls)
    checks: dict[str, bool | None] = dict.fromkeys(name for name in CHECKS if not CHECKS[name].rare)
    checks |= {"count": True} if due else {"unneeded": True}
    checks |= dict.fromkeys(failed, False)
    passed = form in ("clean", "repaired", "absent") and not failed
    return Result(
        cell,
        "scored",
        form,  # type: ignore[arg-type]
        passed,
        tuple(repairs),
        tuple(rejections),
        checks,
        1.0 if passed else 0.5,
        tuple(calls),
        texts,
        None,
        400 + cell.repeat,
        30,
        1.25,
        f"req_{cell.model}_{cell.variant}_{cell.case}_{cell.repeat}",
    )


def trouble(cell: Cell, code: str = "timeout", message: str = "No answer within 180 s.") -> Result:
    """One that never came."""
    return Result(cell, "error", error={"code": code, "message": message}, seconds=180.0)


def small_run() -> Iterable[Result]:
    """In the order of a run: repetitions come last."""
    for repeat in range(3):
        for model in ("gpt-5.2-codex", "mini"):
            for variant in ("spec", "short", "native"):
                for case in CASES:
                    yield _one(Cell(model, variant, case, repeat))


def _one(cell: Cell) -> Result:
    model, variant, case, repeat = cell
    if case == "only-talk":
        return answer(cell, "absent", "Hello!") if model != "mini" else answer(cell, "absent", "Hi.", failed=["text"])
    if case == "explain-the-tag":
        return answer(cell, "absent", "<tool_call> is how a call begins.")
    if variant == "native":
        calls = [IN_BERN, TO_THUN] if case == "two-at-once" else [IN_BERN]
        return trouble(cell) if model == "mini" and case == "two-at-once" else answer(cell, "clean", calls=calls)
    if case == "two-at-once":
        if variant == "short":
            return answer(cell, "clean", RIGHT, calls=[IN_BERN], failed=["count"])
        return answer(cell, "clean", RIGHT, TRAIN, calls=[IN_BERN, TO_THUN])
    if case == "weather-by-force" and repeat == 1:
        return answer(cell, "absent", "I cannot run tools here.", failed=["count", "choice"])
    if variant == "short" and repeat == 2:
        return answer(cell, "broken", BROKEN, failed=["count"], rejections=["bad_json"])
    if model == "mini" and repeat == 0:
        return answer(cell, "clean", WRONG, calls=[IN_BRIG], failed=["values"])
    if model == "mini" and case == "weather-bern" and repeat == 1:
        return trouble(cell, "rate_limited", "Try again in 12 s.")
    if variant == "spec" and case == "weather-by-force":
        return answer(cell, "repaired", FENCED, calls=[IN_BERN], repairs=["trailing_comma", "code_fence"])
    return answer(cell, "clean", f"I look. {RIGHT}", calls=[IN_BERN])


def write_results(path: Path, results: Iterable[Result], suite: str = "suites/small") -> ResultFile:
    """A file of them."""
    file = ResultFile(path)
    file.open({"suite": suite, "cases": {}})
    for result in results:
        file.append(result)
    file.close()
    return file


def small_summary(path: Path, **more: Any) -> tuple[Summary, CountedResults]:
    """The small run, counted."""
    results = CountedResults(write_results(path, small_run()))
    return summarise(results, CASES, ("spec", "short", "native"), suite="suites/small", **more), results


def suite_file(path: Path) -> Path:
    """The same cases as a person would write them."""
    tools = {tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in (WEATHER, TRAINS)}
    cases = []
    for case in CASES.values():
        expect: dict[str, Any] = {"calls": [_expected(call) for call in case.expect.calls]}
        if case.expect.contains:
            expect["contains"] = list(case.expect.contains)
        if case.expect.leak == "allowed":
            expect["leak"] = "allowed"
        item = case.items[0]
        assert isinstance(item, Message)
        found: dict[str, Any] = {"id": case.id, "category": case.category, "tools": list(tools), "expect": expect}
        found["messages"] = [{"role": "user", "content": item.text}]
        if case.tool_choice.mode == "named":
            found["tool_choice"] = {"name": case.tool_choice.name}
        if case.tags:
            found["tags"] = list(case.tags)
        cases.append(found)
    path.write_text(json.dumps({"tools": tools, "cases": cases}))
    return path


def _expected(call: ExpectedCall) -> dict[str, Any]:
    found: dict[str, Any] = {"name": call.name, "arguments": dict(call.arguments)}
    return found | ({"optional": dict(call.optional)} if call.optional else {})
