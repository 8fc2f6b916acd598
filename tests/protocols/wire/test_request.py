"""Flags become parts of a turn; what cannot be meant names the flag."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import FunctionTool, Message, RawItem, Text, ToolChoice
from bridge.errors import BridgeError, UsageError
from bridge.protocols.wire import (
    EFFORTS,
    WEB_SEARCH,
    make_format,
    make_tools,
    read_choice,
    read_effort,
    read_input_items,
    read_instructions,
    read_json,
    read_outputs,
    read_prompt,
    read_schema,
    read_session,
    split_tool,
)

names = st.text("abcXYZ019_.:-", min_size=1, max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    ["type", "role", "content", "text", "call_id", "output", "name", "arguments", "summary", "id"]
)
kinds = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference", "odd"])
items = st.dictionaries(members, kinds | st.sampled_from(["user", "assistant"]) | values, max_size=5)


# --tool


@given(names, st.sampled_from(["json", "inline"]), st.text(min_size=1))
def test_a_tool_is_split_at_the_first_form(name: str, form: str, value: str) -> None:
    """Whatever the name and the value hold."""
    assert split_tool(f"{name}:{form}={value}") == (name, form, value)


@given(st.text())
def test_any_other_text_is_a_mistake(text: str) -> None:
    """Or it is a tool; nothing else happens."""
    try:
        name, form, value = split_tool(text)
    except UsageError:
        return
    assert f"{name}:{form}={value}" == text


@pytest.mark.parametrize(
    "text", ["", "f", "f:", "f:json", "f:json:", "f=json", ":json=x", "f:JSON=x", "f:json=", " f:json=x", "f\n:json=x"]
)
def test_a_tool_that_is_none(text: str) -> None:
    """Each of them."""
    with pytest.raises(UsageError, match="--tool"):
        split_tool(text)


def test_tools_keep_their_order_and_their_schemas() -> None:
    """They are never strict; the web search comes last."""
    schema = {"type": "object", "x": None}
    tools = make_tools([("b", schema), ("a", {})], web_search=True)
    assert tools == (
        FunctionTool("b", None, schema, strict=False),
        FunctionTool("a", None, {}, strict=False),
        WEB_SEARCH,
    )
    with pytest.raises(UsageError, match="--tool b"):
        make_tools([("b", {}), ("b", {})], web_search=False)


# JSON


@pytest.mark.parametrize("text", [b"", b" \n", b"{", b"nul", b"\xff", b'"\\ud800"', b"1 2", b"NaN", b"[" * 2000])
def test_json_that_is_none(text: bytes) -> None:
    """The message names what it was read from."""
    with pytest.raises(UsageError, match="the file"):
        read_json(text, "the file")


@given(values)
def test_a_schema_is_an_object(value: Any) -> None:
    """And nothing else."""
    text = json.dumps(value).encode()
    if isinstance(value, dict):
        assert read_schema(text, "it") == value
    else:
        with pytest.raises(UsageError, match="it"):
            read_schema(text, "it")


# --tool-choice


def test_choices() -> None:
    """`auto` is none; a name has to be declared, and may hold a colon."""
    tools = make_tools([("f", {}), ("a:b", {})], web_search=True)
    assert read_choice(None, ()) == read_choice("auto", tools) == ToolChoice()
    assert read_choice("required", (WEB_SEARCH,)) == ToolChoice("required")
    assert read_choice("function:a:b", tools) == ToolChoice("named", "a:b")


@pytest.mark.parametrize(
    "text", ["", "none", "AUTO", "function", "function:", "function:g", "function:web_search", "f"]
)
def test_a_choice_that_is_none(text: str) -> None:
    """The message repeats it."""
    with pytest.raises(UsageError, match=f"--tool-choice {text}"):
        read_choice(text, make_tools([("f", {})], web_search=True))


# --tool-output


@given(st.dictionaries(names, st.text()))
def test_outputs(outputs: dict[str, str]) -> None:
    """The first `=` divides; a value may hold more of them."""
    assert read_outputs([f"{name}={value}" for name, value in outputs.items()]) == outputs


@pytest.mark.parametrize("pairs", [[""], ["f"], ["=x"], ["f=1", "f=1"]])
def test_an_output_that_is_none(pairs: list[str]) -> None:
    """Or that is given twice."""
    with pytest.raises(UsageError, match="--tool-output"):
        read_outputs(pairs)


# The rest


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ((None, None, None), None),
        (("", "", ""), None),
        (("a", None, None), "a"),
        ((None, "a", "b"), "a\n\nb"),
        (("a", "a", None), "a"),
        ((None, None, "b"), "b"),
    ],
)
def test_instructions(given_: tuple[str | None, str | None, str | None], read: str | None) -> None:
    """One setting with two names, and what is appended."""
    assert read_instructions(*given_) == read


def test_instructions_that_differ() -> None:
    """Also when one of them is empty."""
    for one, other in (("a", "b"), ("a", "")):
        with pytest.raises(UsageError, match="--system"):
            read_instructions(one, other, None)


def test_a_prompt_is_one_message() -> None:
    """Kept as it is, but not empty."""
    assert read_prompt(" hi\n", "The prompt") == (Message("user", (Text(" hi\n"),)),)
    with pytest.raises(UsageError, match="The prompt on stdin is empty"):
        read_prompt("\n\t ", "The prompt on stdin")


@pytest.mark.parametrize("text", ["", "a b", "é", "a\n", "\x7f", "s" * 257])
def test_a_session_that_cannot_stand_in_a_header(text: str) -> None:
    """Visible ASCII, up to 256."""
    assert read_session("s" * 256) == "s" * 256
    assert read_session(None) is None
    with pytest.raises(UsageError, match="--session-id"):
        read_session(text)


def test_efforts() -> None:
    """A closed list."""
    assert [read_effort(effort) for effort in (None, *EFFORTS)] == [None, *EFFORTS]
    with pytest.raises(UsageError, match="--effort High"):
        read_effort("High")


def test_a_format_is_strict() -> None:
    """As the API wants it; None is none."""
    made = make_format({"type": "object"})
    assert made is not None
    assert (made.type, made.schema, made.strict) == ("json_schema", {"type": "object"}, True)
    assert make_format(None) is None


# --input-json


@given(st.lists(items, min_size=1, max_size=3))
def test_verbatim_items_are_kept(entries: list[dict[str, Any]]) -> None:
    """Whatever they are."""
    read = read_input_items(json.dumps(entries).encode(), "it", verbatim=True)
    assert all(isinstance(item, RawItem) for item in read)
    assert [item.data for item in read if isinstance(item, RawItem)] == entries


@given(st.lists(items, max_size=3) | values)
def test_items_that_are_read_are_read_or_refused(entries: Any) -> None:
    """Never anything else: what a person writes is anything."""
    with suppress(BridgeError):
        assert read_input_items(json.dumps(entries).encode(), "it", verbatim=False)
