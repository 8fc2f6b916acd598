"""Stop sequences: the answer ends before the first of them, however its text arrives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.events import (
    Finished,
    ReasoningDelta,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.stages import StopStage

END = Finished("completed")
CALL = ToolCall("fc_1", "call_1", "find", "{}")


def run(stops: Sequence[str], *batches: Sequence[TurnEvent]) -> tuple[list[TurnEvent], bool]:
    """What is shown of these batches, and whether a stop sequence was found."""
    stage = StopStage(stops)
    out: list[TurnEvent] = []
    for batch in batches:
        if not stage.hit:
            out += stage.feed(list(batch))
    return out, stage.hit


def text_of(events: list[TurnEvent]) -> str:
    return "".join("".join(event.pieces) for event in events if isinstance(event, TextDelta))


def shown(stops: Sequence[str], *pieces: str) -> tuple[str, bool]:
    """The text that is shown of a message in these pieces, each a batch of its own."""
    out, hit = run(stops, *([TextDelta("m", [piece])] for piece in pieces), [TextDone("m"), END])
    return text_of(out), hit


@pytest.mark.parametrize(
    ("stops", "pieces", "text"),
    [
        (["END"], ["one END two"], "one "),
        (["END"], ["one E", "ND two"], "one "),
        (["END"], ["one ", "E", "N", "D", " two"], "one "),
        (["END"], ["END"], ""),
        (["END"], ["E", "ND"], ""),
        (["END"], ["EEND"], "E"),
        (["END"], ["E", "E", "N", "D"], "E"),
        (["aab"], ["aaab"], "a"),
        (["aab"], ["a", "a", "a", "b"], "a"),
        (["\n\n"], ["one\n", "\ntwo"], "one"),
        (["x", "yz"], ["a y", "z x"], "a "),
        (["é😀"], ["aé", "😀b"], "a"),
        (["."], ["a.b.c"], "a"),
    ],
)
def test_the_text_ends_before_the_stop(stops: list[str], pieces: list[str], text: str) -> None:
    """Found wherever it is cut, and no piece of it is shown."""
    assert shown(stops, *pieces) == (text, True)


@pytest.mark.parametrize(
    ("stops", "pieces"),
    [
        (["END"], ["one two"]),
        (["END"], ["one E", "N", "X"]),
        (["END"], ["one EN"]),
        (["END"], ["E"]),
        (["END"], ["end"]),
        (["END", "E!"], ["E", "N", "E", "."]),
        (["END"], [""]),
    ],
)
def test_without_a_stop_the_text_is_whole(stops: list[str], pieces: list[str]) -> None:
    """What looked like the beginning of one is shown in the end."""
    assert shown(stops, *pieces) == ("".join(pieces), False)


def test_the_first_of_several_counts() -> None:
    """However they are listed, and however the text is cut."""
    for stops in (["two", "one"], ["one", "two"]):
        assert shown(stops, "a one two") == ("a ", True)
        assert shown(stops, "a o", "ne two") == ("a ", True)


def test_of_stops_in_each_other_the_first_to_be_complete_counts() -> None:
    """Nobody can look further while the text is being written; the cut of the pieces makes no difference."""
    for pieces in (["xabcd"], ["xab", "cd"], ["xa", "bc", "d"], ["x", "a", "b", "c", "d"]):
        assert shown(["abcd", "bc"], *pieces) == ("xa", True)
        assert shown(["bc", "abc"], *pieces) == ("x", True)


def test_pieces_keep_their_boundaries_while_nothing_is_near() -> None:
    """A stream stays as fine as it was."""
    out, _ = run(["END"], [TextDelta("m", ["one ", "two ", "three"])])
    assert out == [TextDelta("m", ["one ", "two ", "three"])]


def test_no_more_is_held_back_than_might_be_a_stop() -> None:
    """The rest is shown at once."""
    stage = StopStage(["END"])
    assert stage.feed([TextDelta("m", ["one E"])]) == [TextDelta("m", ["one "])]
    assert stage.feed([TextDelta("m", ["N"])]) == []
    assert stage.feed([TextDelta("m", ["Q E"])]) == [TextDelta("m", ["ENQ "])]


@pytest.mark.parametrize(
    "event",
    [
        TextDone("m"),
        CALL,
        ReasoningDelta("r", 0, ["END"]),
        UsageUpdate(Usage(1)),
        END,
        Finished("incomplete", reason="max_output_tokens"),
    ],
)
def test_what_was_held_back_comes_before_any_other_event(event: TurnEvent) -> None:
    """The order stays; only the assistant's text is looked at."""
    out, hit = run(["END"], [TextDelta("m", ["one E"]), event])
    assert out == [TextDelta("m", ["one "]), TextDelta("m", ["E"]), event]
    assert not hit


def test_a_stop_does_not_reach_over_two_messages() -> None:
    """Each is a text of its own."""
    out, hit = run(["END"], [TextDelta("a", ["E"]), TextDelta("b", ["ND"])])
    assert out == [TextDelta("a", ["E"]), TextDelta("b", ["ND"])]
    assert not hit


def test_a_restart_forgets_what_was_held_back() -> None:
    """It belonged to the attempt that is void."""
    again = Restarted("again")
    out, hit = run(["END"], [TextDelta("a", ["one E"]), again, TextDelta("b", ["ND"]), END])
    assert out == [TextDelta("a", ["one "]), again, TextDelta("b", ["ND"]), END]
    assert not hit


def test_after_the_stop_there_is_nothing() -> None:
    """Neither of the same batch nor of a later one: the caller ends the turn."""
    stage = StopStage(["END"])
    events: list[TurnEvent] = [TextDelta("m", ["one END", "two"]), CALL, UsageUpdate(Usage(1)), END]
    assert stage.feed(events) == [TextDelta("m", ["one "])]
    assert stage.hit
    assert stage.feed([TextDelta("m", ["three"]), END]) == []


def test_nothing_follows_the_end() -> None:
    """As in every turn."""
    out, _ = run(["END"], [TextDelta("m", ["one"]), END, TextDelta("m", ["two"])])
    assert out == [TextDelta("m", ["one"]), END]


def test_the_events_themselves_stay_as_they_are() -> None:
    """Others may hold them too."""
    event = TextDelta("m", ["one E", "ND"])
    run(["END"], [event])
    assert event == TextDelta("m", ["one E", "ND"])


# However it is cut

letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3)


def until_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop that is complete first, said in the plainest way."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)], True
    return text, False


@given(letters, stop_lists, st.data())
def test_it_does_not_matter_how_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    """Into pieces, pieces into events, events into batches: the same text is shown, up to the first stop."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    events: list[TurnEvent] = []
    for piece in pieces:
        last = events[-1] if events else None
        if isinstance(last, TextDelta) and data.draw(st.booleans()):
            last.pieces.append(piece)
        else:
            events.append(TextDelta("m", [piece]))
    events.append(END)
    at = data.draw(st.integers(0, len(events)))
    out, hit = run(stops, events[:at], events[at:])
    assert (text_of(out), hit) == until_stop(text, stops)
    assert (END in out) == (not hit)


@given(letters, st.text("ab", min_size=1, max_size=3))
def test_one_stop_is_what_everybody_expects(text: str, stop: str) -> None:
    """The text before its first occurrence, letter by letter."""
    assert shown([stop], *text) == (text.partition(stop)[0], stop in text)


@given(
    st.lists(st.text(alphabet="STOP ab", max_size=6), max_size=12),
    st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_how_the_text_is_cut_does_not_depend_on_how_many_pieces_come_at_once(
    pieces: list[str], sizes: list[int]
) -> None:
    """The same pieces one by one, and in any batches."""
    one_by_one, _ = run(["STOP"], *([TextDelta("m", [piece])] for piece in pieces), [TextDone("m"), END])
    batches, left = [], list(pieces)
    for size in sizes:
        batches.append([TextDelta("m", left[:size])])
        left = left[size:]
    in_batches, _ = run(["STOP"], *batches, [TextDelta("m", left)], [TextDone("m"), END])
    cut = [
        [piece for event in out if isinstance(event, TextDelta) for piece in event.pieces]
        for out in (one_by_one, in_batches)
    ]
    assert cut[0] == cut[1]
