"""Reading a client's JSON: what all request formats share. Faults name the place, as OpenAI's `param` does."""

from __future__ import annotations

from itertools import chain
from typing import Any

import orjson

from bridge import exact_json
from bridge.errors import InvalidRequest

MAX_DEPTH = 64
_CONTAINERS = frozenset({dict, list})


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises InvalidRequest for anything else, and for nesting beyond MAX_DEPTH."""
    if not body.strip():
        raise InvalidRequest("The request has no body. Send a JSON object.", code="invalid_json")
    try:
        data = exact_json.loads(body)
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
        # A body may hold millions of values, and everybody waits for this.
        values = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [value for value in values if type(value) in _CONTAINERS]
        if not level:
            return
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="nesting_too_deep")


def read_tier(tier: str | None) -> str | None:
    """A service tier; None for the words that ask for what happens anyway."""
    return None if tier in ("auto", "default", "") else tier


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
