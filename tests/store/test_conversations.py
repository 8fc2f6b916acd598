"""Conversations in every store."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from store.stores import TTL, Clock, conversation, item, item_ids, json_items
from store.test_responses import ODD

from bridge.store.base import Conversation, Store


async def test_a_conversation_is_returned_as_it_was_created(store: Store) -> None:
    await store.create_conversation("s", conversation("c1", topic="é", a="b"), json_items("m2", "m1"))
    await store.create_conversation("s", conversation("c2"), [])
    assert await store.get_conversation("s", "c1") == conversation("c1", topic="é", a="b")
    assert await store.list_items("s", "c1") == json_items("m2", "m1")
    assert await store.list_items("s", "c2") == []


async def test_a_conversation_that_does_not_exist(store: Store) -> None:
    assert await store.get_conversation("s", "c1") is None
    assert await store.update_conversation("s", "c1", {}) is None
    assert not await store.delete_conversation("s", "c1")
    assert not await store.add_items("s", "c1", json_items("m1"))
    assert await store.list_items("s", "c1") is None
    assert not await store.delete_item("s", "c1", "m1")
    assert await store.get_conversation("s", "c1") is None


async def test_items_are_appended_in_order_and_taken_out(store: Store) -> None:
    await store.create_conversation("s", conversation("c1"), json_items("m1", "m2"))
    assert await store.add_items("s", "c1", json_items("m3", "m4"))
    assert await store.delete_item("s", "c1", "m2")
    assert not await store.delete_item("s", "c1", "m2")
    assert await store.add_items("s", "c1", json_items("m2"))
    assert await store.add_items("s", "c1", [])
    assert item_ids(await store.list_items("s", "c1")) == ["m1", "m3", "m4", "m2"]


async def test_an_item_that_is_there_already_is_replaced_where_it_stands(store: Store) -> None:
    await store.create_conversation("s", conversation("c1"), json_items("m1", "m2"))
    assert await store.add_items("s", "c1", json_items("m3", "m1", text="anew"))
    items = [json.loads(item) for item in await store.list_items("s", "c1") or []]
    assert items == [item("m1", "anew"), item("m2"), item("m3", "anew")]


@pytest.mark.parametrize("wrong", [b"{}", b"[]", b'{"id": 1}', b"no json"])
async def test_an_item_needs_an_id(store: Store, wrong: bytes) -> None:
    """Nothing of such a call is done."""
    await store.create_conversation("s", conversation("c1"), [])
    with pytest.raises(ValueError):
        await store.add_items("s", "c1", [*json_items("m1"), wrong])
    with pytest.raises(ValueError):
        await store.create_conversation("s", conversation("c2"), [wrong])
    assert await store.list_items("s", "c1") == []
    assert await store.get_conversation("s", "c2") is None


async def test_metadata_is_replaced(store: Store) -> None:
    """As a whole, and by value: the caller's dict is the caller's."""
    given = {"a": "1"}
    await store.create_conversation("s", Conversation("c1", 5, given), json_items("m1"))
    given["a"] = "changed"
    assert await store.get_conversation("s", "c1") == Conversation("c1", 5, {"a": "1"})
    given = {"b": "2"}
    assert await store.update_conversation("s", "c1", given) == Conversation("c1", 5, {"b": "2"})
    given["b"] = "changed"
    assert await store.get_conversation("s", "c1") == Conversation("c1", 5, {"b": "2"})
    assert item_ids(await store.list_items("s", "c1")) == ["m1"]


async def test_a_deleted_conversation_is_gone_with_its_items(store: Store) -> None:
    await store.create_conversation("s", conversation("c1"), json_items("m1"))
    assert await store.delete_conversation("s", "c1")
    assert not await store.delete_conversation("s", "c1")
    assert await store.get_conversation("s", "c1") is None
    assert await store.list_items("s", "c1") is None
    assert not await store.add_items("s", "c1", json_items("m2"))
    await store.create_conversation("s", conversation("c1"), json_items("m3"))
    assert item_ids(await store.list_items("s", "c1")) == ["m3"]


async def test_creating_a_conversation_again_deletes_the_old_items(store: Store) -> None:
    await store.create_conversation("s", conversation("c1", a="1"), json_items("m1"))
    await store.create_conversation("s", conversation("c1", b="2"), json_items("m2"))
    assert await store.get_conversation("s", "c1") == conversation("c1", b="2")
    assert item_ids(await store.list_items("s", "c1")) == ["m2"]


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    await store.create_conversation("a", conversation("c1", of="a"), json_items("m1"))
    assert await store.get_conversation("b", "c1") is None
    assert await store.update_conversation("b", "c1", {}) is None
    assert not await store.add_items("b", "c1", json_items("m2"))
    assert await store.list_items("b", "c1") is None
    assert not await store.delete_item("b", "c1", "m1")
    assert not await store.delete_conversation("b", "c1")
    await store.create_conversation("b", conversation("c1", of="b"), json_items("m1"))
    assert await store.delete_item("b", "c1", "m1")
    assert await store.delete_conversation("b", "c1")
    assert await store.get_conversation("a", "c1") == conversation("c1", of="a")
    assert item_ids(await store.list_items("a", "c1")) == ["m1"]


USES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get_conversation("s", "c1"),
    "update": lambda store: store.update_conversation("s", "c1", {"new": "one"}),
    "add": lambda store: store.add_items("s", "c1", json_items("m2")),
    "list": lambda store: store.list_items("s", "c1"),
    "delete item": lambda store: store.delete_item("s", "c1", "never"),
}


@pytest.mark.parametrize("use", USES)
async def test_every_use_renews_a_conversation(store: Store, clock: Clock, use: str) -> None:
    await store.create_conversation("s", conversation("c1"), json_items("m1"))
    await store.create_conversation("s", conversation("unused"), json_items("m1"))
    for _ in range(3):
        clock.advance(TTL * 0.6)
        await USES[use](store)
    assert await store.get_conversation("s", "unused") is None
    assert await store.list_items("s", "unused") is None
    assert not await store.add_items("s", "unused", json_items("m2"))
    assert not await store.delete_conversation("s", "unused")
    assert await store.get_conversation("s", "c1") is not None
    clock.advance(TTL)
    assert await store.get_conversation("s", "c1") is None


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != "\ud800"], ids=lambda odd: ascii(odd[:20]))
async def test_ids_may_be_anything(store: Store, odd: str) -> None:
    """Those of items are JSON, which has no lone surrogates."""
    await store.create_conversation("s", conversation("good"), json_items("m1"))
    await store.create_conversation(odd, conversation(odd, **{odd: odd}), json_items("m1", odd))
    assert await store.get_conversation(odd, odd) == conversation(odd, **{odd: odd})
    assert item_ids(await store.list_items(odd, odd)) == ["m1", odd]
    assert await store.delete_item(odd, odd, odd)
    assert item_ids(await store.list_items(odd, odd)) == ["m1"]
    assert not await store.delete_item("s", "good", odd)
    assert await store.delete_conversation(odd, odd)
    assert item_ids(await store.list_items("s", "good")) == ["m1"]


async def test_large_items(store: Store) -> None:
    large = json_items("m1", text="x" * 10_000_000)
    await store.create_conversation("s", conversation("c1"), large)
    assert await store.add_items("s", "c1", json_items("m2"))
    assert await store.list_items("s", "c1") == large + json_items("m2")
