"""Reading a client's JSON: what both request formats share. Faults name the place, as OpenAI's `param` does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from bridge.errors import InvalidRequest

MAX_DEPTH = 64

BodyT = TypeVar("BodyT", bound="Body")

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


class Body(BaseModel):
    """A client's body: fields we know are checked strictly, unknown ones are kept and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises InvalidRequest for anything else, and for nesting beyond MAX_DEPTH."""
    if not body.strip():
        raise InvalidRequest("The request has no body. Send a JSON object.", code="invalid_json")
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    check_depth(data)
    return data


def check_depth(data: Any) -> None:
    """Refuse deep nesting, level by level, before anything recursive sees it."""
    level = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            below.extend(value for value in values if isinstance(value, dict | list))
        if not below:
            return
        level = below
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="nesting_too_deep")


def validate(model: type[BodyT], data: dict[str, Any]) -> BodyT:
    """`data` as `model`. Raises InvalidRequest for the first fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = _place(fault["loc"])
        raise InvalidRequest(f"Invalid {place!r}: {fault['msg']}.", param=place) from None


def _place(loc: Iterable[int | str]) -> str:
    place = ""
    for step in loc:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    return place


def sensible_limit(tokens: int | None) -> int | None:
    """A limit of tokens; some clients write 0 or -1 for "none"."""
    return tokens if tokens is not None and tokens > 0 else None


def read_object(value: Any, place: str) -> dict[str, Any]:
    """A JSON object at `place`."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"Invalid {place!r}: expected an object.", param=place)
    return value


def read_string(value: Any, place: str) -> str:
    """A string at `place`."""
    if not isinstance(value, str):
        raise InvalidRequest(f"Invalid {place!r}: expected a string.", param=place)
    return value
