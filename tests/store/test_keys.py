"""The keys of clients, in a file and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from store.postgresql import PASSWORD, Postgresql

from bridge.app.keys import SOON, WATCH, Keyring
from bridge.errors import NotReady, Unauthorized, UsageError
from bridge.store.key_store import ClientKey, KeyFile, KeyStore
from bridge.store.postgres.keys import KeyTable

NOW = datetime(2026, 11, 16, tzinfo=UTC)
Open = Callable[[], KeyStore]


@pytest.fixture(params=["file", "postgresql"])
def open_keys(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same keys again and again, as several bridges do."""
    if request.param == "file":
        return lambda: KeyFile(tmp_path / "keys.json")
    server: Postgresql = request.getfixturevalue("postgresql")
    url = server.empty_database()
    return lambda: KeyTable(url)


def test_a_key_is_kept_until_it_is_revoked(open_keys: Open) -> None:
    """With all that it allows, for every bridge, and by name."""
    one, other = open_keys(), open_keys()
    assert one.read() == ()
    limits = {"models": ("gpt-5*",), "max_turns": 3, "max_requests": 5, "max_connections": 7, "max_body": 2048}
    key, entry = one.add("laptop", now=NOW, expires=NOW + timedelta(days=1), **limits)
    marks = [other.mark()]
    assert other.read() == (entry,)
    assert other.read()[0].max_turns == 3
    assert key not in entry.model_dump_json()
    _, second = other.add("desktop", now=NOW)
    marks.append(one.mark())
    assert set(one.read()) == {entry, second}
    assert one.revoke("laptop") == entry
    marks.append(other.mark())
    assert other.read() == (second,)
    assert len(set(marks)) == 3
    one.write((entry,))
    assert other.read() == (entry,)


def test_what_cannot_be_added_or_revoked(open_keys: Open) -> None:
    keys = open_keys()
    keys.add("laptop", now=NOW)
    before = keys.mark()
    with pytest.raises(UsageError, match="exists already"):
        keys.add("laptop", now=NOW)
    with pytest.raises(UsageError, match="Invalid key name"):
        keys.add("../etc", now=NOW)
    with pytest.raises(UsageError, match="--max-turns"):
        keys.add("desktop", now=NOW, max_turns=0)
    with pytest.raises(UsageError, match=r"No key named 'desktop'\. Existing keys: laptop\."):
        keys.revoke("desktop")
    assert keys.mark() == before


async def finds(keyring: Keyring, key: str) -> ClientKey | None:
    try:
        return await keyring.find(key.encode())
    except Unauthorized:
        return None


async def test_every_bridge_notices_a_change_within_a_second(open_keys: Open) -> None:
    """A new key is accepted at once; what a revoked one runs is ended."""
    keys = open_keys()
    keyrings = [Keyring(["given"], open_keys()) for _ in range(2)]
    gone: list[str] = []
    async with trio.open_nursery() as nursery:
        for keyring in keyrings:
            keyring.on_gone.append(gone.append)
            nursery.start_soon(keyring.watch)
        key, entry = await trio.to_thread.run_sync(lambda: keys.add("laptop", now=NOW))
        assert [await finds(keyring, key) for keyring in keyrings] == [entry, entry]
        await trio.to_thread.run_sync(keys.revoke, "laptop")
        with trio.fail_after(WATCH + 1):
            while len(gone) < 2:
                await trio.sleep(0.01)
        assert [await finds(keyring, key) for keyring in keyrings] == [None, None]
        nursery.cancel_scope.cancel()
    assert gone == [entry.label] * 2


async def test_wrong_keys_do_not_keep_the_database_busy(postgresql: Postgresql) -> None:
    url = postgresql.empty_database()
    keyring = Keyring([], KeyTable(url))
    keys = KeyTable(url)
    key, entry = keys.add("laptop", now=NOW)
    assert await finds(keyring, "wrong") is None
    with trio.fail_after(10):
        started = trio.current_time()
        while await finds(keyring, key) != entry:
            await trio.sleep(0.001)
            assert trio.current_time() - started < SOON + 2
    before = queries(postgresql)
    for _ in range(200):
        assert await finds(keyring, key) == entry
    assert queries(postgresql) == before, "a key that is known needs no database"


def queries(postgresql: Postgresql) -> object:
    """What the connection of a key ring asked last, and when."""
    return postgresql.execute(
        "SELECT query, query_start FROM pg_stat_activity WHERE application_name = 'turnbridge' ORDER BY pid"
    )


async def test_the_last_keys_stay_valid_while_the_database_is_gone(
    postgresql: Postgresql, caplog: pytest.LogCaptureFixture
) -> None:
    """A bridge that starts then knows no keys, and says that it is not the client's fault."""
    url = postgresql.empty_database()
    keys = KeyTable(url)
    key, entry = keys.add("laptop", now=NOW)
    async with trio.open_nursery() as nursery:
        keyring = Keyring(["given"], KeyTable(url))
        nursery.start_soon(keyring.watch)
        await trio.to_thread.run_sync(postgresql.stop)
        try:
            with trio.fail_after(30):
                while keyring.fault is None:
                    await trio.sleep(0.01)
            assert await finds(keyring, key) == entry
            late = await trio.to_thread.run_sync(lambda: Keyring(["given"], KeyTable(url)))
            nursery.start_soon(late.watch)
            with pytest.raises(NotReady) as raised:
                await late.find(key.encode())
            assert raised.value.code == "key_store_failing"
            assert await finds(late, "given") is not None
        finally:
            await trio.to_thread.run_sync(postgresql.start)
        with trio.fail_after(30):
            while keyring.fault or late.fault:
                await trio.sleep(0.01)
        assert await finds(late, key) == entry
        nursery.cancel_scope.cancel()
    assert "the keys read last stay valid" in caplog.text
    assert PASSWORD not in caplog.text
