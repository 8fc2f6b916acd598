"""Whether a document has the shape of a suite: its JSON Schema, with faults in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs
import orjson

from bridge.lab.suite.faults import Place, did_you_mean, nearest

_Error = jsonschema_rs.ValidationError

_KINDS: Mapping[str, str] = {
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


@cache
def suite_schema() -> Mapping[str, Any]:
    """The JSON Schema of a suite's file, also for editors."""
    schema: dict[str, Any] = orjson.loads(files("bridge.lab.suite").joinpath("schema.json").read_bytes())
    return schema


def shape_faults(data: Any, part: str = "suite") -> Iterator[tuple[Place, str]]:
    """What is wrong with the shape of `data`, which should be this part of the schema; in no order."""
    yield from _tell(_validator(part).iter_errors(data))


@cache
def _validator(part: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({**suite_schema(), "$ref": f"#/$defs/{part}"})


def _tell(errors: Iterable[_Error]) -> Iterator[tuple[Place, str]]:
    found = list(errors)
    mistyped = {place for error in found for place in _meant(error)}
    for error in found:
        place: Place = tuple(error.instance_path)
        kind: Any = error.kind
        around = _schema_at(error.schema_path[:-1])
        match kind.name:
            case "additionalProperties":
                for name in kind.unexpected:
                    yield (*place, name), f"unknown key{did_you_mean(name, around['properties'])}"
            case "required":
                if (*place, kind.property) not in mistyped:
                    yield (*place, kind.property), "missing"
            case "anyOf":
                yield from _tell_nearest(error, place, kind.context)
            case "enum":
                said = did_you_mean(error.instance, kind.options) if isinstance(error.instance, str) else ""
                yield place, f"expected {_either(kind.options)}{said}"
            case "minItems" | "minLength":
                yield place, "empty"
            case _:
                yield place, f"expected {_wanted(around)}"


def _meant(error: _Error) -> Iterator[Place]:
    """The keys that unknown ones were meant to be; that these are missing goes without saying."""
    kind: Any = error.kind
    if kind.name == "additionalProperties":
        for name in kind.unexpected:
            if near := nearest(name, _schema_at(error.schema_path[:-1])["properties"]):
                yield (*error.instance_path, near)


def _tell_nearest(error: _Error, place: Place, branches: Iterable[Iterable[_Error]]) -> Iterator[tuple[Place, str]]:
    """What keeps a value from being the thing that it looks like; where it looks like none, what it could be."""
    for branch in branches:
        if _looks_like(branch, place):
            yield from _tell(branch)
            return
    near = ""
    if isinstance(error.instance, str):
        words = [word for branch in branches for fault in branch for word in getattr(fault.kind, "options", ())]
        near = did_you_mean(error.instance, words)
    yield place, f"expected {_wanted(_schema_at(error.schema_path[:-1]))}{near}"


def _looks_like(branch: Iterable[_Error], place: Place) -> bool:
    """Whether the value at `place` is of the right kind, whatever is wrong inside it."""
    for fault in branch:
        kind: Any = fault.kind
        if tuple(fault.instance_path) == place and (
            kind.name in ("type", "enum")
            or (kind.name == "anyOf" and not any(_looks_like(inner, place) for inner in kind.context))
        ):
            return False
    return True


def _wanted(schema: Mapping[str, Any]) -> str:
    if "description" in schema:
        return str(schema["description"])
    kinds = schema.get("type", "object")
    return " or ".join(_KINDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _either(options: list[Any]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, options[:-1])), str(options[-1]))))


def _schema_at(path: Iterable[str | int]) -> Mapping[str, Any]:
    node: Any = suite_schema()
    for step in path:
        node = node[step]
    return dict(node)
