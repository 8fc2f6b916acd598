"""Usage in every store."""

from __future__ import annotations

from store.stores import DAY, TTL, Clock, usage

from bridge.store.base import Store


async def test_counts_are_added_up_by_day_key_and_model(store: Store) -> None:
    """And come sorted."""
    store.count(usage("2026-11-16", "b", requests=1, input=10, cached=4, output=3, reasoning=2))
    store.count(usage("2026-11-16", "a", "m2", requests=1))
    store.count(usage("2026-11-16", "a", "m1", requests=1))
    assert await store.usage(since="2026-11-16") == [
        usage("2026-11-16", "a", "m1", requests=1),
        usage("2026-11-16", "a", "m2", requests=1),
        usage("2026-11-16", "b", requests=1, input=10, cached=4, output=3, reasoning=2),
    ]
    store.count(usage("2026-11-16", "b", requests=1, failed=1, input=1))
    store.count(usage("2026-11-15", "b", requests=5))
    assert await store.usage(since="") == [
        usage("2026-11-15", "b", requests=5),
        usage("2026-11-16", "a", "m1", requests=1),
        usage("2026-11-16", "a", "m2", requests=1),
        usage("2026-11-16", "b", requests=2, failed=1, input=11, cached=4, output=3, reasoning=2),
    ]
    assert await store.usage(since="2026-11-17") == []


async def test_usage_outlives_the_time_to_live_and_ends_after_400_days(store: Store, clock: Clock) -> None:
    store.count(usage("2026-11-16", requests=1))
    clock.advance(10 * TTL)
    assert await store.usage(since="") == [usage("2026-11-16", requests=1)]
    clock.advance(399 * DAY)
    assert await store.usage(since="") == [usage("2026-11-16", requests=1)]
    clock.advance(2 * DAY)
    store.count(usage("2027-12-22", requests=2))
    assert await store.usage(since="") == [usage("2027-12-22", requests=2)]


async def test_labels_may_be_anything(store: Store) -> None:
    odd = "'; DROP TABLE usage; --\0\ud800"
    store.count(usage("2026-11-16", odd, odd, requests=1))
    store.count(usage("2026-11-16", odd, odd, requests=1))
    assert await store.usage(since="2026") == [usage("2026-11-16", odd, odd, requests=2)]
