"""One request for one answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.items import FunctionTool, Message, RawTool, Text, ToolChoice
from bridge.core.turn import Turn

TURN = Turn("m", "m", (Message("user", (Text("hi"),)),))
FIND, OPEN = FunctionTool("find"), FunctionTool("open")
PATCH = FunctionTool("patch", raw={"type": "custom", "name": "patch"})
SEARCH = RawTool("web_search", {"type": "web_search"})


def test_a_turn_that_says_nothing_special() -> None:
    """Calls may come together; nothing stops the answer, searches the web or is kept for later."""
    assert TURN.parallel
    assert (TURN.stop, TURN.web_search, TURN.verbosity, TURN.encrypted_reasoning) == ((), None, None, False)


def test_the_functions_are_the_clients_in_its_order() -> None:
    """Other tools are not functions."""
    assert replace(TURN, tools=(FIND, SEARCH, OPEN)).functions == (FIND, OPEN)


@pytest.mark.parametrize(
    ("tools", "mode", "parses"),
    [
        ((), "auto", False),
        ((SEARCH,), "auto", False),
        ((FIND,), "auto", True),
        ((FIND,), "required", True),
        ((FIND,), "named", True),
        ((FIND,), "none", False),
        ((PATCH,), "auto", True),
        ((), "required", False),
    ],
)
def test_when_blocks_in_the_answer_are_calls(tools: Any, mode: Any, parses: bool) -> None:
    """Without functions, or with choice `none`, everything is text."""
    assert replace(TURN, tools=tools, tool_choice=ToolChoice(mode)).parses_tool_calls is parses
