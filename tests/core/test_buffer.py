"""The events of an answer while it comes: what has another shape than it should leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.buffer import FEW, LARGE, EventBuffer
from bridge.core.events import Finished, TextDelta, TextDone, Usage, UsageUpdate


@pytest.mark.parametrize("item", [{"id": "rs_1"}, ["rs_1"], 5, None])
def test_an_item_whose_id_is_no_text_is_refused(item: Any) -> None:
    """Whoever reads the events takes the id for a text; a client's stream would break on it."""
    buffer = EventBuffer()
    with pytest.raises(TypeError):
        buffer.reasoning(item, 0, "hm", raw=False)
    with pytest.raises(TypeError):
        buffer.text_done(item, "all")
    assert buffer.take() == []


@pytest.mark.parametrize("full", [["all"], {"text": "all"}, 5, None])
def test_a_message_that_is_no_text_is_refused(full: Any) -> None:
    buffer = EventBuffer()
    buffer.text("msg_1", "a")
    with pytest.raises(TypeError):
        buffer.text_done("msg_1", full)
    assert buffer.take() == [TextDelta("msg_1", ["a"])]


def test_more_tokens_than_a_number_can_count_are_passed_over() -> None:
    """A client's stream could not hold them."""
    buffer = EventBuffer()
    buffer.usage(UsageUpdate(Usage(1, 0, 2**64, 0)))
    assert buffer.take() == []


def test_the_events_of_a_large_text_are_taken_one_by_one() -> None:
    """What ends it repeats all of it: encoded together, they would be many times as large."""
    buffer = EventBuffer()
    text = "x" * (LARGE + 1)
    buffer.text("msg_1", text)
    assert buffer.take_some() == [TextDelta("msg_1", [text])]
    buffer.text_done("msg_1", f"{text}y")
    buffer.complete()
    assert buffer.take_some() == [TextDelta("msg_1", ["y"])]
    assert buffer.take_some() == [TextDone("msg_1")]
    assert buffer.take_some() == [Finished("completed")]
    assert buffer.take_some() == []


def test_what_comes_between_two_looks_is_added_to_the_text_that_is_left() -> None:
    buffer = EventBuffer()
    buffer.text("msg_1", "x" * LARGE)
    buffer.text("msg_2", "one")
    assert buffer.take_some() == [TextDelta("msg_1", ["x" * LARGE])]
    buffer.text("msg_2", "two")
    assert buffer.take_some() == [TextDelta("msg_2", ["one", "two"])]
    buffer.text("msg_2", "three")
    assert buffer.take_some() == [TextDelta("msg_2", ["three"])]


@pytest.mark.parametrize(("count", "size"), [(FEW, 1), (FEW + 1, LARGE)], ids=["little", "many"])
def test_other_events_are_taken_together(count: int, size: int) -> None:
    """Little text, and very many events: one by one they would take longer than they are large."""
    buffer = EventBuffer()
    for number in range(count):
        buffer.text(f"msg_{number}", "x" * (size // count + 1))
    assert len(buffer.take_some()) == count
