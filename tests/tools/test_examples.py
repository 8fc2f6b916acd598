"""Conforming examples; and that no schema makes an example, its lines or its check fetch, fail or hang."""

from __future__ import annotations

import socket
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.tools.examples import example_for
from bridge.tools.schema import compact_json, compile_schema, summarize_parameters

Schema = dict[str, Any]
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
FORMATS = """
date-time date time duration email hostname ipv4 ipv6 uri uri-reference uuid idn-email idn-hostname iri
iri-reference uri-template json-pointer relative-json-pointer regex
"""
KEYWORDS = """
type properties required items prefixItems anyOf oneOf allOf not $ref $defs enum const default examples
example minimum maximum exclusiveMinimum multipleOf minLength maxLength pattern format minItems maxItems
uniqueItems minProperties additionalProperties contains description $schema $id $anchor if then
unevaluatedProperties
"""


def tool(properties: Schema, **more: Any) -> Schema:
    """An object schema that requires every property."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def nested(inner: Any, wrap: Any, times: int) -> Any:
    for _ in range(times):
        inner = wrap(inner)
    return inner


def linked(wrap: Any, times: int) -> Schema:
    """A chain of definitions in which each one wraps a reference to the next."""
    chain = {f"d{n}": wrap({"$ref": f"#/$defs/d{n + 1}"}) for n in range(times)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{times}": {"type": "integer"}}}


HOSTILE: dict[str, Any] = {
    "a reference to itself": {"$ref": "#"},
    "two references in a ring": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    },
    "allOf of itself": {"allOf": [{"$ref": "#"}], "type": "object"},
    "a required cycle": tool({"self": {"$ref": "#"}}),
    "doubling by allOf": linked(lambda ref: {"allOf": [ref, ref]}, 40),
    "doubling by anyOf": linked(lambda ref: {"anyOf": [ref, ref]}, 40),
    "doubling by properties": linked(lambda ref: tool({"x": ref, "y": ref}), 40),
    "doubling inside a property": linked(lambda ref: tool({"x": {"allOf": [ref, ref]}}), 40),
    "doubling by unevaluated": nested({}, lambda s: {"allOf": [s], "unevaluatedProperties": False}, 60),
    "a long chain": linked(lambda ref: ref, 3000),
    "deep properties": nested({}, lambda s: tool({"a": s}), 80),
    "deeper than orjson encodes": nested({}, lambda s: {"items": s}, 900),
    "many keys": tool({f"k{n}": {"type": "string", "default": 1} for n in range(3000)}),
    "many megabytes": {"enum": ["x" * 1000] * 2000},
    "a branching tree": nested({"type": "integer", "minimum": 2, "maximum": 1}, lambda s: {"anyOf": [s, s, s]}, 6),
    "a huge pattern": {"type": "string", "pattern": "(((a{4000}){4000}){4000})"},
    "a backtracking pattern": {"type": "string", "pattern": "^(?=(a+)+$)(a|a)*b$", "minLength": 3000},
    "a huge array": {"type": "array", "minItems": 10**15, "items": {"type": "string"}},
    "a huge string": {"type": "string", "minLength": 10**15},
    "a tiny step": {"type": "number", "minimum": 1e308, "multipleOf": 1e-320},
    "a lone surrogate": {"default": "\ud800"},
    "more than 64 bits": {"minimum": 10**40},
    "a long pointer": {"$ref": "#/" + "a/" * 50_000},
    "references in odd places": {"$ref": 5, "allOf": 5, "properties": [], "required": {}, "anyOf": [], "type": {}},
}


class TestExamples:
    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"type": "string"}, "example"),
            ({"type": "integer"}, 0),
            ({"type": "number"}, 0),
            ({"type": "boolean"}, False),
            ({"type": "null"}, None),
            ({"type": "array", "items": {"type": "string"}}, ["example"]),
            ({"type": "object"}, {}),
            ({"type": ["null", "string"]}, "example"),
            ({}, "example"),
            ({"enum": ["b", "a"]}, "b"),
            ({"const": 5, "enum": [5]}, 5),
            ({"type": "integer", "examples": [4, 5], "enum": [5, 4]}, 4),
            ({"type": "integer", "example": 3, "examples": [4]}, 3),
            ({"type": "integer", "default": 2, "example": 3}, 2),
            ({"type": "integer", "default": "no", "example": None, "examples": [9.5], "enum": ["x", 7]}, 7),
            ({"type": "integer", "minimum": 3}, 3),
            ({"type": "integer", "exclusiveMinimum": 3}, 4),
            ({"type": "integer", "maximum": -3}, -3),
            ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
            ({"type": "integer", "minimum": 10, "multipleOf": 7}, 14),
            ({"type": "number", "minimum": 0.065, "multipleOf": 0.01, "maximum": 0.08}, 0.07),
            ({"type": "string", "minLength": 9}, "exampleex"),
            ({"type": "string", "maxLength": 2}, "ex"),
            ({"type": "string", "pattern": "^[A-Z]{3}-\\d{2}(foo|bar)?$"}, "AAA-00"),
            ({"type": "string", "pattern": "^(?:ab|c)+[^ab]\\.x*$", "minLength": 5}, "abab0.x"),
            ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, [0, 0]),
            ({"type": "array", "minItems": 2, "uniqueItems": True, "items": {"type": "integer"}}, [0, 1]),
            ({"type": "array", "minItems": 2, "uniqueItems": True, "items": {"enum": ["a", "b"]}}, ["a", "b"]),
            ({"type": "array", "maxItems": 0}, []),
            ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 2}, [0, None]),
            ({"type": "array", "contains": {"const": 4}}, [4]),
            ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 0),
            ({"oneOf": [{"type": "number"}, {"type": "integer"}, {"const": "a"}]}, "a"),
            ({"allOf": [{"type": "integer", "minimum": 2}, {"minimum": 5, "maximum": 6}]}, 5),
            ({"type": "object", "minProperties": 1, "additionalProperties": {"type": "integer"}}, {"key1": 0}),
            ({"$ref": "#/$defs/a~1b%20c"}, "found"),
        ],
    )
    def test_value_of_a_required_property(self, schema: Any, value: Any) -> None:
        root = tool({"p": schema}) | {"$defs": {"a/b c": {"const": "found"}}}
        assert example_for(root) == {"p": value}
        assert jsonschema_rs.is_valid(root, {"p": value})

    @pytest.mark.parametrize("name", FORMATS.split())
    def test_formats(self, name: str) -> None:
        schema = tool({"p": {"type": "string", "format": name}})
        assert jsonschema_rs.is_valid(schema, example_for(schema), validate_formats=True)

    @pytest.mark.parametrize("schema", [None, True, {}, {"type": "object"}, {"title": "Args"}, "{}", [], 5, False])
    def test_where_nothing_is_asked_for_the_example_is_an_empty_object(self, schema: Any) -> None:
        assert example_for(schema) == {}

    def test_optional_properties_are_shown_while_small(self) -> None:
        keys = {f"k{n}": {"type": "integer"} for n in range(20)}
        wide = {"type": "object", "properties": {"long": {"const": "x" * 100}, **keys}, "required": ["k19"]}
        shown = example_for(wide)
        assert shown["k19"] == 0
        assert "long" not in shown
        assert 1 < len(shown) <= 8

    def test_optional_properties_that_break_the_whole_are_dropped(self) -> None:
        schema = tool({"a": {"type": "integer"}}, dependentRequired={"b": ["c"]})
        schema["properties"]["b"] = {"type": "integer"}
        assert example_for(schema) == {"a": 0}

    def test_recursion_stops_at_the_cycle(self) -> None:
        node = tool({"value": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}})
        assert example_for({"$ref": "#/$defs/N", "$defs": {"N": node}}) == {"value": 0, "kids": []}
        chain = tool({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
        assert example_for(chain) == {"next": None}

    def test_a_preferred_value_is_checked_across_references(self) -> None:
        items = {"type": "array", "items": {"$ref": "#/properties/word"}}
        schema = tool(
            {"word": {"type": "string"}, "good": {**items, "default": ["w"]}, "bad": {**items, "default": [1]}}
        )
        for root in (schema, {"$schema": DRAFT_7, **schema}, {"$id": "https://example.com/s", **schema}):
            assert example_for(root) == {"word": "example", "good": ["w"], "bad": ["example"]}

    @pytest.mark.parametrize(
        ("schema", "shown"),
        [
            (tool({"a": False, "b": {"type": "integer"}}), {"a": None, "b": 0}),
            (tool({"a": {"type": "integer"}}, **{"not": {}}), {"a": 0}),
            (tool({"a": {"type": "any"}}), {"a": "example"}),
            ({"type": "nothing", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "example"}),
            (tool({"a": {"$ref": "http://127.0.0.1:1/s.json"}, "b": {"type": "null"}}), {"a": "example", "b": None}),
            ({"type": "object", "minProperties": 1, "maxProperties": 0, "additionalProperties": False}, {}),
        ],
    )
    def test_without_a_conforming_value_the_required_keys_are_shown(self, schema: Any, shown: Any) -> None:
        schema = {**schema, "properties": {**schema.get("properties", {}), "optional": {"type": "string"}}}
        assert example_for(schema) == shown


def test_a_remote_reference_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        for schema in (
            {"$ref": f"{base}/s.json"},
            tool({"a": {"$ref": f"{base}/s.json#/x"}}),
            {"$id": f"{base}/", "$ref": "s.json"},
            {"$schema": f"{base}/meta.json"},
            {"$schema": DRAFT_7, "definitions": {"a": {"$ref": f"{base}/s.json"}}},
            {"$dynamicRef": f"{base}/s.json#a"},
            {"properties": {"a": {"$id": f"{base}/a/", "items": {"$ref": "b.json"}}}},
        ):
            assert compile_schema(schema) is None
            assert isinstance(example_for(schema), dict)
            summarize_parameters(schema)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_answered(name: str) -> None:
    schema = HOSTILE[name]
    check = compile_schema(schema)
    example = example_for(schema)
    assert orjson.loads(compact_json(example)) == example
    assert all(line.startswith("- ") for line in summarize_parameters(schema))
    if check is not None:
        check(example)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
keywords = st.sampled_from([*KEYWORDS.split(), "a", "b"])
odd_leaves = json_values | st.sampled_from(
    ["#", "#/a", "#/$defs/a", "object", "array", "string", "number", "^a+$", "date", DRAFT_7]
)
odd_schemas = st.recursive(
    odd_leaves, lambda inner: st.dictionaries(keywords, inner, max_size=6) | st.lists(inner, max_size=4), max_leaves=25
)


@settings(deadline=None)
@given(json_values | odd_schemas)
def test_nothing_raises_on_any_json_as_the_schema(schema: Any) -> None:
    example = example_for(schema)
    assert orjson.loads(compact_json(example)) == example
    assert all(line.startswith("- ") for line in summarize_parameters(schema))
    check = compile_schema(schema)
    assert check is None or check(example) in {True, False}


def bounded(kind: str, low: float, width: float, words: tuple[str, str]) -> Schema:
    return {"type": kind, words[0]: low, words[1]: low + width}


inclusive_or_not = st.tuples(
    st.sampled_from(["minimum", "exclusiveMinimum"]), st.sampled_from(["maximum", "exclusiveMaximum"])
)
integers = st.builds(bounded, st.just("integer"), st.integers(-1000, 1000), st.integers(2, 50), inclusive_or_not)
floats = st.builds(bounded, st.just("number"), st.floats(-1e6, 1e6), st.floats(0.5, 100), inclusive_or_not)
steps = st.builds(
    lambda step, low: {"type": "integer", "multipleOf": step, "minimum": low, "maximum": low + step},
    st.integers(1, 40),
    st.integers(-500, 500),
)
strings = st.builds(
    lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
    st.integers(0, 30),
    st.integers(0, 9),
)
patterns = st.sampled_from(
    [
        r"^\d+$",
        "^[a-z]{2,5}$",
        r"^v\d+\.\d+$",
        "^(GET|POST)$",
        r"^[^/\s]+/[^/]+$",
        r"\.txt$",
        "^#[0-9a-f]{6}$",
        "^x?y*z+$",
    ]
).map(lambda pattern: {"type": "string", "pattern": pattern})
leaves = st.one_of(
    integers,
    floats,
    steps,
    strings,
    patterns,
    st.sampled_from(
        [{}, True, {"type": "boolean"}, {"type": "null"}, {"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/tree"}]
    ),
    st.lists(json_values, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    json_values.map(lambda value: {"const": value}),
)


@st.composite
def object_schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Schema:
    properties = draw(st.dictionaries(st.text(max_size=5), inner, max_size=4))
    required = [key for key in properties if draw(st.booleans())]
    extra: Schema = draw(st.sampled_from([{}, {"additionalProperties": False}, {"minProperties": len(required)}]))
    return {"type": "object", "properties": properties, "required": required, **extra}


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        inner,
        st.integers(0, 3),
        st.integers(0, 2),
    )
    unique = st.sampled_from(["string", "integer"]).map(
        lambda kind: {"type": "array", "items": {"type": kind}, "minItems": 3, "uniqueItems": True}
    )
    return st.one_of(
        object_schemas(inner),
        arrays,
        unique,
        inner.map(lambda schema: {"anyOf": [{"type": "null"}, schema]}),
        inner.map(lambda schema: {"oneOf": [tool({"is": {"const": 1}, "of": schema}), tool({"is": {"const": 2}})]}),
        inner.map(lambda schema: {"allOf": [schema, {"description": "more"}]}),
        st.tuples(inner, json_values).map(lambda pair: {"allOf": [pair[0]], "default": pair[1]}),
    )


@st.composite
def satisfiable_schemas(draw: st.DrawFn) -> Schema:
    """Object schemas that surely have a conforming value, with false defaults, references and recursion."""
    inner = st.recursive(leaves, combined, max_leaves=6)
    schema = draw(object_schemas(inner))
    tree = tool({"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}, "v": {"$ref": "#/$defs/leaf"}})
    return {**schema, "$defs": {"leaf": draw(integers | strings | patterns), "tree": tree}}


@settings(deadline=None)
@given(satisfiable_schemas())
def test_the_example_conforms_wherever_a_value_exists(schema: Schema) -> None:
    example = example_for(schema)
    assert jsonschema_rs.is_valid(schema, example)
    assert isinstance(example, dict)
    assert orjson.loads(compact_json(example)) == example
    assert schema["required"] == [key for key in example if key in schema["required"]]
