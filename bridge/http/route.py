"""An entry of the route table: what answers a request, and what the OpenAPI description says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from bridge.http.request import Handler

STRING: Mapping[str, Any] = {"type": "string"}


class Parameter(NamedTuple):
    """A parameter of a route; `schema` is a JSON Schema."""

    location: str
    """path, query or header."""
    name: str
    description: str
    schema: Mapping[str, Any] = STRING
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    `{name}` in the pattern stands for one segment of the path, `{name:path}` for all that follow.
    """

    method: str
    pattern: str
    handler: Handler
    name: str
    """OpenAPI's operationId."""
    summary: str
    description: str = ""
    _: KW_ONLY
    tag: str
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    """What the client sends: a protocol, or a name in `bridge.protocols.openapi.requests.BODIES`."""
    answer: str | None = None
    """The name of the schema of a JSON answer; None if the answer is not JSON."""
    streams: bool = False
    """Whether the answer can be a stream."""
    statuses: tuple[int, ...] = (200,)
    """Statuses of the answer."""
    errors: tuple[int, ...] = ()
    """Statuses of errors, in addition to those that every route with this method has."""
    runs_turn: bool = False
    needs_key: bool = True
    is_limited: bool = True
    """Whether the limits of a key apply."""
