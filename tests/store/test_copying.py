"""A whole store copied to another: all of it, or nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from store.postgresql import Postgresql
from store.stores import conversation, item, item_ids, json_items, response, running, usage

from bridge.errors import ConfigError, UsageError
from bridge.store.copying import Place, SqlitePlace, copy, postgres_place
from bridge.store.opening import open_store

NOW = datetime(2026, 11, 16, tzinfo=UTC)
ODD = "\ud800 a\0b'"
ODD_ITEM = "é a\0b'"
"""JSON has no lone surrogates."""
Make = Callable[[str], Place]


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A new place of a kind."""
    made = 0

    def of_kind(kind: str) -> Place:
        nonlocal made
        made += 1
        if kind == "sqlite":
            return SqlitePlace(tmp_path / f"{made}.sqlite3", tmp_path / f"{made}.json")
        server: Postgresql = request.getfixturevalue("postgresql")
        url = server.new_database()
        urls[id(place := postgres_place(url))] = url
        return place

    return of_kind


urls: dict[int, str] = {}


def where(place: Place) -> str | Path:
    return place.path if isinstance(place, SqlitePlace) else urls[id(place)]


async def fill(place: Place) -> str:
    """Put something of everything in it, and return the key of a client."""
    store = open_store(where(place), ttl=math.inf, max_bytes=10**9, now=time.time)
    async with running(store):
        for number in range(300):
            previous = f"r{number - 1}" if number else None
            await store.put("s", response(f"r{number}", previous, output=[item("twice", str(number))], size=20_000))
        await store.put(ODD, response(ODD, conversation="c"))
        await store.put(ODD, response("plain", output=[item(ODD_ITEM)]))
        await store.create_conversation("s", conversation("c", a="1"), json_items("m3", "m1", "m2"))
        await store.create_conversation(ODD, conversation(ODD), json_items(ODD_ITEM))
        store.count(usage("2026-11-16", requests=3, output=2**40))
        store.count(usage("2026-11-16", model=ODD, requests=1))
    return place.keys.add("laptop", now=NOW, max_turns=3)[0]


async def contents_of(place: Place) -> list[object]:
    """All that `fill` put there."""
    store = open_store(where(place), ttl=math.inf, max_bytes=10**9, now=time.time)
    async with running(store):
        found: list[object] = [await store.chain("s", "r299"), await store.get(ODD, ODD)]
        found += [await store.find_item("s", "twice"), await store.find_item(ODD, ODD_ITEM)]
        found += [await store.get_conversation("s", "c"), item_ids(await store.list_items("s", "c"))]
        found += [await store.list_items(ODD, ODD), await store.usage(since="")]
    return [*found, place.keys.read()]


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
@pytest.mark.parametrize("source", ["sqlite", "postgresql"])
async def test_a_copy_has_everything(make: Make, source: str, to: str) -> None:
    """In the same order, whatever the ids are; and the source keeps it."""
    old, new = make(source), make(to)
    await fill(old)
    before = await contents_of(old)
    assert None not in before
    seen: list[int] = []
    copied = copy(old, new, replace=False, report=lambda counts: seen.append(counts["response"]))
    assert copied == {"response": 302, "conversation": 2, "usage": 2, "key": 1}
    assert seen[0] < seen[-1] == 302
    assert await contents_of(new) == before
    assert await contents_of(old) == before


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
async def test_a_target_with_contents_is_only_replaced_on_request(make: Make, to: str) -> None:
    old, new = make("sqlite"), make(to)
    await fill(old)
    await fill(new)
    new.keys.add("other", now=NOW)
    before = await contents_of(new)
    with pytest.raises(UsageError, match=r"not empty \(302 responses, 2 conversations, 2 rows of usage, 2 keys\)"):
        copy(old, new, replace=False, report=lambda counts: None)
    assert await contents_of(new) == before
    copy(old, new, replace=True, report=lambda counts: None)
    assert await contents_of(new) == await contents_of(old)


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
async def test_a_copy_that_is_interrupted_changes_nothing(make: Make, to: str) -> None:
    old, new = make("sqlite"), make(to)
    await fill(old)
    await fill(new)
    before = await contents_of(new)

    def interrupt(counts: dict[str, int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(old, new, replace=True, report=interrupt)
    assert await contents_of(new) == before


def test_a_source_that_is_not_there_is_not_made(make: Make) -> None:
    missing = make("sqlite")
    assert isinstance(missing, SqlitePlace)
    with pytest.raises(UsageError, match="no store at"):
        copy(missing, make("sqlite"), replace=False, report=lambda counts: None)
    assert not missing.path.exists()


def test_a_source_of_another_program_is_refused(make: Make) -> None:
    other = make("sqlite")
    assert isinstance(other, SqlitePlace)
    other.path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match="not a database"):
        copy(other, make("sqlite"), replace=False, report=lambda counts: None)
    assert other.path.read_bytes() == b"no database" * 1000
