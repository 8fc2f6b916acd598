"""The models by name, their JSON Schemas, and the operation that a service offers, for an OpenAPI document."""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter

from bridge.api.cap.envelope import (
    AgentRequest,
    ChatMessage,
    HealthCheckResponse,
    Identity,
    ServiceRequest,
    ServiceResponse,
    SessionContext,
)
from bridge.api.cap.presentation import (
    EVENT,
    CitationBlock,
    CitationItem,
    MarkdownBlock,
    MediaCarousel,
    MediaItem,
    ProgressUpdate,
    ThoughtTrace,
    UserError,
)
from bridge.api.cap.stream import PACKET, StreamError

MODELS: dict[str, TypeAdapter[Any]] = {
    **{
        model.__name__: TypeAdapter(model)
        for model in (
            ServiceRequest,
            SessionContext,
            Identity,
            AgentRequest,
            ServiceResponse,
            StreamError,
            HealthCheckResponse,
            ChatMessage,
            CitationBlock,
            CitationItem,
            ProgressUpdate,
            MediaCarousel,
            MediaItem,
            MarkdownBlock,
            UserError,
            ThoughtTrace,
        )
    },
    "StreamPacket": PACKET,
    "PresentationEvent": EVENT,
}
"""Every model that has a name in the protocol."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"
COMPONENT = "#/components/schemas/{model}"


def model_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one model, complete in itself. Raises KeyError for a name that is none."""
    return {"$schema": DIALECT, "title": name, **MODELS[name].json_schema()}


class ServiceContract:
    """What a service takes and gives, in the words of OpenAPI 3.1."""

    @staticmethod
    def generate_openapi() -> dict[str, Any]:
        """A bare Path Item: one POST that takes a ServiceRequest and gives a ServiceResponse.

        Its schemas hold no references, so that they mean the same wherever the item is put.
        """
        return {
            "post": {
                "summary": "Invoke Agent",
                "requestBody": {"content": {"application/json": {"schema": _embedded(ServiceRequest)}}},
                "responses": {
                    "200": {
                        "description": "Successful Response",
                        "content": {"application/json": {"schema": _embedded(ServiceResponse)}},
                    }
                },
            }
        }

    @staticmethod
    def components() -> dict[str, Any]:
        """The schemas of all models for `components.schemas` of a document; they refer to each other there."""
        inputs: list[tuple[str, Any, TypeAdapter[Any]]] = [
            (name, "validation", adapter) for name, adapter in MODELS.items()
        ]
        schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=COMPONENT)
        found = dict(definitions.get("$defs", {}))
        for (name, _), schema in schemas.items():
            found.setdefault(str(name), schema)
        return found

    @staticmethod
    def operation() -> dict[str, Any]:
        """The POST of a whole document: every form of the answer and of a refusal, by reference to `components`."""
        error = {"schema": _reference("StreamError")}
        refusal = {
            "description": "Refused or failed before the first byte of the answer.",
            "content": {"application/vnd.coreason.error+json": error, "application/json": error},
        }
        # As a whole, a stream is text; what an event's data or a line holds is a StreamPacket.
        stream = {"schema": {"type": "string"}}
        return {
            "summary": "Invoke Agent",
            "operationId": "assist",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _reference("ServiceRequest")}},
            },
            "responses": {
                "200": {
                    "description": "The answer: whole, or a stream with one StreamPacket an event or a line.",
                    "content": {
                        "application/json": {"schema": _reference("ServiceResponse")},
                        "text/event-stream": stream,
                        "application/x-ndjson": stream,
                    },
                },
                "4XX": refusal,
                "5XX": refusal,
            },
        }


def _embedded(model: type[ServiceRequest | ServiceResponse]) -> dict[str, Any]:
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return cast(dict[str, Any], _inlined(schema, definitions))


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """A schema with each definition in the place of its references; none of them refers to itself."""
    if isinstance(schema, list):
        return [_inlined(entry, definitions) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in schema.items()}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": COMPONENT.format(model=name)}
