"""/v1/conversations: lists of items that grow with each response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import time
from typing import Any

from bridge import exact_json
from bridge.app.continuation import conversation_not_found
from bridge.errors import InvalidRequest
from bridge.http.pages import Page, PageRequest, json_page, list_page
from bridge.http.request import Parameter, Route
from bridge.protocols.items import read_items
from bridge.protocols.reading import Body, parse_json, validate
from bridge.protocols.responses.build import build_stored_items
from bridge.server.dispatch import LIST, STORED_ERRORS, MakeHandler
from bridge.store.base import Conversation, Store

MAX_ITEMS = 20
"""Items that one request may add, as in OpenAI's API."""


_CONVERSATION = Parameter("path", "id", "The id of a conversation of this key.")
_ITEM = Parameter("path", "item", "The id of an item of the conversation.")


class _Create(Body):
    items: list[Any] | None = None
    metadata: dict[str, str] | None = None


class ConversationPages:
    """The pages. Each raises BridgeError for what it cannot show."""

    def __init__(self, store: Store, new_id: Callable[[str], str], *, enabled: bool) -> None:
        self._store = store
        self._new_id = new_id
        self._enabled = enabled

    def routes(self, page: MakeHandler) -> list[Route]:
        """Their entries in the route table."""
        conversation = partial(Route, tag="Conversations", errors=STORED_ERRORS)
        return [
            conversation(
                "POST",
                "/v1/conversations",
                page(self.create),
                "createConversation",
                "Create a conversation",
                "A request names it in `conversation`. Without a body it is empty.",
                body="NewConversation",
                answer="Conversation",
                errors=(503,),
            ),
            conversation(
                "GET",
                "/v1/conversations/{id}",
                page(self.retrieve),
                "getConversation",
                "Get a conversation",
                parameters=(_CONVERSATION,),
                answer="Conversation",
            ),
            conversation(
                "POST",
                "/v1/conversations/{id}",
                page(self.update),
                "updateConversation",
                "Replace the metadata of a conversation",
                parameters=(_CONVERSATION,),
                body="ConversationUpdate",
                answer="Conversation",
            ),
            conversation(
                "DELETE",
                "/v1/conversations/{id}",
                page(self.delete),
                "deleteConversation",
                "Delete a conversation",
                parameters=(_CONVERSATION,),
                answer="DeletedConversation",
            ),
            conversation(
                "GET",
                "/v1/conversations/{id}/items",
                page(self.list_items),
                "listConversationItems",
                "List the items of a conversation",
                parameters=(_CONVERSATION, *LIST),
                answer="ItemList",
            ),
            conversation(
                "POST",
                "/v1/conversations/{id}/items",
                page(self.add_items),
                "addConversationItems",
                "Add items to a conversation",
                f"At most {MAX_ITEMS} at once. The answer has only the added items.",
                parameters=(_CONVERSATION,),
                body="NewItems",
                answer="ItemList",
            ),
            conversation(
                "GET",
                "/v1/conversations/{id}/items/{item}",
                page(self.retrieve_item),
                "getConversationItem",
                "Get an item",
                parameters=(_CONVERSATION, _ITEM),
                answer="Item",
            ),
            conversation(
                "DELETE",
                "/v1/conversations/{id}/items/{item}",
                page(self.delete_item),
                "deleteConversationItem",
                "Delete an item",
                parameters=(_CONVERSATION, _ITEM),
                answer="Conversation",
            ),
        ]

    async def create(self, request: PageRequest) -> Page:
        """POST /v1/conversations."""
        if not self._enabled:
            raise InvalidRequest(
                "Conversations are not stored (PROXY_STORE=off). Send the whole conversation in 'input'.",
                code="unsupported_parameter",
            )
        body = validate(_Create, parse_json(request.body) if request.body.strip() else {})
        conversation = Conversation(self._new_id("conv"), int(time()), body.metadata or {})
        items = self._read(body.items or [])
        await self._store.create_conversation(request.key, conversation, [exact_json.dumps(item) for item in items])
        return json_page(_object(conversation))

    async def retrieve(self, request: PageRequest) -> Page:
        """GET /v1/conversations/{id}."""
        return json_page(_object(_found(request, await self._store.get_conversation(request.key, request.path["id"]))))

    async def update(self, request: PageRequest) -> Page:
        """POST /v1/conversations/{id}: new metadata."""
        body = validate(_Create, parse_json(request.body))
        name = request.path["id"]
        return json_page(
            _object(_found(request, await self._store.update_conversation(request.key, name, body.metadata or {})))
        )

    async def delete(self, request: PageRequest) -> Page:
        """DELETE /v1/conversations/{id}."""
        name = request.path["id"]
        if not await self._store.delete_conversation(request.key, name):
            raise conversation_not_found(name)
        return json_page({"id": name, "object": "conversation.deleted", "deleted": True})

    async def list_items(self, request: PageRequest) -> Page:
        """GET /v1/conversations/{id}/items."""
        return list_page(await self._items(request), request.query)

    async def add_items(self, request: PageRequest) -> Page:
        """POST /v1/conversations/{id}/items."""
        body = validate(_Create, parse_json(request.body))
        before = await self._items(request)
        items = self._read(body.items or [], before)
        if not items:
            raise InvalidRequest("'items' must not be empty.", param="items")
        await self._store.add_items(request.key, request.path["id"], [exact_json.dumps(item) for item in items])
        return list_page(items, {"order": "asc", "limit": "100"})

    async def retrieve_item(self, request: PageRequest) -> Page:
        """GET /v1/conversations/{id}/items/{item}."""
        for item in await self._items(request):
            if item["id"] == request.path["item"]:
                return json_page(item)
        raise _no_item(request)

    async def delete_item(self, request: PageRequest) -> Page:
        """DELETE /v1/conversations/{id}/items/{item}: answers with the conversation."""
        conversation = _found(request, await self._store.get_conversation(request.key, request.path["id"]))
        if not await self._store.delete_item(request.key, request.path["id"], request.path["item"]):
            raise _no_item(request)
        return json_page(_object(conversation))

    async def _items(self, request: PageRequest) -> list[dict[str, Any]]:
        items = await self._store.list_items(request.key, request.path["id"])
        if items is None:
            raise conversation_not_found(request.path["id"])
        return [exact_json.loads(item) for item in items]

    def _read(self, given: list[Any], before: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
        if len(given) > MAX_ITEMS:
            raise InvalidRequest(f"'items' must have at most {MAX_ITEMS} entries.", param="items")
        known = read_items(before or (), "previous")
        return build_stored_items(read_items(given, "items", known)[len(known) :], self._new_id)


def _object(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
    }


def _found(request: PageRequest, conversation: Conversation | None) -> Conversation:
    if conversation is None:
        raise conversation_not_found(request.path["id"])
    return conversation


def _no_item(request: PageRequest) -> InvalidRequest:
    return InvalidRequest(
        f"Item with id {request.path['item'][:100]!r} not found in this conversation.",
        code="item_not_found",
        http_status=404,
    )
