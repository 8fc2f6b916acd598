"""Several bridges, as real processes, that share the limits of keys in one Redis server."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import run_command
from harness import KEY, RunningBridge, running_bridge
from server.answers import ok, refusal
from server.prompted import MODEL, ask, prompted_codex, wait_for
from shared.redis import PASSWORD, Redis

from bridge.shared.scripts import LEASE

ECHO = {"model": "mock-echo", "input": "x"}
HANG = ask({"hang": True}, background=True)


class Bridges:
    """Starts bridges with the same keys, each with a directory of its own."""

    def __init__(self, directory: Path, redis: Redis, stack: ExitStack) -> None:
        self._directory = directory
        self._redis = redis
        self._stack = stack
        self.started: list[RunningBridge] = []

    def add_key(self, name: str, *limits: str) -> str:
        """A key for the bridges that are started after this."""
        made = run_command("keys", "add", name, "--json", *limits, XDG_STATE_HOME=str(self._directory / "keys"))
        assert made.returncode == 0, made.stderr
        key: str = json.loads(made.stdout)["key"]
        return key

    def start(self, *arguments: str, **settings: str) -> RunningBridge:
        directory = self._directory / f"bridge{len(self.started)}"
        state = directory / "state"
        shutil.copytree(self._directory / "keys", state)
        flags = arguments or ("--mock-only",)
        settings = {"PROXY_SHARED": self._redis.url, **settings}
        bridge = self._stack.enter_context(running_bridge(directory, *flags, **settings))
        self.started.append(bridge)
        return bridge

    def wait_until_known(self) -> None:
        """Each knows of all."""
        what = f"turnbridge_shared_bridges {len(self.started)}.0"
        wait_for(lambda: all(what in metrics(bridge) for bridge in self.started), "all bridges")


@pytest.fixture
def bridges(tmp_path: Path, redis: Redis) -> Iterator[Bridges]:
    with ExitStack() as stack:
        yield Bridges(tmp_path, redis, stack)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert PASSWORD.encode() not in file.read_bytes(), f"the password is in {file}"


def metrics(bridge: RunningBridge) -> str:
    with bridge.client() as client:
        return client.get(f"{bridge.root}/metrics").text


def health(bridge: RunningBridge) -> tuple[str, str]:
    told = httpx2.get(f"{bridge.root}/healthz", trust_env=False).json()
    return told["status"], told["reason"]


def begun(bridge: RunningBridge, key: str, requests: int) -> int:
    """How many of so many requests are answered; the others are refused by the key's limit."""
    with bridge.client(key=key) as client:
        statuses = [client.post("/responses", json=ECHO).status_code for _ in range(requests)]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


def begun_at_once(bridges: list[RunningBridge], key: str, requests: int) -> int:
    with ThreadPoolExecutor(len(bridges)) as pool:
        return sum(pool.map(lambda bridge: begun(bridge, key, requests), bridges))


def test_the_rate_of_a_key_holds_over_three_bridges(bridges: Bridges) -> None:
    key = bridges.add_key("laptop", "--max-requests", "30")
    three = [bridges.start() for _ in range(3)]
    started = time.monotonic()
    answered = begun_at_once(three, key, 25)
    refilled = (time.monotonic() - started) * 30 / 60
    assert 30 <= answered <= (30 + refilled) * 1.01
    with three[0].client(key=key) as client:
        answer = client.post("/responses", json=ECHO)
    assert refusal(answer, 429)[0] == "key_limit_exceeded"
    assert 0 < float(answer.headers["retry-after"]) <= 60


def test_each_bridge_takes_its_share_while_the_server_is_gone(bridges: Bridges, redis: Redis) -> None:
    """And what was taken meanwhile is not given again when it is back."""
    key = bridges.add_key("laptop", "--max-requests", "10")
    two = [bridges.start() for _ in range(2)]
    bridges.wait_until_known()
    started = time.monotonic()
    redis.kill()
    try:
        answered = begun_at_once(two, key, 12)
        assert answered >= 8
    finally:
        redis.start()
    for bridge in two:
        wait_for(lambda bridge=bridge: health(bridge)[0] == "ok", "health")  # type: ignore[misc]
    answered += begun_at_once(two, key, 12)
    refilled = (time.monotonic() - started) * 10 / 60
    assert answered <= (10 + refilled) * 1.01


def test_turns_in_flight_are_counted_over_all_bridges(bridges: Bridges, tmp_path: Path) -> None:
    """A turn that ends at one makes room at another, and so does a bridge that is killed, after its lease."""
    key = bridges.add_key("laptop", "--max-turns", "2")
    codex = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_QUEUE_TIMEOUT": "0"}
    one, other = (bridges.start("-v", **codex) for _ in range(2))
    with one.client(key=key) as client, other.client(key=key) as elsewhere:
        first = ok(client.post("/responses", json=HANG))
        ok(client.post("/responses", json=HANG))
        assert refused(client)
        assert refused(elsewhere)
        ok(client.post(f"/responses/{first['id']}/cancel"))
        wait_for(lambda: elsewhere.post("/responses", json=HANG).status_code == 200, "room for a turn", 3)
        assert refused(client)
        assert refused(elsewhere)
        # The leases of turns last as long as their bridge.
        until = time.monotonic() + LEASE + 1
        while time.monotonic() < until:
            assert refused(elsewhere)
            time.sleep(0.2)
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(30)
        killed = time.monotonic()
        assert refused(elsewhere)
        wait_for(lambda: elsewhere.post("/responses", json=HANG).status_code == 200, "the end of the lease", 20)
        assert time.monotonic() - killed < LEASE + 3
        assert refused(elsewhere)


def refused(client: httpx2.Client) -> bool:
    answer = client.post("/responses", json=HANG)
    return answer.status_code == 429 and refusal(answer, 429)[0] == "key_limit_exceeded"


def test_a_request_waits_for_a_turn_that_ends_at_another_bridge(bridges: Bridges, tmp_path: Path) -> None:
    key = bridges.add_key("laptop", "--max-turns", "1")
    codex = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_QUEUE_TIMEOUT": "30"}
    one, other = (bridges.start("-v", **codex) for _ in range(2))
    with one.client(key=key) as client, other.client(key=key) as elsewhere, ThreadPoolExecutor(1) as pool:
        first = ok(client.post("/responses", json=HANG))
        waiting = pool.submit(elsewhere.post, "/responses", json=ask({"text": "done"}))
        wait_for(lambda: "turnbridge_turns_queued 1.0" in metrics(other), "the queue")
        ok(client.post(f"/responses/{first['id']}/cancel"))
        assert waiting.result().status_code == 200


def test_no_turn_fails_when_the_server_is_killed_frozen_or_restarted(bridges: Bridges, redis: Redis) -> None:
    """Health says so, one warning per fault is logged, and it recovers."""
    key = bridges.add_key("laptop", "--max-turns", "50", "--max-requests", "1000000")
    two = [bridges.start() for _ in range(2)]
    bridges.wait_until_known()
    statuses: list[int] = []
    slowest = 0.0
    is_over = False

    def load(bridge: RunningBridge) -> None:
        nonlocal slowest
        with bridge.client(key=key) as client:
            while not is_over:
                started = time.monotonic()
                statuses.append(client.post("/responses", json=ECHO).status_code)
                slowest = max(slowest, time.monotonic() - started)

    def all_are(status: str, reason: str | None = None) -> bool:
        return all(told[0] == status and reason in (None, told[1]) for told in map(health, two))

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, bridge) for bridge in two * 2]
        try:
            redis.kill()
            wait_for(lambda: all_are("degraded", "shared_limits_failing"), "degraded", 10)
            assert "turnbridge_shared_up 0.0" in metrics(two[0])
            redis.start()
            wait_for(lambda: all_are("ok"), "recovery", LEASE)
            with redis.frozen():
                wait_for(lambda: all_are("degraded", "shared_limits_failing"), "degraded", 10)
                counted = len(statuses)
                wait_for(lambda: len(statuses) > counted + 100, "answers")
            wait_for(lambda: all_are("ok"), "recovery", LEASE)
            assert "turnbridge_shared_up 1.0" in metrics(two[0])
        finally:
            is_over = True
        for each in loads:
            each.result()
    assert set(statuses) == {200}
    assert slowest < 5
    for bridge in two:
        lines = bridge.stderr.read_text()
        assert lines.count("does not answer") == lines.count("answers again") <= 4
        assert lines.count("does not answer") >= 2


def test_a_bridge_starts_without_the_server(bridges: Bridges, redis: Redis) -> None:
    key = bridges.add_key("laptop", "--max-turns", "1", "--max-requests", "100")
    redis.kill()
    try:
        bridge = bridges.start()
        assert health(bridge) == ("degraded", "shared_limits_failing")
        assert begun(bridge, key, 3) == 3
    finally:
        redis.start()
    wait_for(lambda: health(bridge)[0] == "ok", "health", 2 * LEASE)
    assert begun(bridge, key, 3) == 3


@pytest.mark.parametrize("url", [f"redis://:{PASSWORD}@h@ost", f"http://:{PASSWORD}@host", f"valkey://:{PASSWORD}#@h"])
def test_no_message_contains_the_password(url: str, tmp_path: Path) -> None:
    done = run_command("serve", "--check", "--mock-only", PROXY_SHARED=url, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "PROXY_SHARED" in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_a_missing_client_is_named(tmp_path: Path) -> None:
    """It is an extra, and nothing else needs it."""
    program = "import sys; sys.modules['coredis'] = None; from bridge.cli import main; main()"
    environment: dict[str, Any] = {"XDG_STATE_HOME": str(tmp_path), "PROXY_API_KEY": KEY, "PORT": "0"}

    def serve(**settings: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "serve", "--mock-only"]
        return subprocess.run(command, env=environment | settings, capture_output=True, text=True, timeout=60)

    done = serve(PROXY_SHARED="valkey://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: PROXY_SHARED needs the client of Valkey and Redis. Install it with: pip install 'turnbridge[valkey]'."
    )
