"""What all messages of CAP share: how they are read, and how they are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


class CapModel(BaseModel):
    """A message. It cannot be changed; members that nobody knows are ignored, at every level."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def dump(self) -> dict[str, Any]:
        """The message as JSON values. A member of a model that is null is left out; nulls in free objects stay."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_json(self) -> str:
        """The same as compact JSON: members in their declared order, nothing but what JSON demands is escaped."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    def compute_hash(self, exclude: Collection[str] = ()) -> str:
        """The SHA-256 of what the message says, whatever the order of its members; `exclude` names some of them."""
        said = {name: value for name, value in self.dump().items() if name not in exclude}
        return hashlib.sha256(json.dumps(said, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class _NotNull:
    """May be left out, but not be null: None says that it was left out."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_refuse_null, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        (given,) = (kind for kind in found.pop("anyOf") if kind != {"type": "null"})
        return {**found, **given}


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null is not allowed; leave it out")
    return value


def _as_utc(time: datetime) -> datetime:
    """A time without an offset is UTC, as the protocol says of all of them."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def dumped(value: Any) -> Any:
    """A message where its JSON is wanted."""
    return value.dump() if isinstance(value, CapModel) else value


MayBeAbsent = Annotated[T | None, _NotNull()]


def absent() -> Any:
    """The default of what may be left out; a schema does not show it, since nobody may write it."""
    return Field(default_factory=lambda: None)


Time = Annotated[datetime, AfterValidator(_as_utc)]
FreeObject = Annotated[dict[str, Any], BeforeValidator(dumped)]
"""A JSON object of any members, or one of the messages, which is then that object."""
