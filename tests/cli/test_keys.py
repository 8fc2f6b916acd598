"""`turnbridge keys`: made, listed, revoked; what a person sees, and what several commands at once do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import run_command
from harness import KEY, running_bridge
from warm import WarmProcess

from bridge.cli.clients import parse_end
from bridge.errors import UsageError
from bridge.store.key_store import KeyFile, label_of

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def keys(tmp_path: Path) -> Run:
    """`turnbridge keys WORDS`, with a state directory of its own, on 80 columns."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        settings = {"XDG_STATE_HOME": str(tmp_path), "COLUMNS": "80", "TZ": "UTC", **variables}
        return run_command("keys", *words, **settings)

    return run


def store(tmp_path: Path) -> Path:
    return tmp_path / "turnbridge" / "keys.json"


def test_a_key_is_shown_once(keys: Run, tmp_path: Path) -> None:
    """On stdout alone, so that it can be put into a variable; what is said about it is on stderr."""
    made = keys("add", "laptop")
    key = made.stdout.removesuffix("\n")
    assert (made.returncode, re.fullmatch(r"cb-[A-Za-z0-9_-]{43}", key) is not None) == (0, True)
    label = f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    assert made.stderr == f"note: the key of laptop ({label}) is not shown again\n"
    listed = keys("list").stdout + keys("list", "--json").stdout
    assert label in listed
    written = "".join(each.read_text() for each in store(tmp_path).parent.iterdir())
    assert key not in listed + written + keys("revoke", "laptop").stdout


def test_everything_about_a_key(keys: Run) -> None:
    """As JSON, for programs."""
    limits = ["--max-turns=2", "--max-requests=60", "--max-connections=8", "--max-body=4096"]
    made = keys("add", "ci", "--models=gpt-5*, o3", "--models=mock-echo", *limits, "--expires=2099-01-31", "--json")
    told: dict[str, Any] = json.loads(made.stdout)
    assert made.stderr == ""
    key = told.pop("key")
    listed: dict[str, Any] = json.loads(keys("list", "--json").stdout)
    assert told == listed
    datetime.fromisoformat(listed.pop("created"))
    assert listed == {
        "name": "ci",
        "label": f"key-{hashlib.sha256(key.encode()).hexdigest()[:12]}",
        "expires": "2099-01-31T00:00:00Z",
        "models": ["gpt-5*", "o3", "mock-echo"],
        "max_turns": 2,
        "max_requests": 60,
        "max_connections": 8,
        "max_body": 4096,
    }


def test_the_list_fits_on_a_screen(keys: Run, tmp_path: Path) -> None:
    """A line for each; what does not fit goes on below. A name is never cut, since it is needed to revoke the key."""
    path, now = store(tmp_path), datetime(2026, 3, 1, 12, tzinfo=UTC)
    KeyFile(path).add("laptop", now=now)
    KeyFile(path).add("old", now=now, expires=now + timedelta(days=1))
    many = ("gpt-5*", "claude-sonnet-4-5", "mock-echo")
    KeyFile(path).add(
        "ci", now=now, models=many, max_turns=2, max_requests=60, expires=datetime(2099, 1, 31, tzinfo=UTC)
    )
    shown = [re.sub(r"key-[0-9a-f]{12}", "key-0123456789ab", line) for line in keys("list").stdout.splitlines()]
    assert shown == [
        "name          label             made        ends        may use",
        "laptop        key-0123456789ab  2026-03-01  never       all models",
        "old           key-0123456789ab  2026-03-01  expired     all models",
        "ci            key-0123456789ab  2026-03-01  2099-01-31  gpt-5*,",
        "                                                        claude-sonnet-4-5,",
        "                                                        mock-echo, 2 at once, 60",
        "                                                        a minute",
    ]
    assert max(map(len, shown)) <= 80
    long = "a-name-that-is-long-" + "x" * 44
    KeyFile(path).add(long, now=now)
    assert long in keys("list").stdout


def test_an_empty_list_says_how_to_begin(keys: Run) -> None:
    listed = keys("list")
    assert (listed.returncode, listed.stdout) == (0, "")
    assert "keys add NAME" in listed.stderr
    assert (keys("list", "--json").stdout, keys("list", "--json").stderr) == ("", "")


def test_a_revoked_key_is_gone(keys: Run, tmp_path: Path) -> None:
    keys("add", "laptop")
    keys("add", "ci")
    assert keys("revoke", "laptop").stdout.startswith("revoked laptop (key-")
    assert [key.name for key in KeyFile(store(tmp_path)).read()] == ["ci"]
    again = keys("revoke", "laptop")
    assert again.returncode == 2
    assert again.stderr == "error: No key named 'laptop'. Existing keys: ci.\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["add"], "NAME"),
        (["add", "a b"], "Invalid key name"),
        (["add", "x", "--expires", "soon"], "--expires soon"),
        (["add", "x", "--expires", "2020-01-01"], "is in the past"),
        (["add", "x", "--max-turns", "0"], "--max-turns"),
        (["add", "x", "--models", ""], "--models"),
        (["add", "x", "--models", "a,,b"], "--models"),
        (["add", "x", "--max-body", "5"], "--max-body"),
        (["add", "x", "--max-requests", "many"], "--max-requests"),
        (["revoke", "x"], "There are no keys"),
        (["rename", "x"], "rename"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(keys: Run, words: list[str], named: str, tmp_path: Path) -> None:
    """With what to do, and exit code 2; nothing is kept."""
    done = keys(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert not store(tmp_path).exists()


def test_a_state_directory_that_cannot_be_used_is_told(keys: Run) -> None:
    done = keys("add", "laptop", XDG_STATE_HOME="/proc/nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "XDG_STATE_HOME" in done.stderr


def test_commands_at_once_lose_nothing(keys: Run, tmp_path: Path) -> None:
    """Each makes its key; each revokes its own."""
    names = [f"k{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda name: keys("add", name).stdout.strip(), names))
        kept = {key.name: key.sha256 for key in KeyFile(store(tmp_path)).read()}
        assert kept == {name: hashlib.sha256(key.encode()).hexdigest() for name, key in zip(names, made, strict=True)}
        list(pool.map(lambda name: keys("revoke", name), names[::2]))
    assert {key.name for key in KeyFile(store(tmp_path)).read()} == set(names[1::2])


@pytest.mark.deep
def test_a_killed_command_leaves_the_store_whole(tmp_path: Path) -> None:
    """At whatever moment: what was printed is kept, what was there stays, and the next command is not kept waiting."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "XDG_STATE_HOME": str(tmp_path)}
    began = time.monotonic()
    assert run_command("keys", "add", "first", XDG_STATE_HOME=str(tmp_path)).returncode == 0
    usual = time.monotonic() - began
    printed = set[str]()
    for number in range(150):
        pipe = subprocess.PIPE
        with WarmProcess(
            ["keys", "add", f"k{number}"], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env
        ) as one:
            with suppress(subprocess.TimeoutExpired):
                one.wait(1.2 * usual * number / 150)
            one.kill()
            out, _ = one.communicate()
        printed |= {hashlib.sha256(key).hexdigest() for key in out.split()}
        kept = KeyFile(store(tmp_path)).read()
        assert kept[0].name == "first"
        assert printed <= {key.sha256 for key in kept}
    KeyFile(store(tmp_path)).add("last", now=datetime.now(UTC))


def test_usage_shows_names(tmp_path: Path) -> None:
    """Where a key has one; and its label still stands for what belongs to it."""
    with running_bridge(tmp_path, "--mock-only") as bridge:
        key, kept = KeyFile(bridge.state / "turnbridge" / "keys.json").add("laptop", now=datetime.now(UTC))
        with bridge.client(key=key) as client:
            assert client.post("/responses", json={"model": "mock-echo", "input": "x"}).status_code == 200
        assert bridge.post("/responses", {"model": "mock-echo", "input": "x"}).status_code == 200
        bridge.stop()
        shown = run_command("usage", XDG_STATE_HOME=str(bridge.state)).stdout
        rows = [
            json.loads(line)
            for line in run_command("usage", "--json", XDG_STATE_HOME=str(bridge.state)).stdout.splitlines()
        ]
    assert "laptop" in shown
    assert kept.label not in shown
    assert {(row["name"], row["key"] == kept.label) for row in rows} == {("laptop", True), (None, False)}


def test_usage_names_the_keys_of_the_operator(tmp_path: Path) -> None:
    with running_bridge(tmp_path, "--mock-only") as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "x"}).status_code == 200
        bridge.stop()
    state = {"XDG_STATE_HOME": str(bridge.state)}

    def shown(**environment: str) -> str:
        return run_command("usage", **state, **environment).stdout.splitlines()[1].split()[1]

    assert shown() == "PROXY_API_KEY"
    assert shown(PROXY_API_KEY="") == label_of(hashlib.sha256(KEY.encode()).digest())
    (bridge.state / "turnbridge" / "api-key").write_text(f"{KEY}\n")
    assert shown(PROXY_API_KEY="") == "(generated)"


def test_a_limit_is_a_number_that_can_be_kept(keys: Run) -> None:
    """One beyond all measure is refused, and no key is made."""
    for option in ("--max-body", "--max-turns", "--max-requests", "--max-connections"):
        made = keys("add", "laptop", "--json", f"{option}=99999999999999999999999")
        assert (made.returncode, made.stdout) == (2, "")
        assert option in made.stderr
        assert "Traceback" not in made.stderr
    assert "no keys yet" in keys("list").stderr


def test_the_end_of_time_is_shown_everywhere(keys: Run) -> None:
    """Also where it is a day later already."""
    assert keys("add", "laptop", "--expires=9999-12-31T23:59:59Z").returncode == 0
    for zone in ("Asia/Tokyo", "UTC", "America/New_York"):
        listed = keys("list", TZ=zone)
        assert (listed.returncode, "9999-12-31" in listed.stdout) == (0, True), listed.stderr


NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("45m", NOW + timedelta(minutes=45)),
        ("12h", NOW + timedelta(hours=12)),
        (" 30d ", NOW + timedelta(days=30)),
        ("8w", NOW + timedelta(weeks=8)),
        ("2027-01-31T08:30+02:00", datetime(2027, 1, 31, 6, 30, tzinfo=UTC)),
        ("2027-01-31T08:30Z", datetime(2027, 1, 31, 8, 30, tzinfo=UTC)),
    ],
)
def test_when_a_key_ends(text: str, end: datetime) -> None:
    assert parse_end(text, NOW) == end


@pytest.mark.parametrize("text", ["", "0d", "d", "-1d", "1y", "999999w", "2026-11-17T12:00Z", "99999-01-01", "1.5h"])
def test_what_is_no_end(text: str) -> None:
    with pytest.raises(UsageError, match="--expires"):
        parse_end(text, NOW)


def test_a_bridge_for_other_machines_starts_with_a_key_of_its_own(tmp_path: Path) -> None:
    """One that was made for it: then the one that was made at first start is not let in."""
    path = tmp_path / "state" / "turnbridge" / "keys.json"
    key, _ = KeyFile(path).add("laptop", now=datetime.now(UTC))
    (path.parent / "api-key").write_text("cb-the-key-of-this-machine-0123456789\n")
    with running_bridge(tmp_path, "--mock-only", "--host=0.0.0.0", PROXY_API_KEY="") as bridge:
        local = bridge.root.replace("0.0.0.0", "127.0.0.1")
        for given, status in ((key, 200), ("cb-the-key-of-this-machine-0123456789", 401)):
            headers = {"authorization": f"Bearer {given}", "host": "box.example"}
            assert httpx2.get(f"{local}/v1/models", headers=headers, trust_env=False, timeout=30).status_code == status
