"""The packets of a stream: their models, framing, and what a whole stream amounts to; then a service's contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field, TypeAdapter, model_serializer

from bridge import exact_json
from bridge.errors import UpstreamError
from bridge.protocols.cap import ConversationState, models
from bridge.protocols.cap.models import CapModel, dumped
from bridge.protocols.openapi import inlined
from bridge.protocols.sse import MAX_EVENT, SseReader, join_events

# Packets: one class per `op`

ErrorSeverity = Literal["transient", "fatal"]


class StreamError(CapModel):
    """Why a stream ended, or did not begin."""

    code: str
    message: str
    severity: Annotated[ErrorSeverity, Field(description="`transient`: a retry may succeed.")]
    details: dict[str, Any] | None = None


class DeltaPacket(CapModel):
    """A piece of the answer's text."""

    op: Literal["delta"]
    p: str


class EventPacket(CapModel):
    """Anything besides the text, usually a PresentationEvent. A string or null is accepted and means nothing."""

    op: Literal["event"]
    p: Annotated[dict[str, Any] | str | None, BeforeValidator(dumped)]

    @model_serializer
    def _whole(self) -> dict[str, Any]:
        # The default serializer leaves null fields out.
        return {"op": self.op, "p": self.p}


class ErrorPacket(CapModel):
    """The answer failed. Only the close packet follows."""

    op: Literal["error"]
    p: StreamError


class ClosePacket(CapModel):
    """The end. `p` is always written as null; on reading it may be missing, and any value is dropped."""

    op: Literal["close"]
    p: Annotated[None, BeforeValidator(lambda payload: None if isinstance(payload, str | dict) else payload)] = None

    @model_serializer
    def _whole(self) -> dict[str, Any]:
        return {"op": self.op, "p": None}


StreamPacket = Annotated[DeltaPacket | EventPacket | ErrorPacket | ClosePacket, Field(discriminator="op")]

PACKET: TypeAdapter[Any] = TypeAdapter(StreamPacket)

CLOSE_PACKET = b'{"op":"close","p":null}'


def parse_packet(data: bytes | str) -> StreamPacket:
    """One packet from its JSON. Raises pydantic's ValidationError, which is a ValueError."""
    return PACKET.validate_json(data)  # type: ignore[no-any-return]


# Framing: server-sent events with ids, or lines


class SseWriter:
    """Each packet as an event. The id is REQUEST_ID:NUMBER, with which a client can resume.

    From the second `attempt` at a request on, the id is REQUEST_ID:ATTEMPT:NUMBER: a client that has part of one
    answer must not continue with another.
    """

    def __init__(self, request_id: UUID, attempt: int = 1) -> None:
        prefix = f"{request_id}:" if attempt == 1 else f"{request_id}:{attempt}:"
        self._head = b"event: stream.packet\nid: %b" % prefix.encode()

    def write(self, packets: Sequence[bytes], first: int) -> bytes:
        """The bytes of consecutive packets, of which the first has the number `first`."""
        head = self._head
        if len(packets) == 1:
            # The usual case of a slow model: nothing to join.
            event = b"%b%d\ndata: %b\n\n" % (head, first, packets[0])
            return event if event.isascii() else join_events([event])
        return join_events([b"%b%d\ndata: %b\n\n" % (head, at, packet) for at, packet in enumerate(packets, first)])


class LineWriter:
    """Each packet as a line of JSON, without its number."""

    def write(self, packets: Sequence[bytes], first: int) -> bytes:
        return join_events([b"%b\n" % packet for packet in packets])


def resume_point(last_event_id: str, request_id: UUID) -> tuple[int, int] | None:
    """(attempt, number) of the last packet that a client has, from its id; None if it is of another request."""
    name, *counts = last_event_id.split(":", 3)
    if name.lower() != str(request_id) or len(counts) not in (1, 2):
        return None
    if not all(count.isascii() and count.isdigit() and len(count) <= 18 for count in counts):
        return None
    return int(counts[0]) if len(counts) == 2 else 1, int(counts[-1])


class PacketReader(SseReader):
    """Server-sent events as packets with their ids. Event names are ignored."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        super().__init__(max_event)
        self._id = ""
        self._ids: list[str] = []

    def packets(self, chunk: bytes) -> list[tuple[str, StreamPacket]]:
        """(id, packet) of the events that are complete now. Raises ValueError for an invalid or too large event."""
        try:
            events = self.feed(chunk)
        except UpstreamError as error:
            raise ValueError(error.message) from None
        ids, self._ids = self._ids, []
        return [(name, parse_packet(event)) for name, event in zip(ids, events, strict=True)]

    def _line(self, line: bytes, events: list[bytes]) -> None:
        complete = len(events)
        super()._line(line, events)
        if len(events) > complete:
            self._ids.append(self._id)
        elif line.startswith(b"id:"):
            self._id = line.removeprefix(b"id:").removeprefix(b" ").decode("latin-1")


# The whole stream

INCOMPLETE = 206
"""The code of the notice that an answer is incomplete."""


def fold_packets(
    packets: Iterable[bytes], conversation: tuple[str, ConversationState] | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(output, metrics) of the ServiceResponse with the same content as these packets of a turn that did not fail.

    The conversation's id and state are not in the stream.
    """
    text: list[str] = []
    status = "completed"
    metrics: dict[str, Any] | None = None
    lists: dict[str, list[Any]] = {"citations": [], "tool_calls": [], "reasoning": [], "notices": []}
    for packet in map(exact_json.loads, packets):
        payload = packet["p"]
        if packet["op"] == "delta":
            text.append(payload)
        if packet["op"] != "event":
            continue
        kind, data = payload["type"], payload["data"]
        if kind == "citation_block":
            lists["citations"] += data["items"]
        elif kind == "tool_call" and data["state"] != "running":
            lists["tool_calls"].append(data)
        elif kind == "thought_trace" and data.pop("final"):
            lists["reasoning"].append(data)
        elif kind == "user_error":
            lists["notices"].append(data)
            status = "incomplete" if data["code"] == INCOMPLETE else status
        elif kind == "metrics":
            metrics = data
    about = {} if conversation is None else {"conversation_id": conversation[0], "conversation": conversation[1]}
    present = {name: found for name, found in lists.items() if found}
    return {"text": "".join(text), **about, "status": status, **present}, metrics


# The contract: the models by name, their JSON Schemas, and the Path Item of a service for an OpenAPI document

_NAMES = (
    *("ServiceRequest", "SessionContext", "Identity", "AgentRequest", "ServiceResponse", "HealthCheckResponse"),
    *("ChatMessage", "CitationBlock", "CitationItem", "ProgressUpdate", "MediaCarousel", "MediaItem", "MarkdownBlock"),
    *("UserError", "ThoughtTrace"),
)
MODELS: dict[str, TypeAdapter[Any]] = {
    **{name: TypeAdapter(getattr(models, name)) for name in _NAMES},
    "StreamError": TypeAdapter(StreamError),
    "StreamPacket": PACKET,
    "PresentationEvent": models.EVENT,
}

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def model_schema(name: str) -> dict[str, Any]:
    """The self-contained JSON Schema of one model. Raises KeyError for an unknown name."""
    return {"$schema": DIALECT, "title": name, **MODELS[name].json_schema()}


def components() -> dict[str, Any]:
    """The schemas of all models for `components.schemas` of a document, where they refer to each other."""
    inputs: list[tuple[str, Any, TypeAdapter[Any]]] = [(name, "validation", each) for name, each in MODELS.items()]
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    found = {str(name): schema for (name, _), schema in schemas.items()}
    return {**found, **definitions.get("$defs", {})}


class ServiceContract:
    """The operation of a CAP service in OpenAPI 3.1, under the name that the specification gives it."""

    @staticmethod
    def generate_openapi() -> dict[str, Any]:
        """A bare Path Item: one POST with a ServiceRequest that returns a ServiceResponse.

        The schemas are inlined: a reference would resolve differently depending on the document around it.
        """
        body, answer = (
            {"content": {"application/json": {"schema": inlined(model.model_json_schema())}}}
            for model in (models.ServiceRequest, models.ServiceResponse)
        )
        answered = {"200": {"description": "Successful Response", **answer}}
        return {"post": {"summary": "Invoke Agent", "requestBody": body, "responses": answered}}
