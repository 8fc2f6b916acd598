"""Words for JSON Schemas and for the pieces of an operation, as the other files of this package use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

STRING: Json = {"type": "string"}
BOOLEAN: Json = {"type": "boolean"}
NULL: Json = {"type": "null"}
ANY_OBJECT: Json = {"type": "object"}
COUNT: Json = {"type": "integer", "minimum": 0}
SECONDS_SINCE_1970: Json = {"type": "integer", "minimum": 0, "description": "Seconds since 1970."}

JSON = "application/json"
SSE = "text/event-stream"


def ref(name: str) -> Json:
    """A schema of `components`."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: Any) -> Json:
    """This one value."""
    return {"const": value}


def one_of_words(*words: str) -> Json:
    """A text that is one of these."""
    return {"type": "string", "enum": list(words)}


def any_of(*schemas: Json, **members: Any) -> Json:
    """What fits one of these schemas, at least."""
    return {**members, "anyOf": list(schemas)}


def or_null(schema: Json) -> Json:
    """The same, or null."""
    return any_of(schema, NULL)


def list_of(schema: Json, **members: Any) -> Json:
    """A list of such values."""
    return {"type": "array", "items": schema, **members}


def closed(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None, description: str = "") -> Json:
    """An object that the bridge writes: all of `required`, perhaps some of `optional`, and nothing else."""
    told = {"description": description} if description else {}
    properties = {**required, **(optional or {})}
    return {
        **told,
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


def opened(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None, description: str = "") -> Json:
    """An object that a client writes: members that nobody knows are let through."""
    return {**closed(required, optional, description), "additionalProperties": True}


def response(description: str, content: Json | None = None, headers: Json | None = None) -> Json:
    """A Response Object."""
    found: Json = {"description": description}
    if headers:
        found["headers"] = headers
    if content:
        found["content"] = content
    return found


def json_content(schema: Json) -> Json:
    """A body that is JSON."""
    return {JSON: {"schema": schema}}


def sse_content(description: str, *, numbered: bool = False) -> Json:
    """A body that is a stream of events: the schema is that of each. `numbered` ones have an id."""
    required = {"id": STRING, "data": STRING} if numbered else {"data": STRING}
    return {SSE: {"schema": closed(required, {"event": STRING}, description)}}


def json_request(schema: Json, examples: Mapping[str, tuple[str, Any]], *, required: bool = True) -> Json:
    """A Request Body Object; `examples` are (summary, value) by name."""
    shown = {name: {"summary": summary, "value": value} for name, (summary, value) in examples.items()}
    return {"required": required, "content": {JSON: {"schema": schema, "examples": shown}}}


def header_ref(*names: str) -> Json:
    """Headers of `components`, each of which may be missing."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def parameter_refs(names: Iterable[str]) -> list[Json]:
    """Parameters of `components`."""
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]
