"""What the schema of a tool says of its arguments: which it names, which it requires, and what does not fit it.

A schema is a client's, and untrusted; `bridge.tools.schema` checks values against it at a bounded cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jsonschema_rs

from bridge.tools.schema import compact_json, compile_schema, resolve

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_SAME_VALUE = ("allOf", "anyOf", "oneOf", "then", "else")
"""Keywords whose schemas apply to the value itself, not to something inside it."""
MAX_SCHEMAS = 2_000


def schema_fault(schema: dict[str, Any]) -> tuple[KeyPath, str] | None:
    """Where and why a schema cannot be used."""
    if compile_schema(schema) is not None:
        is_object = schema.get("type", "object") == "object"
        return None if is_object else (("type",), "expected object: arguments are always an object")
    path: KeyPath = ()
    why = "too complex to check"
    try:
        _validator(schema)
    except jsonschema_rs.ValidationError as error:
        kind: Any = error.kind
        path, why = tuple(error.instance_path), error.message[:300]
        if kind.name == "anyOf":
            why = f"{compact_json(error.instance)[:80]} is not allowed here"
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        why = str(error)[:300]
    return path, f"unusable JSON Schema: {why}"


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """A validator that fetches nothing; by default the library fetches what a schema refers to."""

    def refuse(uri: str) -> NoReturn:
        raise LookupError("references are never fetched")

    return jsonschema_rs.validator_for(schema, retriever=refuse)


def takes(parameters: Any, name: str) -> bool:
    """Whether the schema names this argument. It is not enough that the schema does not forbid it."""
    for node in _applying(parameters):
        patterns = node.get("patternProperties")
        if (
            name in _properties(node)
            or (isinstance(patterns, dict) and any(_found(pattern, name) for pattern in patterns))
            or node.get("additionalProperties", False) is not False
            or node.get("unevaluatedProperties", False) is not False
        ):
            return True
    return False


def argument_names(parameters: Any) -> list[str]:
    """All arguments that a schema names."""
    return [name for node in _applying(parameters) for name in _properties(node)]


def required_names(parameters: Any) -> list[str]:
    """The arguments that every call must have."""
    nodes = _applying(parameters, ("allOf",))
    return [name for node in nodes for name in node.get("required", ()) if isinstance(name, str)]


def misfits(parameters: Any, arguments: Mapping[str, Any], *, whole: bool) -> Iterator[tuple[KeyPath, str]]:
    """Where arguments do not fit a tool's schema. Unless they are the `whole` call, only faults inside one count."""
    if not isinstance(parameters, dict):
        return
    for error in _validator(parameters).iter_errors(dict(arguments)):
        if whole or error.instance_path:
            yield tuple(error.instance_path), f"does not fit the tool's schema: {error.message[:300]}"


def _properties(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found = node.get("properties")
    return found if isinstance(found, dict) else {}


def _found(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # not every expression of JSON Schema is one of Python's
        return True


def _applying(root: Any, words: tuple[str, ...] = _SAME_VALUE) -> Iterator[dict[str, Any]]:
    """The schema and all that apply to the same value: by reference or by one of the keywords `words`."""
    pending, seen = [root], set[int]()
    while pending and len(seen) < MAX_SCHEMAS:
        node = pending.pop(0)
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node.get("$ref"), str):
            pending.append(resolve(root, node["$ref"]))
        for word in words:
            inside = node.get(word)
            pending += inside if isinstance(inside, list) else [inside]
        if words == _SAME_VALUE and isinstance(node.get("dependentSchemas"), dict):
            pending += node["dependentSchemas"].values()
