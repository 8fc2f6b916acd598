"""Long texts of a turn are cut for the page, and it is told so."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.page.site import cut_texts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for member in members for text in texts(member)]


@given(st.dictionaries(st.text(max_size=3), VALUES), st.integers(1, 14))
def test_texts_keep_their_beginning_and_nothing_else_changes(block: dict[str, Any], longest: int) -> None:
    block.pop("cut", None)
    shown = cut_texts(block, longest)
    assert shown.pop("cut") is any(len(text) > longest for text in texts(block))
    assert texts(shown) == [text[:longest] for text in texts(block)]
    assert cut_texts(block, 1_000) == block | {"cut": False}


def test_a_value_of_any_depth_can_be_cut() -> None:
    deep: Any = "end"
    for _ in range(900):
        deep = {"deeper": [deep]}
    assert cut_texts({"a": deep, "b": "long text"}, 4)["b"] == "long"
