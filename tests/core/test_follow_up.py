"""A conversation goes on after its functions were called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.app.tool_loop import follow_up
from bridge.core.collect import Result, collect
from bridge.core.events import (
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    WebSearch,
)
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Message, RawItem, Text, ToolChoice
from bridge.core.turn import Turn

ASKED = Message("user", (Text("hi"),))
TURN = Turn("m", "M", (ASKED,), tools=(FunctionTool("f"),), session="s", effort="low", tool_text="Tools: f")
FIRST = ToolCall("fc_1", "call_1", "f", '{ "q": 1 }')
SECOND = ToolCall("fc_2", "call_2", "g", "text", namespace="n", custom=True)


def result_of(*events: TurnEvent) -> Result:
    """A turn that is over."""
    return collect([*events, Finished("completed")])


def test_each_output_follows_its_call() -> None:
    """In the order in which the model called; the arguments stay exactly what they were."""
    turn = follow_up(TURN, result_of(TextDelta("m", ["I ", "look."]), FIRST, SECOND), ["one", "two"])
    assert turn.items == (
        ASKED,
        Message("assistant", (Text("I look."),)),
        FunctionCall("call_1", "f", '{ "q": 1 }'),
        FunctionOutput("call_1", (Text("one"),)),
        FunctionCall("call_2", "g", "text", "n", custom=True),
        FunctionOutput("call_2", (Text("two"),), custom=True),
    )


def test_the_rest_of_the_turn_stays() -> None:
    """Model, tools, session, effort; the text for the tools is made anew."""
    turn = follow_up(TURN, result_of(FIRST), ["one"])
    assert replace(turn, items=TURN.items, tool_text=TURN.tool_text) == TURN
    assert turn.tool_text is None


def test_thoughts_go_back_only_when_the_provider_can_read_them() -> None:
    """Encrypted, under their own id; a summary alone is for people."""
    thoughts: list[TurnEvent] = [
        ReasoningDelta("rs_1", 0, ["why"]),
        ReasoningDelta("rs_1", 0, ["raw"], raw=True),
        ReasoningDone("rs_1", "gAAA"),
        ReasoningDelta("rs_2", 0, ["so"]),
        ReasoningDone("rs_2"),
        WebSearch("ws_1", {"type": "search"}),
    ]
    turn = follow_up(TURN, result_of(*thoughts, FIRST), ["one"])
    assert [item.type for item in turn.items if isinstance(item, RawItem)] == ["reasoning"]
    assert turn.items[1] == RawItem(
        "reasoning",
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "why"}],
            "encrypted_content": "gAAA",
        },
    )
    assert [type(item) for item in turn.items[2:]] == [FunctionCall, FunctionOutput]


@pytest.mark.parametrize(
    ("choice", "after"),
    [
        (ToolChoice("required"), ToolChoice()),
        (ToolChoice("named", "f"), ToolChoice()),
        (ToolChoice("none"), ToolChoice("none")),
        (ToolChoice(), ToolChoice()),
    ],
)
def test_a_forced_choice_is_over(choice: ToolChoice, after: ToolChoice) -> None:
    """Else the model could never answer."""
    assert follow_up(replace(TURN, tool_choice=choice), result_of(FIRST), ["one"]).tool_choice == after


def test_it_can_be_continued_again() -> None:
    """Each step adds to the ones before; what was void is forgotten."""
    once = follow_up(TURN, result_of(TextDelta("m", ["void"]), Restarted("broke"), FIRST), ["one"])
    twice = follow_up(once, result_of(SECOND), ["two"])
    assert twice.items[: len(once.items)] == once.items
    assert "void" not in repr(twice.items)
    assert len(twice.items) == 5
