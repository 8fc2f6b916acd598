"""JSON Schema as the injected text needs it: parameter lines, conforming examples, safe validation.

A client's schema is untrusted. Nothing here fetches a reference, recurses without a bound, or validates with
a schema whose evaluation could explode; whatever JSON value stands for a schema, an answer comes back. Three
parts, each resting on the one before: validation, reading (and the parameter lines), examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import orjson

Check = Callable[[Any], bool]
Node = dict[str, Any]
Seen = frozenset[str]

MAX_BYTES = 512 * 1024
"""A larger schema is not compiled: the text that carries it would not fit any model's context."""
MAX_WORK = 50_000
"""How many subschemas one place of an instance may meet before the schema counts as hostile."""
MAX_DEPTH = 20
MAX_LEVELS = 100
MAX_STEPS = 2_000
"""Schemas read for one example, so that a hostile one costs milliseconds."""
MAX_STRING = 4_096
MAX_PATTERN = 500
MAX_ITEMS = 100
MAX_CHOICES = 50
OPTIONAL_KEYS = 8
OPTIONAL_BYTES = 80
"""An optional property is shown while the object has no more keys and its value is no longer than this."""

_NOTHING: Any = object()
_ROOT = "bridge:root"
_DATA = frozenset({"const", "default", "definitions", "$defs", "enum", "example", "examples"})
_MAPS = frozenset({"patternProperties", "dependentSchemas", "dependencies"})
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_PREFERENCES = frozenset({"default", "example", "examples", "const", "enum"})
_JSON_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties", "minProperties"})
_ARRAY_WORDS = frozenset({"items", "prefixItems", "contains", "minItems"})
_SUBSCHEMAS = frozenset({"items", "additionalProperties", "contains"})
_FLOORS = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_CEILINGS = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_FORMATS = {
    "date-time": "2025-01-01T00:00:00Z",
    "date": "2025-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "user@example.com",
    "idn-email": "user@example.com",
    "hostname": "example.com",
    "idn-hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "iri": "https://example.com/",
    "uri-reference": "/example",
    "iri-reference": "/example",
    "uri-template": "/example/{id}",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "json-pointer": "/example",
    "relative-json-pointer": "0",
    "regex": ".*",
}
_COMMON = (
    "a",
    "A",
    "0",
    "example.com",
    "https://example.com/",
    "/example",
    "#000000",
    "1.0.0",
    "en-US",
    "+15550100",
)


def compact_json(value: Any) -> str:
    """Encode as JSON without spaces; TypeError beyond what orjson can hold (254 levels, 64-bit integers)."""
    return orjson.dumps(value, default=dict).decode()


def _plain(schema: Any) -> Any:
    """Copy into plain dicts and lists at most 254 deep; `_NOTHING` when that is impossible."""
    try:
        return orjson.loads(compact_json(schema))
    except (TypeError, ValueError, RecursionError):
        return _NOTHING


# Validation.


def compile_schema(schema: Any) -> Check | None:
    """Compile a schema into a check of instances, or None when it cannot or must not be compiled.

    None stands for: no schema at all, an invalid one, one with a reference that leads out of it (never
    fetched, neither http nor file), one larger than MAX_BYTES, and one whose evaluation could explode. The
    check never raises; it says False of what is not JSON.
    """
    plain = _plain(schema)
    # The library would parse a str as JSON text, so only the two kinds that JSON Schema knows get through.
    if not isinstance(plain, dict | bool) or len(compact_json(plain)) > MAX_BYTES:
        return None
    return _compile(plain) if _affordable(plain) else None


def _compile(schema: Node | bool, known: Mapping[str, Any] | None = None) -> Check | None:
    def retrieve(uri: str) -> Any:
        if known and uri in known:
            return known[uri]
        raise LookupError(f"{uri} is outside the schema and is not fetched")

    try:
        validator = jsonschema_rs.validator_for(schema, retriever=retrieve)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None

    def check(instance: Any) -> bool:
        try:
            return validator.is_valid(instance)
        except ValueError:
            return False

    return check


def _affordable(root: Node | bool) -> bool:
    """Say whether validation is sure to be quick, by counting the subschemas that can meet at one place.

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
            refs += [node[word] for word in _REFS if isinstance(node.get(word), str)]
            anchors |= {node[word]: node for word in ("$anchor", "$dynamicAnchor") if isinstance(node.get(word), str)}
            nested_ids |= node is not root and isinstance(node.get("$id"), str)
        if isinstance(node, dict | list):
            pending += node.values() if isinstance(node, dict) else node
    if refs and nested_ids:
        return False
    targets = {ref: anchors.get(ref[1:], _resolve(root, ref)) for ref in refs}
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
                if word in _REFS and isinstance(part, str):
                    total += work(targets[part])
                elif word == "properties" and isinstance(part, dict):
                    total += max([work(each) for each in part.values()], default=0)
                elif word in _MAPS and isinstance(part, dict):
                    total += sum([work(each) for each in part.values()])
                elif word not in _DATA:
                    total += work(part)
            if "unevaluatedProperties" in node or "unevaluatedItems" in node:
                total *= 3
            done[id(node)] = min(total, MAX_WORK + 1)
        return done[id(node)]

    try:
        return _NOTHING not in targets.values() and work(root) <= MAX_WORK
    except RecursionError:
        return False


# Reading a schema.


def _resolve(root: Any, ref: str) -> Any:
    """Follow a pointer inside the document (`#`, `#/…`, also after the root's own `$id`), else `_NOTHING`."""
    base, _, fragment = ref.partition("#")
    own = root.get("$id") if isinstance(root, dict) else None
    if (base and base != own) or (fragment and not fragment.startswith("/")):
        return _NOTHING
    node = root
    for raw in fragment.split("/")[1:]:
        key = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and key in map(str, range(len(node))):
            node = node[int(key)]
        else:
            return _NOTHING
    return node


def _merge(first: Node, second: Node) -> Node:
    """Join two schemas that both hold; the first one's word stays where there is no simple meet."""
    merged = {**first, **{word: value for word, value in second.items() if word not in first}}
    for word in first.keys() & second.keys():
        a, b = first[word], second[word]
        if word in _FLOORS and _is_number(a) and _is_number(b):
            merged[word] = max(a, b)
        elif word in _CEILINGS and _is_number(a) and _is_number(b):
            merged[word] = min(a, b)
        elif word == "type":
            merged[word] = _common_type(a, b)
        elif word in _SUBSCHEMAS and isinstance(a, dict | bool) and isinstance(b, dict | bool):
            merged[word] = _both(a, b)
        elif word == "properties" and isinstance(a, dict) and isinstance(b, dict):
            merged[word] = {**a, **b, **{key: _both(a[key], b[key]) for key in a if key in b}}
        elif word == "required" and isinstance(a, list) and isinstance(b, list):
            merged[word] = a + [key for key in b if key not in a]
        elif word == "enum" and isinstance(a, list) and isinstance(b, list):
            merged[word] = [value for value in a if value in b]
    return merged


def _both(first: Any, second: Any) -> Any:
    return False if first is False or second is False else {"allOf": [first, second]}


def _common_type(first: Any, second: Any) -> Any:
    mine, other = (types if isinstance(types, list) else [types] for types in (first, second))
    if "number" in mine and "number" not in other:
        mine, other = other, mine
    common = [name for name in mine if name in other or (name == "integer" and "number" in other)]
    return common[0] if len(common) == 1 else common or first


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _natural(node: Node, word: str, default: int) -> int:
    value: Any = node.get(word)
    return int(value) if _is_number(value) and 0 <= value < 2**53 else default


def _strings(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _types(node: Node) -> list[str]:
    """The types a schema names, or the one that its other words imply; empty when it says nothing."""
    named = node.get("type")
    types = _strings(named if isinstance(named, list) else [named])
    return types or _implied(node)


def _implied(node: Node) -> list[str]:
    return ["object"] if node.keys() & _OBJECT_WORDS else ["array"] if node.keys() & _ARRAY_WORDS else []


def _kinds(node: Node) -> list[str]:
    """The same without words that are no types (`any`, `file`, …), which occur in the wild."""
    return [name for name in _types(node) if name in _JSON_TYPES] or _implied(node)


def _is_null(branch: Any) -> bool:
    return isinstance(branch, dict) and branch.get("type") == "null"


class _Reader:
    """Reads one document's schemas: references followed, `allOf` merged, within a budget of steps."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.steps = 0

    def spent(self) -> bool:
        """Count one step; True once the budget is gone."""
        self.steps += 1
        return self.steps > MAX_STEPS

    def flatten(self, schema: Any, seen: Seen, level: int = 0) -> tuple[Node, Seen] | None:
        """One schema without `$ref` and `allOf`, and `seen` with the references on the way.

        None at a dead end: a reference that is being followed already, `false`, too many levels or steps.
        """
        if schema is False or level > MAX_LEVELS or self.spent():
            return None
        if not isinstance(schema, dict):
            return {}, seen
        node = {word: value for word, value in schema.items() if word not in {"$ref", "allOf"}}
        parts = list(schema["allOf"]) if isinstance(schema.get("allOf"), list) else []
        ref, before = schema.get("$ref"), seen
        if isinstance(ref, str):
            if ref in before:
                return None
            before = seen = seen | {ref}
            target = _resolve(self.root, ref)
            parts.insert(0, {} if target is _NOTHING else target)
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
            schema = {**node, "allOf": sorted(node.pop(word), key=_is_null)[:1]}
        return {word: schema[word] for word in schema if word != "$ref"} if isinstance(schema, dict) else {}


# Parameter lines.


def summarize_parameters(schema: Any) -> list[str]:
    """One line per top-level property, as the injected text shows them; never empty, never raises."""
    plain = _plain(schema)
    if plain is None or plain is _NOTHING:
        return ["- (no parameters)"]
    if not isinstance(plain, dict):
        return [f"- (schema) {compact_json(plain)}"]
    reader = _Reader(plain)
    try:
        node = reader.outline(plain)
        properties = node.get("properties")
        if not isinstance(properties, dict) or not properties:
            is_object = not (types := _types(node)) or "object" in types
            return ["- (no parameters)" if is_object else f"- (schema) {compact_json(plain)}"]
        required = set(_strings(node.get("required")))
        return [_parameter_line(reader, key, value, key in required) for key, value in properties.items()]
    except RecursionError:
        return [f"- (schema) {compact_json(plain)}"]


def _parameter_line(reader: _Reader, key: str, schema: Any, required: bool) -> str:
    # Each line has its own budget: a hostile property must not blank the lines after it.
    reader.steps = 0
    node = reader.outline(schema)
    description = node.get("description")
    suffix = f": {description}" if isinstance(description, str) and description else ""
    return f"- {key} ({'required' if required else 'optional'}, {'|'.join(_types(node)) or 'unknown'}){suffix}"


# Examples.


def example_for(schema: Any) -> Any:
    """Build a value that conforms to a tool's parameter schema; never raises.

    Checked with a real validator. When no conforming value is found the required keys alone are shown, and
    `{}` when there is nothing better; a schema that says nothing about the type is taken for an object's.
    """
    root = _plain(schema)
    accepts = compile_schema(root)
    if not isinstance(root, dict):
        return {}
    try:
        if accepts is not None:
            for optional in (True, False):
                value = _Sketch(root, optional=optional, linked=True).value(root, frozenset({"#"}), 0)
                if value is not _NOTHING and accepts(value):
                    return value
            if accepts({}):
                return {}
        value = _Sketch(root, lenient=True, linked=accepts is not None).value(root, frozenset({"#"}), 0)
        types = _kinds(_Reader(root).outline(root)) or ["object"]
    except RecursionError:
        return {}
    return {} if value is _NOTHING or ("object" in types and not isinstance(value, dict)) else value


class _Sketch(_Reader):
    """One attempt at an example, with or without optional keys; `lenient` puts null where nothing fits."""

    def __init__(self, root: Node, *, optional: bool = False, lenient: bool = False, linked: bool) -> None:
        super().__init__(root)
        self.optional = optional
        self.lenient = lenient
        self.fuel = 4 * MAX_BYTES
        self.linked = linked
        self.document = {word: value for word, value in root.items() if word != "$id"}
        self.size = len(compact_json(root))

    def value(self, schema: Any, seen: Seen, depth: int) -> Any:
        """A value for a schema, or `_NOTHING` at a cycle, beyond the depth, or where none can exist."""
        flat = None if depth > MAX_DEPTH else self.flatten(schema, seen)
        if flat is None:
            return _NOTHING
        node, seen = flat
        accepts = self.check(node)
        for candidate in _preferred(node):
            if accepts(candidate):
                return candidate
        for word in ("oneOf", "anyOf"):
            if isinstance(node.get(word), list) and node[word]:
                rest = {key: part for key, part in node.items() if key != word and key not in _PREFERENCES}
                schemas = (_both(rest, branch) for branch in sorted(node[word], key=_is_null))
                return _first(accepts, (self.value(schema, seen, depth + 1) for schema in schemas))
        types = sorted(_kinds(node), key="null".__eq__)
        if not types:
            return _first(accepts, ({}, "example") if depth == 0 else ("example", 0, False, {}, [], None))
        if len(types) == 1:
            return self.typed(types[0], node, accepts, seen, depth)
        return _first(accepts, (self.typed(name, node, accepts, seen, depth) for name in types))

    def check(self, node: Node) -> Check:
        """A check against one schema, compiled on first use; it says False when that would cost too much."""
        compiled: list[Check] = []

        def check(value: Any) -> bool:
            if not compiled:
                compiled.append(self.compile(node) or (lambda _: False))
            return compiled[0](value)

        return check

    def compile(self, node: Node) -> Check | None:
        """Compile one schema of the document, on the fuel that is left."""
        text = compact_json(node)
        linked = any(f'"{word}"' in text for word in _REFS)
        self.fuel -= len(text) + linked * self.size
        dialect = {"$schema": self.root["$schema"]} if "$schema" in self.root else {}
        if self.fuel < 0 or (linked and not self.linked):
            return None
        if not linked:
            return compile_schema({**dialect, **node})
        # References are relative to the document, so the schema is compiled at a place inside it.
        document = {**self.document, "x-bridge-node": node}
        return _compile({**dialect, "$ref": f"{_ROOT}#/x-bridge-node"}, {_ROOT: document})

    def typed(self, name: str, node: Node, accepts: Check, seen: Seen, depth: int) -> Any:
        """A value of one type."""
        match name:
            case "object":
                return self.members(node, seen, depth)
            case "array":
                return self.elements(node, seen, depth)
            case "string":
                return _first(accepts, _texts(node))
            case "integer" | "number":
                return _first(accepts, _numbers(node))
            case "boolean":
                return _first(accepts, (False, True))
        return None

    def members(self, node: Node, seen: Seen, depth: int) -> Any:
        """The required properties, and optional ones while both they and the object are small."""
        properties = node["properties"] if isinstance(node.get("properties"), dict) else {}
        other = node.get("additionalProperties", True)
        required = dict.fromkeys(_strings(node.get("required")))
        room = min(OPTIONAL_KEYS, _natural(node, "maxProperties", OPTIONAL_KEYS)) - len(required)
        least = min(_natural(node, "minProperties", 0), OPTIONAL_KEYS)
        result: Node = {}
        for key in [*properties, *(key for key in required if key not in properties)]:
            if key in required:
                value = self.value(properties.get(key, other), seen, depth + 1)
                if value is _NOTHING and not self.lenient:
                    return _NOTHING
                result[key] = None if value is _NOTHING else value
            elif room > 0 and ((self.optional and depth <= 2) or least > len(required)):
                value = self.value(properties[key], seen, depth + 1)
                if value is not _NOTHING and len(compact_json(value)) <= OPTIONAL_BYTES:
                    result[key] = value
                    room -= 1
        for number in range(least - len(result)):
            value = self.value(other, seen, depth + 1)
            if value is not _NOTHING:
                result[f"key{number + 1}"] = value
        return result

    def elements(self, node: Node, seen: Seen, depth: int) -> Any:
        """One element, or as many as `minItems` and a tuple's positions ask for."""
        tuples = [node[word] for word in ("prefixItems", "items") if isinstance(node.get(word), list)]
        fixed: list[Any] = tuples[0] if tuples else []
        rest = node.get("additionalItems" if isinstance(node.get("items"), list) else "items", True)
        if rest is True and "contains" in node:
            rest = node["contains"]
        least, most = _natural(node, "minItems", 0), _natural(node, "maxItems", MAX_ITEMS)
        result: list[Any] = []
        for position in range(min(max(least, len(fixed), 1), most, MAX_ITEMS)):
            schema = fixed[position] if position < len(fixed) else rest
            value = self.value(schema, seen, depth + 1)
            if value in result and node.get("uniqueItems") is True:
                value = self.another(schema, value, result, seen)
            if value is _NOTHING:
                break
            result.append(value)
        return result if len(result) >= least or self.lenient else _NOTHING

    def another(self, schema: Any, value: Any, taken: list[Any], seen: Seen) -> Any:
        """A value that is not among `taken`, near `value`."""
        flat = self.flatten(schema, seen)
        if flat is None:
            return _NOTHING
        accepts, count = self.check(flat[0]), len(taken)
        near = list(_preferred(flat[0]))
        if isinstance(value, str):
            near += [f"{value}{count}", f"{value[: -len(str(count))]}{count}"]
        elif isinstance(value, bool):
            near.append(not value)
        elif _is_number(value):
            step = flat[0]["multipleOf"] if _is_number(flat[0].get("multipleOf")) else 1
            near += [_tidy(value + sign * count * step) for sign in (1, -1)]
        elif isinstance(value, dict):
            pairs = ((key, self.another(True, each, [each] * count, seen)) for key, each in value.items())
            near += [{**value, key: changed} for key, changed in pairs if changed is not _NOTHING]
        return next((each for each in near if each not in taken and accepts(each)), _NOTHING)


def _first(accepts: Check, candidates: Iterable[Any]) -> Any:
    """The first candidate that conforms; else the first of all, since the whole example is checked anyway."""
    best = _NOTHING
    for candidate in candidates:
        if candidate is _NOTHING:
            continue
        if accepts(candidate):
            return candidate
        best = candidate if best is _NOTHING else best
    return best


def _preferred(node: Node) -> Iterator[Any]:
    """The values that a schema itself offers, in the order of preference."""
    for word in ("default", "example"):
        if word in node:
            yield node[word]
    for word in ("examples", "const", "enum"):
        offered = node.get(word, _NOTHING)
        if word == "const" and offered is not _NOTHING:
            yield offered
        elif isinstance(offered, list):
            yield from offered[:1] if word == "examples" else offered[:MAX_CHOICES]


def _tidy(number: int | float) -> int | float:
    """An integer where JSON may show one, a float beyond what orjson can encode as an integer."""
    if isinstance(number, float):
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return number if -(2**63) <= number < 2**64 else float(number)


def _numbers(node: Node) -> Iterator[float]:
    """Zero, then values at, beside and between the bounds, and multiples near them."""
    yield 0
    lows = [node[word] for word in ("minimum", "exclusiveMinimum") if _is_number(node.get(word))]
    highs = [node[word] for word in ("maximum", "exclusiveMaximum") if _is_number(node.get(word))]
    step = node["multipleOf"] if _is_number(node.get("multipleOf")) and node["multipleOf"] > 0 else 1
    found: list[float] = []
    for bound, sign in ((max(lows, default=None), 1), (min(highs, default=None), -1)):
        if bound is not None:
            found += [bound, math.floor(bound * sign) * sign + sign, math.nextafter(bound, sign * math.inf)]
            if math.isfinite(bound / step):
                near = math.ceil(bound / step * sign) * sign
                found += [round(times * step, 12) for times in (near, near + sign)]
    if lows and highs:
        found.insert(2, (max(lows) + min(highs)) / 2)
    yield from (_tidy(number) for number in found if math.isfinite(number))


def _texts(node: Node) -> Iterator[str]:
    """What the format asks for, the word "example" at the right length, then guesses for the pattern."""
    known = node.get("format")
    if isinstance(known, str) and known in _FORMATS:
        yield _FORMATS[known]
    least = _natural(node, "minLength", 0)
    if least <= MAX_STRING:
        yield ("example" * (least // 7 + 1))[: min(max(least, 7), _natural(node, "maxLength", MAX_STRING))]
        if isinstance(pattern := node.get("pattern"), str):
            yield from (text for extra in (0, 1, 2, least) if (text := _matching(pattern, extra)) is not None)
            yield from _COMMON


_ATOM = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?(?:\\.|[^\]\\])+\])|(?P<open>\((?:\?:|\?P?<\w+>)?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<anchor>[\^$])|(?P<plain>[^\\\[(){*+?])"
)
_TIMES = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<least>\d{1,4})(?P<more>,(?P<most>\d{0,4}))?\})[?+]?")
_ESCAPES = {"b": "", **dict(zip("dDwWsStnr", "0aa- a\t\n\r", strict=True))}


def _matching(pattern: str, extra: int) -> str | None:
    """Guess a text for a simple pattern, with `extra` repeats where it allows more; None for anything clever.

    Groups give their first alternative. The guess is checked by the validator afterwards, never by `re`,
    which a hostile pattern could keep busy for ever.
    """
    if len(pattern) > MAX_PATTERN:
        return None
    # Per open group: the atoms of the current alternative, and the alternatives before it.
    groups: list[tuple[list[str], list[str]]] = [([], [])]
    at = 0
    while at < len(pattern):
        token = _ATOM.match(pattern, at)
        if token is None:
            return None
        at, text, kind = token.end(), token[0], token.lastgroup
        atoms, alternatives = groups[-1]
        if kind == "open":
            groups.append(([], []))
            continue
        if kind == "bar":
            alternatives.append("".join(atoms))
            atoms.clear()
            continue
        if kind == "close":
            if len(groups) == 1:
                return None
            groups.pop()
            text = [*alternatives, "".join(atoms)][0]
            atoms = groups[-1][0]
        elif kind == "anchor":
            text = ""
        elif kind == "set" and text[1] == "^":
            text = next((char for char in "a0_- A" if char not in text), "!")
        elif kind in {"set", "escape"}:
            char = text[1:].lstrip("\\")[0] if kind == "set" else text[1]
            text = _ESCAPES.get(char, char) if "\\" in text[:2] else char
        times = _TIMES.match(pattern, at)
        count = 1
        if times:
            at = times.end()
            least = int(times["least"] or times["sign"] == "+")
            most = times["most"] if times["more"] else times["least"]
            count = min(least + extra, int(most) if most else 1 if times["sign"] == "?" else MAX_STRING)
        if len(text) * count > MAX_STRING:
            return None
        atoms.append(text * count)
    return [*groups[0][1], "".join(groups[0][0])][0] if len(groups) == 1 else None
