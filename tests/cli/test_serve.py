"""`codex-bridge serve`: what it prints, where its key is, which keys open it, and how it ends."""

from __future__ import annotations

import signal
import socket
import stat
from pathlib import Path

import httpx2
import pytest
from harness import RunningBridge, running_bridge

GOOD = {"model": "mock-echo", "input": "hi"}


def status(bridge: RunningBridge, key: str) -> int:
    """How a request with this key is answered."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.post(f"{bridge.url}/responses", json=GOOD, headers=headers, trust_env=False).status_code


def test_the_first_start_makes_a_key_and_the_next_one_keeps_it(tmp_path: Path) -> None:
    """In a file of 0600 in a directory of 0700; its place is printed, the key itself is not."""
    with running_bridge(tmp_path, "--mock-only", PROXY_API_KEY="") as bridge:
        path = tmp_path / "state" / "codex-bridge" / "api-key"
        assert bridge.process.stdout is not None
        printed = bridge.process.stdout.readline()
        assert str(path) in printed
        key = path.read_text().strip()
        assert len(key) >= 40
        assert key not in printed
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert status(bridge, key) == 200
        assert status(bridge, "test-key-0123456789") == 401
        assert bridge.stop(signal.SIGINT) == 0
    with running_bridge(tmp_path, "--mock-only", PROXY_API_KEY="") as bridge:
        assert path.read_text().strip() == key
        assert status(bridge, key) == 200


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [(["--api-key=first-key-1", "--api-key=second-key-2"], "env-key-3"), ([], "first-key-1, second-key-2")],
    ids=["flags", "variable"],
)
def test_several_keys_open_it(tmp_path: Path, arguments: list[str], variable: str) -> None:
    """--api-key twice (which wins over the environment), or PROXY_API_KEY with commas: each of them, and no other."""
    with running_bridge(tmp_path, "--mock-only", *arguments, PROXY_API_KEY=variable) as bridge:
        assert status(bridge, "first-key-1") == 200
        assert status(bridge, "second-key-2") == 200
        for wrong in ("env-key-3", "first-key-1, second-key-2", "first-key-1,second-key-2", ","):
            assert status(bridge, wrong) == 401
        assert not (tmp_path / "state" / "codex-bridge" / "api-key").exists()


def test_with_a_key_it_may_listen_to_the_world(tmp_path: Path) -> None:
    """Behind another name than localhost, since the key then is the operator's own; the name is printed."""
    log = tmp_path / "events.ndjson"
    with running_bridge(tmp_path, "--mock-only", "--host=0.0.0.0", f"--log-events={log}") as bridge:
        assert bridge.url.startswith("http://0.0.0.0:")
        assert bridge.process.stdout is not None
        assert str(log) in bridge.process.stdout.readline()
        url = f"http://127.0.0.1:{bridge.port}/v1/models"
        for host in ("my-machine.lan", "127.0.0.1"):
            headers = {"authorization": "Bearer test-key-0123456789", "host": host}
            assert httpx2.get(url, headers=headers, trust_env=False).status_code == 200
        assert httpx2.get(url, headers={"host": "my-machine.lan"}, trust_env=False).status_code == 401


def test_ipv6_loopback_is_loopback(tmp_path: Path) -> None:
    """--host ::1 needs no key of one's own, and prints a URL that can be used."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with running_bridge(tmp_path, "--mock-only", "--host=::1") as bridge:
        assert bridge.url.startswith("http://[::1]:")
        assert status(bridge, "test-key-0123456789") == 200


def test_the_working_directory_is_made_private(tmp_path: Path, mock_bridge: RunningBridge) -> None:
    """PROXY_CODEX_WORKDIR is created 0700."""
    work = mock_bridge.state.parent / "work"
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
