"""Requests and answers as wholes, health, and messages of a conversation."""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from bridge.api.cap.base import CapModel, MayBeAbsent, Time, absent


class Identity(CapModel):
    """Somebody, as the sender of the request says. `role` is free text and grants nothing."""

    id: str
    name: str
    role: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @classmethod
    def anonymous(cls) -> Identity:
        """Nobody in particular."""
        return cls(id="anonymous", name="Anonymous User", role="user")


class SessionContext(CapModel):
    """Who asks, in which session, and which agent."""

    session_id: str
    user: Identity
    agent: Identity | None = None


class AgentRequest(CapModel):
    """What is asked. A request that has a parent names its root; one without is its own root."""

    request_id: MayBeAbsent[UUID] = absent()
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    query: str
    files: list[str] = Field(default_factory=list)
    conversation_id: str | None = None
    session_id: str | None = None
    # Shared with nobody: whoever made the request may go on changing theirs.
    meta: Annotated[dict[str, Any], AfterValidator(deepcopy)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_root(self) -> AgentRequest:
        if self.root_request_id is None:
            if self.parent_request_id is not None:
                raise ValueError("a request with a parent names its root")
            object.__setattr__(self, "root_request_id", self.request_id)
        return self


class ServiceRequest(CapModel):
    """The envelope. A payload without an id of its own has the envelope's."""

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


class HealthCheckStatus(StrEnum):
    """`maintenance`: no new requests are taken."""

    OK = "ok"
    DEGRADED = "degraded"
    MAINTENANCE = "maintenance"


class HealthCheckResponse(CapModel):
    """How the service is."""

    status: HealthCheckStatus
    agent_id: UUID
    version: str
    uptime_seconds: float = Field(ge=0, allow_inf_nan=False)


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ChatMessage(CapModel):
    """One message of a conversation."""

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    timestamp: MayBeAbsent[Time] = absent()

    @classmethod
    def system(cls, content: str, *, name: str | None = None, timestamp: datetime | None = None) -> ChatMessage:
        """What an operator says."""
        return cls(role=Role.SYSTEM, content=content, name=name, **_at(timestamp))

    @classmethod
    def user(cls, content: str, *, name: str | None = None, timestamp: datetime | None = None) -> ChatMessage:
        """What a person says."""
        return cls(role=Role.USER, content=content, name=name, **_at(timestamp))

    @classmethod
    def assistant(cls, content: str, *, name: str | None = None, timestamp: datetime | None = None) -> ChatMessage:
        """What the model says."""
        return cls(role=Role.ASSISTANT, content=content, name=name, **_at(timestamp))

    @classmethod
    def tool(
        cls, tool_call_id: str, content: str, *, name: str | None = None, timestamp: datetime | None = None
    ) -> ChatMessage:
        """What a tool gave back for a call. Raises ValueError where no call is named."""
        if not tool_call_id:
            raise ValueError("'tool_call_id' is empty: name the call")
        return cls(role=Role.TOOL, content=content, name=name, tool_call_id=tool_call_id, **_at(timestamp))


def _at(timestamp: datetime | None) -> dict[str, Any]:
    return {} if timestamp is None else {"timestamp": timestamp}
