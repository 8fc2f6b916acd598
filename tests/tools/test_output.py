"""The form of an answer: what the provider enforces, and what is asked for in words."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.items import Message, OutputFormat, Text
from bridge.core.turn import Turn
from bridge.tools.instructions import can_enforce, format_text

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
LOOSE = {"type": "object", "properties": {"n": {"type": "integer"}}}


def wanted(schema: Any, *, strict: bool = False) -> OutputFormat:
    return OutputFormat("json_schema", {"type": "json_schema", "schema": schema}, schema, strict)


def turn(output_format: OutputFormat | None) -> Turn:
    return Turn("m", "m", (Message("user", (Text("hi"),)),), output_format=output_format)


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        (NUMBER, True),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object", "additionalProperties": False}, True),
        ({"type": "array", "items": NUMBER}, True),
        ({"anyOf": [NUMBER, {"type": "null"}]}, True),
        (NUMBER | {"$defs": {"x": NUMBER}}, True),
        ({"type": "string", "enum": [{"type": "object"}]}, True),
        ({"const": {"properties": {}}}, True),
        ({"type": "string", "default": {"properties": {}}, "examples": [{"type": "object"}]}, True),
        (LOOSE, False),
        ({"type": "object"}, False),
        (NUMBER | {"required": []}, False),
        (NUMBER | {"required": "n"}, False),
        (NUMBER | {"required": [["n"]]}, False),
        (NUMBER | {"properties": []}, False),
        (NUMBER | {"properties": 5, "required": 5}, False),
        (NUMBER | {"additionalProperties": True}, False),
        (NUMBER | {"additionalProperties": {"type": "string"}}, False),
        ({"type": "array", "items": LOOSE}, False),
        ({"anyOf": [NUMBER, LOOSE]}, False),
        (NUMBER | {"properties": {"n": LOOSE}}, False),
        (NUMBER | {"$defs": {"x": LOOSE}}, False),
        ({"properties": {"n": {}}, "additionalProperties": False}, False),
    ],
)
def test_a_schema_is_enforced_where_the_provider_would_take_it(schema: dict[str, Any], enforced: bool) -> None:
    """Every object complete and closed, however deep. Asked to be strict it is sent as it is."""
    assert can_enforce(wanted(schema)) is enforced
    assert can_enforce(wanted(schema, strict=True))


@pytest.mark.parametrize("key", ["enum", "const", "required", "properties", "type", "$defs"])
def test_a_property_may_have_a_words_name(key: str) -> None:
    """The names of properties are the client's: one called `enum` hides no loose schema."""
    schema = {"type": "object", "properties": {key: LOOSE}, "required": [key], "additionalProperties": False}
    assert not can_enforce(wanted(schema))
    assert can_enforce(wanted(schema | {"properties": {key: NUMBER}}))


@pytest.mark.parametrize("form", [None, wanted(NUMBER), wanted(LOOSE, strict=True)])
def test_nothing_is_said_of_a_form_that_is_enforced(form: OutputFormat | None) -> None:
    """Nor where none was asked for."""
    assert format_text(turn(form)) == ""


def test_json_of_any_kind_is_asked_for_in_words() -> None:
    """The words name JSON, which providers want to see in the prompt."""
    assert "JSON object and nothing else" in format_text(turn(OutputFormat("json_object", {"type": "json_object"})))


def test_a_loose_schema_is_shown() -> None:
    """Word for word, after the demand."""
    text = format_text(turn(wanted(LOOSE)))
    assert text.endswith('\n{"type":"object","properties":{"n":{"type":"integer"}}}')
    assert "nothing else" in text
