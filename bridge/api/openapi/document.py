"""The OpenAPI document of the whole bridge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from bridge.api.openapi import cap, chat, conversations, errors, headers, input_items, items, pages, responses, tools
from bridge.api.openapi.schemas import Json

_DESCRIPTION = """Any OpenAI client talks to a Codex app-server as if it were a model API.

* **Key**: every path but the probes wants one, as `Authorization: Bearer KEY` or as `x-api-key: KEY`; both may
  hold the same key. What is stored belongs to the key that made it.
* **Errors** have OpenAI's form, on CAP's paths that of a StreamError. A method that a path does not have is 405, and a
  path that is not listed here 404. HEAD works wherever GET does.
* **Members of a body** that nobody knows are not refused. What was asked for and could not be done is named in the
  header `x-bridge-dropped`.
* **Requests** have an id, which is in the header `x-request-id` of the answer. What the client calls its request
  (`x-client-request-id`, 1 to 128 of `A-Z a-z 0-9 . _ -`) stands beside it in the logs, and comes back.
* **WebSockets**: `/v1/responses` takes `{"type": "response.create", …}` messages with the members of POST, and sends
  each event as one message. `/v1/assist/ws` takes a ServiceRequest and sends one packet a message.
"""

_TAGS = {
    "Responses": "The Responses API: answers, stored and continued.",
    "Chat": "The chat completions API.",
    "Conversations": "Lists of items that grow with each response made in them.",
    "Models": "What a request may name.",
    "Usage": "What was used, and what is left.",
    "CAP": "The Coreason Agent Protocol.",
    "Health": "Probes, and this document.",
}

_PATHS: tuple[Mapping[str, Json], ...] = (
    responses.PATHS,
    chat.PATHS,
    conversations.PATHS,
    pages.PATHS,
    cap.PATHS,
)
_SCHEMAS: tuple[Mapping[str, Json], ...] = (
    errors.SCHEMAS,
    responses.SCHEMAS,
    chat.SCHEMAS,
    conversations.SCHEMAS,
    input_items.SCHEMAS,
    tools.SCHEMAS,
    items.SCHEMAS,
    pages.SCHEMAS,
    cap.SCHEMAS,
)


def document(version: str) -> Json:
    """The document, OpenAPI 3.1: the same for the same `version` of the bridge, and the caller's own to change."""
    return deepcopy(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "codex-bridge",
                "version": version,
                "description": _DESCRIPTION,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": "/", "description": "The bridge that serves this document."}],
            "security": [{"bearer": []}, {"apiKey": []}],
            "tags": [{"name": name, "description": description} for name, description in _TAGS.items()],
            "paths": _joined(_PATHS),
            "components": {
                "schemas": _joined(_SCHEMAS),
                "responses": _joined((errors.RESPONSES, cap.RESPONSES)),
                "headers": headers.HEADERS,
                "parameters": headers.PARAMETERS,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": "The bridge's key."},
                    "apiKey": {
                        "type": "apiKey",
                        "in": "header",
                        "name": "x-api-key",
                        "description": "The same key, for clients that send it so.",
                    },
                },
            },
        }
    )


def _joined(parts: Iterable[Mapping[str, Json]]) -> Json:
    """All of them in one. Raises ValueError for a name that two of them have."""
    found: Json = {}
    for part in parts:
        if twice := found.keys() & part.keys():
            raise ValueError(f"defined twice: {sorted(twice)}")
        found |= part
    return found
