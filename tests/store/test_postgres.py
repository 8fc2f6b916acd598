"""PostgreSQL down, restarted, frozen, slow, or gone in the middle; and several bridges on one database."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from store.postgresql import PASSWORD, Postgresql
from store.stores import Clock, conversation, ids, item, item_ids, json_items, postgres_store, response, usage

from bridge.errors import ConfigError, NotReady
from bridge.store.postgres.migrations import LATEST, migrate_server
from bridge.store.postgres.server import Server
from bridge.store.postgres.store import PostgresStore

DAY = "2026-11-16"


@pytest.fixture
def url(postgresql: Postgresql) -> str:
    return postgresql.empty_database()


async def fault_of(store: PostgresStore, *, lasting: bool = True) -> str | None:
    """Wait until there is a fault, or until there is none."""
    with trio.fail_after(60):
        while (store.fault is not None) != lasting:
            await trio.sleep(0.01)
    return store.fault


# Several bridges on one database


async def test_what_one_bridge_stores_another_finds_at_once(url: str, clock: Clock) -> None:
    """A call returns when its change is committed: nobody waits for a batch to be written."""
    async with postgres_store(url, clock) as one, postgres_store(url, clock) as other:
        for number in range(20):
            previous = f"r{number - 1}" if number else None
            assert await one.put("s", response(f"r{number}", previous, output=[item(f"m{number}")]))
            one, other = other, one
            assert ids(await one.chain("s", f"r{number}")) == [f"r{each}" for each in range(number + 1)]
            assert await one.find_item("s", f"m{number}") is not None
        await one.create_conversation("s", conversation("c", a="1"), json_items("m1"))
        assert await other.add_items("s", "c", json_items("m2"))
        assert item_ids(await one.list_items("s", "c")) == ["m1", "m2"]
        assert await other.update_conversation("s", "c", {"a": "2"}) == conversation("c", a="2")
        assert await one.get_conversation("s", "c") == conversation("c", a="2")
        assert await one.delete_item("s", "c", "m1")
        assert item_ids(await other.list_items("s", "c")) == ["m2"]
        assert await one.delete_conversation("s", "c")
        assert await other.get_conversation("s", "c") is None
        assert await one.delete("s", "r19")
        assert await other.get("s", "r19") is None


async def test_bridges_that_change_the_same_rows_at_once_lose_nothing(url: str, clock: Clock) -> None:
    """Each sends its rows in an order of its own, so that without an order of the locks they would deadlock."""
    async with postgres_store(url, clock) as one, postgres_store(url, clock) as other:
        for number in range(30):
            await one.put("s", response(f"r{number}", f"r{number - 1}" if number else None))
        for name in ("c1", "c2", "c3"):
            await one.create_conversation("s", conversation(name), [])

        added: set[str] = set()

        async def use(store: PostgresStore, name: str, order: int) -> None:
            for number in range(25):
                for each in ("c1", "c2", "c3")[::order]:
                    assert await store.add_items("s", each, json_items(f"{name}{number}"))
                added.add(f"{name}{number}")
                assert len(await store.chain("s", "r29") or []) == 30
                store.count(usage(DAY, requests=1))

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(use, one, f"one{number}-", 1)
                nursery.start_soon(use, other, f"other{number}-", -1)
        for name in ("c1", "c2", "c3"):
            items = item_ids(await other.list_items("s", name)) or []
            assert sorted(items) == sorted(
                f"{who}{n}-{k}" for who in ("one", "other") for n in range(4) for k in range(25)
            )
        await one.flush()
        await other.flush()
        assert await one.usage(since="") == [usage(DAY, requests=200)]
        assert (one.fault, other.fault) == (None, None)


async def test_several_bridges_may_create_the_tables_together(postgresql: Postgresql, clock: Clock) -> None:
    new = postgresql.new_database()
    stores: list[PostgresStore] = []

    def open_store() -> None:
        stores.append(PostgresStore(new, ttl=1, max_bytes=1, now=clock))

    threads = [threading.Thread(target=open_store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.fault for store in stores] == [None] * 4
    assert postgresql.execute("SELECT version FROM turnbridge.schema_version ORDER BY version", new) == [
        (number,) for number in range(1, LATEST + 1)
    ]


async def test_a_bridge_that_freezes_in_a_transaction_holds_no_other_up(url: str, clock: Clock) -> None:
    """Its locks are gone before another one gives up waiting for them."""
    async with postgres_store(url, clock) as store:
        assert await store.put("s", response("r1"))
        await store.flush()
        with Server(url).connection() as frozen:
            frozen.execute("BEGIN")
            frozen.execute("SELECT 1 FROM turnbridge.response FOR UPDATE")
            assert await store.put("s", response("r1", size=1_000))
            assert store.fault is None
        assert await store.get("s", "r1") == response("r1", size=1_000)


# Tables


def test_tables_of_a_newer_version_are_refused(postgresql: Postgresql, clock: Clock) -> None:
    new = postgresql.new_database()
    migrate_server(new)
    postgresql.execute(f"INSERT INTO turnbridge.schema_version VALUES ({LATEST + 1})", new)
    with pytest.raises(ConfigError, match=f"schema {LATEST + 1}; this version knows {LATEST}"):
        PostgresStore(new, ttl=1, max_bytes=1, now=clock)


async def test_a_user_who_may_create_no_tables_is_told_what_to_do(postgresql: Postgresql, clock: Clock) -> None:
    """The owner creates the tables, and the other user is content with rights to the rows."""
    owner = postgresql.new_database()
    postgresql.execute("DROP ROLE IF EXISTS clerk")
    postgresql.execute(f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'")
    clerk = re.sub(r"//\w+:", "//clerk:", owner)
    with pytest.raises(ConfigError, match="turnbridge store migrate"):
        PostgresStore(clerk, ttl=1, max_bytes=1, now=clock)
    assert migrate_server(owner) == (LATEST, LATEST)
    assert migrate_server(owner) == (0, LATEST)
    postgresql.execute(
        "GRANT USAGE ON SCHEMA turnbridge TO clerk; "
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA turnbridge TO clerk",
        owner,
    )
    async with postgres_store(clerk, clock) as store:
        assert await store.put("s", response("r1"))
        await store.flush()
        assert store.fault is None


# Secrets


def test_a_wrong_password_is_not_repeated(
    postgresql: Postgresql, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = postgresql.url("postgres").replace(PASSWORD, "not-the-password")
    store = PostgresStore(wrong, ttl=1, max_bytes=1, now=clock)
    assert "password authentication failed" in str(store.fault)
    assert "not-the-password" not in f"{store!r} {store.fault} {caplog.text} {vars(store)}"


# Faults


async def test_a_server_that_is_down_at_the_start_is_used_when_it_is_up(postgresql: Postgresql, clock: Clock) -> None:
    """What was stored meanwhile can be read here, nothing else, and nothing is reported as stored."""
    new = postgresql.new_database()
    postgresql.stop()
    try:
        async with postgres_store(new, clock) as store:
            assert "refused" in str(store.fault)
            assert not await store.put("s", response("r1"))
            assert await store.get("s", "r1") == response("r1")
            with pytest.raises(NotReady) as raised:
                await store.get("s", "r2")
            assert raised.value.code == "store_unavailable"
            with pytest.raises(NotReady):
                await store.create_conversation("s", conversation("c1"), [])
            store.count(usage(DAY, requests=1))
            postgresql.start()
            await fault_of(store, lasting=False)
            assert await store.put("s", response("r2", "r1"))
            async with postgres_store(new, clock) as other:
                assert ids(await other.chain("s", "r2")) == ["r1", "r2"]
                assert await other.usage(since="") == [usage(DAY, requests=1)]
    finally:
        postgresql.stop()
        postgresql.start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_restart_is_not_noticed_while_nothing_is_asked(
    postgresql: Postgresql, url: str, clock: Clock, number: signal.Signals
) -> None:
    """Connections that broke while they were idle are replaced."""
    async with postgres_store(url, clock) as store:
        assert await store.put("s", response("r1"))
        await store.flush()
        postgresql.stop(number)
        postgresql.start()
        assert await store.get("s", "r1") == response("r1")
        assert await store.put("s", response("r2"))
        assert store.fault is None


async def test_a_server_that_is_killed_under_load_loses_nothing_that_was_stored(
    postgresql: Postgresql, url: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    stored: list[str] = []
    async with postgres_store(url, clock) as store:
        stop = trio.Event()

        async def load(name: str) -> None:
            number = 0
            while not stop.is_set():
                if await store.put("s", response(f"{name}{number}", size=2_000)):
                    stored.append(f"{name}{number}")
                store.count(usage(DAY, requests=1))
                number += 1
                await trio.sleep(0.005)
            counted.append(number)

        counted: list[int] = []
        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(load, name)
            for _ in range(3):
                before = len(stored)
                while len(stored) < before + 40:
                    await trio.sleep(0.01)
                await trio.to_thread.run_sync(postgresql.stop, signal.SIGKILL)
                await fault_of(store)
                surely = list(stored)
                await trio.to_thread.run_sync(postgresql.start)
                await fault_of(store, lasting=False)
                async with postgres_store(url, clock) as other:
                    assert [id for id in surely if await other.get("s", id) is None] == []
            stop.set()
    async with postgres_store(url, clock) as other:
        assert (await other.usage(since=""))[0].requests == sum(counted)
    assert "writing again" in caplog.text
    assert PASSWORD not in caplog.text


async def test_connections_that_are_cut_count_nothing_twice(postgresql: Postgresql, url: str, clock: Clock) -> None:
    """Whatever the server was doing at that moment."""
    async with postgres_store(url, clock) as store:
        total = 0
        for _ in range(25):
            for _ in range(20):
                store.count(usage(DAY, requests=1))
                total += 1
                await trio.sleep(0.001)
            await trio.to_thread.run_sync(postgresql.cut_connections)
        await fault_of(store, lasting=False)
        await store.flush()
        async with postgres_store(url, clock) as other:
            assert await other.usage(since="") == [usage(DAY, requests=total)]


class LosingProxy:
    """Between a store and its server. Once armed, it passes a COMMIT on and keeps the answer to itself."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_armed = False
        self.lost = 0

    def serve(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            threading.Thread(target=self._pass_on, args=(client, server)).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pass_back, args=(server, client))
        back.start()
        with client, server:
            while data := client.recv(1 << 16):
                is_last = self.is_armed and b"COMMIT" in data
                if is_last:
                    self.is_armed = False
                    client.shutdown(socket.SHUT_RDWR)
                server.sendall(data)
                if is_last:
                    self.lost += 1
            server.shutdown(socket.SHUT_WR)
            back.join()

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):  # the client has lost its connection: what the server says is for nobody
            while data := server.recv(1 << 16):
                client.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def losing_proxy(port: int) -> Iterator[LosingProxy]:
    proxy = LosingProxy(port)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


async def test_a_commit_whose_answer_is_lost_is_not_made_again(postgresql: Postgresql, url: str, clock: Clock) -> None:
    """The bridge cannot know that it was made, repeats it, and the database recognises it."""
    with losing_proxy(postgresql.port) as proxy:
        through = url.replace(f":{postgresql.port}/", f":{proxy.port}/")
        async with postgres_store(through, clock) as store:
            await store.create_conversation("s", conversation("c"), [])
            for number in range(1, 4):
                proxy.is_armed = True
                store.count(usage(DAY, requests=1))
                assert await store.add_items("s", "c", json_items(f"m{number}"))
                assert await store.put("s", response(f"r{number}"))
                await store.flush()
                assert (proxy.lost, store.fault) == (number, None)
        async with postgres_store(url, clock) as other:
            assert await other.usage(since="") == [usage(DAY, requests=3)]
            assert item_ids(await other.list_items("s", "c")) == ["m1", "m2", "m3"]


async def test_a_frozen_server_holds_nobody_up(postgresql: Postgresql, url: str, clock: Clock) -> None:
    """Its kernel still accepts everything, so that no connection breaks."""
    async with postgres_store(url, clock, patience=0.3, limit=1.0) as store:
        assert await store.put("s", response("r1"))
        await store.flush()
        with postgresql.frozen(), trio.fail_after(30):
            assert not await store.put("s", response("r2"))
            assert store.fault is not None
            started = trio.current_time()
            assert not await store.put("s", response("r3"))
            assert await store.get("s", "r2") == response("r2")
            with pytest.raises(NotReady):
                await store.get("s", "r1")
            assert trio.current_time() - started < 0.3, "once there is a fault, nobody waits"
        await fault_of(store, lasting=False)
        await store.flush()
        async with postgres_store(url, clock) as other:
            assert await other.get("s", "r3") == response("r3")


async def test_reads_of_a_frozen_server_end(postgresql: Postgresql, url: str, clock: Clock) -> None:
    """Those that have a connection, and those that wait for one."""
    async with postgres_store(url, clock, patience=0.3, limit=1.0) as store:
        await store.put("s", response("r1"))
        await store.flush()
        refused: list[str] = []

        async def read() -> None:
            with pytest.raises(NotReady):
                await store.get("s", "r1")
            refused.append("r1")

        with postgresql.frozen():
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    for _ in range(40):
                        nursery.start_soon(read)
        assert len(refused) == 40
        await fault_of(store, lasting=False)
        assert await store.get("s", "r1") == response("r1")


async def test_a_locked_table_is_a_temporary_fault(postgresql: Postgresql, url: str, clock: Clock) -> None:
    """As when an operator rewrites it."""
    import psycopg

    async with postgres_store(url, clock, patience=0.3) as store:
        assert await store.put("s", response("r1"))
        with psycopg.connect(url) as operator:
            operator.execute("LOCK TABLE turnbridge.response")
            assert not await store.put("s", response("r2"))
            assert store.fault == "PostgreSQL has not stored anything for 0.3 s"
            with trio.fail_after(30):
                while store.fault != "canceling statement due to lock timeout":
                    await trio.sleep(0.01)
            operator.rollback()
        await fault_of(store, lasting=False)
        await store.flush()
        async with postgres_store(url, clock) as other:
            assert await other.get("s", "r2") == response("r2")


async def test_a_stop_while_the_server_is_down_ends_and_reports_what_is_lost(
    postgresql: Postgresql, url: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(30):
        async with postgres_store(url, clock) as store:
            await store.flush()
            await trio.to_thread.run_sync(postgresql.stop)
            assert not await store.put("s", response("r1"))
    postgresql.start()
    assert "lost 1 change(s)" in caplog.text
    with pytest.raises(NotReady):
        await store.get("s", "r2")
