"""The schemas of requests, made from the models that read them: what they say of a member is what is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel

from bridge.api.openapi.schemas import Json


def request_schema(
    model: type[BaseModel], description: str, told: Mapping[str, Json], others: Mapping[str, Json] | None = None
) -> Json:
    """The schema of a body that `model` reads.

    `told` adds to members what the model cannot say: a description, and for a member that the model takes as it comes
    the schema of what is done with it. `others` are members that are looked at elsewhere. Raises KeyError for a member
    of `told` that the model does not have, and ValueError for one of `others` that it has.
    """
    schema = model.model_json_schema()
    found = cast(Json, _inlined(schema, schema.pop("$defs", {})))
    properties = found["properties"]
    for name, more in told.items():
        properties[name] = _merged(properties[name], more)
    for name, whole in (others or {}).items():
        if name in properties:
            raise ValueError(f"{model.__name__} reads {name} itself")
        properties[name] = whole
    return {**found, "description": description, "additionalProperties": True}


def _merged(member: Json, more: Json) -> Json:
    """A member with more said about it. A schema is given for what was read as anything only, so it is in addition."""
    if "anyOf" in more:
        member = {name: value for name, value in member.items() if name not in ("anyOf", "items", "type")}
    return {**member, **more}


def _inlined(schema: Any, definitions: Json) -> Any:
    """A schema with each definition in the place of its references; none of them refers to itself.

    Two models have a part of the same name, so that their definitions could not stand side by side.
    """
    if isinstance(schema, list):
        return [_inlined(entry, definitions) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in schema.items()}
