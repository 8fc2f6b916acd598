"""Why a check failed, as a person would say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import ROOT
from lab.report.making import BERN, CASES, THUN, answer, make_case
from lab.scripted_model import MANNERS, NotPossible
from lab.scripted_model import answer as scripted

from bridge.lab.case import Case, ExpectedCall
from bridge.lab.meaning import CHECKS
from bridge.lab.report.explain import explain
from bridge.lab.report.marked import visible_text
from bridge.lab.report.words import CHECK_WORDS, FORM_WORDS
from bridge.lab.result import Cell
from bridge.lab.runner import score_sample
from bridge.lab.sample import Called, Sample
from bridge.lab.score import FORMS
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED
from bridge.turn.items import ToolChoice

WEATHER = CASES["weather-bern"]
BOTH = replace(CASES["two-at-once"], expect=replace(CASES["two-at-once"].expect, order="exact"))
TALK = make_case("talk", "none", contains=("hello",), lacks=("goodbye",))


def why(case: Case, *calls: tuple[str, str], text: str = "") -> dict[str, list[str]]:
    """What is told of an answer, by check; it is scored, so exactly what failed is told."""
    sample = Sample((text,) if text else (), tuple(Called(*call) for call in calls))
    result = score_sample(Cell("m", "native", case.id, 0), case, SHIPPED["native"], sample, None)
    told: dict[str, list[str]] = {}
    for check, sentence in explain(result, case, text):
        told.setdefault(check, []).append(sentence)
    assert tuple(told) == result.failed_checks
    return told


def test_a_function_that_is_not_offered() -> None:
    assert why(WEATHER, ("forecast", "{}"))["name"] == ["forecast is called, but not offered."]
    assert why(WEATHER, ("forecast", "{}"))["values"] == ["get_weather is due, but forecast is called."]


def test_arguments_that_the_schema_does_not_take() -> None:
    told = why(WEATHER, ("get_weather", '{"city": "Bern", "unit": "K", "zip": 3000}'))
    assert told["schema"][0].startswith("get_weather, unit: ") or told["schema"][1].startswith("get_weather, unit: ")
    assert told["invented"] == ["get_weather is given zip, which its schema does not have."]
    assert why(WEATHER, ("get_weather", "{}"))["required"] == ["get_weather lacks city."]
    told = why(WEATHER, ("get_weather", "[]"))
    assert told["schema"] == told["values"] == ["get_weather: its arguments are no JSON object."]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('{"city": "Brig"}', 'get_weather: city is "Brig"; right is {"$same":"Bern"}.'),
        ("{}", 'get_weather: city is missing; right is {"$same":"Bern"}.'),
        ('{"city": "Bern", "unit": "F"}', 'get_weather: unit is "F"; right is "C".'),
    ],
)
def test_wrong_values(arguments: str, sentence: str) -> None:
    assert why(WEATHER, ("get_weather", arguments))["values"] == [sentence]


def test_an_argument_that_should_not_be_given() -> None:
    case = make_case("a", "b", ExpectedCall("get_weather", {"city": "Bern"}))
    told = why(case, ("get_weather", '{"city": "Bern", "unit": "C"}'))
    assert told["values"] == ['get_weather: unit is "C"; it should not be given.']
    open_ended = make_case("a", "b", ExpectedCall("get_weather", {"city": "Bern", "*": {"$type": "number"}}))
    told = why(open_ended, ("get_weather", '{"city": "Bern", "unit": "C"}'))
    assert told["values"] == ['get_weather: unit is "C"; right is {"$type":"number"}.']


def test_a_call_cannot_stand_for_two() -> None:
    told = why(make_case("a", "b", BERN, BERN), ("get_weather", '{"city":"Bern"}'), ("get_weather", '{"city":"Brig"}'))
    assert told["values"] == ['get_weather with {"city":"Brig"} is none of the calls that are due.']


def test_counts_and_order() -> None:
    here, there = ("get_weather", '{"city": "Bern"}'), ("find_trains", '{"to": "Thun"}')
    assert why(BOTH, here)["count"] == ["1 call is made; 2 are due."]
    assert why(WEATHER)["count"] == ["Nothing is called; 1 is due."]
    assert why(WEATHER, here, here)["count"] == ["2 calls are made; 1 is due."]
    assert why(BOTH, there, here)["order"] == [
        "Called are find_trains, then get_weather; due are get_weather, then find_trains."
    ]
    twice = make_case("a", "b", BERN, ExpectedCall("get_weather", {"city": "Thun"}), order="exact")
    told = why(twice, ("get_weather", '{"city": "Thun"}'), here)
    assert told["order"] == ["The calls are right, but each stands in another's place."]


def test_tool_choice() -> None:
    forced = make_case("a", "b", BERN, tool_choice=ToolChoice("named", "get_weather"))
    assert why(forced)["choice"] == ["tool_choice is function get_weather, but nothing is called."]
    none = make_case("a", "b", tool_choice=ToolChoice("none"))
    told = why(none, ("find_trains", "{}"))
    assert told["choice"] == ["tool_choice is none, but find_trains is called."]
    assert told["unneeded"] == ["Nothing is due, but find_trains is called."]
    assert why(make_case("a", "b", THUN, tool_choice=ToolChoice("required")))["choice"]


def test_what_the_text_should_say() -> None:
    assert why(TALK, text="Goodbye")["text"] == [
        'The visible text lacks "hello".',
        'The visible text holds "goodbye", which it should not.',
    ]


def test_long_values_are_cut() -> None:
    told = why(WEATHER, ("get_weather", f'{{"city": "{"x" * 20_000}"}}'))
    assert len(told["values"][0]) < 300


def test_without_the_case_a_check_has_its_own_words() -> None:
    result = answer(Cell("m", "spec", "lost", 0), "clean", failed=["values"])
    assert explain(result, None, "") == [("values", "Arguments are not the right ones.")]


def test_there_are_words_for_everything() -> None:
    assert set(CHECK_WORDS) == set(CHECKS)
    assert set(FORM_WORDS) == set(FORMS)


@pytest.mark.parametrize("manner", MANNERS)
def test_every_way_to_fail_is_told(manner: str) -> None:
    """In the shipped cases: a sentence for each check that failed, and none for others."""
    for case in load_suite(ROOT / "fixtures/cases").cases:
        try:
            sample = scripted(case, SHIPPED["spec"], manner)
        except NotPossible:
            continue
        result = score_sample(Cell("m", "spec", case.id, 0), case, SHIPPED["spec"], sample, None)
        told = explain(result, case, visible_text(result, case, SHIPPED["spec"]))
        assert tuple(dict.fromkeys(check for check, _ in told)) == result.failed_checks
        for check, sentence in told:
            assert sentence != f"{CHECK_WORDS[check].capitalize()}.", "the reason, not only the check"
            assert len(sentence) < 1_000
