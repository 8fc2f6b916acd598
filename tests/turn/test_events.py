"""The vocabulary of a turn's answer."""

from __future__ import annotations

from bridge.turn.events import ToolCall, Usage


def test_usage_adds_up() -> None:
    """Member by member; cached and reasoning tokens are parts of input and output, not beside them."""
    total = Usage(10, 4, 5, 2) + Usage(1, 1, 1, 1)
    assert total == Usage(11, 5, 6, 3)
    assert total.total == 17


def test_a_calls_source_is_not_printed() -> None:
    """A log line of a call does not repeat the model's text."""
    assert "secret" not in repr(ToolCall("fc", "call", "find", "{}", source="secret"))
