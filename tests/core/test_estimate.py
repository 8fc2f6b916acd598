"""Tokens, roughly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    RawItem,
    RawTool,
    Text,
)
from bridge.core.turn import PER_IMAGE, Turn, estimate_input, estimate_text

LONG = "x" * 400
"""About a hundred tokens."""

TURN = Turn("m", "m", (Message("user", (Text("hi"),)),))


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("éé", 1), ("😀", 1), (LONG, 100)]
)
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    """Rounded up; letters of other scripts have more bytes, and more tokens."""
    assert estimate_text(text) == tokens


def test_half_a_character_can_be_counted() -> None:
    """JSON can spell what UTF-8 cannot."""
    assert estimate_text("\ud800") == 1


@pytest.mark.parametrize(
    "item",
    [
        Message("user", (Text(LONG),)),
        Message("assistant", (Text(LONG[:200]), Text(LONG[200:]))),
        FunctionCall("c", "find", LONG),
        FunctionCall("c", "patch", LONG, custom=True),
        FunctionOutput("c", (Text(LONG),)),
        RawItem("reasoning", {"encrypted_content": LONG, "summary": []}),
        RawItem("web_search_call", {"action": {"query": LONG}}),
    ],
)
def test_every_item_counts(item: Item) -> None:
    """By its text, and a little for itself."""
    added = estimate_input(replace(TURN, items=(*TURN.items, item))) - estimate_input(TURN)
    assert 100 < added < 130


def test_an_image_counts_as_one() -> None:
    """Not by the bytes of its URL."""
    picture = Image("data:image/png;base64," + "A" * 1_000_000)
    for item in (Message("user", (picture,)), FunctionOutput("c", (picture,))):
        added = estimate_input(replace(TURN, items=(*TURN.items, item))) - estimate_input(TURN)
        assert PER_IMAGE <= added < PER_IMAGE + 10


def test_the_instructions_count() -> None:
    """They are read by the model as everything else."""
    assert estimate_input(replace(TURN, instructions=LONG)) == estimate_input(TURN) + 100


@pytest.mark.parametrize(
    "tool",
    [
        FunctionTool("find", LONG),
        FunctionTool("find", None, {"description": LONG}),
        FunctionTool("find", LONG, None, namespace="files"),
        FunctionTool("find", LONG, {"type": "object"}, raw={"name": "find"}),
    ],
)
def test_the_tools_count(tool: FunctionTool) -> None:
    """By their names, descriptions and schemas; those that no model of ours gets do not."""
    assert 100 < estimate_input(replace(TURN, tools=(tool,))) - estimate_input(TURN) < 130
    assert estimate_input(replace(TURN, tools=(RawTool("mcp", {"a": LONG}),))) == estimate_input(TURN)


@given(st.text(), st.text())
def test_more_text_is_not_fewer_tokens(text: str, more: str) -> None:
    """And two texts apart are no cheaper than together."""
    assert estimate_text(text) <= estimate_text(text + more) <= estimate_text(text) + estimate_text(more)
