"""The messages of CAP as pydantic models: requests, answers, health, chat messages, and events for a user interface."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from copy import deepcopy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

T = TypeVar("T")


class CapModel(BaseModel):
    """A message. It is immutable; unknown members are ignored at every level."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def dump(self) -> dict[str, Any]:
        """The message as JSON values. Model fields that are null are left out; nulls in free objects stay."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_json(self) -> str:
        """The message as compact JSON: fields in declared order, only what JSON requires is escaped."""
        return self.model_dump_json(by_alias=True, exclude_none=True)

    def compute_hash(self, exclude: Collection[str] = ()) -> str:
        """The SHA-256 of the message with sorted keys, without the fields in `exclude`."""
        content = {name: value for name, value in self.dump().items() if name not in exclude}
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _as_utc(time: datetime) -> datetime:
    # The protocol says that all times are UTC.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def dumped(value: Any) -> Any:
    """Replaces a message by its JSON values."""
    return value.dump() if isinstance(value, CapModel) else value


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null is not allowed; leave it out")
    return value


if TYPE_CHECKING:
    MayBeAbsent: TypeAlias = T | None
else:
    # Pydantic sees no null here: the field may be left out, which reads as None, but it must not be null. Its own
    # message would only ask for a value of the type.
    MayBeAbsent = Annotated[T, BeforeValidator(_refuse_null)]


def absent() -> Any:
    """The default of a `MayBeAbsent` field. As a factory, because the schema must not show null as a legal value."""
    return Field(default_factory=lambda: None)


Time = Annotated[datetime, AfterValidator(_as_utc)]
FreeObject = Annotated[dict[str, Any], BeforeValidator(dumped)]
"""Any JSON object, or a message, which becomes its JSON object."""


# Envelopes


class Identity(CapModel):
    """A user or an agent, as the sender of the request names it. `role` is free text and grants nothing."""

    id: str
    name: str
    role: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @classmethod
    def anonymous(cls) -> Identity:
        return cls(id="anonymous", name="Anonymous User", role="user")


class SessionContext(CapModel):
    """The user, the session, and the agent that is addressed."""

    session_id: str
    user: Identity
    agent: Identity | None = None


class AgentRequest(CapModel):
    """The question. A request with a parent must name its root; without a parent it is its own root."""

    request_id: MayBeAbsent[UUID] = absent()
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    query: str
    files: list[str] = Field(default_factory=list)
    conversation_id: str | None = None
    session_id: str | None = None
    # Copied, because the caller may keep changing its own object.
    meta: Annotated[dict[str, Any], AfterValidator(deepcopy)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_root(self) -> AgentRequest:
        if self.root_request_id is None:
            if self.parent_request_id is not None:
                raise ValueError("a request with a parent names its root")
            object.__setattr__(self, "root_request_id", self.request_id)
        return self


class ServiceRequest(CapModel):
    """The envelope of a request. A payload without an id takes the envelope's."""

    request_id: UUID
    context: SessionContext
    payload: AgentRequest

    @field_validator("payload")
    @classmethod
    def _named(cls, payload: AgentRequest, info: ValidationInfo) -> AgentRequest:
        own = info.data.get("request_id")
        if payload.request_id is not None or own is None:
            return payload
        return payload.model_copy(update={"request_id": own, "root_request_id": payload.root_request_id or own})


class ServiceResponse(CapModel):
    """The answer to a request that is not streamed."""

    request_id: UUID
    created_at: Time
    output: dict[str, Any]
    metrics: dict[str, Any] | None = None


HealthCheckStatus = Literal["ok", "degraded", "maintenance"]


class HealthCheckResponse(CapModel):
    """The state of the service."""

    status: Annotated[HealthCheckStatus, Field(description="`maintenance`: the service accepts no new requests.")]
    agent_id: UUID
    version: str
    uptime_seconds: float = Field(ge=0, allow_inf_nan=False)


class ChatMessage(CapModel):
    """One message of a conversation."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], Field(description="The author.")]
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    timestamp: MayBeAbsent[Time] = absent()

    @classmethod
    def system(cls, content: str, **members: Any) -> ChatMessage:
        return cls(role="system", content=content, **members)

    @classmethod
    def user(cls, content: str, **members: Any) -> ChatMessage:
        return cls(role="user", content=content, **members)

    @classmethod
    def assistant(cls, content: str, **members: Any) -> ChatMessage:
        return cls(role="assistant", content=content, **members)

    @classmethod
    def tool(cls, tool_call_id: str, content: str, **members: Any) -> ChatMessage:
        """The output of a tool call. Raises ValueError if `tool_call_id` is empty."""
        if not tool_call_id:
            raise ValueError("'tool_call_id' is empty: name the call")
        return cls(role="tool", content=content, tool_call_id=tool_call_id, **members)


# Events for a user interface: the payloads, then one event class per payload


ErrorDomain = Literal["client", "system", "llm", "tool", "security"]


class CitationItem(CapModel):
    """A source."""

    source_id: str
    uri: AnyUrl
    title: str
    snippet: str | None = None


class CitationBlock(CapModel):
    """Sources of the answer."""

    items: list[CitationItem]


class ProgressUpdate(CapModel):
    """The state of one step. `progress_percent` is a fraction from 0 to 1, in spite of its name."""

    label: str
    status: Literal["running", "complete", "failed"]
    progress_percent: float | None = Field(None, ge=0, le=1)


class MediaItem(CapModel):
    """An image, a sound or a video."""

    url: AnyUrl
    mime_type: str
    alt_text: str | None = None


class MediaCarousel(CapModel):
    """Media to browse."""

    items: list[MediaItem]


class MarkdownBlock(CapModel):
    """A separate block of text."""

    content: str


class UserError(CapModel):
    """Part of the work failed, but the conversation continues. Unknown members are kept.

    `code` is like an HTTP status; a word is accepted, too.
    """

    model_config = ConfigDict(extra="allow")

    message: str
    code: int | str | None = None
    domain: Annotated[ErrorDomain, Field(description="The component that failed.")] = "system"
    retryable: bool = False

    @field_validator("code")
    @classmethod
    def _number(cls, code: int | str | None) -> int | str | None:
        is_number = isinstance(code, str) and code.isascii() and code.isdigit() and len(code) < 10
        return int(code) if is_number and code is not None else code


class ThoughtTrace(CapModel):
    """A step of reasoning. Unknown members are kept."""

    model_config = ConfigDict(extra="allow")

    thought: str
    confidence: float | None = None


class _Event(CapModel):
    id: MayBeAbsent[UUID] = absent()
    timestamp: MayBeAbsent[Time] = absent()


class CitationEvent(_Event):
    type: Literal["citation_block"]
    data: CitationBlock


class ProgressEvent(_Event):
    type: Literal["progress_indicator"]
    data: ProgressUpdate


class MediaEvent(_Event):
    type: Literal["media_carousel"]
    data: MediaCarousel


class MarkdownEvent(_Event):
    type: Literal["markdown_block"]
    data: MarkdownBlock


class UserErrorEvent(_Event):
    """`data` is any object, usually a `UserError`."""

    type: Literal["user_error"]
    data: FreeObject


class ThoughtEvent(_Event):
    """`data` is any object, usually a `ThoughtTrace`."""

    type: Literal["thought_trace"]
    data: FreeObject


PresentationEvent = Annotated[
    CitationEvent | ProgressEvent | MediaEvent | MarkdownEvent | UserErrorEvent | ThoughtEvent,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Any] = TypeAdapter(PresentationEvent)
