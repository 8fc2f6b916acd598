"""What a request continues: an earlier response, a conversation, or single items that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import exact_json
from bridge.api.items import check_number, read_items
from bridge.api.responses.response import conversation_id
from bridge.errors import InvalidRequest
from bridge.store.base import Store, StoredResponse
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message, Part, RawItem, Text


@dataclass(frozen=True, slots=True)
class Continuation:
    """The items of what was before, as the API writes them; `count` of them make up the beginning of the turn."""

    context: tuple[dict[str, Any], ...] = ()
    count: int = 0


NOTHING = Continuation()


async def find_continuation(
    store: Store,
    key: str,
    data: dict[str, Any],
    *,
    enabled: bool,
    remembered: Mapping[str, Continuation] | None = None,
) -> Continuation:
    """What a body refers to. References in its input are put in place. Raises InvalidRequest for what is not there.

    `remembered` are responses that can be continued although they may not be stored; None where nothing is remembered.
    """
    previous, conversation = data.get("previous_response_id"), data.get("conversation")
    await _resolve_references(store, key, data)
    if previous is None and conversation is None:
        return NOTHING
    if previous is not None and conversation is not None:
        raise InvalidRequest(
            "A request continues a response or belongs to a conversation, not both.", param="previous_response_id"
        )
    if remembered is not None and isinstance(previous, str) and previous in remembered:
        return remembered[previous]
    if not enabled:
        # Where responses are remembered, this one could have been continued earlier: clients know a code for that.
        is_forgotten = remembered is not None and previous is not None
        raise InvalidRequest(
            "Responses are not stored here (PROXY_STORE=off): send the whole conversation in 'input'.",
            param="conversation" if previous is None else "previous_response_id",
            code="previous_response_not_found" if is_forgotten else "unsupported_parameter",
        )
    if previous is not None:
        return continue_from(await find_chain(store, key, previous))
    name = conversation_id(data)
    items = await store.list_items(key, name) if name is not None else None
    if items is None:
        raise conversation_not_found(name)
    return continue_with([exact_json.loads(item) for item in items])


def continue_from(chain: Iterable[StoredResponse]) -> Continuation:
    """Everything that was said in a chain of responses."""
    items: list[dict[str, Any]] = []
    for response in chain:
        items += exact_json.loads(response.input)
        items += exact_json.loads(response.body)["output"]
    return continue_with(items)


async def find_chain(store: Store, key: str, response_id: Any) -> list[StoredResponse]:
    """A response and all before it. Raises InvalidRequest with the code that clients know."""
    chain = await store.chain(key, response_id) if isinstance(response_id, str) else None
    if chain is None:
        raise InvalidRequest(
            f"Previous response with id {str(response_id)[:100]!r} not found. It may have expired, or was not "
            "stored: send the whole conversation in 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    status = exact_json.loads(chain[-1].body)["status"]
    if status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"The response {response_id!r} is {status}: only a completed one can be continued.",
            param="previous_response_id",
            code="previous_response_not_completed",
        )
    return chain


def conversation_not_found(name: str | None) -> InvalidRequest:
    """The error for a conversation that is not there."""
    return InvalidRequest(
        f"Conversation with id {str(name)[:100]!r} not found. POST /v1/conversations makes one.",
        param="conversation",
        code="conversation_not_found",
        http_status=404,
    )


def continue_with(items: list[dict[str, Any]]) -> Continuation:
    """What continues after these items."""
    return Continuation(tuple(items), len(read_items(items, "previous")))


async def _resolve_references(store: Store, key: str, data: dict[str, Any]) -> None:
    items = data.get("input")
    if not isinstance(items, list):
        return
    check_number(len(items), "input")
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "item_reference" and isinstance(item.get("id"), str):
            found = await store.find_item(key, item["id"])
            if found is not None:
                items[index] = exact_json.loads(found)


def item_objects(items: Iterable[Item], new_id: Callable[[str], str]) -> list[dict[str, Any]]:
    """Items as the API writes them, each with an id."""
    return [_object(item, new_id) for item in items]


def _object(item: Item, new_id: Callable[[str], str]) -> dict[str, Any]:
    if isinstance(item, Message):
        kind = "output_text" if item.role == "assistant" else "input_text"
        content = [_part(part, kind) for part in item.parts]
        return {
            "id": new_id("msg"),
            "type": "message",
            "role": item.role,
            "status": "completed",
            "content": content,
        }
    if isinstance(item, FunctionCall):
        kind, member = ("custom_tool_call", "input") if item.custom else ("function_call", "arguments")
        namespace = {} if item.namespace is None else {"namespace": item.namespace}
        return {
            "id": new_id("ctc" if item.custom else "fc"),
            "type": kind,
            "status": "completed",
            "call_id": item.call_id,
            "name": item.name,
            member: item.arguments,
            **namespace,
        }
    if isinstance(item, FunctionOutput):
        plain = all(isinstance(part, Text) for part in item.parts)
        return {
            "id": new_id("fco"),
            "type": "custom_tool_call_output" if item.custom else "function_call_output",
            "status": "completed",
            "call_id": item.call_id,
            "output": item.text if plain else [_part(part, "input_text") for part in item.parts],
        }
    assert isinstance(item, RawItem)
    given = item.data.get("id")
    return {**item.data, "id": given if isinstance(given, str) and given else new_id("item")}


def _part(part: Part, kind: str) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
    extra: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": part.text, **extra}
