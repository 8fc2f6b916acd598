"""The models by name, their JSON Schemas, and the Path Item of a CAP service for an OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from bridge.protocols.cap import models, stream
from bridge.protocols.openapi import inlined

_NAMES = (
    *("ServiceRequest", "SessionContext", "Identity", "AgentRequest", "ServiceResponse", "HealthCheckResponse"),
    *("ChatMessage", "CitationBlock", "CitationItem", "ProgressUpdate", "MediaCarousel", "MediaItem", "MarkdownBlock"),
    *("UserError", "ThoughtTrace"),
)
MODELS: dict[str, TypeAdapter[Any]] = {
    **{name: TypeAdapter(getattr(models, name)) for name in _NAMES},
    "StreamError": TypeAdapter(stream.StreamError),
    "StreamPacket": stream.PACKET,
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
