"""Why a check failed, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import ROOT
from lab.report.making import BERN, CASES, THUN, answer, make_case
from lab.scripted_model import MANNERS, NotPossible
from lab.scripted_model import answer as scripted

from bridge.core.items import ToolChoice
from bridge.lab.case import Called, Case, ExpectedCall, Sample
from bridge.lab.checks import CHECKS, explain
from bridge.lab.result import Cell, score_sample
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED

WEATHER = CASES["weather-bern"]
BOTH = replace(CASES["two-at-once"], expect=replace(CASES["two-at-once"].expect, order="exact"))
TALK = make_case("talk", "none", contains=("hello",), lacks=("goodbye",))


def why(case: Case, *calls: tuple[str, str], text: str = "") -> dict[str, list[str]]:
    """The reasons of an answer that fails, by check. It is scored, so exactly the failed checks have reasons."""
    sample = Sample((text,) if text else (), tuple(Called(*call) for call in calls))
    result = score_sample(Cell("m", "native", case.id, 0), case, SHIPPED["native"], sample, None)
    reasons: dict[str, list[str]] = {}
    for check, sentence in explain(result.failed_checks, case, result.calls, text):
        reasons.setdefault(check, []).append(sentence)
    assert tuple(reasons) == result.failed_checks
    return reasons


def test_a_function_that_is_not_offered() -> None:
    assert why(WEATHER, ("forecast", "{}"))["name"] == ["forecast was called, but is not offered."]
    assert why(WEATHER, ("forecast", "{}"))["values"] == ["Expected a call of get_weather, got forecast."]


def test_arguments_that_do_not_fit_the_schema() -> None:
    reasons = why(WEATHER, ("get_weather", '{"city": "Bern", "unit": "K", "zip": 3000}'))
    assert reasons["schema"][0].startswith("get_weather, unit: ") or reasons["schema"][1].startswith(
        "get_weather, unit: "
    )
    assert reasons["invented"] == ["get_weather: zip not in its schema."]
    assert why(WEATHER, ("get_weather", "{}"))["required"] == ["get_weather: missing city."]
    reasons = why(WEATHER, ("get_weather", "[]"))
    assert reasons["schema"] == reasons["values"] == ["get_weather: arguments are not a JSON object."]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('{"city": "Brig"}', 'get_weather: city is "Brig"; expected {"$same":"Bern"}.'),
        ("{}", 'get_weather: city is missing; expected {"$same":"Bern"}.'),
        ('{"city": "Bern", "unit": "F"}', 'get_weather: unit is "F"; expected "C".'),
    ],
)
def test_wrong_values(arguments: str, sentence: str) -> None:
    assert why(WEATHER, ("get_weather", arguments))["values"] == [sentence]


def test_an_argument_that_should_not_be_given() -> None:
    case = make_case("a", "b", ExpectedCall("get_weather", {"city": "Bern"}))
    reasons = why(case, ("get_weather", '{"city": "Bern", "unit": "C"}'))
    assert reasons["values"] == ['get_weather: unit is "C"; it should be absent.']
    open_ended = make_case("a", "b", ExpectedCall("get_weather", {"city": "Bern", "*": {"$type": "number"}}))
    reasons = why(open_ended, ("get_weather", '{"city": "Bern", "unit": "C"}'))
    assert reasons["values"] == ['get_weather: unit is "C"; expected {"$type":"number"}.']


def test_a_call_cannot_stand_for_two() -> None:
    reasons = why(
        make_case("a", "b", BERN, BERN), ("get_weather", '{"city":"Bern"}'), ("get_weather", '{"city":"Brig"}')
    )
    assert reasons["values"] == ['Unexpected call: get_weather with {"city":"Brig"}.']


def test_counts_and_order() -> None:
    here, there = ("get_weather", '{"city": "Bern"}'), ("find_trains", '{"to": "Thun"}')
    assert why(BOTH, here)["count"] == ["Expected 2 calls, got 1."]
    assert why(WEATHER)["count"] == ["Expected 1 call, got none."]
    assert why(WEATHER, here, here)["count"] == ["Expected 1 call, got 2."]
    assert why(BOTH, there, here)["order"] == [
        "Expected get_weather, then find_trains; got find_trains, then get_weather."
    ]
    twice = make_case("a", "b", BERN, ExpectedCall("get_weather", {"city": "Thun"}), order="exact")
    reasons = why(twice, ("get_weather", '{"city": "Thun"}'), here)
    assert reasons["order"] == ["The calls are right, but in the wrong order."]


def test_tool_choice() -> None:
    forced = make_case("a", "b", BERN, tool_choice=ToolChoice("named", "get_weather"))
    assert why(forced)["choice"] == ["tool_choice is function get_weather, but nothing was called."]
    none = make_case("a", "b", tool_choice=ToolChoice("none"))
    reasons = why(none, ("find_trains", "{}"))
    assert reasons["choice"] == ["tool_choice is none, but find_trains was called."]
    assert reasons["unneeded"] == ["No call is expected, but find_trains was called."]
    assert why(make_case("a", "b", THUN, tool_choice=ToolChoice("required")))["choice"]


def test_the_visible_text() -> None:
    assert why(TALK, text="Goodbye")["text"] == [
        'The visible text does not contain "hello".',
        'The visible text contains "goodbye", but should not.',
    ]


def test_long_values_are_cut() -> None:
    reasons = why(WEATHER, ("get_weather", f'{{"city": "{"x" * 20_000}"}}'))
    assert len(reasons["values"][0]) < 300


def test_without_the_case_a_check_has_its_own_words() -> None:
    result = answer(Cell("m", "spec", "lost", 0), "clean", failed=["values"])
    assert result.explain(None, SHIPPED["spec"])[1] == [("values", "A call is not one of the expected calls.")]


@pytest.mark.parametrize("manner", MANNERS)
def test_every_failure_has_a_reason(manner: str) -> None:
    """In the shipped cases: a sentence for each check that failed, and none for others."""
    for case in load_suite(ROOT / "fixtures/cases").cases:
        try:
            sample = scripted(case, SHIPPED["spec"], manner)
        except NotPossible:
            continue
        result = score_sample(Cell("m", "spec", case.id, 0), case, SHIPPED["spec"], sample, None)
        _, reasons = result.explain(case, SHIPPED["spec"])
        assert tuple(dict.fromkeys(check for check, _ in reasons)) == result.failed_checks
        for check, sentence in reasons:
            assert sentence != f"{CHECKS[check].words.capitalize()}.", "the reason, not only the check"
            assert len(sentence) < 1_000
