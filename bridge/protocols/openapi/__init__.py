"""Builders for JSON Schemas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

Json = dict[str, Any]

STRING: Json = {"type": "string"}
NAME: Json = {"type": "string", "minLength": 1}
BOOLEAN: Json = {"type": "boolean"}
NULL: Json = {"type": "null"}
OBJECT: Json = {"type": "object"}
COUNT: Json = {"type": "integer", "minimum": 0}
TIMESTAMP: Json = {"type": "integer", "minimum": 0, "description": "Seconds since 1970."}
METADATA: Json = {"type": "object", "additionalProperties": STRING}


def ref(name: str) -> Json:
    """A reference to a schema in `components`."""
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: Any) -> Json:
    return {"const": value}


def enum(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


def any_of(*schemas: Json, **members: Any) -> Json:
    return {**members, "anyOf": list(schemas)}


def or_null(schema: Json) -> Json:
    return any_of(schema, NULL)


def list_of(schema: Json, **members: Any) -> Json:
    return {"type": "array", "items": schema, **members}


class _Optional(dict[str, Any]):
    """The schema of a member that may be missing."""


def opt(schema: Json | str) -> Json:
    """The schema of a member that may be missing, for `closed` and `opened`."""
    return _Optional(const(schema) if isinstance(schema, str) else schema)


def text(description: str) -> Json:
    return {"type": "string", "description": description}


def closed(description: str = "", /, **members: Json | str) -> Json:
    """An object that the bridge writes: all members, except those in `opt` that may be missing, and no others.

    A member that is a text has this value.
    """
    properties = {name: const(schema) if isinstance(schema, str) else schema for name, schema in members.items()}
    required = [name for name, schema in properties.items() if not isinstance(schema, _Optional)]
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {"description": description, **schema} if description else schema


def opened(description: str = "", /, **members: Json | str) -> Json:
    """An object that a client writes: members without a schema here are accepted."""
    return {**closed(description, **members), "additionalProperties": True}


def inlined(schema: Json) -> Json:
    """A schema with its definitions inlined. None of them may be recursive."""
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, list):
            return [inline(entry) for entry in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return inline(definitions[node["$ref"].rpartition("/")[2]])
        return {name: inline(value) for name, value in node.items()}

    return inline(schema)  # type: ignore[no-any-return]


def body_schema(
    description: str,
    model: type[BaseModel],
    more: Mapping[str, Json | str],
    *,
    elsewhere: Collection[str] = (),
    **others: Json,
) -> Json:
    """The schema of a body that `model` reads; `others` are members that the model does not have, and those sent
    `elsewhere`, as in the path, are left out.

    A text in `more` describes a member as the model has it. A schema there is added to the model's, or with `anyOf`
    replaces it, where the model accepts a member unchecked. Raises KeyError for a member that the model does not have.
    """
    # Inlined, because two models have a part of the same name.
    found = inlined(model.model_json_schema())
    properties = {name: schema for name, schema in found["properties"].items() if name not in elsewhere}
    for name, added in more.items():
        schema = {"description": added} if isinstance(added, str) else added
        replaced = ("anyOf", "items", "type") if "anyOf" in schema else ()
        properties[name] = {key: value for key, value in properties[name].items() if key not in replaced} | schema
    if read_twice := properties.keys() & others.keys():
        raise ValueError(f"{model.__name__} reads {sorted(read_twice)} itself")
    return {
        **found,
        "required": [name for name in found["required"] if name not in elsewhere],
        "properties": properties | others,
        "description": description,
        "additionalProperties": True,
    }
