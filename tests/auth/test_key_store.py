"""The file of clients' keys: what it holds, what it is refused for, and that nothing gets lost in it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.errors import ConfigError, UsageError
from bridge.store.key_store import MAX_KEYS, ClientKey, KeyFile, own_key

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "turnbridge" / "keys.json"


def test_a_key_is_kept_as_its_hash_alone(path: Path) -> None:
    """Whoever reads the file learns no key; nobody but its owner reads it."""
    key, kept = KeyFile(path).add("laptop", now=NOW, models=("gpt-5*",), max_turns=2, expires=NOW + timedelta(days=1))
    assert KeyFile(path).read() == (kept,)
    assert kept.sha256 == hashlib.sha256(key.encode()).hexdigest()
    assert kept.label == f"key-{kept.sha256[:12]}"
    assert (kept.name, kept.models, kept.max_turns, kept.max_body) == ("laptop", ("gpt-5*",), 2, None)
    assert key.startswith("cb-")
    assert key.removeprefix("cb-") not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


@pytest.mark.parametrize("begun", [False, True], ids=["no file", "an empty file"])
def test_programs_that_start_at_once_agree_on_one_key(path: Path, begun: bool) -> None:
    """Of several that begin with none, one makes it; it is whole, and private, whenever it can be seen."""
    place = path.with_name("api-key")
    if begun:
        place.parent.mkdir(parents=True)
        place.touch(0o600)
    start, found = threading.Barrier(8), list[str]()

    def begin() -> None:
        start.wait()
        found.append(own_key(place))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {own_key(place)} == {place.read_text().strip()}
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_keys_are_added_and_revoked(path: Path) -> None:
    """In the order in which they were made; a name that has been revoked is free, for a key of its own."""
    first = KeyFile(path).add("a", now=NOW)[1]
    second = KeyFile(path).add("b", now=NOW)[1]
    assert KeyFile(path).revoke("a") == first
    again = KeyFile(path).add("a", now=NOW)[1]
    assert again.label != first.label
    assert KeyFile(path).read() == (second, again)
    KeyFile(path).revoke("a")
    KeyFile(path).revoke("b")
    assert KeyFile(path).read() == ()


def test_there_may_be_no_file(path: Path) -> None:
    """Which is to have no keys."""
    assert KeyFile(path).read() == ()
    with pytest.raises(UsageError, match=r"No key named 'x'\. There are no keys"):
        KeyFile(path).revoke("x")


def test_a_name_is_used_once(path: Path) -> None:
    KeyFile(path).add("laptop", now=NOW)
    with pytest.raises(UsageError, match="keys revoke laptop"):
        KeyFile(path).add("laptop", now=NOW)
    assert len(KeyFile(path).read()) == 1


@pytest.mark.parametrize("name", ["", ".", "-x", "a b", "a/b", "../x", "ä", "x" * 65, "x\n", "a\x00", "a\x1b[1m"])
def test_invalid_names(path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="Invalid key name"):
        KeyFile(path).add(name, now=NOW)
    assert not path.exists()


@pytest.mark.parametrize("limit", ["max_turns", "max_requests", "max_connections", "max_body"])
@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5])
def test_invalid_limits(path: Path, limit: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"--{limit.replace('_', '-')}: "):
        KeyFile(path).add("laptop", now=NOW, **{limit: value})
    assert not path.exists()


def test_the_number_of_keys_is_limited(path: Path) -> None:
    """Each request is compared with all of them."""
    kept = KeyFile(path).add("first", now=NOW)[1].model_dump(mode="json")
    many = [{**kept, "name": f"k{number}", "sha256": f"{number:064x}"} for number in range(MAX_KEYS)]
    path.write_text(json.dumps({"version": 1, "keys": many}))
    with pytest.raises(UsageError, match="Revoke some"):
        KeyFile(path).add("one-more", now=NOW)
    KeyFile(path).revoke("k7")
    KeyFile(path).add("one-more", now=NOW)
    assert len(KeyFile(path).read()) == MAX_KEYS


# Files that are not to be trusted


def edited(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return edit


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00 no JSON"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "another_version": edited(lambda data: data.update(version=2)),
    "unknown_member": edited(lambda data: data.update(more=1)),
    "unknown_limit": edited(lambda data: data["keys"][0].update(max_tokens=1)),  # type: ignore[index]
    "no_hash": edited(lambda data: data["keys"][0].update(sha256="")),  # type: ignore[index]
    "naive_time": edited(lambda data: data["keys"][0].update(expires="2027-01-01T00:00:00")),  # type: ignore[index]
    "limit_of_nothing": edited(lambda data: data["keys"][0].update(max_turns=0)),  # type: ignore[index]
    "twice": edited(lambda data: data.update(keys=data["keys"] * 2)),  # type: ignore[operator]
    "too_large": lambda path: path.write_bytes(b" " * 5_000_000),
    "link": linked,
    "pipe": made_a_pipe,
    "directory": made_a_directory,
    "for_the_group": lambda path: path.chmod(0o620),
    "for_all": lambda path: path.chmod(0o606),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_a_broken_key_file_is_reported_and_left_unchanged(path: Path, damage: Callable[[Path], object]) -> None:
    """With its path, and what to do; never with what stands in it. No command writes over it."""
    kept = KeyFile(path).add("laptop", now=NOW, models=("canary-model",))[1]
    damage(path)
    for command in (
        lambda: KeyFile(path).read(),
        lambda: KeyFile(path).add("other", now=NOW),
        lambda: KeyFile(path).revoke("laptop"),
    ):
        with pytest.raises(ConfigError) as told:
            command()
        assert str(path) in told.value.message
        assert "Fix the file" in told.value.message
        assert not any(text in told.value.message for text in (kept.sha256, "canary-model"))
    assert not [each for each in path.parent.iterdir() if each.name.endswith(".new")]


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        KeyFile(tmp_path / "file" / "keys.json").add("laptop", now=NOW)


def test_the_files_of_a_killed_command_do_no_harm(path: Path) -> None:
    """Not even a link in the place of its temporary file: nothing is written through it."""
    KeyFile(path).add("a", now=NOW)
    victim = path.with_name("victim")
    victim.write_text("mine")
    path.with_name(".keys.json.new").symlink_to(victim)
    KeyFile(path).add("b", now=NOW)
    assert victim.read_text() == "mine"
    assert [key.name for key in KeyFile(path).read()] == ["a", "b"]


def test_commands_wait_for_each_other(path: Path) -> None:
    """Who changes the store does so alone."""
    KeyFile(path).add("a", now=NOW)
    with path.with_name("keys.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = threading.Thread(target=KeyFile(path).add, args=("b",), kwargs={"now": NOW})
        command.start()
        command.join(0.1)
        assert [key.name for key in KeyFile(path).read()] == ["a"]
    command.join(10)
    assert [key.name for key in KeyFile(path).read()] == ["a", "b"]


# What a key allows


def key_for(*models: str, expires: datetime | None = None) -> ClientKey:
    return ClientKey(name="x", sha256="0" * 64, created=NOW, models=models, expires=expires)


@pytest.mark.parametrize(
    ("models", "names", "allowed"),
    [
        ((), ("anything",), True),
        (("gpt-5.5",), ("gpt-5.5",), True),
        (("gpt-5.5",), ("GPT-5.5",), True),
        (("GPT-5.5",), ("gpt-5.5",), True),
        (("gpt-5.5",), ("gpt-5.5-pro",), False),
        (("gpt-5.5",), ("smart", "gpt-5.5"), True),
        (("smart",), ("smart", "gpt-6"), True),
        (("gpt-5*",), ("gpt-5.5-pro",), True),
        (("gpt-5*",), ("x-gpt-5",), False),
        (("gpt-?",), ("gpt-5",), True),
        (("gpt-[56]",), ("gpt-6",), True),
        (("gpt-5", "claude-*"), ("claude-x",), True),
        (("gpt-5", "claude-*"), ("mock-echo",), False),
        (("*",), ("anything",), True),
        (("a.c",), ("abc",), False),
    ],
)
def test_the_models_of_a_key(models: tuple[str, ...], names: tuple[str, ...], allowed: bool) -> None:
    """Exact names, or patterns where there is a * ? or [ in them; by any of the names that a model has."""
    assert key_for(*models).allows(*names) is allowed


def test_a_key_expires() -> None:
    """At its time, not a moment later; one without a time never does."""
    at = NOW.timestamp()
    assert not key_for(expires=NOW).has_expired(at - 0.001)
    assert key_for(expires=NOW).has_expired(at)
    assert not key_for().has_expired(at)
