"""Real processes on one file: killed in the middle of writing, and two at once."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from store.stores import Clock, ids, sqlite_store, usage

WRITER = """
import sys, trio
from pathlib import Path
from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.sqlite import SqliteStore

async def main(path, first):
    store = SqliteStore(Path(path), ttl=1000, max_bytes=10**9, now=lambda: 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await store.create_conversation("s", Conversation("c", 5, {}), [])
        number = int(first)
        while True:
            for _ in range(20):
                previous = str(number - 1) if number else None
                body = b'{"output": [{"id": "m%d"}]}' % number + b" " * (number * 37 % 9000)
                await store.put("s", StoredResponse(str(number), 5, body, b"[]", previous))
                await store.add_items("s", "c", [b'{"id": "m%d"}' % number])
                store.count(UsageRow("1970-01-01", "key", "model", 1, 0, 0, 0, 0, 0))
                number += 1
            await store.flush()
            print(number, flush=True)

trio.run(main, *sys.argv[1:])
"""

SHARER = """
import json, sys, trio
from pathlib import Path
from bridge.store.base import StoredResponse, UsageRow
from bridge.store.sqlite import SqliteStore

async def main(path, mine, other):
    store = SqliteStore(Path(path), ttl=1000, max_bytes=10**9, now=lambda: 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for number in range(300):
            await store.put("s", StoredResponse(f"{mine}{number}", 5, b"{}" + b" " * 2000, b"[]"))
            store.count(UsageRow("1970-01-01", "key", "model", 1, 0, 0, 0, 0, 0))
            if number % 10 == 0:
                await store.flush()
        with trio.fail_after(30):
            while await store.get("s", f"{other}299") is None:
                await trio.sleep(0.001)
        print(json.dumps([await store.get("s", f"{other}{number}") is not None for number in range(300)]))
        nursery.cancel_scope.cancel()

trio.run(main, *sys.argv[1:])
"""

OPENER = """
import sys
from pathlib import Path
from bridge.store.sqlite import SqliteStore

print("ready", flush=True)
for line in sys.stdin:
    print(SqliteStore(Path(line.strip()), ttl=1, max_bytes=1, now=lambda: 0).fault, flush=True)
"""


def assert_whole(path: Path) -> None:
    """SQLite finds nothing wrong, and the total that is kept is the true one."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    total = connection.execute("SELECT bytes FROM total").fetchone()[0]
    responses = connection.execute("SELECT sum(length(body) + length(input)) FROM content").fetchone()[0]
    heads = connection.execute("SELECT sum(256 + length(metadata)) FROM conversation").fetchone()[0]
    items = connection.execute("SELECT sum(length(body)) FROM conversation_item").fetchone()[0]
    assert total == responses + (heads or 0) + (items or 0)
    connection.close()


async def test_a_killed_process_leaves_a_whole_file(tmp_path: Path, clock: Clock) -> None:
    """What was written is there, without gaps; at most what waited is missing."""
    path = tmp_path / "store.db"
    clock.time = 0
    first = counted = 0
    for rounds in (1, 4, 9):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(first)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                written = int(process.stdout.readline())
            process.kill()
        assert_whole(path)
        async with sqlite_store(path, clock) as store:
            assert await store.find_item("s", f"m{written - 1}") is not None
            assert len(await store.list_items("s", "c") or []) >= written - first
            counted += written - first
            assert (await store.usage(since=""))[0].requests >= counted
            first = written
            while await store.get("s", str(first)):
                first += 1
            assert ids(await store.chain("s", str(first - 1))) == [str(number) for number in range(first)]


@pytest.mark.parametrize("before", ["new", "old"])
async def test_two_processes_write_at_once(tmp_path: Path, clock: Clock, before: str) -> None:
    """They may begin the file together; each sees all that the other has written, and nothing is lost."""
    path = tmp_path / "store.db"
    clock.time = 0
    if before == "old":
        async with sqlite_store(path, clock):
            pass
    processes = [
        subprocess.Popen([sys.executable, "-c", SHARER, path, *names], stdout=subprocess.PIPE, text=True)
        for names in (("a", "b"), ("b", "a"))
    ]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert told == [[True] * 300] * 2
    assert_whole(path)
    async with sqlite_store(path, clock) as store:
        assert await store.usage(since="") == [usage("1970-01-01", requests=600)]


def test_several_processes_may_begin_a_file_together(tmp_path: Path) -> None:
    """One of them makes the tables, the others find them."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for number in range(20):
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{tmp_path}/{number}.db\n")
        assert [process.stdout and process.stdout.readline() for process in processes] == ["None\n"] * 3
    for process in processes:
        process.communicate(timeout=20)
        assert process.returncode == 0
