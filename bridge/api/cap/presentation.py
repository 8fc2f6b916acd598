"""Events for a user interface: one class for each `type`, with the payload that belongs to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AnyUrl, ConfigDict, Field, TypeAdapter, field_validator

from bridge.api.cap.base import CapModel, FreeObject, MayBeAbsent, Time, absent


class PresentationEventType(StrEnum):
    """What an event shows."""

    THOUGHT_TRACE = "thought_trace"
    CITATION_BLOCK = "citation_block"
    PROGRESS_INDICATOR = "progress_indicator"
    MEDIA_CAROUSEL = "media_carousel"
    MARKDOWN_BLOCK = "markdown_block"
    USER_ERROR = "user_error"


class ErrorDomain(StrEnum):
    """Where something went wrong."""

    CLIENT = "client"
    SYSTEM = "system"
    LLM = "llm"
    TOOL = "tool"
    SECURITY = "security"


# Payloads


class CitationItem(CapModel):
    """A source."""

    source_id: str
    uri: AnyUrl
    title: str
    snippet: str | None = None


class CitationBlock(CapModel):
    """Sources of what was said."""

    items: list[CitationItem]


class ProgressUpdate(CapModel):
    """How far something is; `progress_percent` is a fraction, from 0 to 1."""

    label: str
    status: Literal["running", "complete", "failed"]
    progress_percent: float | None = Field(None, ge=0, le=1)


class MediaItem(CapModel):
    """A picture, a sound or a film."""

    url: AnyUrl
    mime_type: str
    alt_text: str | None = None


class MediaCarousel(CapModel):
    """Media to look through."""

    items: list[MediaItem]


class MarkdownBlock(CapModel):
    """A text of its own."""

    content: str


class UserError(CapModel):
    """Part of the work failed, and the conversation goes on. Further members are kept.

    `code` is like an HTTP status; a word is read, too.
    """

    model_config = ConfigDict(extra="allow")

    message: str
    code: int | str | None = None
    domain: ErrorDomain = ErrorDomain.SYSTEM
    retryable: bool = False

    @field_validator("code")
    @classmethod
    def _number(cls, code: int | str | None) -> int | str | None:
        is_number = isinstance(code, str) and code.isascii() and code.isdigit() and len(code) < 10
        return int(code) if is_number and code is not None else code


class ThoughtTrace(CapModel):
    """A step of reasoning. Further members are kept."""

    model_config = ConfigDict(extra="allow")

    thought: str
    confidence: float | None = None


# Events


class _Event(CapModel):
    id: MayBeAbsent[UUID] = absent()
    timestamp: MayBeAbsent[Time] = absent()


class CitationEvent(_Event):
    """See `CitationBlock`."""

    type: Literal[PresentationEventType.CITATION_BLOCK]
    data: CitationBlock


class ProgressEvent(_Event):
    """See `ProgressUpdate`."""

    type: Literal[PresentationEventType.PROGRESS_INDICATOR]
    data: ProgressUpdate


class MediaEvent(_Event):
    """See `MediaCarousel`."""

    type: Literal[PresentationEventType.MEDIA_CAROUSEL]
    data: MediaCarousel


class MarkdownEvent(_Event):
    """See `MarkdownBlock`."""

    type: Literal[PresentationEventType.MARKDOWN_BLOCK]
    data: MarkdownBlock


class UserErrorEvent(_Event):
    """`data` is any object; usually a `UserError`."""

    type: Literal[PresentationEventType.USER_ERROR]
    data: FreeObject


class ThoughtEvent(_Event):
    """`data` is any object; usually a `ThoughtTrace`."""

    type: Literal[PresentationEventType.THOUGHT_TRACE]
    data: FreeObject


PresentationEvent = Annotated[
    CitationEvent | ProgressEvent | MediaEvent | MarkdownEvent | UserErrorEvent | ThoughtEvent,
    Field(discriminator="type"),
]

EVENT: TypeAdapter[Any] = TypeAdapter(PresentationEvent)
"""Reads any of them."""
