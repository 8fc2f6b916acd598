"""The parameter lines: what a client's schema says of each property."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.tools.schema import summarize_parameters


class TestParameterLines:
    @pytest.mark.parametrize(
        ("schema", "lines"),
        [
            (None, ["- (no parameters)"]),
            ({}, ["- (no parameters)"]),
            ({"type": "object"}, ["- (no parameters)"]),
            ({"type": "object", "properties": {}}, ["- (no parameters)"]),
            ({"type": "string", "x": "é"}, ['- (schema) {"type":"string","x":"é"}']),
            ({"items": {}}, ['- (schema) {"items":{}}']),
            (True, ["- (schema) true"]),
            ([1], ["- (schema) [1]"]),
        ],
    )
    def test_schemas_without_properties(self, schema: Any, lines: list[str]) -> None:
        assert summarize_parameters(schema) == lines

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ({"type": "string"}, "string)"),
            ({"type": "string", "description": "Wörter: a"}, "string): Wörter: a"),
            ({"type": "string", "description": ""}, "string)"),
            ({"type": "string", "description": 5}, "string)"),
            ({"type": ["string", "null"]}, "string|null)"),
            ({"properties": {}}, "object)"),
            ({"items": {}}, "array)"),
            ({}, "unknown)"),
            ({"enum": [1]}, "unknown)"),
            (True, "unknown)"),
            ("garbage", "unknown)"),
            (
                {"anyOf": [{"type": "null"}, {"type": "integer", "description": "in"}], "description": "out"},
                "integer): out",
            ),
            ({"oneOf": [{"type": "boolean", "description": "in"}, {"type": "null"}]}, "boolean): in"),
            ({"anyOf": [{"type": "null"}]}, "null)"),
            ({"anyOf": [{"oneOf": [{"$ref": "#/$defs/C"}]}]}, "string): colour"),
            ({"$ref": "#/$defs/C"}, "string): colour"),
            ({"$ref": "#/$defs/C", "description": "mine"}, "string): mine"),
            ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "integer)"),
            ({"$ref": "#"}, "object)"),
            ({"$ref": "#/nowhere"}, "unknown)"),
            ({"$ref": "#/properties/p", "description": "ring"}, "unknown): ring"),
        ],
    )
    def test_type_and_description_of_a_property(self, schema: Any, text: str) -> None:
        root = {"properties": {"p": schema}, "$defs": {"C": {"type": "string", "description": "colour"}}}
        assert summarize_parameters(root) == [f"- p (optional, {text}"]

    def test_properties_keep_their_order_and_say_which_are_required(self) -> None:
        schema = {"properties": {"b": {"type": "string"}, "a": {"type": "number"}}, "required": ["a", "gone", 7]}
        assert summarize_parameters(schema) == ["- b (optional, string)", "- a (required, number)"]

    def test_a_root_that_refers_or_branches_is_read_through(self) -> None:
        target = {"properties": {"q": {"type": "string"}}, "required": ["q"]}
        for schema in (
            {"$ref": "#/definitions/T", "definitions": {"T": target}},
            {"anyOf": [{"type": "null"}, target]},
        ):
            assert summarize_parameters(schema) == ["- q (required, string)"]
