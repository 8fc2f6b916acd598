"""The parts of a conversation, independent of the protocol of a client or a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "developer", "user", "assistant"]


def full_name(namespace: str | None, name: str) -> str:
    """A function's name with its namespace, as it is offered in text."""
    return name if namespace is None else f"{namespace}.{name}"


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text of any role."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image as a data URL; `detail` as the client gave it."""

    url: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A file that the model's provider opens, such as a PDF: a data URL with base64, or the address of the file."""

    url: str
    name: str | None = None

    @property
    def media_type(self) -> str | None:
        """Of a data URL, the type in it."""
        head, comma, _ = self.url.partition(",")
        return head[len("data:") :].partition(";")[0].lower() if comma and head[:5].lower() == "data:" else None


Part = Text | Image | Document


@dataclass(frozen=True, slots=True)
class Message:
    """A message of one role."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The text parts, one per line."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that the model made earlier; `arguments` is the exact JSON string, or a custom tool's text."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    custom: bool = False

    @property
    def full_name(self) -> str:
        """As in `FunctionTool`."""
        return full_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """The output of the client's function for `call_id`."""

    call_id: str
    parts: tuple[Part, ...]
    custom: bool = False

    @property
    def text(self) -> str:
        """The text parts, one per line."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class RawItem:
    """An item that only a Responses-speaking backend understands (reasoning, web search, …), kept verbatim."""

    type: str
    data: Mapping[str, Any]


FAILED = Text("[The tool reported an error.]")
"""The first part of an output that is an error. Most protocols have no flag for that, so their models read it."""

Item = Message | FunctionCall | FunctionOutput | RawItem


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function of the client. `parameters` is its JSON Schema, verbatim; None if it has none.

    A `custom` tool has one text as its input instead of JSON (see `bridge.tools.payload`); `raw` is its definition.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | bool | None = None
    strict: bool | None = None
    namespace: str | None = None
    raw: Mapping[str, Any] | None = None

    @property
    def custom(self) -> bool:
        """Whether its input is a text and not JSON."""
        return self.raw is not None

    @property
    def full_name(self) -> str:
        """The name that no other tool of the request has."""
        return full_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class RawTool:
    """A tool of another type (file_search, mcp, …), verbatim."""

    type: str
    data: Mapping[str, Any]


Tool = FunctionTool | RawTool


@dataclass(frozen=True, slots=True)
class WebSearchOptions:
    """How the provider may search the web. `location` has city, region, country and timezone, as far as known."""

    mode: Literal["cached", "live"] = "live"
    allowed_domains: tuple[str, ...] = ()
    context_size: str | None = None
    location: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto`, `none`, `required`, or `named` with the function's full name."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Structured output: `json_object`, or `json_schema` with its bare schema. `raw` is the client's own object."""

    type: Literal["json_object", "json_schema"]
    raw: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def name(self) -> str:
        """The name of the schema."""
        return self._member("name") or "output"

    @property
    def description(self) -> str | None:
        """The description of the schema."""
        return self._member("description")

    def _member(self, name: str) -> str | None:
        nested = self.raw.get("json_schema")
        value = (nested if isinstance(nested, dict) else self.raw).get(name)
        return value if isinstance(value, str) else None
