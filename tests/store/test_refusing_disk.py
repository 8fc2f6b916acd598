"""A disk that is locked, full or slow: nothing crashes, nothing hangs, and what can be kept is kept."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from store.stores import MANY_BYTES, TTL, Clock, conversation, ids, json_items, response, running, sqlite_store, usage

from bridge.errors import ConfigError, NotReady
from bridge.store.sqlite import SqliteStore


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else holds the file's write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.rollback()
        connection.close()


async def fault_of(store: SqliteStore, *, lasting: bool = True) -> str | None:
    """Wait until there is a fault, or until there is none."""
    with trio.fail_after(20):
        while (store.fault is not None) != lasting:
            await trio.sleep(0.001)
    return store.fault


async def test_a_locked_file_is_a_temporary_fault(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads and changes go on meanwhile; everything is written when the lock is gone."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock) as store:
        await store.put("s", response("r1"))
        await store.create_conversation("s", conversation("c1"), json_items("m1"))
        await store.flush()
        with locked(path):
            await store.put("s", response("r2", "r1"))
            assert await fault_of(store) == "database is locked"
            assert ids(await store.chain("s", "r2")) == ["r1", "r2"]
            assert await store.delete("s", "r1")
            assert await store.chain("s", "r2") is None
            assert await store.add_items("s", "c1", json_items("m2"))
            store.count(usage("2026-11-16", requests=1))
            assert await store.usage(since="") == [usage("2026-11-16", requests=1)]
        await fault_of(store, lasting=False)
        await store.flush()
        async with sqlite_store(path, clock) as other:
            assert await other.get("s", "r1") is None
            assert await other.get("s", "r2") == response("r2", "r1")
            assert await other.list_items("s", "c1") == json_items("m1", "m2")
            assert await other.usage(since="") == [usage("2026-11-16", requests=1)]
    assert [record.getMessage() for record in caplog.records] == [
        "store: cannot write: database is locked",
        "store: writing again; dropped 0 response(s) meanwhile",
    ]


async def test_the_queue_for_a_failing_disk_is_bounded(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest waiting responses are dropped, nobody waits, and conversations are not changed by half."""
    path = tmp_path / "store.db"
    async with sqlite_store(path, clock, max_waiting=100_000) as store:
        await store.create_conversation("s", conversation("c1"), json_items("m1"))
        await store.flush()
        with locked(path):
            store.count(usage("2026-11-16", requests=1))
            await fault_of(store)
            with trio.fail_after(5):
                for number in range(50):
                    await store.put("s", response(f"r{number}", size=10_000))
            kept = [number for number in range(50) if await store.get("s", f"r{number}")]
            assert kept == list(range(kept[0], 50))
            assert 8 <= len(kept) <= 11
            assert await store.add_items("s", "c1", json_items("m2", text="x" * 150_000))
            with pytest.raises(NotReady) as raised:
                await store.add_items("s", "c1", json_items("m3"))
            assert raised.value.code == "store_unavailable"
            assert await store.list_items("s", "c1") == json_items("m1") + json_items("m2", text="x" * 150_000)
            await store.put("s", response("after"))
            assert await store.get("s", "after") is None
        await fault_of(store, lasting=False)
        await store.put("s", response("again"))
    assert "dropped 51 response(s) meanwhile" in caplog.text
    async with sqlite_store(path, clock) as store:
        assert await store.list_items("s", "c1") == json_items("m1") + json_items("m2", text="x" * 150_000)
        assert await store.get("s", "again") is not None
        assert await store.usage(since="") == [usage("2026-11-16", requests=1)]


async def test_a_put_waits_while_too_much_waits_to_be_written(tmp_path: Path, clock: Clock) -> None:
    """The disk is not at fault then, only slow."""
    store = SqliteStore(tmp_path / "store.db", ttl=TTL, max_bytes=MANY_BYTES, now=clock, max_waiting=10_000)
    done: list[str] = []

    async def put(id: str) -> None:
        await store.put("s", response(id, size=6_000))
        done.append(id)

    async with trio.open_nursery() as nursery:
        await put("r1")
        await put("r2")
        nursery.start_soon(put, "r3")
        await trio.testing.wait_all_tasks_blocked()
        assert done == ["r1", "r2"]
        async with running(store):
            with trio.fail_after(10):
                while len(done) < 3:
                    await trio.sleep(0.001)
    async with sqlite_store(tmp_path / "store.db", clock) as store:
        assert await store.get("s", "r3") is not None


async def test_a_stop_while_the_disk_fails_ends_and_reports_what_is_lost(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    with trio.fail_after(20):
        async with sqlite_store(path, clock) as store:
            await store.flush()
            other = locked(path)
            other.__enter__()
            await store.put("s", response("r1"))
            await store.put("s", response("r2"))
    other.__exit__(None, None, None)
    assert "lost 2 change(s): database is locked" in caplog.text
    async with sqlite_store(path, clock) as store:
        assert await store.get("s", "r1") is None


async def test_a_closed_store_reads_and_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    async with sqlite_store(tmp_path / "store.db", clock) as store:
        pass
    with pytest.raises(NotReady):
        await store.get("s", "r1")
    await store.put("s", response("r1"))
    store.count(usage("2026-11-16", requests=1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written_is_reported_at_start(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "store.db").touch(0o400)
    with pytest.raises(ConfigError, match="no permission to read and write"):
        SqliteStore(tmp_path / "store.db", ttl=TTL, max_bytes=MANY_BYTES, now=clock)


FULL = """
import json, resource, sys, trio
from pathlib import Path
from bridge.errors import NotReady
from bridge.store.base import StoredResponse
from bridge.store.sqlite import SqliteStore

def disk(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

def response(id):
    return StoredResponse(id, 5, b'{"output": []}' + b" " * 20_000, b"[]")

async def until(condition):
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.001)

async def main():
    if "from the start" in sys.argv:
        disk(0)
    store = SqliteStore(Path(sys.argv[1]), ttl=1000, max_bytes=10**9, now=lambda: 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        if "from the start" not in sys.argv:
            await store.put("s", response("written"))
            await store.flush()
            disk(300_000)
        for number in range(100):
            await store.put("s", response(str(number)))
        await until(lambda: store.fault)
        told = {"fault": store.fault}
        told["readable"] = sum([await store.get("s", str(number)) is not None for number in range(100)])
        try:
            told["written"] = await store.get("s", "written") is not None
        except NotReady:
            told["written"] = "not ready"
        disk(resource.RLIM_INFINITY)
        await until(lambda: store.fault is None)
        await store.put("s", response("later"))
        nursery.cancel_scope.cancel()
    print(json.dumps(told))

trio.run(main)
"""


@pytest.mark.parametrize(("when", "written"), [("later", True), ("from the start", "not ready")])
async def test_a_full_disk(tmp_path: Path, clock: Clock, when: str, written: object) -> None:
    """A limit on the size of files stands for it. Everything stays readable, and is written when there is room."""
    path = tmp_path / "store.db"
    run = subprocess.run(
        [sys.executable, "-c", FULL, path, when], capture_output=True, text=True, timeout=60, check=True
    )
    told = json.loads(run.stdout)
    assert "disk" in told.pop("fault")
    assert told == {"readable": 100, "written": written}
    clock.time = 0
    async with sqlite_store(path, clock) as store:
        assert all([await store.get("s", str(number)) for number in range(100)])
        assert await store.get("s", "later") is not None
