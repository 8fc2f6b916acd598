"""Reading a client's JSON: what all request formats share. Errors name the member, as OpenAI's `param` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from bridge import exact_json
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest

# Either body on either path: the body decides how it is parsed, the path decides the form of the answer. Cursor sends
# Responses bodies to /v1/chat/completions; other clients send chat bodies to /v1/responses.


def shape_of(data: dict[str, Any], path: str) -> str:
    """The protocol of a body: `responses` or `chat`. With both `input` and `messages`, or neither, that of its path."""
    has_input, has_messages = data.get("input") is not None, data.get("messages") is not None
    if has_input == has_messages:
        return path
    return "responses" if has_input else "chat"


def parse_request(data: dict[str, Any], path: str, context: Sequence[dict[str, Any]] = ()) -> Turn:
    """The Turn of a body that came to the protocol `path`; `context` has the items of the response that it continues.

    The model is the name in the body (see `Turn.for_model`). Raises InvalidRequest.
    """
    return _parser(data, path)[1](data, context)


def body_model(data: dict[str, Any], path: str) -> type[Body]:
    """The model that reads a body that came to the protocol `path`."""
    return _parser(data, path)[0]


def _parser(data: dict[str, Any], path: str) -> tuple[type[Body], Callable[[dict[str, Any], Sequence[Any]], Turn]]:
    # Imported with the first body of its kind: most clients send one kind, and a pydantic model takes time and memory.
    if shape_of(data, path) == "chat":
        from bridge.protocols.chat.request import ChatBody, parse_chat

        return ChatBody, parse_chat
    from bridge.protocols.responses.request import ResponsesBody, parse_responses

    return ResponsesBody, parse_responses


def conversation_id(data: Mapping[str, Any]) -> str | None:
    """The conversation that a request belongs to: its id, or an object with it."""
    given = data.get("conversation")
    name = given.get("id") if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


BodyT = TypeVar("BodyT", bound="Body")

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
BUDGETS: Mapping[str, int] = {"low": 2_000, "medium": 8_000, "high": 16_000, "xhigh": 24_000, "max": 24_000}
"""The tokens for thinking, for models that need a number."""


def effort_of_budget(tokens: int) -> str:
    """The smallest effort whose budget is at least this."""
    return next((effort for effort, budget in BUDGETS.items() if tokens <= budget), "xhigh")


class Body(BaseModel):
    """A client's body: known fields are checked strictly, unknown ones are kept and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(Body):
    include_usage: bool | None = None


def validate(model: type[BodyT], data: dict[str, Any]) -> BodyT:
    """`data` as `model`. Raises InvalidRequest for the first error."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = _place(fault["loc"])
        what = f"{place!r} is missing" if fault["type"] == "missing" else f"Invalid {place!r}: {fault['msg']}"
        remedy = _REMEDIES.get(place)
        raise InvalidRequest(f"{what}{'' if remedy is None else f'; {remedy}'}.", param=place) from None


_REMEDIES = {
    "model": "GET /v1/models lists them",
    "messages": "send a list of messages",
    **dict.fromkeys(("max_output_tokens", "max_tokens", "max_completion_tokens"), "leave it out for no limit"),
}


def _place(loc: Iterable[int | str]) -> str:
    place = ""
    for step in loc:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    return place


MAX_DEPTH = 64
ENCRYPTED = "reasoning.encrypted_content"
"""The `include` of a responses request that asks for encrypted reasoning."""
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
    """Refuse deep nesting, level by level, before recursive code reads it."""
    level = [data]
    for _ in range(MAX_DEPTH):
        # A body may have millions of values, and all requests wait for this.
        values = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [value for value in values if type(value) in _CONTAINERS]
        if not level:
            return
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="nesting_too_deep")


def read_tier(tier: str | None) -> str | None:
    """A service tier; None for values that mean the default."""
    return None if tier in ("auto", "default", "") else tier


def invalid(place: str, why: str, **options: Any) -> InvalidRequest:
    """The error for an invalid member at `place`."""
    return InvalidRequest(f"Invalid {place!r}: {why}.", param=place, **options)


def read_object(value: Any, place: str) -> dict[str, Any]:
    """A JSON object at `place`."""
    if not isinstance(value, dict):
        raise invalid(place, "expected an object")
    return value


def read_list(value: Any, place: str) -> list[Any]:
    """A list at `place`."""
    if not isinstance(value, list):
        raise invalid(place, "expected a list")
    return value


def read_string(value: Any, place: str) -> str:
    """A string at `place`."""
    if not isinstance(value, str):
        raise invalid(place, "expected a string")
    return value
