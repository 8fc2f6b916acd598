"""A client's body as a model: what is known of it is checked. Apart from `reading`, since pydantic is slow to load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bridge.errors import InvalidRequest

BodyT = TypeVar("BodyT", bound="Body")

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


class Body(BaseModel):
    """A client's body: fields we know are checked strictly, unknown ones are kept and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def validate(model: type[BodyT], data: dict[str, Any]) -> BodyT:
    """`data` as `model`. Raises InvalidRequest for the first fault."""
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
