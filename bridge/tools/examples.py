"""Examples that conform to a client's JSON Schema.

A schema is untrusted, so an example is built within budgets of steps and of compiled bytes.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from bridge.tools.schema import (
    MAX_BYTES,
    MAX_DEPTH,
    NOTHING,
    REFS,
    Check,
    Node,
    Reader,
    Seen,
    both,
    compact_json,
    compile_schema,
    compile_unbounded,
    is_null,
    is_number,
    kinds,
    plain_copy,
    strings,
)

MAX_STRING = 4_096
MAX_PATTERN = 500
MAX_ITEMS = 100
MAX_CHOICES = 50
OPTIONAL_KEYS = 8
OPTIONAL_BYTES = 80
"""An optional property is shown while the object has no more keys and its value is no longer than this."""

_ROOT = "bridge:root"
_PREFERENCES = frozenset({"default", "example", "examples", "const", "enum"})
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
_COMMON = ("a", "A", "0", "example.com", "https://example.com/", "/example", "#000000", "1.0.0", "en-US", "+15550100")


def example_for(schema: Any) -> Any:
    """Build a value that conforms to a tool's parameter schema; never raises.

    Checked with a real validator. When no conforming value is found the required keys alone are shown, and
    `{}` if there is nothing better; a schema without a type counts as an object's.
    """
    root = plain_copy(schema)
    if not isinstance(root, dict):
        return {}
    accepts = compile_schema(root)
    try:
        if accepts is not None:
            for optional in (True, False):
                value = _Sketch(root, optional=optional, linked=True).value(root, frozenset({"#"}), 0)
                if value is not NOTHING and accepts(value):
                    return value
            if accepts({}):
                return {}
        value = _Sketch(root, lenient=True, linked=accepts is not None).value(root, frozenset({"#"}), 0)
        types = kinds(Reader(root).outline(root)) or ["object"]
    except RecursionError:
        return {}
    return {} if value is NOTHING or ("object" in types and not isinstance(value, dict)) else value


class _Sketch(Reader):
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
        """A value for a schema, or `NOTHING` at a cycle, beyond the depth, or where none can exist."""
        flat = None if depth > MAX_DEPTH else self.flatten(schema, seen)
        if flat is None:
            return NOTHING
        node, seen = flat
        accepts = self.check(node)
        for candidate in _preferred(node):
            if accepts(candidate):
                return candidate
        for word in ("oneOf", "anyOf"):
            if isinstance(node.get(word), list) and node[word]:
                rest = {key: part for key, part in node.items() if key != word and key not in _PREFERENCES}
                schemas = (both(rest, branch) for branch in sorted(node[word], key=is_null))
                return _first(accepts, (self.value(schema, seen, depth + 1) for schema in schemas))
        types = sorted(kinds(node), key="null".__eq__)
        if not types:
            return _first(accepts, ({}, "example") if depth == 0 else ("example", 0, False, {}, [], None))
        if len(types) == 1:
            return self.typed(types[0], node, accepts, seen, depth)
        return _first(accepts, (self.typed(name, node, accepts, seen, depth) for name in types))

    def check(self, node: Node) -> Check:
        """A check against one schema, compiled on first use; it is False if that would cost too much."""
        compiled = cache(lambda: self.compile(node) or (lambda _: False))
        return lambda value: compiled()(value)

    def compile(self, node: Node) -> Check | None:
        """Compile one schema of the document, on the fuel that is left."""
        text = compact_json(node)
        linked = any(f'"{word}"' in text for word in REFS)
        self.fuel -= len(text) + linked * self.size
        if self.fuel < 0 or (linked and not self.linked):
            return None
        dialect = {"$schema": self.root["$schema"]} if "$schema" in self.root else {}
        if not linked:
            return compile_schema({**dialect, **node})
        # References are relative to the document, so the schema is compiled as a part of it.
        document = {**self.document, "x-bridge-node": node}
        return compile_unbounded({**dialect, "$ref": f"{_ROOT}#/x-bridge-node"}, {_ROOT: document})

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
        required = dict.fromkeys(strings(node.get("required")))
        room = min(OPTIONAL_KEYS, _natural(node, "maxProperties", OPTIONAL_KEYS)) - len(required)
        least = min(_natural(node, "minProperties", 0), OPTIONAL_KEYS)
        result: Node = {}
        for key in properties | required:
            if key in required:
                value = self.value(properties.get(key, other), seen, depth + 1)
                if value is NOTHING and not self.lenient:
                    return NOTHING
                result[key] = None if value is NOTHING else value
            elif room > 0 and ((self.optional and depth <= 2) or least > len(required)):
                value = self.value(properties[key], seen, depth + 1)
                if value is not NOTHING and len(compact_json(value)) <= OPTIONAL_BYTES:
                    result[key] = value
                    room -= 1
        for number in range(least - len(result)):
            value = self.value(other, seen, depth + 1)
            if value is not NOTHING:
                result[f"key{number + 1}"] = value
        return result

    def elements(self, node: Node, seen: Seen, depth: int) -> Any:
        """One element, or as many as `minItems` and a tuple's positions ask for."""
        fixed = next((part for word in ("prefixItems", "items") if isinstance(part := node.get(word), list)), [])
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
            if value is NOTHING:
                break
            result.append(value)
        return result if len(result) >= least or self.lenient else NOTHING

    def another(self, schema: Any, value: Any, taken: list[Any], seen: Seen) -> Any:
        """A value that is not among `taken`, near `value`."""
        flat = self.flatten(schema, seen)
        if flat is None:
            return NOTHING
        accepts, count = self.check(flat[0]), len(taken)
        near = list(_preferred(flat[0]))
        if isinstance(value, str):
            near += [f"{value}{count}", f"{value[: -len(str(count))]}{count}"]
        elif isinstance(value, bool):
            near.append(not value)
        elif is_number(value):
            step = flat[0]["multipleOf"] if is_number(flat[0].get("multipleOf")) else 1
            near += [_tidy(value + sign * count * step) for sign in (1, -1)]
        elif isinstance(value, dict):
            pairs = ((key, self.another(True, each, [each] * count, seen)) for key, each in value.items())
            near += [{**value, key: changed} for key, changed in pairs if changed is not NOTHING]
        return next((each for each in near if each not in taken and accepts(each)), NOTHING)


def _first(accepts: Check, candidates: Iterable[Any]) -> Any:
    """The first candidate that conforms; else the first of all, since the whole example is checked anyway."""
    best = NOTHING
    for candidate in candidates:
        if candidate is not NOTHING and accepts(candidate):
            return candidate
        best = candidate if best is NOTHING else best
    return best


def _preferred(node: Node) -> Iterator[Any]:
    """The values that a schema itself offers, in the order of preference."""
    yield from (node[word] for word in ("default", "example") if word in node)
    if isinstance(node.get("examples"), list):
        yield from node["examples"][:1]
    if "const" in node:
        yield node["const"]
    if isinstance(node.get("enum"), list):
        yield from node["enum"][:MAX_CHOICES]


def _natural(node: Node, word: str, default: int) -> int:
    value: Any = node.get(word)
    return int(value) if is_number(value) and 0 <= value < 2**53 else default


def _tidy(number: int | float) -> int | float:
    """An integer where JSON may show one."""
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 2**53 else number


def _numbers(node: Node) -> Iterator[float]:
    """Zero, then values at, beside and between the bounds, and multiples near them."""
    yield 0
    lows = [node[word] for word in ("minimum", "exclusiveMinimum") if is_number(node.get(word))]
    highs = [node[word] for word in ("maximum", "exclusiveMaximum") if is_number(node.get(word))]
    step = node["multipleOf"] if is_number(node.get("multipleOf")) and node["multipleOf"] > 0 else 1
    found: list[float] = []
    for bound, sign in ((max(lows, default=None), 1), (min(highs, default=None), -1)):
        if bound is not None:
            found += [bound, math.floor(bound * sign) * sign + sign, math.nextafter(bound, sign * math.inf)]
            if math.isfinite(bound / step):
                near = math.ceil(bound / step * sign) * sign
                found += [round(times * step, 12) for times in (near, near + sign)]
    if lows and highs:
        found.insert(2, (max(lows) + min(highs)) / 2)
    # Not math.isfinite: it refuses integers that no float can hold.
    yield from (_tidy(number) for number in found if abs(number) <= sys.float_info.max)


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
    """Guess a text for a simple pattern, with `extra` repeats if it allows more; None for a complex one.

    Groups give their first alternative. The guess is checked by the validator afterwards, never by `re`,
    which a hostile pattern could keep busy for ever.
    """
    if len(pattern) > MAX_PATTERN:
        return None
    groups = [[""]]  # the open groups' alternatives
    at = 0
    while at < len(pattern):
        token = _ATOM.match(pattern, at)
        if token is None:
            return None
        at, text, kind = token.end(), token[0], token.lastgroup
        if kind == "open":
            groups.append([""])
            continue
        if kind == "bar":
            groups[-1].append("")
            continue
        if kind == "close":
            text = groups.pop()[0]
            if not groups:
                return None
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
        groups[-1][-1] += text * count
    return groups[0][0] if len(groups) == 1 else None
