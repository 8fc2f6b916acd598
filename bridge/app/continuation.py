"""What a request continues: an earlier response, a conversation, or single items that it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

from bridge import exact_json
from bridge.core.items import Message
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.items import check_number, read_items
from bridge.protocols.reading import conversation_id
from bridge.store.base import Store, StoredResponse

MAX_FIRST = 4096
"""Characters of a conversation's first message that distinguish it from others."""


def session_of(data: dict[str, Any], turn: Turn, key: str) -> str:
    """The conversation's key in the provider's cache, made of the client's own name for it, or else of how it began.

    The client's key is part of it, so that clients never share a session.
    """
    named = turn.session or data.get("prompt_cache_key")
    first = turn.items[0]
    beginning = first.text[:MAX_FIRST] if isinstance(first, Message) else ""
    begun = (named,) if isinstance(named, str) and named else (turn.instructions, beginning)
    digest = blake2b(repr((key, *begun)).encode("utf-8", "replace"), digest_size=16)
    return str(UUID(bytes=digest.digest()))


@dataclass(frozen=True, slots=True)
class Continuation:
    """The earlier items as JSON objects; the turn begins with `count` items made of them."""

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
    """What a request continues. References in its input are replaced. Raises InvalidRequest if something is missing.

    `remembered` are responses that can be continued without being stored; None if the caller remembers none.
    """
    previous, conversation = data.get("previous_response_id"), data.get("conversation")
    await _resolve_references(store, key, data)
    if previous is None and conversation is None:
        return NOTHING
    if previous is not None and conversation is not None:
        raise InvalidRequest(
            "A request must name either 'previous_response_id' or 'conversation', not both.",
            param="previous_response_id",
        )
    if remembered is not None and isinstance(previous, str) and previous in remembered:
        return remembered[previous]
    if not enabled:
        # A connection that remembers responses could have continued this one earlier: clients know a code for that.
        is_forgotten = remembered is not None and previous is not None
        raise InvalidRequest(
            "Responses are not stored (PROXY_STORE=off). Send the whole conversation in 'input'.",
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
    """The inputs and outputs of a chain of responses."""
    items: list[dict[str, Any]] = []
    for response in chain:
        items += exact_json.loads(response.input)
        items += exact_json.loads(response.body)["output"]
    return continue_with(items)


async def find_chain(store: Store, key: str, response_id: Any) -> list[StoredResponse]:
    """A response and all that precede it. Raises InvalidRequest with the code that clients expect."""
    chain = await store.chain(key, response_id) if isinstance(response_id, str) else None
    if chain is None:
        raise InvalidRequest(
            f"Previous response with id {str(response_id)[:100]!r} not found. It may have expired, or was not "
            "stored. Send the whole conversation in 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    status = exact_json.loads(chain[-1].body)["status"]
    if status not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"The response {response_id!r} is {status}. Only a completed response can be continued.",
            param="previous_response_id",
            code="previous_response_not_completed",
        )
    return chain


def conversation_not_found(name: str | None) -> InvalidRequest:
    """The error for an unknown conversation."""
    return InvalidRequest(
        f"Conversation with id {str(name)[:100]!r} not found. Create one with POST /v1/conversations.",
        param="conversation",
        code="conversation_not_found",
        http_status=404,
    )


def continue_with(items: list[dict[str, Any]]) -> Continuation:
    """The continuation of these items."""
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
