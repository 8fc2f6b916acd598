"""The file of a store: private, lasting, shared, and never in the way when it is broken."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest
import trio
from store.stores import (
    MANY_BYTES,
    TTL,
    Clock,
    conversation,
    ids,
    item,
    item_ids,
    json_items,
    response,
    running,
    sqlite_store,
    usage,
)

from bridge.errors import ConfigError
from bridge.store.database import StoreFile
from bridge.store.sqlite import SqliteStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def break_in_use(path: Path) -> None:
    """Behind the back of SQLite: the log is empty, and nothing but the first page is as it was."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))


def open_store(path: Path, clock: Clock) -> SqliteStore:
    return SqliteStore(path, ttl=TTL, max_bytes=MANY_BYTES, now=clock)


async def test_the_file_and_its_folder_are_private(tmp_path: Path, clock: Clock) -> None:
    """Whatever the umask is; so is what SQLite puts beside it. A clean stop leaves one file."""
    path = tmp_path / "state" / "store.db"
    before = os.umask(0)
    try:
        async with sqlite_store(path, clock) as store:
            await store.put("s", response("r1"))
            await store.flush()
            assert {entry.name: mode(entry) for entry in path.parent.iterdir()} == {
                "store.db": 0o600,
                "store.db-wal": 0o600,
                "store.db-shm": 0o600,
            }
    finally:
        os.umask(before)
    assert mode(path.parent) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["store.db"]


async def test_a_file_that_others_could_read_is_made_private(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    path.touch(0o644)
    async with sqlite_store(path, clock):
        assert mode(path) == 0o600


async def test_a_stop_at_once_loses_nothing(tmp_path: Path, clock: Clock) -> None:
    """What was done a moment before the end is there after a new start, in full."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("r1", output=[item("m1")]))
        await store.put("s", response("gone"))
        for number in range(2, 500):
            await store.put("s", response(f"r{number}", f"r{number - 1}", size=50_000))
        await store.delete("s", "gone")
        await store.create_conversation("s", conversation("c1", a="1"), json_items("m1"))
        await store.add_items("s", "c1", json_items("m2"))
        await store.update_conversation("s", "c1", {"a": "2"})
        await store.delete_item("s", "c1", "m1")
        store.count(usage("2026-11-16", requests=1))
    assert store.fault == "the store is closed"
    async with sqlite_store(path, clock) as store:
        assert len(await store.chain("s", "r499") or []) == 499
        assert await store.get("s", "gone") is None
        assert await store.find_item("s", "m1") is not None
        assert await store.get_conversation("s", "c1") == conversation("c1", a="2")
        assert item_ids(await store.list_items("s", "c1")) == ["m2"]
        store.count(usage("2026-11-16", requests=1))
        assert await store.usage(since="") == [usage("2026-11-16", requests=2)]


async def test_time_passes_while_the_store_is_closed(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("old"))
        clock.advance(TTL / 2)
        await store.put("s", response("new"))
    clock.advance(TTL / 2)
    async with sqlite_store(path, clock) as store:
        assert await store.get("s", "old") is None
        assert await store.get("s", "new") is not None


async def test_two_stores_share_a_file(tmp_path: Path, clock: Clock) -> None:
    """Each sees what the other has written: new, replaced, deleted, renewed and added up."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as one, sqlite_store(path, clock) as two:
        await one.put("s", response("r1", output=[item("m1")]))
        await one.create_conversation("s", conversation("c1"), json_items("m1"))
        one.count(usage("2026-11-16", requests=1))
        await one.flush()
        two.count(usage("2026-11-16", requests=2))
        await two.put("s", response("r2", "r1"))
        assert ids(await two.chain("s", "r2")) == ["r1", "r2"]
        assert await two.find_item("s", "m1") is not None
        assert await two.add_items("s", "c1", json_items("m2"))
        assert await one.add_items("s", "c1", json_items("m3"))
        await two.flush()
        await one.flush()
        assert ids(await one.chain("s", "r2")) == ["r1", "r2"]
        assert item_ids(await one.list_items("s", "c1")) == ["m1", "m2", "m3"]
        assert await one.usage(since="") == await two.usage(since="") == [usage("2026-11-16", requests=3)]
        clock.advance(TTL * 0.6)
        assert ids(await two.chain("s", "r2")) == ["r1", "r2"]
        await two.flush()
        clock.advance(TTL * 0.6)
        assert ids(await one.chain("s", "r2")) == ["r1", "r2"]
        assert await two.delete("s", "r1")
        await two.flush()
        assert await one.get("s", "r1") is None
        assert await one.chain("s", "r2") is None


async def test_queued_changes_apply_to_the_content_of_the_file(tmp_path: Path, clock: Clock) -> None:
    """Link by link, item by item: here one store has written and the other has yet to."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as one:
        for id, previous in [("r1", None), ("r2", "r1"), ("r3", "r2"), ("r4", "r3")]:
            await one.put("s", response(id, previous, output=[item("m1", id)]))
        await one.create_conversation("s", conversation("c1"), json_items("m1", "m2", "m3"))
        one.count(usage("2026-11-16", requests=1))
        await one.flush()
        two = open_store(path, clock)
        await two.put("s", response("r5", "r4"))
        assert ids(await two.chain("s", "r5")) == ["r1", "r2", "r3", "r4", "r5"]
        await two.put("s", response("r3", "r0", output=[item("m2")]))
        assert await two.chain("s", "r5") is None
        await two.put("s", response("r0"))
        assert ids(await two.chain("s", "r5")) == ["r0", "r3", "r4", "r5"]
        await two.delete("s", "r4")
        assert b"r2" in (await two.find_item("s", "m1") or b"")
        assert await two.chain("s", "r5") is None
        assert await two.delete_item("s", "c1", "m2")
        assert await two.add_items("s", "c1", json_items("m4", "m1"))
        assert item_ids(await two.list_items("s", "c1")) == ["m1", "m3", "m4"]
        two.count(usage("2026-11-16", requests=1))
        assert await two.usage(since="") == [usage("2026-11-16", requests=2)]
        assert ids(await one.chain("s", "r4")) == ["r1", "r2", "r3", "r4"]
        async with running(two):
            await two.flush()
            assert ids(await one.chain("s", "r3")) == ["r0", "r3"]


async def test_two_stores_share_one_size_limit(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with (
        sqlite_store(path, clock, max_bytes=1000) as one,
        sqlite_store(path, clock, max_bytes=1000) as two,
    ):
        for number in range(6):
            clock.advance(1)
            store = (one, two)[number % 2]
            await store.put("s", response(f"r{number}", size=300))
            await store.flush()
        for store in (one, two):
            assert [number for number in range(6) if await store.get("s", f"r{number}")] == [3, 4, 5]


async def fill(store: SqliteStore, count: int) -> None:
    for number in range(count):
        await store.put("s", response(str(number), size=10_000, output=[item(f"m{number}")]))
    await store.flush()


async def test_expired_responses_make_room(tmp_path: Path, clock: Clock) -> None:
    """They leave the file too, not only the readers' sight."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await fill(store, 500)
    size = path.stat().st_size
    async with sqlite_store(path, clock) as store:
        for _ in range(3):
            clock.advance(TTL)
            await store.flush()
            await fill(store, 500)
    assert path.stat().st_size <= size * 1.2


async def test_a_file_that_is_mostly_free_shrinks(tmp_path: Path, clock: Clock) -> None:
    """By itself, while nothing else happens; what is left in it stays readable."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock, cleanup=0.001) as store:
        await fill(store, 2000)
        clock.advance(TTL / 2)
        await store.put("s", response("newer", size=100_000))
        clock.advance(TTL / 2)
        with trio.fail_after(20):
            while path.stat().st_size > 15_000_000:
                await trio.sleep(0.001)
        assert await store.get("s", "newer") == response("newer", size=100_000)


async def test_many_puts_stay_fast(tmp_path: Path, clock: Clock) -> None:
    """Thousands, each with items, while others read; the limit is far above what it takes."""
    with trio.fail_after(60):
        async with sqlite_store(tmp_path / "store.db", clock) as store:
            for number in range(5_000):
                await store.put("s", response(str(number), output=[item(f"m{number}")], size=4_000))
                if number % 100 == 0:
                    assert await store.get("s", str(number // 2)) is not None
            await store.flush()
            assert await store.find_item("s", "m0") is not None


# Files that are not what they should be


@pytest.mark.parametrize(
    ("path", "why"),
    [("{tmp}", "not a file"), ("{tmp}/file/store.db", ""), ("/proc/nowhere/store.db", ""), ("/dev/null", "not a file")],
)
def test_a_path_that_cannot_be_used_is_reported_at_start(tmp_path: Path, clock: Clock, path: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"cannot be used: .*{why}"):
        open_store(Path(path.format(tmp=tmp_path)), clock)


async def test_a_newer_schema_is_reported_and_left_unchanged(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"newer turnbridge \(schema 7; this version knows 1\)"):
        open_store(path, clock)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["store.db"]


def test_the_database_of_another_program_is_reported_and_left_unchanged(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE response (theirs)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        open_store(path, clock)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "beginning", "truncated"])
async def test_a_broken_file_is_moved_aside(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """With a warning; the new one works, and the old one is there to be looked at."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("old", size=100_000))
    whole = path.read_bytes()
    broken = {
        "text": b"this is not a database, but long enough to be mistaken for one" * 100,
        "beginning": whole[:100] + b"\xff" * 4000 + whole[4100:],
        "truncated": whole[: len(whole) // 2 + 17],
    }[damage]
    path.write_bytes(broken)
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("new"))
        # A file may begin well and be broken further on: then it shows when that part is needed.
        await store.flush()
        assert await store.get("s", "old") is None
        assert await store.get("s", "new") == response("new")
        assert store.fault is None
    aside = tmp_path / f"store.db.corrupt-{int(clock.time)}"
    assert len(aside.read_bytes()) > 1000
    assert f"moved to {aside}, starting a new one" in caplog.text
    async with sqlite_store(path, clock) as store:
        assert await store.get("s", "new") == response("new")


async def test_a_file_that_breaks_under_two_stores_is_replaced_once(tmp_path: Path, clock: Clock) -> None:
    """Both go on with the same new file, and what still waited is in it."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as one, sqlite_store(path, clock) as two:
        for number in range(100):
            await one.put("s", response(f"r{number}", size=50_000))
        await one.flush()
        break_in_use(path)
        await one.put("s", response("from one"))
        await one.flush()
        await two.put("s", response("from two"))
        await two.flush()
        assert (one.fault, two.fault) == (None, None)
        assert await one.get("s", "from two") == response("from two")
        assert await two.get("s", "from one") == response("from one")
    # With its log, which must not be applied to the new file.
    aside = f"store.db.corrupt-{int(clock.time)}"
    assert {entry.name for entry in tmp_path.iterdir()} == {"store.db", aside, f"{aside}-wal", f"{aside}-shm"}


def test_two_stores_that_find_a_file_broken_at_once_move_it_once(tmp_path: Path, clock: Clock) -> None:
    """The later one leaves the new file of the earlier one alone."""

    def insert(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO total VALUES (7)")

    def read(connection: sqlite3.Connection) -> list[tuple[int]]:
        return connection.execute("SELECT bytes FROM total").fetchall()

    def read_late(connection: sqlite3.Connection) -> list[tuple[int]]:
        if not list(tmp_path.glob("*.corrupt-*")):
            earlier.do(insert)
        return read(connection)

    earlier, later = StoreFile(tmp_path / "store.db", clock), StoreFile(tmp_path / "store.db", clock)
    earlier.open()
    later.open()
    break_in_use(tmp_path / "store.db")
    assert later.do(read_late) == [(0,), (7,)]
    assert earlier.do(read) == [(0,), (7,)]
    earlier.close()
    later.close()


async def test_a_removed_file_is_created_again(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """What was in it is gone; what comes is kept."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("before"))
        await store.flush()
        for file in tmp_path.iterdir():
            file.unlink()
        await store.put("s", response("after"))
        await store.flush()
        assert await store.get("s", "before") is None
    assert "moved or removed" in caplog.text
    async with sqlite_store(path, clock) as store:
        assert await store.get("s", "after") == response("after")


async def test_a_change_that_cannot_be_written_does_not_stop_the_others(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A number beyond 64 bits, say."""
    store = open_store(tmp_path / "store.db", clock)
    await store.put("s", response("r1"))
    store.count(usage("2026-11-16", requests=2**70))
    store.count(usage("2026-11-17", requests=1))
    await store.put("s", response("r2"))
    async with running(store):
        await store.flush()
        assert await store.usage(since="") == [usage("2026-11-17", requests=1)]
    assert caplog.text.count("dropped a change that cannot be written") == 1
    async with sqlite_store(tmp_path / "store.db", clock) as store:
        assert await store.get("s", "r1") == response("r1")
        assert await store.get("s", "r2") == response("r2")
