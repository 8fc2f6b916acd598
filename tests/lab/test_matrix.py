"""Variants of everything that is a prompt, and every combination of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.report.making import BERN, CASES, TRAINS, WEATHER

from bridge.core.items import FunctionCall, FunctionOutput, Text
from bridge.core.models import ModelChoice
from bridge.errors import UsageError
from bridge.lab.ask import make_turn
from bridge.lab.case import Called, Sample
from bridge.lab.changes import Changes, ToolChange, styled
from bridge.lab.commands import RunOptions
from bridge.lab.matrix import build_variants
from bridge.lab.result import Cell, score_sample
from bridge.lab.score import score
from bridge.lab.variant import SHIPPED, LabVariant, find_variant

CASE = replace(CASES["weather-bern"], instructions="Be brief.")
CHOICE = ModelChoice("gpt-5.2", "gpt-5.2")


def written(directory: Path, **variant: Any) -> LabVariant:
    path = directory / "mine.yaml"
    path.write_text(yaml.safe_dump(variant))
    return find_variant(str(path))


def asked(variant: LabVariant) -> Any:
    return make_turn(CASE, variant, CHOICE, variant.text_for(CASE), offers_text=True)


def test_instructions_are_replaced_and_joined(tmp_path: Path) -> None:
    (tmp_path / "polite.txt").write_text("Say please.\n")
    assert asked(written(tmp_path, instructions="Only this.")).instructions == "Only this."
    both = written(tmp_path, instructions={"prepend": {"file": "polite.txt"}, "append": "Thanks."})
    assert asked(both).instructions == "Say please.\n\nBe brief.\n\nThanks."
    empty = written(tmp_path, instructions={"replace": ""})
    assert asked(empty).instructions is None


def test_a_tool_of_another_name_is_offered_and_expected(tmp_path: Path) -> None:
    tools = {"get_weather": {"name": "weather_now", "description": "Rain or sun?"}}
    variant = written(tmp_path, base="native", tools=tools)
    turn = asked(variant)
    assert [(tool.name, tool.description) for tool in turn.functions] == [
        ("weather_now", "Rain or sun?"),
        (TRAINS.name, TRAINS.description),
    ]
    new, old = (Sample(calls=(Called(name, '{"city":"Bern"}'),)) for name in ("weather_now", "get_weather"))
    assert score(CASE, variant, new).passed
    assert not score(CASE, variant, old).passed
    result = score_sample(Cell("m", "mine", CASE.id, 0), CASE, variant, old)
    assert ("name", "get_weather was called, but is not offered.") in result.explain(CASE, variant)[1]


def test_earlier_calls_and_the_tool_choice_have_the_new_name() -> None:
    past = (FunctionCall("c1", "get_weather", "{}"), FunctionOutput("c1", (Text("rain"),)))
    case = replace(CASES["weather-by-force"], items=(*CASE.items, *past))
    found = Changes(tools={"get_weather": ToolChange("w")}).apply(case)
    assert found.items[1] == FunctionCall("c1", "w", "{}")
    assert found.items[2] == past[1]
    assert found.tool_choice.name == found.expect.calls[0].name == "w"


def test_text_variants_inject_the_changed_tools(tmp_path: Path) -> None:
    variant = written(tmp_path, base="short", tools={"get_weather": {"description": "Rain?"}}, schemas="bare")
    text = variant.text_for(CASE)
    assert "Rain?" in text
    assert str(WEATHER.description) not in text


def test_effort_and_temperature_reach_the_turn(tmp_path: Path) -> None:
    turn = asked(written(tmp_path, effort="high", temperature=0.5))
    assert (turn.effort, turn.temperature) == ("high", 0.5)
    plain = asked(SHIPPED["spec"])
    assert (plain.effort, plain.temperature) == (None, None)


def test_styles_of_schemas() -> None:
    schema = {
        "type": "object",
        "description": "A place.",
        "properties": {"description": {"type": "string", "title": "T", "default": "x"}, "in": {"type": "object"}},
        "required": ["description"],
    }
    assert styled(schema, "full") == schema
    assert styled(schema, "bare") == {
        "type": "object",
        "properties": {"description": {"type": "string"}, "in": {"type": "object"}},
        "required": ["description"],
    }
    closed = styled(schema, "closed")
    assert closed["additionalProperties"] is closed["properties"]["in"]["additionalProperties"] is False
    deep: Any = {}
    for _ in range(5_000):
        deep = {"items": deep}
    styled(deep, "closed")


def test_shipped_variants_keep_their_fingerprints() -> None:
    """Results of an earlier version can be continued."""
    assert SHIPPED["spec"].fingerprint == "de6c6ae21142f350"
    changed = replace(SHIPPED["spec"], changes=Changes(effort="low"))
    assert changed.fingerprint != SHIPPED["spec"].fingerprint


@pytest.mark.parametrize(
    ("variant", "fault"),
    [
        ({"instructions": {"before": "x"}}, "instructions.before: unknown key"),
        ({"instructions": 3}, "instructions: expected text, or an object with replace, prepend or append"),
        ({"instructions": {"append": {"file": "gone.txt"}}}, "gone.txt: No such file or directory"),
        ({"tools": {"a": {"nam": "b"}}}, "tools.a.nam: unknown key; did you mean name?"),
        ({"schemas": "bar"}, "schemas: expected full, bare or closed; did you mean bare?"),
        ({"effort": "big"}, "effort: expected none, minimal, low, medium, high or xhigh"),
        ({"temperature": 3}, "temperature: expected a number from 0 to 2"),
        ({"base": "native", "blocks": {"rules": ""}}, "the variant native has no injected text"),
    ],
)
def test_faults_name_the_key(tmp_path: Path, variant: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError) as failed:
        written(tmp_path, **variant)
    assert fault in failed.value.message


# Matrices


def test_every_combination_of_the_options(tmp_path: Path) -> None:
    polite, renamed = tmp_path / "polite.txt", tmp_path / "renamed.yaml"
    polite.write_text("Say please.")
    renamed.write_text("get_weather: {name: weather_now}")
    built = build_variants(
        RunOptions(
            variant=("spec", "short"),
            instructions=("as-is", f"append:{polite}"),
            tools=("as-is", str(renamed)),
            effort=("low",),
        ),
        (),
    )
    assert list(built)[:3] == [
        "spec/instructions=as-is/tools=as-is/effort=low",
        "spec/instructions=as-is/tools=renamed/effort=low",
        "spec/instructions=append:polite.txt/tools=as-is/effort=low",
    ]
    assert len(built) == 8
    last = built["short/instructions=append:polite.txt/tools=renamed/effort=low"]
    assert last.wording == SHIPPED["short"].wording
    assert last.changes == Changes(
        (("append", "Say please."),), {"get_weather": ToolChange("weather_now")}, effort="low"
    )
    assert dict(last.levels) == {
        "variant": "short",
        "instructions": "append:polite.txt",
        "tools": "renamed",
        "effort": "low",
    }
    assert len({variant.fingerprint for variant in built.values()}) == 8


def test_without_such_options_variants_keep_their_names() -> None:
    assert build_variants(RunOptions(), ("spec",)) == {"spec": SHIPPED["spec"]}


def test_a_level_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    assert len(build_variants(RunOptions(effort=("low", "low"), temperature=("0", "0.0")), ("spec",))) == 1
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(name)
    options = RunOptions(instructions=tuple(f"append:{tmp_path / name / 'x.txt'}" for name in ("a", "b")))
    with pytest.raises(UsageError, match=r"two different levels are called append:x\.txt"):
        build_variants(options, ("spec",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instructions": ("after:x",)}, "Choose as-is, replace:FILE, prepend:FILE or append:FILE"),
        ({"instructions": ("append:gone.txt",)}, "--instructions: gone.txt: No such file or directory"),
        ({"effort": ("big",)}, "Invalid --effort 'big'. Choose as-is, none, minimal"),
        ({"temperature": ("warm",)}, "Invalid --temperature 'warm'. Give a number from 0 to 2."),
        ({"temperature": ("nan",)}, "Invalid --temperature 'nan'."),
        ({"schemas": ("x",)}, "Invalid --schemas 'x'. Choose full, bare, closed."),
        ({"tools": ("gone.yaml",)}, "gone.yaml: cannot be read: No such file or directory"),
        (
            {"temperature": tuple(str(n / 1000) for n in range(1001))},
            "The options give 1,001 variants. The most is 1,000.",
        ),
    ],
)
def test_levels_that_do_not_exist(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as failed:
        build_variants(RunOptions(**options), ("spec",))
    assert message in failed.value.message


def test_what_is_expected_of_an_unchanged_case_is_the_case_itself() -> None:
    assert SHIPPED["spec"].apply(CASE) is CASE
    assert CASE.expect.calls == (BERN,)
