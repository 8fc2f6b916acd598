"""The keys that are let in, while their store changes under a bridge that runs."""

from __future__ import annotations

import hashlib
import logging
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing

from bridge.app.keys import WATCH, Keyring, check_bind, load_keys
from bridge.errors import ConfigError, Unauthorized
from bridge.settings import load_settings
from bridge.store.key_store import KeyFile

GIVEN = "a-key-of-the-operator"
NOW = datetime.now(UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


async def lets_in(keyring: Keyring, key: str) -> bool:
    try:
        await keyring.find(key.encode())
    except Unauthorized:
        return False
    return True


async def test_keys_are_let_in_as_the_store_changes(path: Path) -> None:
    """Those that were given always; those in the store from when they are made until they are revoked."""
    keyring = Keyring([GIVEN], KeyFile(path))
    assert await lets_in(keyring, GIVEN)
    keys = []
    for number in range(5):
        keys.append(KeyFile(path).add(f"k{number}", now=NOW)[0])
        assert [await lets_in(keyring, key) for key in keys] == [True] * len(keys)
    for number, key in enumerate(keys):
        KeyFile(path).revoke(f"k{number}")
        assert not await lets_in(keyring, key)
        assert [await lets_in(keyring, other) for other in keys[number + 1 :]] == [True] * (4 - number)
    path.unlink()
    assert await lets_in(keyring, GIVEN)


async def test_a_store_that_is_taken_away_has_no_keys(path: Path) -> None:
    key = KeyFile(path).add("laptop", now=NOW)[0]
    keyring = Keyring([GIVEN], KeyFile(path))
    path.unlink()
    assert not await lets_in(keyring, key)
    assert keyring.fault is None


@pytest.mark.parametrize("key", ["", " ", "ä", "\x00", "x" * 100_000, hashlib.sha256(b"x").hexdigest()], ids=len)
async def test_what_is_no_key(path: Path, key: str) -> None:
    """Whatever it is, it is compared and refused. A hash from the store is none, either."""
    _, kept = KeyFile(path).add("laptop", now=NOW)
    keyring = Keyring([GIVEN], KeyFile(path))
    assert not await lets_in(keyring, key)
    assert not await lets_in(keyring, kept.sha256)
    assert not await lets_in(keyring, kept.label)


async def test_a_broken_store_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The keys that were there are used on; it is told once, and until it is mended the bridge is not well."""
    key = KeyFile(path).add("laptop", now=NOW)[0]
    keyring = Keyring([GIVEN], KeyFile(path))
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await lets_in(keyring, key)
            assert await lets_in(keyring, GIVEN)
        reported = keyring.fault
        assert reported is not None
        assert len(caplog.records) == 1
        assert str(path) in caplog.text
        before = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == before:  # the clock of a file system may tick every few milliseconds
            path.chmod(0o666)
        assert await lets_in(keyring, key)
        assert len(caplog.records) == 2
        path.write_bytes(good)
        path.chmod(0o600)
        assert await lets_in(keyring, key)
    assert keyring.fault is None
    assert not any(secret in caplog.text for secret in (key, GIVEN))
    KeyFile(path).revoke("laptop")
    assert not await lets_in(keyring, key)


async def test_a_store_that_cannot_be_read_for_a_moment_is_read_later(
    path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Where nothing is wrong with the file itself, nothing about it changes when it can be read again."""
    key = KeyFile(path).add("laptop", now=NOW)[0]
    keyring = Keyring([GIVEN], KeyFile(path))
    KeyFile(path).revoke("laptop")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert await lets_in(keyring, key)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in str(keyring.fault)
    await trio.sleep(WATCH)
    assert not await lets_in(keyring, key)
    assert keyring.fault is None


def test_a_store_that_is_broken_from_the_beginning_is_a_mistake(path: Path) -> None:
    path.write_text("{")
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        Keyring([GIVEN], KeyFile(path))


async def test_a_key_ends_also_while_nobody_uses_it(path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Revoked or expired, it is told; once for each, and for nobody else."""
    time = NOW.timestamp()
    late = KeyFile(path).add("late", now=NOW, expires=NOW + timedelta(seconds=30))[1]
    gone = KeyFile(path).add("gone", now=NOW)[1]
    key, kept = KeyFile(path).add("kept", now=NOW)
    keyring = Keyring([GIVEN], KeyFile(path), now=lambda: time)
    tell, told = trio.open_memory_channel[str](10)
    keyring.on_gone.append(tell.send_nowait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keyring.watch)
        await trio.sleep(5)
        KeyFile(path).revoke("gone")
        assert await told.receive() == gone.label
        time += 30
        assert await told.receive() == late.label
        await trio.sleep(5)
        assert told.statistics().current_buffer_used == 0
        nursery.cancel_scope.cancel()
    assert await lets_in(keyring, key)
    assert keyring.get(late.label) is None
    assert keyring.get(kept.label) == kept


async def test_an_expired_key_is_told_so(path: Path) -> None:
    """Whoever has the key may know."""
    key = KeyFile(path).add("late", now=NOW, expires=NOW + timedelta(seconds=30))[0]
    keyring = Keyring([], KeyFile(path), now=lambda: NOW.timestamp() + 30)
    with pytest.raises(Unauthorized, match="has expired"):
        await keyring.find(key.encode())


async def test_many_requests_read_a_changed_store_once(path: Path) -> None:
    """And all of them get to know what is in it."""
    keyring = Keyring([GIVEN], KeyFile(path))
    key = KeyFile(path).add("laptop", now=NOW)[0]
    found: list[bool] = []

    async def ask() -> None:
        found.append(await lets_in(keyring, key))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
    assert found == [True] * 50


# The start


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "turnbridge" / "keys.json"


def test_the_key_of_this_machine_is_not_for_others(state: Path) -> None:
    """A bridge for other machines needs a key that somebody has made for it, one that works."""
    public = load_settings({"PROXY_HOST": "0.0.0.0"})
    local = load_settings({})
    assert load_keys(local)[1] is not None
    with pytest.raises(ConfigError, match="keys add NAME"):
        check_bind(public)
    KeyFile(state).add("late", now=NOW, expires=NOW - timedelta(days=1))
    with pytest.raises(ConfigError, match="keys add NAME"):
        check_bind(public)
    KeyFile(state).add("laptop", now=NOW)
    check_bind(public)
    assert load_keys(public) == ((), None)
    check_bind(load_settings({"PROXY_HOST": "0.0.0.0", "PROXY_API_KEY": GIVEN}))
    check_bind(local)


@pytest.mark.parametrize("keys", ["a", "fifteen-letters", f"{'x' * 16},short"])
def test_a_key_for_other_machines_cannot_be_guessed(state: Path, keys: str) -> None:
    """On this machine it may be short."""
    with pytest.raises(ConfigError, match=r"16 characters\. .*keys add NAME"):
        check_bind(load_settings({"PROXY_HOST": "192.0.2.1", "PROXY_API_KEY": keys}))
    check_bind(load_settings({"PROXY_HOST": "192.0.2.1", "PROXY_API_KEY": "x" * 16}))
    check_bind(load_settings({"PROXY_API_KEY": keys}))
