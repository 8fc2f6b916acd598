"""The packets of a stream: one class for each `op`, with the payload that belongs to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_serializer

from bridge.api.cap.base import CapModel, dumped
from bridge.api.cap.presentation import EVENT, PresentationEvent


class StreamOpCode(StrEnum):
    """What a packet brings."""

    DELTA = "delta"
    EVENT = "event"
    ERROR = "error"
    CLOSE = "close"


class ErrorSeverity(StrEnum):
    """`transient`: trying again is sensible."""

    TRANSIENT = "transient"
    FATAL = "fatal"


class StreamError(CapModel):
    """Why a stream ended, or why there is none."""

    code: str
    message: str
    severity: ErrorSeverity
    details: dict[str, Any] | None = None


class DeltaPacket(CapModel):
    """A piece of the answer's text."""

    op: Literal[StreamOpCode.DELTA]
    p: str


class EventPacket(CapModel):
    """Something besides the text; usually a PresentationEvent. A text or null is read, too, and means nothing."""

    op: Literal[StreamOpCode.EVENT]
    p: Annotated[dict[str, Any] | str | None, BeforeValidator(dumped)]

    @model_serializer
    def _whole(self) -> dict[str, Any]:
        return {"op": self.op, "p": self.p}

    def presentation(self) -> PresentationEvent | None:
        """The event as one of the six; None when it is something else."""
        try:
            return EVENT.validate_python(self.p)  # type: ignore[no-any-return]
        except ValidationError:
            return None


class ErrorPacket(CapModel):
    """The answer failed. Nothing but the close packet follows."""

    op: Literal[StreamOpCode.ERROR]
    p: StreamError


def _nothing(payload: Any) -> Any:
    return None if isinstance(payload, str | dict) else payload


class ClosePacket(CapModel):
    """The end. `p` is always written; read, it may be missing, and what stands there is dropped."""

    op: Literal[StreamOpCode.CLOSE]
    p: Annotated[None, BeforeValidator(_nothing)] = None

    @model_serializer
    def _whole(self) -> dict[str, Any]:
        # An ordinary member that is null would be left out.
        return {"op": self.op, "p": None}


StreamPacket = Annotated[DeltaPacket | EventPacket | ErrorPacket | ClosePacket, Field(discriminator="op")]

PACKET: TypeAdapter[Any] = TypeAdapter(StreamPacket)
"""Reads any of them."""

CLOSE = ClosePacket(op=StreamOpCode.CLOSE)


def read_packet(data: bytes | str) -> StreamPacket:
    """One packet from its JSON. Raises pydantic's ValidationError, which is a ValueError."""
    return PACKET.validate_json(data)  # type: ignore[no-any-return]


def delta(text: str) -> DeltaPacket:
    """The packet of a piece of text."""
    return DeltaPacket(op=StreamOpCode.DELTA, p=text)


def event(payload: PresentationEvent | dict[str, Any]) -> EventPacket:
    """The packet of an event."""
    return EventPacket(op=StreamOpCode.EVENT, p=payload)  # type: ignore[arg-type]


def error(payload: StreamError) -> ErrorPacket:
    """The packet of an error."""
    return ErrorPacket(op=StreamOpCode.ERROR, p=payload)
