"""Responses in every store: kept, found, chained, expired, bounded."""

from __future__ import annotations

import json

import pytest
from store.stores import TTL, Clock, Where, conversation, ids, item, json_items, response, store_of_kind

from bridge.store.base import Store, StoredResponse

ODD = [
    "",
    "'; DROP TABLE response; --",
    '" OR 1=1 --',
    "a\0b",
    "%",
    "_",
    "\ud800",
    "résp\U0001f600",
    "line\nbreak",
    "../../etc/passwd",
    "?1",
    "x" * 100_000,
]


async def test_a_response_is_returned_as_it_was_stored(store: Store) -> None:
    """Every member, and not a byte of the bodies changed."""
    whole = StoredResponse("r1", 5, b'{"output": [] ,"\xc3\xa9":1e400}', b"[ ]", "r0", "c1")
    await store.put("s", whole)
    await store.put("s", response("r2"))
    assert await store.get("s", "r1") == whole
    assert await store.get("s", "r2") == response("r2")
    assert await store.get("s", "r3") is None
    assert store.fault is None


async def test_a_second_put_replaces_the_first(store: Store) -> None:
    """Also the items and the link."""
    await store.put("s", response("r1", "r0", output=[item("old")]))
    await store.put("s", response("r1", output=[item("new")]))
    assert await store.get("s", "r1") == response("r1", output=[item("new")])
    assert ids(await store.chain("s", "r1")) == ["r1"]
    assert await store.find_item("s", "old") is None
    assert await store.find_item("s", "new") is not None


async def test_a_deleted_response_is_gone(store: Store) -> None:
    """For every reader, once; an id can be used again."""
    await store.put("s", response("r1", output=[item("m1")]))
    await store.put("s", response("r2", "r1"))
    assert await store.delete("s", "r1")
    assert not await store.delete("s", "r1")
    assert not await store.delete("s", "never")
    assert await store.get("s", "r1") is None
    assert await store.chain("s", "r2") is None
    assert await store.find_item("s", "m1") is None
    await store.put("s", response("r1"))
    assert ids(await store.chain("s", "r2")) == ["r1", "r2"]


async def test_a_chain_is_oldest_first(store: Store) -> None:
    """Whatever the order of the puts."""
    for id, previous in [("r3", "r2"), ("r1", None), ("r2", "r1"), ("other", "r1")]:
        await store.put("s", response(id, previous))
    assert await store.chain("s", "r3") == [response("r1"), response("r2", "r1"), response("r3", "r2")]
    assert ids(await store.chain("s", "r1")) == ["r1"]


async def test_a_long_chain(store: Store) -> None:
    await store.put("s", response("0"))
    for number in range(1, 300):
        await store.put("s", response(str(number), str(number - 1)))
    assert ids(await store.chain("s", "299")) == [str(number) for number in range(300)]


async def test_a_chain_with_a_missing_link_is_none(store: Store) -> None:
    await store.put("s", response("r2", "r1"))
    await store.put("s", response("r3", "r2"))
    assert await store.chain("s", "r3") is None
    assert await store.chain("s", "never") is None


async def test_a_circular_chain_is_none(store: Store) -> None:
    """It has no beginning, and looking for one ends."""
    await store.put("s", response("r1", "r3"))
    await store.put("s", response("r2", "r1"))
    await store.put("s", response("r3", "r2"))
    await store.put("s", response("self", "self"))
    assert await store.chain("s", "r3") is None
    assert await store.chain("s", "self") is None


async def test_an_item_is_found_in_the_output_and_in_the_input(store: Store) -> None:
    await store.put("s", response("r1", output=[item("m1", "said")], input=[item("m2", "asked"), item("m3")]))
    assert json.loads(await store.find_item("s", "m1") or b"") == item("m1", "said")
    assert json.loads(await store.find_item("s", "m2") or b"") == item("m2", "asked")
    assert await store.find_item("s", "r1") is None
    assert await store.find_item("s", "m") is None


async def test_the_newest_of_several_items_is_found(store: Store) -> None:
    """A client sends items again that it was given; being part of a chain makes a response no newer."""
    await store.put("s", response("r1", output=[item("m1", "first")]))
    await store.put("s", response("r2", "r1", input=[item("m1", "second")]))
    await store.chain("s", "r1")
    assert b"second" in (await store.find_item("s", "m1") or b"")
    await store.delete("s", "r2")
    assert b"first" in (await store.find_item("s", "m1") or b"")


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"null", b'{"output": {"id": "m1"}}', b'{"output": [1, {}]}'])
async def test_a_response_without_readable_items_is_kept_all_the_same(store: Store, body: bytes) -> None:
    await store.put("s", StoredResponse("r1", 5, body, b'[null, {"id": 7}, {"id": "m2"}]'))
    assert (await store.get("s", "r1")) == StoredResponse("r1", 5, body, b'[null, {"id": 7}, {"id": "m2"}]')
    assert await store.find_item("s", "m1") is None
    assert json.loads(await store.find_item("s", "m2") or b"") == {"id": "m2"}


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    """The same ids in two scopes are two things; a chain does not cross over."""
    await store.put("a", response("r1", output=[item("m1", "of a")]))
    await store.put("b", response("r2", "r1"))
    assert await store.get("b", "r1") is None
    assert await store.chain("b", "r2") is None
    assert await store.find_item("b", "m1") is None
    assert not await store.delete("b", "r1")
    await store.put("b", response("r1", output=[item("m1", "of b")]))
    assert b"of a" in (await store.find_item("a", "m1") or b"")
    assert b"of b" in (await store.find_item("b", "m1") or b"")
    assert await store.delete("a", "r1")
    assert await store.get("b", "r1") == response("r1", output=[item("m1", "of b")])


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd[:20]))
async def test_ids_may_be_anything(store: Store, odd: str) -> None:
    """They are data, in every place where an id goes, and so are scopes."""
    await store.put("s", response("good", output=[item("m1")]))
    assert await store.get("s", odd) is None
    assert await store.find_item("s", odd) is None
    assert not await store.delete(odd, "good")
    await store.put(odd, response("first"))
    await store.put(odd, StoredResponse(odd, 5, b"{}", b"[]", "first", odd))
    assert await store.get(odd, odd) == StoredResponse(odd, 5, b"{}", b"[]", "first", odd)
    assert ids(await store.chain(odd, odd)) == ["first", odd]
    assert await store.delete(odd, odd)
    assert await store.get(odd, odd) is None
    assert await store.get("s", "good") is not None


async def test_large_bodies(store: Store) -> None:
    large = response("large", size=10_000_000)
    await store.put("s", large)
    await store.put("s", response("next", "large"))
    assert await store.get("s", "large") == large
    assert await store.chain("s", "next") == [large, response("next", "large")]


# Time


async def test_an_expired_response_is_gone_for_every_reader(store: Store, clock: Clock) -> None:
    """Exactly when the time to live is over."""
    await store.put("s", response("r1", output=[item("m1")]))
    clock.advance(TTL - 1)
    await store.put("s", response("r2", "r1"))
    assert await store.get("s", "r1") is not None
    assert await store.find_item("s", "m1") is not None
    clock.advance(1)
    assert await store.get("s", "r1") is None
    assert await store.chain("s", "r2") is None
    assert await store.find_item("s", "m1") is None
    assert not await store.delete("s", "r1")
    assert await store.get("s", "r2") is not None


async def test_a_chain_renews_every_link_and_a_get_renews_none(store: Store, clock: Clock) -> None:
    await store.put("s", response("r1"))
    await store.put("s", response("r2", "r1"))
    await store.put("s", response("alone"))
    for _ in range(5):
        clock.advance(TTL * 0.6)
        await store.get("s", "alone")
        assert ids(await store.chain("s", "r2")) == ["r1", "r2"]
    assert await store.get("s", "alone") is None
    clock.advance(TTL)
    assert await store.chain("s", "r2") is None


async def test_a_chain_that_is_broken_renews_nothing(store: Store, clock: Clock) -> None:
    await store.put("s", response("r2", "never"))
    clock.advance(TTL - 1)
    assert await store.chain("s", "r2") is None
    clock.advance(1)
    assert await store.get("s", "r2") is None


# Bounds. What only waits is bounded by itself (see test_refusing_disk), so these look at what is settled.


@pytest.fixture(params=["memory", "written", "postgres"])
def settled_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


async def test_the_oldest_responses_go_first(settled_kind: str, where: Where, clock: Clock) -> None:
    """Body and input count; what goes takes its items along."""
    async with store_of_kind(settled_kind, where(settled_kind), clock, max_bytes=1000) as store:
        for number in range(10):
            clock.advance(1)
            await store.put("s", response(f"r{number}", output=[item(f"m{number}")], size=300))
        kept = [number for number in range(10) if await store.get("s", f"r{number}")]
        assert kept == [7, 8, 9]
        assert [number for number in range(10) if await store.find_item("s", f"m{number}")] == kept


async def test_a_chain_in_use_stays(settled_kind: str, where: Where, clock: Clock) -> None:
    """Oldest means: not used for the longest time."""
    async with store_of_kind(settled_kind, where(settled_kind), clock, max_bytes=1000) as store:
        await store.put("s", response("first", size=300))
        clock.advance(1)
        await store.put("s", response("unused", size=300))
        await store.put("s", response("second", "first", size=300))
        clock.advance(1)
        assert ids(await store.chain("s", "second")) == ["first", "second"]
        clock.advance(1)
        await store.put("s", response("third", "second", size=300))
        assert await store.get("s", "unused") is None
        assert ids(await store.chain("s", "third")) == ["first", "second", "third"]


async def test_a_response_beyond_the_whole_bound_is_not_kept(settled_kind: str, where: Where, clock: Clock) -> None:
    """And sweeps nothing else out, but for an earlier one with its id."""
    async with store_of_kind(settled_kind, where(settled_kind), clock, max_bytes=1000) as store:
        await store.put("s", response("r1", size=300))
        await store.put("s", response("r2", size=300))
        await store.put("s", response("r2", size=1001))
        assert await store.get("s", "r2") is None
        assert await store.get("s", "r1") is not None


async def test_replaced_and_deleted_responses_do_not_count(settled_kind: str, where: Where, clock: Clock) -> None:
    async with store_of_kind(settled_kind, where(settled_kind), clock, max_bytes=1000) as store:
        await store.put("s", response("keep", size=300))
        for number in range(10):
            await store.put("s", response("again", size=600))
            await store.put("s", response(f"r{number}", size=100))
            await store.delete("s", f"r{number}")
        assert await store.get("s", "keep") is not None
        assert await store.get("s", "again") is not None


async def test_conversations_count_and_go_last(settled_kind: str, where: Where, clock: Clock) -> None:
    """A store full of conversations is bounded too."""
    async with store_of_kind(settled_kind, where(settled_kind), clock, max_bytes=2000) as store:
        await store.put("s", response("r1", size=300))
        for number in range(4):
            clock.advance(1)
            await store.create_conversation("s", conversation(f"c{number}"), json_items("m", text="x" * 500))
        assert await store.get("s", "r1") is None
        clock.advance(1)
        kept = [number for number in range(4) if await store.get_conversation("s", f"c{number}")]
        assert kept == [2, 3]
