"""The store in memory holds on to nothing that it does not keep."""

from __future__ import annotations

import trio
import trio.testing
from store.stores import DAY, TTL, Clock, conversation, item, json_items, response, running, usage

from bridge.store.memory import MemoryStore

EMPTY = "<MemoryStore responses=0 conversations=0 bytes=0 items=0>"


async def test_nothing_is_left_of_what_was_deleted_or_replaced(clock: Clock) -> None:
    store = MemoryStore(ttl=TTL, max_bytes=1_000_000, now=clock)
    for number in range(100):
        await store.put("s", response("r1", output=[item("m1"), item(f"m{number}")]))
        await store.create_conversation("s", conversation("c1"), json_items("m1", f"m{number}"))
        await store.add_items("s", "c1", json_items("m1", "m2", text="longer"))
    assert repr(store).startswith("<MemoryStore responses=1 conversations=1 ")
    await store.delete("s", "r1")
    await store.delete_conversation("s", "c1")
    assert repr(store) == EMPTY


async def test_expired_entries_are_removed_by_run(clock: Clock, autojump_clock: trio.testing.MockClock) -> None:
    """Also when nobody asks for anything any more."""
    store = MemoryStore(ttl=TTL, max_bytes=1_000_000, now=clock)
    async with running(store):
        await store.put("s", response("r1", output=[item("m1")]))
        await store.create_conversation("s", conversation("c1"), json_items("m1"))
        store.count(usage("2026-11-16", requests=1))
        clock.advance(500 * DAY)
        await trio.sleep(61)
        assert repr(store) == EMPTY
        clock.advance(-500 * DAY)
        assert await store.usage(since="") == []
