"""The store in memory keeps nothing that was deleted, replaced or has expired, and needs no thread."""

from __future__ import annotations

import threading

import trio
import trio.testing
from store.stores import DAY, Clock, conversation, item, json_items, response, sqlite_store, usage

from bridge.store.sqlite import SqliteStore

TABLES = ("response", "content", "response_item", "conversation", "conversation_item", "usage")


def rows(store: SqliteStore) -> list[int]:
    """How many rows each table has, and the bytes that the store counts."""
    counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in TABLES)
    found = store._file.do(lambda connection: connection.execute(f"SELECT {counts}, bytes FROM total").fetchone())
    return list(found)


async def test_nothing_is_left_of_what_was_deleted_or_replaced(clock: Clock) -> None:
    async with sqlite_store(None, clock) as store:
        for number in range(100):
            await store.put("s", response("r1", output=[item("m1"), item(f"m{number}")]))
            await store.create_conversation("s", conversation("c1"), json_items("m1", f"m{number}"))
            await store.add_items("s", "c1", json_items("m1", "m2", text="longer"))
        await store.flush()
        assert rows(store)[:-1] == [1, 1, 2, 1, 3, 0]
        await store.delete("s", "r1")
        await store.delete_conversation("s", "c1")
        await store.flush()
        assert not any(rows(store))


async def test_expired_entries_are_removed_by_run(clock: Clock, autojump_clock: trio.testing.MockClock) -> None:
    """Also when nobody asks for anything any more."""
    async with sqlite_store(None, clock) as store:
        await store.put("s", response("r1", output=[item("m1")]))
        await store.create_conversation("s", conversation("c1"), json_items("m1"))
        store.count(usage("2026-11-16", requests=1))
        await store.flush()
        assert all(rows(store))
        clock.advance(500 * DAY)
        await trio.sleep(61)
        assert not any(rows(store))
        clock.advance(-500 * DAY)
        assert await store.usage(since="") == []


async def test_a_burst_waits_for_room_and_no_thread_is_started(clock: Clock) -> None:
    """More than may be queued at once: each waits until there is room, and none is dropped."""
    before = threading.active_count()
    async with sqlite_store(None, clock, max_waiting=20_000) as store:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(store.put, "s", response(f"r{number}", size=6_000))
            await store.flush()
            assert [number for number in range(50) if await store.get("s", f"r{number}") is None] == []
    assert threading.active_count() == before
