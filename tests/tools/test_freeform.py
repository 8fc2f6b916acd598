"""Custom tools as functions of one text, and the way back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.tools.examples import example_for
from bridge.tools.payload import INPUT, arguments_of, arguments_or_none, function_of, text_of
from bridge.tools.schema import compile_schema

LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}


@pytest.mark.parametrize(
    ("definition", "description"),
    [
        ({}, None),
        ({"description": ""}, None),
        ({"description": "Edits files"}, "Edits files"),
        ({"description": 5}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": "text"}, None),
        ({"format": LARK}, 'The input must match this lark grammar:\nstart: "a"+'),
        ({"description": "Edits", "format": LARK}, 'Edits\n\nThe input must match this lark grammar:\nstart: "a"+'),
    ],
)
def test_what_is_known_of_a_custom_tool_stands_in_its_description(
    definition: dict[str, Any], description: str | None
) -> None:
    """No backend can hold a model to a grammar, so the model is told of it; the definition is kept."""
    tool = function_of(definition, "patch", "edit")
    assert (tool.name, tool.namespace, tool.full_name) == ("patch", "edit", "edit.patch")
    assert tool.description == description
    assert tool.custom
    assert tool.raw == definition
    assert tool.strict is None


def test_its_schema_takes_one_text() -> None:
    """And the example for it conforms."""
    schema = function_of({}, "patch").parameters
    accepts = compile_schema(schema)
    assert accepts is not None
    assert accepts({INPUT: "any text"})
    assert accepts(example_for(schema))
    for wrong in ({}, {INPUT: 5}, {INPUT: "x", "more": 1}, "x"):
        assert not accepts(wrong)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a"}', "a"),
        ('{ "input" : "" }', ""),
        ('"a text alone"', "a text alone"),
        ("*** Begin Patch", "*** Begin Patch"),
        ("", ""),
        ('{"input": 5}', '{"input": 5}'),
        ('{"text": "a"}', '{"text": "a"}'),
        ("[1]", "[1]"),
        ("5", "5"),
        ("null", "null"),
        ('{"input": "half', '{"input": "half'),
    ],
)
def test_a_model_that_leaves_the_json_out_is_understood(arguments: str, text: str) -> None:
    """The text is what the model meant; where that is unclear, all that it wrote."""
    assert text_of(arguments) == text


@pytest.mark.parametrize(
    ("arguments", "given_out"),
    [("", "{}"), (" \n", "{}"), ("{}", "{}"), (' {"a":1}', ' {"a":1}'), ("{broken", "{broken")],
)
def test_nothing_is_no_arguments(arguments: str, given_out: str) -> None:
    """Everything else is the client's to judge."""
    assert arguments_or_none(arguments) == given_out


@given(st.text())
def test_the_way_back_is_exact(text: str) -> None:
    """Whatever the text is, the history shows the model the arguments that stand for it."""
    arguments = arguments_of(text)
    assert orjson.loads(arguments) == {INPUT: text}
    assert text_of(arguments) == text
