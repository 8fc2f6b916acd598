"""Tool definitions of a suite, and what their schemas say of arguments. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jsonschema_rs

from bridge.api.items import read_name
from bridge.errors import InvalidRequest
from bridge.lab.suite.faults import Place
from bridge.tools.schema import compact_json, compile_schema, resolve
from bridge.turn.items import FunctionTool

Report = Callable[[Place, str], None]
Known = Mapping[str, FunctionTool | None]
"""Tools by name; None for one whose definition has a fault, which has been told."""

_SAME_VALUE = ("allOf", "anyOf", "oneOf", "then", "else")
"""Words whose schemas speak of the value itself, not of something inside."""
MAX_SCHEMAS = 2_000


def read_tool(name: str, data: Mapping[str, Any], place: Place, report: Report) -> FunctionTool | None:
    """The tool of a definition that has the right shape; None when it has a fault."""
    try:
        read_name(name, "name")
    except InvalidRequest:
        where = (*place, "name") if "name" in data else place
        report(where, "a tool's name has 1 to 128 letters, digits or any of _ . : -")
        return None
    parameters = data.get("parameters")
    if parameters is not None and (wrong := _schema_fault(parameters)):
        inside, said = wrong
        report((*place, "parameters", *inside), said)
        return None
    return FunctionTool(name, data.get("description"), parameters, data.get("strict"))


def _schema_fault(schema: dict[str, Any]) -> tuple[Place, str] | None:
    """Where and why a schema cannot be used."""
    if compile_schema(schema) is None:
        inside, said = _why_not(schema)
        return inside, f"not a JSON Schema that can be used: {said}"
    if schema.get("type", "object") != "object":
        return ("type",), "arguments are an object; expected object"
    return None


def _why_not(schema: dict[str, Any]) -> tuple[Place, str]:
    try:
        _validator(schema)
    except jsonschema_rs.ValidationError as error:
        kind: Any = error.kind
        if kind.name == "anyOf":
            return tuple(error.instance_path), f"{compact_json(error.instance)[:80]} cannot stand here"
        return tuple(error.instance_path), error.message[:300]
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return (), str(error)[:300]
    return (), "it is too much to check"


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """The library's validator, which would fetch what a schema refers to."""
    return jsonschema_rs.validator_for(schema, retriever=_refuse)


def _refuse(uri: str) -> NoReturn:
    raise LookupError("nothing is fetched")


def takes(parameters: Any, name: str) -> bool:
    """Whether a tool has an argument of this name. That a schema does not forbid one is not enough."""
    for node in _speaking_of(parameters):
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
    """The arguments that a schema names, wherever it does."""
    return [name for node in _speaking_of(parameters) for name in _properties(node)]


def required_names(parameters: Any) -> list[str]:
    """The arguments that every call must have."""
    nodes = _speaking_of(parameters, ("allOf",))
    return [name for node in nodes for name in node.get("required", ()) if isinstance(name, str)]


def misfits(parameters: Any, arguments: Mapping[str, Any], *, whole: bool) -> Iterator[tuple[Place, str]]:
    """Where arguments do not fit a tool's schema. Unless they are the `whole` call, only what is wrong in one."""
    if not isinstance(parameters, dict):
        return
    for error in _validator(parameters).iter_errors(dict(arguments)):
        if whole or error.instance_path:
            yield tuple(error.instance_path), f"this does not fit the tool's schema: {error.message[:300]}"


def _properties(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found = node.get("properties")
    return found if isinstance(found, dict) else {}


def _found(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # not every expression of JSON Schema is one of Python's
        return True


def _speaking_of(root: Any, words: tuple[str, ...] = _SAME_VALUE) -> Iterator[dict[str, Any]]:
    """The schema itself and those that it refers to or puts together with `words`."""
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
