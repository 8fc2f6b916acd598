"""What the log says of a turn's end."""

from __future__ import annotations

from bridge.protolog.turn_records import invalid_arguments, turn_end
from bridge.turn.events import Finished, ToolCall


def call(arguments: str, *, name: str = "look", custom: bool = False) -> ToolCall:
    return ToolCall("fc_1", "call_1", name, arguments, custom=custom)


def test_calls_with_arguments_that_are_not_json_are_named() -> None:
    """A custom tool takes any text. Half a surrogate pair, which no UTF-8 can hold, is JSON all the same."""
    good = [call(text) for text in ("{}", "null", '{"q":"\\ud800"}', "[1]")] + [call("tea", custom=True)]
    bad = [call(text, name=f"bad{number}") for number, text in enumerate(("", "{", '{"q":1,}', '{"q":NaN}', "tea"))]
    assert invalid_arguments([*good, *bad]) == ["bad0", "bad1", "bad2", "bad3", "bad4"]
    ended = Finished("completed")
    assert turn_end(ended, None, bad[:1], None, 1.0)["invalid_arguments"] == ["bad0"]
    assert "invalid_arguments" not in turn_end(ended, None, good, None, 1.0)
