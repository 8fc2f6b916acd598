"""A turn's events folded into its result."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.collect import MANY, ReasoningOutput, Result, TextOutput, add_pieces, collect
from bridge.core.events import (
    Choice,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import UpstreamError

END = Finished("completed")
CALL = ToolCall("fc_1", "call_1", "find", "{}")


def test_a_text_is_the_sum_of_its_pieces() -> None:
    """Pieces of one item make one output."""
    result = collect([TextDelta("m", ["a", "b"]), TextDelta("m", ["c"]), TextDone("m"), END])
    assert result.outputs == [TextOutput("m", ["a", "b", "c"])]
    assert result.text == "abc"
    assert result.calls == []
    assert result.end == END


def test_outputs_keep_their_order() -> None:
    """Text, call and text again are three outputs, also when both texts belong to one item."""
    result = collect([TextDelta("m", ["a"]), CALL, TextDelta("m", ["b"]), TextDelta("n", ["c"]), END])
    assert result.outputs == [TextOutput("m", ["a"]), CALL, TextOutput("m", ["b"]), TextOutput("n", ["c"])]
    assert result.text == "abc"
    assert result.calls == [CALL]


def test_reasoning_is_collected_by_part() -> None:
    """Summary and raw parts in the order of their index."""
    result = collect(
        [
            ReasoningDelta("r", 0, ["a"]),
            ReasoningDelta("r", 1, ["c"]),
            ReasoningDelta("r", 0, ["b"]),
            ReasoningDelta("r", 0, ["raw"], raw=True),
            ReasoningDone("r"),
            END,
        ]
    )
    (output,) = result.outputs
    assert isinstance(output, ReasoningOutput)
    assert output.summary_parts() == ["ab", "c"]
    assert output.content_parts() == ["raw"]
    assert result.text == ""


def test_encrypted_reasoning_is_kept() -> None:
    """Also where nothing of it may be read; an end of nothing is nothing."""
    result = collect([ReasoningDelta("r", 0, ["a"]), ReasoningDone("r", "x"), ReasoningDone("s", "y"), END])
    assert result.outputs == [ReasoningOutput("r", {0: ["a"]}, {}, "x"), ReasoningOutput("s", {}, {}, "y")]
    assert collect([ReasoningDone("r"), END]).outputs == []


def test_a_search_is_an_output_and_no_text() -> None:
    """In its place among the others."""
    search = WebSearch("w", {"type": "search", "query": "x"})
    result = collect([TextDelta("m", ["a"]), search, TextDelta("m", ["b"]), END])
    assert result.outputs == [TextOutput("m", ["a"]), search, TextOutput("m", ["b"])]
    assert (result.text, result.calls) == ("ab", [])


def test_a_result_is_of_one_answer() -> None:
    """Several choices have several results."""
    with pytest.raises(TypeError, match="one answer"):
        collect([Choice(0, [END])])


def test_two_reasoning_items_stay_apart() -> None:
    """Each item is an output of its own."""
    result = collect([ReasoningDelta("r", 0, ["a"]), TextDelta("m", ["x"]), ReasoningDelta("s", 0, ["b"]), END])
    assert [type(output) for output in result.outputs] == [ReasoningOutput, TextOutput, ReasoningOutput]


def test_the_last_usage_counts() -> None:
    """Usage updates are totals, not differences."""
    assert collect([END]).usage is None
    events: list[TurnEvent] = [UsageUpdate(Usage(1, 0, 1)), UsageUpdate(Usage(5, 2, 3, 1)), END]
    assert collect(events).usage == Usage(5, 2, 3, 1)


def test_a_restart_voids_the_outputs() -> None:
    """What was said before a restart is not part of the result."""
    result = collect([TextDelta("a", ["dead"]), CALL, Restarted("again"), TextDelta("b", ["alive"]), END])
    assert result.text == "alive"
    assert result.calls == []


@pytest.mark.parametrize(
    "late", [TextDelta("m", ["x"]), END, UsageUpdate(Usage()), TextDone("m"), CALL, Restarted("x")]
)
def test_nothing_may_follow_the_end(late: TurnEvent) -> None:
    """An event after Finished is a mistake of the caller's."""
    with pytest.raises(ValueError, match="after the end"):
        collect([END, late])


def test_it_can_be_collected_step_by_step() -> None:
    """Batches add up to the same result as the whole list, and there is no end before the end."""
    events: list[TurnEvent] = [TextDelta("m", ["a"]), TextDelta("m", ["b"]), CALL, UsageUpdate(Usage(1)), END]
    result = Result()
    assert result.end is None
    for event in events:
        assert result.end is None
        result.add([event])
    assert result == collect(events)


def test_a_failure_keeps_what_was_said() -> None:
    """The end tells how it ended; the outputs stay."""
    end = Finished("failed", error=UpstreamError("no"))
    result = collect([TextDelta("m", ["a"]), end])
    assert (result.text, result.end) == ("a", end)


def test_collecting_does_not_change_the_events() -> None:
    """The pieces of an event belong to the event."""
    first, second = TextDelta("m", ["a"]), TextDelta("m", ["b"])
    collect([first, second, END])
    assert (first, second) == (TextDelta("m", ["a"]), TextDelta("m", ["b"]))


@given(st.lists(st.lists(st.text(max_size=3), max_size=400), max_size=12))
def test_a_text_of_many_pieces_is_the_same_text(batches: list[list[str]]) -> None:
    """However many come at once; few are kept of many."""
    kept: list[str] = []
    for batch in batches:
        add_pieces(kept, batch)
    assert "".join(kept) == "".join(piece for batch in batches for piece in batch)
    assert len(kept) <= MANY + 400


def test_many_pieces_take_time_by_their_number() -> None:
    kept: list[str] = []
    began = time.process_time()
    for _ in range(400_000):
        add_pieces(kept, ["word "])
    assert time.process_time() - began < 3
    assert len(kept) < 20_000
    assert len("".join(kept)) == 2_000_000
