"""The form of an answer: enforced where it can be, in words where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
from backends.anthropic.rig import built

from bridge.core.items import OutputFormat

Json = dict[str, Any]


def closed(required: bool = True, **properties: Any) -> Json:
    names = {"required": list(properties)} if required else {}
    return {"type": "object", "properties": properties, **names, "additionalProperties": False}


def asked(schema: Json | None, *, strict: bool = False, model: str = "claude-sonnet-4-5") -> tuple[Any, str]:
    """The schema that is enforced, and the words in the system prompt."""
    kind: Any = "json_object" if schema is None else "json_schema"
    body = built(model=model, output_format=OutputFormat(kind, {}, schema, strict))
    words = "\n".join(block["text"] for block in body.get("system", []))
    return body.get("output_config", {}).get("format", {}).get("schema"), words


def test_any_object_is_asked_for_in_words() -> None:
    enforced, words = asked(None)
    assert enforced is None
    assert words == "Answer with one valid JSON object and nothing else: no text around it, no code fence."


SUITED: list[Json] = [
    closed(a={"type": "string"}, b={"type": "array", "items": {"type": "integer"}, "minItems": 1}),
    closed(False, a={"anyOf": [{"type": "number"}, {"type": "null"}]}, b={"enum": ["x", 1, None]}),
    closed(a={"type": "string", "format": "date-time", "description": "when"}, b={"const": "x"}),
    {**closed(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"type": "boolean"}}},
]


@pytest.mark.parametrize("schema", SUITED, ids=range(len(SUITED)))
@pytest.mark.parametrize("strict", [False, True])
def test_a_schema_that_suits_is_enforced(schema: Json, strict: bool) -> None:
    assert asked(schema, strict=strict) == (schema, "")
    assert asked({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, strict=strict) == (schema, "")


@pytest.mark.parametrize("schema", SUITED, ids=range(len(SUITED)))
def test_not_by_models_that_cannot(schema: Json) -> None:
    enforced, words = asked(schema, strict=True, model="claude-3-5-haiku-latest")
    assert enforced is None
    assert "It must conform to this JSON Schema:\n{" in words


@pytest.mark.parametrize(
    ("schema", "enforced"),
    [
        (closed(a={"type": "integer", "minimum": 1}), closed(a={"type": "integer"})),
        (closed(a={"type": "string", "maxLength": 5, "pattern": "x"}), closed(a={"type": "string"})),
        (closed(a={"type": ["string", "null"]}), closed(a={"anyOf": [{"type": "string"}, {"type": "null"}]})),
        (closed(a={"type": ["string", "null"], "enum": ["x", None]}), closed(a={"enum": ["x", None]})),
        (closed(a={"oneOf": [{"type": "string"}]}), closed(a={"anyOf": [{"type": "string"}]})),
        (
            closed(a={"type": "array", "items": {"type": "null"}, "minItems": 3}),
            closed(a={"type": "array", "items": {"type": "null"}}),
        ),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, closed(False, a={"type": "null"})),
        ({"type": "object"}, closed(False)),
    ],
)
def test_of_another_what_can_be_enforced_is_if_the_client_insists(schema: Json, enforced: Json) -> None:
    got, words = asked(schema, strict=True)
    assert got == enforced
    assert "It must conform to this JSON Schema:\n{" in words
    assert asked(schema) == (None, words)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "object", "additionalProperties": {"type": "string"}}),
        closed(a={"type": "object", "additionalProperties": True}),
        closed(a={"type": "array"}),
        closed(a={"type": "array", "items": {"type": "null"}, "prefixItems": []}),
        closed(a={"allOf": [{"type": "null"}], "type": "object"}),
        closed(a={"enum": []}),
        closed(a={"enum": [[1]]}),
        closed(a={"const": {"x": 1}}),
        closed(a={"type": "surprise"}),
        closed(a={"$ref": "#/$defs/missing"}),
        closed(a={"$ref": "https://example.com/schema"}),
        closed(a={"$ref": 5}),
        {**closed(a={"$ref": "#/$defs/x"}), "$defs": {"x": closed(b={"$ref": "#/$defs/x"})}},
        {**closed(a={"$ref": "#"})},
        {"type": "object", "properties": 5},
    ],
    ids=str,
)
def test_what_cannot_be_enforced_at_all_is_asked_for_in_words(schema: Json) -> None:
    enforced, words = asked(schema, strict=True)
    assert enforced is None
    assert words.startswith("Answer with one valid JSON object")


def test_a_hostile_schema_costs_nothing() -> None:
    """The same type again and again, at every level; and more levels than anybody needs."""
    schema: Json = {"type": "null"}
    for _ in range(20):
        schema = {"type": ["object"] * 50, "properties": {"a": schema}}
    assert asked(schema, strict=True)[0] is not None
    for _ in range(20):
        schema = {"type": ["object"] * 50, "properties": {"a": schema}}
    assert asked(schema, strict=True)[0] is None


def test_words_follow_the_clients_own_instructions() -> None:
    body = built(instructions="be kind", output_format=OutputFormat("json_object", {}))
    assert [block["text"][:6] for block in body["system"]] == ["be kin", "Answer"]


def test_a_format_and_an_effort_stand_together() -> None:
    wanted = OutputFormat("json_schema", {}, SUITED[0], True)
    body = built(model="claude-opus-5", effort="high", output_format=wanted)
    assert sorted(body["output_config"]) == ["effort", "format"]
