"""/v1/conversations and what is below it."""

from __future__ import annotations

from bridge.api.openapi.errors import OF_A_BODY, OF_THE_GATE, refusals
from bridge.api.openapi.items import LIST_PARAMETERS
from bridge.api.openapi.schemas import (
    SECONDS_SINCE_1970,
    STRING,
    Json,
    closed,
    const,
    json_content,
    json_request,
    list_of,
    opened,
    or_null,
    ref,
    response,
)

TAG = "Conversations"
MAX_ITEMS = 20
"""Items that one request may add."""

METADATA: Json = {"type": "object", "additionalProperties": STRING}
_ITEMS = list_of(ref("InputItem"), maxItems=MAX_ITEMS)

SCHEMAS: dict[str, Json] = {
    "Conversation": closed(
        {
            "id": {"type": "string", "pattern": "^conv_"},
            "object": const("conversation"),
            "created_at": SECONDS_SINCE_1970,
            "metadata": METADATA,
        }
    ),
    "DeletedConversation": closed({"id": STRING, "object": const("conversation.deleted"), "deleted": const(True)}),
    "NewConversation": opened(
        {},
        {"items": or_null(_ITEMS), "metadata": or_null(METADATA)},
        "What a conversation begins with. Other members are ignored.",
    ),
    "ConversationUpdate": opened(
        {},
        {"metadata": or_null(METADATA)},
        "The metadata that takes the place of the old; without it there is none. Other members are ignored.",
    ),
    "NewItems": opened(
        {"items": {**_ITEMS, "minItems": 1}},
        description="Items to add at the end. Other members are ignored.",
    ),
}

_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id of a conversation of this key.",
    "schema": STRING,
}
_ITEM = {
    "name": "item",
    "in": "path",
    "required": True,
    "description": "The id of an item of the conversation.",
    "schema": STRING,
}
_NOT_FOUND = (*OF_THE_GATE, 404, 503)


def _shown(description: str, schema: str) -> Json:
    return {"200": response(description, json_content(ref(schema)))}


PATHS: dict[str, Json] = {
    "/v1/conversations": {
        "post": {
            "operationId": "createConversation",
            "tags": [TAG],
            "summary": "Begin a conversation",
            "description": "A request names it in `conversation`. Without a body it is empty.",
            "requestBody": json_request(
                ref("NewConversation"),
                {
                    "items": (
                        "With items",
                        {"metadata": {"topic": "demo"}, "items": [{"role": "user", "content": "hi"}]},
                    )
                },
                required=False,
            ),
            "responses": {
                **_shown("The conversation.", "Conversation"),
                **refusals((*OF_THE_GATE, *OF_A_BODY, 503)),
            },
        }
    },
    "/v1/conversations/{id}": {
        "get": {
            "operationId": "getConversation",
            "tags": [TAG],
            "summary": "A conversation",
            "parameters": [_ID],
            "responses": {**_shown("The conversation.", "Conversation"), **refusals(_NOT_FOUND)},
        },
        "post": {
            "operationId": "updateConversation",
            "tags": [TAG],
            "summary": "Replace a conversation's metadata",
            "parameters": [_ID],
            "requestBody": json_request(
                ref("ConversationUpdate"), {"metadata": ("Metadata", {"metadata": {"topic": "demo"}})}
            ),
            "responses": {
                **_shown("The conversation.", "Conversation"),
                **refusals((*_NOT_FOUND, *OF_A_BODY)),
            },
        },
        "delete": {
            "operationId": "deleteConversation",
            "tags": [TAG],
            "summary": "Delete a conversation",
            "parameters": [_ID],
            "responses": {**_shown("It is gone.", "DeletedConversation"), **refusals(_NOT_FOUND)},
        },
    },
    "/v1/conversations/{id}/items": {
        "get": {
            "operationId": "listConversationItems",
            "tags": [TAG],
            "summary": "A conversation's items",
            "parameters": [_ID, *LIST_PARAMETERS],
            "responses": {**_shown("The items.", "ItemList"), **refusals(_NOT_FOUND)},
        },
        "post": {
            "operationId": "addConversationItems",
            "tags": [TAG],
            "summary": "Add items to a conversation",
            "description": f"At most {MAX_ITEMS} at once. The answer has the added items alone.",
            "parameters": [_ID],
            "requestBody": json_request(
                ref("NewItems"), {"message": ("A message", {"items": [{"role": "user", "content": "hi"}]})}
            ),
            "responses": {
                **_shown("The items that were added.", "ItemList"),
                **refusals((*_NOT_FOUND, *OF_A_BODY)),
            },
        },
    },
    "/v1/conversations/{id}/items/{item}": {
        "get": {
            "operationId": "getConversationItem",
            "tags": [TAG],
            "summary": "One item",
            "parameters": [_ID, _ITEM],
            "responses": {**_shown("The item.", "Item"), **refusals(_NOT_FOUND)},
        },
        "delete": {
            "operationId": "deleteConversationItem",
            "tags": [TAG],
            "summary": "Delete an item",
            "parameters": [_ID, _ITEM],
            "responses": {**_shown("The conversation.", "Conversation"), **refusals(_NOT_FOUND)},
        },
    },
}
