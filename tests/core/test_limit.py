"""The limit of tokens: an answer is cut where it surely has so many, however its text arrives, and never before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.events import Finished, Restarted, TextDelta, ToolCall, TurnEvent
from bridge.core.stages import LONGEST, LimitStage

END = Finished("completed")


def cut(limit: int, *pieces: str) -> str | None:
    """What is shown of a text; None where all of it is."""
    stage = LimitStage(limit)
    shown = ""
    for piece in pieces:
        for event in stage.feed([TextDelta("m", [piece])]):
            assert isinstance(event, TextDelta)
            shown += "".join(event.pieces)
        if stage.hit:
            return shown
    return None


@pytest.mark.parametrize(
    ("limit", "text", "shown"),
    [
        (2, "one two three four", "one two "),
        (2, "one, two; three.", "one, two; "),
        (1, "don't stop now", "don't "),
        (2, "12345678 x", "123456"),
        (3, "snake_case_name here", "snake_case_name "),
        (1, "\n\n```\nx y", "\n\n```\nx "),
        (1, "न्यायालय क्या है", "न्यायालय "),
        (1, "你好世界 再见了", "你好世界 "),
        (1, "it's rock'n'roll", "it's "),
        (1, "a" * (LONGEST + 1) + " b", "a" * LONGEST),
        (2, "one " + "a" * 5 * LONGEST, "one " + "a" * LONGEST),
        (2, "a" * (LONGEST + 1) + " b c", "a" * (LONGEST + 1) + " "),
    ],
)
def test_where_it_is_cut(limit: int, text: str, shown: str) -> None:
    """Words and numbers of up to three digits count; what stands between them does not."""
    assert cut(limit, text + " the end") == shown
    assert cut(limit, *(text + " the end")) == shown


def test_what_fits_is_left_alone() -> None:
    """An answer may have as many words as tokens are allowed, and any number of marks."""
    assert cut(2, "one two") is None
    assert cut(100, "word " * 100) is None
    assert cut(3, "!?" * 50) is None


def test_other_events_pass_and_nothing_follows_the_cut() -> None:
    """Calls are not counted; what comes after the cut is the caller's to leave out."""
    call = ToolCall("fc", "call", "find", '{"q": "a b c d e f g"}')
    stage = LimitStage(2)
    given: list[TurnEvent] = [call, TextDelta("m", ["one two three four"]), TextDelta("m", [" five"]), END]
    assert stage.feed(given) == [call, TextDelta("m", ["one two "])]
    assert stage.hit
    assert LimitStage.end == Finished("incomplete", reason="max_output_tokens")


def test_a_restarted_answer_is_counted_again() -> None:
    """What was said before is void."""
    stage = LimitStage(3)
    stage.feed([TextDelta("m", ["one two three"])])
    assert stage.feed([Restarted("x"), TextDelta("n", ["four five "])])[1:] == [TextDelta("n", ["four five "])]
    assert not stage.hit


WORDS = st.text(st.sampled_from("aZ9'_ .\n€é你"), max_size=40)


@given(st.integers(1, 12), st.lists(WORDS, max_size=6))
def test_how_a_text_is_cut_into_pieces_changes_nothing(limit: int, pieces: list[str]) -> None:
    """The text ends at the same character, and what is shown is always its beginning."""
    text = "".join(pieces)
    whole = cut(limit, text)
    assert whole == cut(limit, *pieces) == cut(limit, *text)
    assert whole is None or text.startswith(whole)


def test_a_word_without_an_end_is_cut() -> None:
    """Encoded data, for one: it is one word for as long as it goes on."""
    assert cut(10, *["abcd"] * 1000) == "abcd" * (10 * LONGEST // 4)


@given(st.integers(1, 50), st.text(max_size=200))
def test_an_answer_of_as_many_tokens_as_characters_is_never_cut_short(limit: int, text: str) -> None:
    """A token has at least one character: a text with no more characters than the limit is shown whole."""
    assert cut(max(limit, len(text)), text) is None
