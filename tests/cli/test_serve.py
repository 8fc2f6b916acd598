"""`turnbridge serve`: what it prints, where its key is, which keys open it, and how it ends."""

from __future__ import annotations

import signal
import socket
import stat
from pathlib import Path

import httpx2
import pytest
from cli.running import run_command
from harness import RunningBridge, running_bridge, scripted_codex, turns

GOOD = {"model": "mock-echo", "input": "hi"}


def status(bridge: RunningBridge, key: str) -> int:
    """How a request with this key is answered."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.post(f"{bridge.url}/responses", json=GOOD, headers=headers, trust_env=False, timeout=30).status_code


def test_the_first_start_makes_a_key_and_the_next_one_keeps_it(tmp_path: Path) -> None:
    """In a file of 0600 in a directory of 0700; its place is printed, the key itself is not."""
    with running_bridge(tmp_path, "--mock-only", PROXY_API_KEY="") as bridge:
        path = tmp_path / "state" / "turnbridge" / "api-key"
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


def test_several_keys_on_the_ipv6_loopback(tmp_path: Path) -> None:
    """--api-key twice, which wins over the environment: each opens it, and no other; the printed URL can be used."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        host = "::1"
    except OSError:
        host = "127.0.0.2"
    keys = ["--api-key=first-key-1", "--api-key=second-key-2"]
    with running_bridge(tmp_path, "--mock-only", f"--host={host}", *keys, PROXY_API_KEY="env-key-3") as bridge:
        assert bridge.url.startswith(f"http://[{host}]:" if ":" in host else f"http://{host}:")
        assert status(bridge, "first-key-1") == 200
        assert status(bridge, "second-key-2") == 200
        for wrong in ("env-key-3", "first-key-1,second-key-2", ","):
            assert status(bridge, wrong) == 401
        assert not (tmp_path / "state" / "turnbridge" / "api-key").exists()


def test_an_address_that_is_not_this_machine_s(tmp_path: Path) -> None:
    """It is the address that is wrong: neither the port, nor that there is no key for the world."""
    ran = run_command("serve", "--mock-only", "--host=192.0.2.1", "--port=0", HOME=str(tmp_path), PROXY_API_KEY="")
    assert ran.returncode == 2
    assert "This machine has no address 192.0.2.1. Set --host (PROXY_HOST)" in ran.stderr
    assert "--port" not in ran.stderr
    assert "key" not in ran.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_another_bridge_has(tmp_path: Path, host: str) -> None:
    """It is asked what it is. Any other program on the port is not named."""
    with running_bridge(tmp_path, "--mock-only", f"--host={host}") as bridge:
        ran = run_command("serve", "--mock-only", f"--host={host}", f"--port={bridge.port}", HOME=str(tmp_path))
        assert ran.returncode == 2
        assert f"A turnbridge already listens on {host} port {bridge.port}." in ran.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # It accepts, and never answers.
        port = taken.getsockname()[1]
        ran = run_command("serve", "--mock-only", f"--port={port}", HOME=str(tmp_path))
    assert ran.returncode == 2
    assert f"Port {port} on 127.0.0.1 cannot be used: Address already in use." in ran.stderr


def test_a_wrong_flag_names_the_flag_and_the_choices(tmp_path: Path) -> None:
    ran = run_command("serve", "--mock-only", "--dialect=klingon", "--workers=0", HOME=str(tmp_path))
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "error: --workers 0: use a whole number from 1 to 64",
        "error: --dialect klingon: choose one of auto, current, legacy",
    ]


def test_a_codex_home_that_is_not_there_is_told(tmp_path: Path) -> None:
    codex = scripted_codex(tmp_path, turns([{"text": "hi"}]))
    with running_bridge(tmp_path, f"--codex-home={tmp_path / 'hmoe'}", CODEX_BIN=str(codex)) as bridge:
        assert f"CODEX_HOME (--codex-home) {tmp_path / 'hmoe'} is not a directory" in bridge.stderr.read_text()


def test_with_keys_of_one_s_own_it_may_listen_to_the_world(tmp_path: Path) -> None:
    """PROXY_API_KEY with commas; then any Host is served, for whoever has one of the keys."""
    log = tmp_path / "events.ndjson"
    keys = "first-key-0123456789, second-key-0123456789"
    with running_bridge(tmp_path, "--mock-only", "--host=0.0.0.0", f"--log-events={log}", PROXY_API_KEY=keys) as bridge:
        assert bridge.url.startswith("http://0.0.0.0:")
        assert bridge.process.stdout is not None
        assert str(log) in bridge.process.stdout.readline()
        url = f"http://127.0.0.1:{bridge.port}/v1/models"
        for key, code in (
            ("first-key-0123456789", 200),
            ("second-key-0123456789", 200),
            (keys, 401),
            ("wrong", 401),
        ):
            headers = {"authorization": f"Bearer {key}", "host": "my-machine.lan"}
            assert httpx2.get(url, headers=headers, trust_env=False, timeout=30).status_code == code


def test_settings_can_be_checked_without_serving(tmp_path: Path) -> None:
    """As `nginx -t` does: exit code 0, or each fault and 2. Nothing is started, made or listened on."""
    config = tmp_path / "bridge.toml"
    config.write_text("[settings]\nworkers = 2\n")
    good = run_command("serve", "--check", f"--config={config}", HOME=str(tmp_path), PROXY_WORKRES="2")
    assert (good.returncode, good.stdout) == (0, "")
    assert "unknown setting PROXY_WORKRES" in good.stderr
    config.write_text("[settings]\nworkers = 0\n")
    bad = run_command("serve", "--check", f"--config={config}", HOME=str(tmp_path))
    assert bad.returncode == 2
    assert f"{config}:2: settings.workers: use a whole number from 1 to 64" in bad.stderr
    assert list(tmp_path.iterdir()) == [config]
