"""The vocabulary of a turn's answer."""

from __future__ import annotations

import pytest

from bridge.core.events import ToolCall, Usage


def test_usage_adds_up() -> None:
    """Member by member; cached and reasoning tokens are parts of input and output, not beside them."""
    total = Usage(10, 4, 5, 2) + Usage(1, 1, 1, 1)
    assert total == Usage(11, 5, 6, 3)
    assert total.total == 17


def test_usage_can_be_taken_from_a_total() -> None:
    """What one turn of several has cost."""
    assert Usage(11, 5, 6, 3) - Usage(1, 1, 1, 1) == Usage(10, 4, 5, 2)


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
def test_an_estimate_makes_the_sum_one(first: bool, second: bool) -> None:
    """What is partly guessed is guessed."""
    assert (Usage(1, estimated=first) + Usage(2, estimated=second)).estimated
    assert not (Usage(1) + Usage(2)).estimated


def test_a_calls_source_is_not_printed() -> None:
    """A log line of a call does not repeat the model's text."""
    assert "secret" not in repr(ToolCall("fc", "call", "find", "{}", source="secret"))
