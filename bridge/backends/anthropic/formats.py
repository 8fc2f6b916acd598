"""The form of an answer: enforced where the model can be held to the schema, asked for in words elsewhere.

What the API can enforce is a part of JSON Schema: closed objects, lists, unions, constants, references without circles.
Limits of length and number are not in it; they are left out there, and the whole schema is told in words besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.backends.anthropic.models import traits_of
from bridge.tools.schema import compact_json
from bridge.turn.turn import Turn

_JSON = "Answer with one valid JSON object and nothing else: no text around it, no code fence."
_CONFORM = "It must conform to this JSON Schema:"
_STRING_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_DEFINITIONS = ("$defs", "definitions")
_NOTES = ("title", "description")
_MAX_DEPTH = 50


class _Unfit(Exception):
    """The schema says what the API cannot be told."""


def build_format(turn: Turn) -> tuple[dict[str, Any] | None, str]:
    """`output_config.format`, or None, and the words for the system prompt, or none.

    A schema is enforced where the client insists, or where it suits the API as it is.
    """
    wanted = turn.output_format
    if wanted is None:
        return None, ""
    if wanted.schema is None:
        return None, _JSON
    words = f"{_JSON}\n{_CONFORM}\n{compact_json(wanted.schema)}"
    enforced = _enforced(wanted.schema) if traits_of(turn.model).schemas else None
    is_whole = enforced == {name: value for name, value in wanted.schema.items() if name != "$schema"}
    if enforced is None or not (is_whole or wanted.strict):
        return None, words
    return {"type": "json_schema", "schema": enforced}, "" if is_whole else words


def _enforced(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """What can be enforced of a schema; None when it makes no sense without the rest."""
    try:
        fitted = _fit(schema, 0)
        _check_references(fitted)
    except _Unfit:
        return None
    return fitted


def _fit(schema: Any, depth: int) -> dict[str, Any]:
    """The part of a schema that can be enforced: it allows all that the schema allows, but for surplus members."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        raise _Unfit
    kept: dict[str, Any] = {name: schema[name] for name in _NOTES if isinstance(schema.get(name), str)}
    for name in _DEFINITIONS:
        if isinstance(schema.get(name), Mapping):
            kept[name] = {key: _fit(value, depth + 1) for key, value in schema[name].items()}
    if isinstance(schema.get("$ref"), str):
        return {**kept, "$ref": schema["$ref"]}
    kind = schema.get("type")
    for name in ("enum", "const"):
        if name in schema:
            typed = {"type": kind} if isinstance(kind, str) else {}
            return {**kept, **typed, name: _plain(schema[name], many=name == "enum")}
    union = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(union, list) and union:
        return {**kept, "anyOf": [_fit(each, depth + 1) for each in union]}
    if isinstance(kind, list) and kind:
        each = {name: value for name, value in schema.items() if name not in (*_NOTES, *_DEFINITIONS)}
        kinds = dict.fromkeys(str(one) for one in kind)
        return {**kept, "anyOf": [_fit({**each, "type": one}, depth + 1) for one in kinds]}
    if not isinstance(kind, str) or kind not in _TYPES or "allOf" in schema:
        raise _Unfit
    return {**kept, "type": kind, **_members(kind, schema, depth)}


def _members(kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if kind == "object":
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise _Unfit
        if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
            raise _Unfit
        fitted = {name: _fit(value, depth + 1) for name, value in properties.items()}
        return {
            "properties": fitted,
            **({"required": required} if "required" in schema else {}),
            "additionalProperties": False,
        }
    if kind == "array":
        if "prefixItems" in schema:
            raise _Unfit
        least = {"minItems": schema["minItems"]} if schema.get("minItems") in (0, 1) else {}
        return {"items": _fit(schema.get("items"), depth + 1), **least}
    if kind == "string" and str(schema.get("format")) in _STRING_FORMATS:
        return {"format": schema["format"]}
    return {}


def _plain(value: Any, *, many: bool) -> Any:
    values = value if many else [value]
    if not isinstance(values, list) or not values:
        raise _Unfit
    if not all(each is None or isinstance(each, str | int | float) for each in values):
        raise _Unfit
    return value


def _check_references(schema: Mapping[str, Any]) -> None:
    """Every reference leads to a definition at the top, and none leads back to itself."""
    targets = {f"#/{name}/{key}": value for name in _DEFINITIONS for key, value in schema.get(name, {}).items()}
    links = {target: _references(value) for target, value in targets.items()}
    links[""] = _references(schema)
    if not all(reference in targets for found in links.values() for reference in found):
        raise _Unfit
    # Whoever refers to nothing is fine; so is, then, who refers to those alone. A circle is what remains.
    while done := [target for target, found in links.items() if not found]:
        for target in done:
            del links[target]
        for found in links.values():
            found.difference_update(done)
    if links:
        raise _Unfit


def _references(value: Any) -> set[str]:
    """The references in a schema, wherever they stand."""
    found: set[str] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            reference = node.get("$ref")
            if isinstance(reference, str):
                found.add(reference)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return found
