"""Names in the API, a protocol buffer in JSON: each has two spellings, `toolConfig` and `tool_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from bridge.protocols.reading import Body


class Spelled(Body):
    """A message of the API: members in either spelling."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


def member(data: Mapping[str, Any], name: str) -> Any:
    """A member in either spelling; `name` is the one with capitals."""
    if name in data:
        return data[name]
    return data.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))
