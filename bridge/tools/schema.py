"""A client's JSON Schema, which is untrusted: checking values against it, and reading it for a summary or an example.

No function here fetches a reference, recurses without a bound, or validates with a schema whose evaluation could
explode. Any JSON value is accepted as a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from bridge import exact_json

Check = Callable[[Any], bool]
Node = dict[str, Any]

NOTHING: Any = object()
"""No value: None is a value."""
REFS = ("$ref", "$dynamicRef", "$recursiveRef")
MAX_BYTES = 512 * 1024
"""A larger schema is not compiled: it would not fit any model's context."""
MAX_WORK = 50_000
"""The number of subschemas that may apply to one value before the schema counts as hostile."""

_DATA = frozenset({"const", "default", "definitions", "$defs", "enum", "example", "examples"})
_MAPS = frozenset({"patternProperties", "dependentSchemas", "dependencies"})


def compact_json(value: Any) -> str:
    """Encode as JSON without spaces; TypeError beyond what orjson can hold (254 levels)."""
    return exact_json.dumps(value, default=dict).decode()


def plain_copy(schema: Any) -> Any:
    """Copy into plain dicts and lists at most 254 deep; `NOTHING` when that is impossible."""
    try:
        return exact_json.loads(compact_json(schema))
    except (TypeError, ValueError, RecursionError):
        return NOTHING


def compile_schema(schema: Any) -> Check | None:
    """Compile a schema into a check of instances, or None when it cannot or must not be compiled.

    None stands for: no schema at all, an invalid one, one with a reference that leads out of it (never
    fetched, neither http nor file), one larger than MAX_BYTES, and one whose evaluation could explode. The
    check never raises; it is False for a value that is not JSON.
    """
    plain = plain_copy(schema)
    # The library would parse a str as JSON text, so only the two kinds that JSON Schema knows get through.
    if not isinstance(plain, dict | bool) or len(compact_json(plain)) > MAX_BYTES:
        return None
    return compile_unbounded(plain) if _affordable(plain) else None


def compile_unbounded(schema: Node | bool, known: Mapping[str, Any] = {}) -> Check | None:
    """Compile whatever it costs. References outside the schema are looked up in `known`, never fetched."""
    import jsonschema_rs  # 4 MB, for the first request with tools

    try:
        validator = jsonschema_rs.validator_for(schema, retriever=known.__getitem__)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None

    def check(instance: Any) -> bool:
        try:
            return validator.is_valid(instance)
        except ValueError:
            return False

    return check


def _affordable(root: Node | bool) -> bool:
    """Whether validation is certainly quick, by the number of subschemas that can apply to one value.

    The library runs nested `unevaluated*` and shared references again and again: thirty lines of schema can
    hold the interpreter for hours, and nothing can interrupt it. A reference that we cannot follow counts as
    hostile.
    """
    anchors: dict[str, Node] = {}
    refs: list[str] = []
    nested_ids = False
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            refs += [node[word] for word in REFS if isinstance(node.get(word), str)]
            anchors |= {node[word]: node for word in ("$anchor", "$dynamicAnchor") if isinstance(node.get(word), str)}
            nested_ids |= node is not root and isinstance(node.get("$id"), str)
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    if refs and nested_ids:
        return False
    targets = {ref: anchors.get(ref[1:], resolve(root, ref)) for ref in refs}
    done: dict[int, int] = {}

    def work(node: Any) -> int:
        if isinstance(node, list):
            return sum([work(part) for part in node])
        if not isinstance(node, dict):
            return 0
        if id(node) not in done:
            done[id(node)] = 1  # what a cycle costs: the library itself stops there
            total = 1
            for word, part in node.items():
                if word in REFS and isinstance(part, str):
                    total += work(targets[part])
                elif word == "properties" and isinstance(part, dict):
                    total += max([work(each) for each in part.values()], default=0)
                elif word in _MAPS and isinstance(part, dict):
                    total += work(list(part.values()))
                elif word not in _DATA:
                    total += work(part)
            if "unevaluatedProperties" in node or "unevaluatedItems" in node:
                total *= 3
            done[id(node)] = min(total, MAX_WORK + 1)
        return done[id(node)]

    try:
        return NOTHING not in targets.values() and work(root) <= MAX_WORK
    except RecursionError:
        return False


def resolve(root: Any, ref: str) -> Any:
    """Follow a pointer inside the document (`#`, `#/…`, also after the root's own `$id`), else `NOTHING`."""
    base, _, fragment = ref.partition("#")
    own = root.get("$id") if isinstance(root, dict) else None
    if (base and base != own) or (fragment and not fragment.startswith("/")):
        return NOTHING
    node = root
    for raw in fragment.split("/")[1:]:
        key = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key in map(str, range(len(node))):
            node = node[int(key)]
        else:
            return NOTHING
    return node


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
    """Join two schemas that both apply; where there is no simple intersection the first one wins."""
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
    """A schema that requires both."""
    return False if first is False or second is False else {"allOf": [first, second]}


def _common_type(first: Any, second: Any) -> Any:
    mine, other = (types if isinstance(types, list) else [types] for types in (first, second))
    if "number" in mine and "number" not in other:
        mine, other = other, mine
    common = [name for name in mine if name in other or (name == "integer" and "number" in other)]
    return common[0] if len(common) == 1 else common or first


def is_number(value: Any) -> bool:
    """Whether it is a JSON number: not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def strings(value: Any) -> list[str]:
    """The strings of a list; none if it is not a list."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _types(node: Node) -> list[str]:
    """The types in a schema, or the one that its other keywords imply; empty if there are none."""
    named = node.get("type")
    types = strings(named if isinstance(named, list) else [named])
    return types or _implied(node)


def kinds(node: Node) -> list[str]:
    """The same without invalid types (`any`, `file`, …), which occur in practice."""
    return [name for name in _types(node) if name in _JSON_TYPES] or _implied(node)


def _implied(node: Node) -> list[str]:
    return ["object"] if node.keys() & _OBJECT_WORDS else ["array"] if node.keys() & _ARRAY_WORDS else []


def is_null(branch: Any) -> bool:
    """Whether a branch allows only null."""
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
        """A schema for display: flat, with the first branch that is not null instead of `oneOf`/`anyOf`."""
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
