"""What is shown of an answer's text as call, as mended, as none."""

from __future__ import annotations

from itertools import product

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from lab.report.making import BROKEN, CASES, FENCED, RIGHT, TRAIN, answer
from lab.scripted_model import MANNERS, NotPossible
from lab.scripted_model import answer as scripted

from bridge.lab.report.marked import mark_text, stand_in_case, visible_text
from bridge.lab.result import Cell
from bridge.lab.sample import Called
from bridge.lab.score import score
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED

SHIPPED_CASES = load_suite(ROOT / "fixtures/cases").cases
CASE, SPEC = CASES["weather-bern"], SHIPPED["spec"]


def kinds(text: str, *called: str, variant: str = "spec") -> list[tuple[str, str]]:
    stretches = mark_text(text, called, CASE, SHIPPED[variant])
    assert "".join(stretch.text for stretch in stretches) == text
    return [(stretch.kind, stretch.note) for stretch in stretches]


def test_calls_and_the_text_around_them() -> None:
    assert kinds(f"I look. {RIGHT}\n{TRAIN} Wait.") == [
        ("text", ""),
        ("call", "get_weather"),
        ("text", ""),
        ("call", "find_trains"),
        ("text", ""),
    ]


def test_a_call_that_was_mended_says_how() -> None:
    assert kinds(FENCED) == [("repair", "get_weather: trailing_comma, code_fence")]
    assert kinds(f"{RIGHT}</tool_call>") == [("call", "get_weather"), ("repair", "repeated_closing_tag")]


def test_a_repair_that_only_the_score_knows_is_shown_too() -> None:
    assert kinds('<tool_call>{"name":"get_weather"}</tool_call>') == [("repair", "get_weather: arguments_missing")]


def test_several_calls_of_one_block_are_all_named() -> None:
    listed = f"<tool_call>[{RIGHT[11:-12]},{TRAIN[11:-12]}]</tool_call>"
    assert kinds(listed) == [("repair", "find_trains, get_weather: array_split")]


def test_a_block_that_is_no_call() -> None:
    assert kinds(BROKEN) == [("text", ""), ("reject", "not JSON")]


def test_a_function_that_is_not_offered_has_its_form() -> None:
    text = RIGHT.replace("get_weather", "forecast")
    assert kinds(text, "forecast") == [("unknown", "forecast")]
    assert kinds(text) == [("reject", "a function that is not offered")], "where the talk is of tags"


def test_a_variant_may_have_other_tags_or_none() -> None:
    tags = SHIPPED["nonce-tag"].tags_for(CASE)
    own = RIGHT.replace("<tool_call>", tags.open).replace("</tool_call>", tags.close)
    assert kinds(own, variant="nonce-tag") == [("call", "get_weather")]
    assert kinds(RIGHT, variant="nonce-tag") == [("text", "")]
    assert kinds(RIGHT, variant="native") == [("text", "")]


def test_a_case_that_is_not_at_hand_offers_what_was_called() -> None:
    cell = Cell("m", "spec", "lost", 0)
    result = answer(cell, "clean", f"I look. {RIGHT}", calls=[Called("get_weather", '{"city":"Bern"}')])
    case = stand_in_case(result)
    assert [stretch.kind for stretch in mark_text(result.texts[0], ["get_weather"], case, SPEC)] == ["text", "call"]
    assert visible_text(result, case, SPEC) == "I look. "


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", RIGHT, FENCED, BROKEN, TRAIN, "[", "{", '"', ",", "\n", "```json", " a "]
)


@pytest.mark.parametrize("variant", ["spec", "json-args-object", "nonce-tag", "native"])
@given(st.lists(PIECES | st.text(max_size=5), max_size=12))
def test_nothing_of_a_text_is_lost(variant: str, pieces: list[str]) -> None:
    kinds("".join(pieces), "forecast", variant=variant)


@pytest.mark.parametrize("manner", MANNERS)
def test_what_is_shown_as_mended_is_what_was_counted(manner: str) -> None:
    """Every way to answer badly, in the shipped cases: nothing of a text is lost, and the repairs are the score's."""
    for case, variant in product(SHIPPED_CASES, ("spec", "json-args-object", "nonce-tag")):
        try:
            sample = scripted(case, SHIPPED[variant], manner)
        except NotPossible:
            continue
        score_ = score(case, SHIPPED[variant], sample)
        called = [call.name for call in score_.calls]
        marked = [mark_text(text, called, case, SHIPPED[variant]) for text in sample.texts]
        assert ["".join(stretch.text for stretch in text) for text in marked] == list(sample.texts)
        repaired = " ".join(stretch.note for text in marked for stretch in text if stretch.kind == "repair")
        assert all(repair in repaired for repair in score_.repairs), (case.id, score_.repairs, repaired)
        assert bool(repaired) == bool(score_.repairs), case.id
