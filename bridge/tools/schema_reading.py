"""Reading a client's JSON Schema: references followed, `allOf` merged, types told, one line per parameter.

A schema is untrusted, so every walk has a bound; whatever JSON value stands for one, an answer comes back.
"""

from __future__ import annotations

from typing import Any

from bridge.tools.schema import NOTHING, Node, compact_json, plain_copy, resolve

Seen = frozenset[str]

MAX_DEPTH = 20
MAX_LEVELS = 100
MAX_STEPS = 2_000
"""Schemas read for one example or parameter, so that a hostile one costs milliseconds."""

_JSON_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties", "minProperties"})
_ARRAY_WORDS = frozenset({"items", "prefixItems", "contains", "minItems"})
_SUBSCHEMAS = frozenset({"items", "additionalProperties", "contains"})
_FLOORS = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_CEILINGS = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})


def _merge(first: Node, second: Node) -> Node:
    """Join two schemas that both hold; the first one's word stays where there is no simple meet."""
    merged = second | first
    for word in first.keys() & second.keys():
        a, b = first[word], second[word]
        if word in _FLOORS and is_number(a) and is_number(b):
            merged[word] = max(a, b)
        elif word in _CEILINGS and is_number(a) and is_number(b):
            merged[word] = min(a, b)
        elif word == "type":
            merged[word] = _common_type(a, b)
        elif word in _SUBSCHEMAS and isinstance(a, dict | bool) and isinstance(b, dict | bool):
            merged[word] = both(a, b)
        elif word == "properties" and isinstance(a, dict) and isinstance(b, dict):
            merged[word] = {**a, **b, **{key: both(a[key], b[key]) for key in a if key in b}}
        elif word == "required" and isinstance(a, list) and isinstance(b, list):
            merged[word] = a + [key for key in b if key not in a]
        elif word == "enum" and isinstance(a, list) and isinstance(b, list):
            merged[word] = [value for value in a if value in b]
    return merged


def both(first: Any, second: Any) -> Any:
    """A schema that asks for two at once."""
    return False if first is False or second is False else {"allOf": [first, second]}


def _common_type(first: Any, second: Any) -> Any:
    mine, other = (types if isinstance(types, list) else [types] for types in (first, second))
    if "number" in mine and "number" not in other:
        mine, other = other, mine
    common = [name for name in mine if name in other or (name == "integer" and "number" in other)]
    return common[0] if len(common) == 1 else common or first


def is_number(value: Any) -> bool:
    """Whether JSON calls it a number; Python counts booleans too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def strings(value: Any) -> list[str]:
    """The strings of a list; none where there is no list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _types(node: Node) -> list[str]:
    """The types a schema names, or the one that its other words imply; empty when it says nothing."""
    named = node.get("type")
    types = strings(named if isinstance(named, list) else [named])
    return types or _implied(node)


def kinds(node: Node) -> list[str]:
    """The same without the words that are no types (`any`, `file`, …) but occur in the wild."""
    return [name for name in _types(node) if name in _JSON_TYPES] or _implied(node)


def _implied(node: Node) -> list[str]:
    return ["object"] if node.keys() & _OBJECT_WORDS else ["array"] if node.keys() & _ARRAY_WORDS else []


def is_null(branch: Any) -> bool:
    """Whether a branch allows null alone."""
    return isinstance(branch, dict) and branch.get("type") == "null"


class Reader:
    """Reads one document's schemas: references followed, `allOf` merged, within a budget of steps."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.steps = 0

    def flatten(self, schema: Any, seen: Seen, level: int = 0) -> tuple[Node, Seen] | None:
        """One schema without `$ref` and `allOf`, and `seen` with the references on the way.

        None at a dead end: a reference that is being followed already, `false`, too many levels or steps.
        """
        if schema is False or level > MAX_LEVELS or self.steps >= MAX_STEPS:
            return None
        self.steps += 1
        if not isinstance(schema, dict):
            return {}, seen
        node = {word: value for word, value in schema.items() if word not in {"$ref", "allOf"}}
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        ref = schema.get("$ref")
        if isinstance(ref, str):
            if ref in seen:
                return None
            seen = seen | {ref}
            parts.insert(0, resolve(self.root, ref))
        before = seen
        for part in parts:
            flat = self.flatten(part, before, level + 1)
            if flat is None:
                return None
            node, seen = _merge(node, flat[0]), seen | flat[1]
        return node, seen

    def outline(self, schema: Any) -> Node:
        """A schema for display: flat, and the first branch that is not null in place of `oneOf`/`anyOf`."""
        for _ in range(MAX_DEPTH):
            flat = self.flatten(schema, frozenset())
            if flat is None:
                break
            node = flat[0]
            word = next((word for word in ("oneOf", "anyOf") if isinstance(node.get(word), list)), None)
            if word is None:
                return node
            branches = node.pop(word)
            schema = {**node, "allOf": sorted(branches, key=is_null)[:1]}
        return {word: schema[word] for word in schema if word != "$ref"} if isinstance(schema, dict) else {}


def summarize_parameters(schema: Any) -> list[str]:
    """One line per top-level property, as the injected text shows them; never empty, never raises."""
    plain = plain_copy(schema)
    if plain is None or plain is NOTHING:
        return ["- (no parameters)"]
    if not isinstance(plain, dict):
        return [f"- (schema) {compact_json(plain)}"]
    try:
        node = Reader(plain).outline(plain)
        properties = node.get("properties")
        if not isinstance(properties, dict) or not properties:
            is_object = not (types := _types(node)) or "object" in types
            return ["- (no parameters)" if is_object else f"- (schema) {compact_json(plain)}"]
        required = set(strings(node.get("required")))
        # Each line has its own budget: a hostile property must not blank the lines after it.
        return [_line(key, Reader(plain).outline(value), key in required) for key, value in properties.items()]
    except RecursionError:
        return [f"- (schema) {compact_json(plain)}"]


def _line(key: str, node: Node, required: bool) -> str:
    description = node.get("description")
    suffix = f": {description}" if isinstance(description, str) and description else ""
    return f"- {key} ({'required' if required else 'optional'}, {'|'.join(_types(node)) or 'unknown'}){suffix}"
