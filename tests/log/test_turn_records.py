"""What the log says of a turn's end."""

from __future__ import annotations

from bridge.core.events import Finished, ToolCall
from bridge.core.observer import TurnFacts
from bridge.log.record import invalid_arguments, turn_end


def call(arguments: str, *, name: str = "look", custom: bool = False) -> ToolCall:
    return ToolCall("fc_1", "call_1", name, arguments, custom=custom)


def facts(*calls: ToolCall) -> TurnFacts:
    return TurnFacts("req_1", "", 0.0, calls=calls)


def test_calls_with_arguments_that_are_not_json_are_named() -> None:
    """A custom tool takes any text. Half a surrogate pair, which no UTF-8 can hold, is JSON all the same."""
    good = [call(text) for text in ("{}", "null", '{"q":"\\ud800"}', "[1]")] + [call("tea", custom=True)]
    bad = [call(text, name=f"bad{number}") for number, text in enumerate(("", "{", '{"q":1,}', '{"q":NaN}', "tea"))]
    assert invalid_arguments([*good, *bad]) == ["bad0", "bad1", "bad2", "bad3", "bad4"]
    ended = Finished("completed")
    assert turn_end(facts(*bad[:1]), ended, None, 1.0)["invalid_arguments"] == ["bad0"]
    assert "invalid_arguments" not in turn_end(facts(*good), ended, None, 1.0)
