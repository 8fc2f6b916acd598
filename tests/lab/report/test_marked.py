"""What is shown of an answer's text as call, as mended, as none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from lab.report.making import BROKEN, CASES, FENCED, RIGHT, TRAIN, answer
from lab.scripted_model import MANNERS, NotPossible
from lab.scripted_model import answer as scripted

from bridge.lab.case import Called, Case, Sample
from bridge.lab.result import Cell
from bridge.lab.score import Piece, read_answer, score
from bridge.lab.suite import load_suite
from bridge.lab.variant import SHIPPED, LabVariant

SHIPPED_CASES = load_suite(ROOT / "fixtures/cases").cases
CASE, SPEC = CASES["weather-bern"], SHIPPED["spec"]


def pieces(text: str, case: Case, variant: LabVariant) -> list[Piece]:
    (found,) = read_answer(case, variant, Sample((text,))).texts
    assert "".join(piece.text for piece in found) == text
    return found


def kinds(text: str, variant: str = "spec", case: Case = CASE) -> list[tuple[str, str]]:
    return [(piece.kind, piece.note) for piece in pieces(text, case, SHIPPED[variant])]


def test_calls_and_the_text_around_them() -> None:
    assert kinds(f"I look. {RIGHT}\n{TRAIN} Wait.") == [
        ("text", ""),
        ("call", "get_weather"),
        ("text", ""),
        ("call", "find_trains"),
        ("text", ""),
    ]


def test_a_repaired_call_names_its_repairs() -> None:
    assert kinds(FENCED) == [("repair", "get_weather: trailing_comma, code_fence")]
    assert kinds(f"{RIGHT}</tool_call>") == [("call", "get_weather"), ("repair", "repeated_closing_tag")]


def test_a_repair_that_only_the_score_knows_is_shown_too() -> None:
    assert kinds('<tool_call>{"name":"get_weather"}</tool_call>') == [("repair", "get_weather: arguments_missing")]


def test_several_calls_of_one_block_are_all_named() -> None:
    listed = f"<tool_call>[{RIGHT[11:-12]},{TRAIN[11:-12]}]</tool_call>"
    assert kinds(listed) == [("repair", "find_trains, get_weather: array_split")]


def test_a_block_that_is_not_a_call() -> None:
    assert kinds(BROKEN) == [("text", ""), ("reject", "not JSON")]


def test_a_function_that_is_not_offered_has_its_form() -> None:
    text = RIGHT.replace("get_weather", "forecast")
    assert kinds(text) == [("unknown", "forecast")]
    about_tags = replace(CASE, expect=replace(CASE.expect, leak="allowed"))
    assert kinds(text, case=about_tags) == [("reject", "the function is not offered")]


def test_a_variant_may_have_other_tags_or_none() -> None:
    tags = SHIPPED["nonce-tag"].tags_for(CASE)
    own = RIGHT.replace("<tool_call>", tags.open).replace("</tool_call>", tags.close)
    assert kinds(own, variant="nonce-tag") == [("call", "get_weather")]
    assert kinds(RIGHT, variant="nonce-tag") == [("text", "")]
    assert kinds(RIGHT, variant="native") == [("text", "")]


def test_a_case_of_an_unknown_suite_offers_the_called_functions() -> None:
    cell = Cell("m", "spec", "lost", 0)
    result = answer(cell, "clean", f"I look. {RIGHT}", calls=[Called("get_weather", '{"city":"Bern"}')])
    reading, _ = result.explain(None, SPEC)
    assert [[piece.kind for piece in text] for text in reading.texts] == [["text", "call"]]
    assert reading.visible == "I look. "


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", RIGHT, FENCED, BROKEN, TRAIN, "[", "{", '"', ",", "\n", "```json", " a "]
)


@pytest.mark.parametrize("variant", ["spec", "json-args-object", "nonce-tag", "native"])
@given(st.lists(PIECES | st.text(max_size=5), max_size=12))
def test_nothing_of_a_text_is_lost(variant: str, words: list[str]) -> None:
    kinds("".join(words), variant)


@pytest.mark.parametrize("manner", MANNERS)
def test_marked_repairs_are_the_counted_repairs(manner: str) -> None:
    """Every way to answer badly, in the shipped cases: nothing of a text is lost, and the repairs are the score's."""
    for case, variant in product(SHIPPED_CASES, ("spec", "json-args-object", "nonce-tag")):
        try:
            sample = scripted(case, SHIPPED[variant], manner)
        except NotPossible:
            continue
        score_ = score(case, SHIPPED[variant], sample)
        marked = [pieces(text, case, SHIPPED[variant]) for text in sample.texts]
        repaired = " ".join(piece.note for text in marked for piece in text if piece.kind == "repair")
        assert all(repair in repaired for repair in score_.repairs), (case.id, score_.repairs, repaired)
        assert bool(repaired) == bool(score_.repairs), case.id
