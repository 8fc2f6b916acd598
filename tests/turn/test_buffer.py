"""The events of an answer while it comes: what has another shape than it should leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.turn.buffer import EventBuffer
from bridge.turn.events import TextDelta, Usage, UsageUpdate


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
