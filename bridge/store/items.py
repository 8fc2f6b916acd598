"""The items inside the JSON that a store keeps: which there are, and one of them by its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from bridge import exact_json
from bridge.store.base import StoredResponse


def item_id(item: bytes) -> str:
    """The id of one item. Raises `ValueError` for anything but a JSON object with an `id`."""
    members = exact_json.loads(item)
    if not isinstance(members, dict) or not isinstance(members.get("id"), str):
        raise ValueError("a conversation's item needs an id")
    id: str = members["id"]
    return id


def item_ids(response: StoredResponse) -> tuple[str, ...]:
    """The ids of all items that the response holds, each once."""
    return tuple({item["id"]: None for item in _items(response)})


def find_item(response: StoredResponse, id: str) -> bytes | None:
    """The item with that id, from the output or else the input."""
    for item in _items(response):
        if item["id"] == id:
            return exact_json.dumps(item)
    return None


def _items(response: StoredResponse) -> Iterator[dict[str, Any]]:
    """All items that have an id. Nothing here may fail: a response without readable items is still a response."""
    body = _loads(response.body)
    output = body.get("output") if isinstance(body, dict) else None
    for items in (output, _loads(response.input)):
        if isinstance(items, list):
            yield from (item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))


def _loads(text: bytes) -> Any:
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError:
        return None
