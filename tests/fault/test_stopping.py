"""The end of the bridge: every stream hears of it, nothing is left, the log is whole. Row 32 of docs/promises.md."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGPIPE, SIGTERM, Signals

import httpx2
import pytest
from fault.crowd import KINDS, Reader, outcome_of, reading
from harness import RunningBridge, running_bridge
from log.logs import turns_in, whole_log
from server.prompted import MODEL, ask, children_of, is_alive, prompted_codex, wait_for

TALKING = [{"text": "word "}, {"sleep": 0.05}] * 800
"""Longer than any grace period here."""
ENDING = [*TALKING[:20], {"text": "done"}]


@contextmanager
def bridge_to_be_stopped(directory: Path, grace: float) -> Iterator[tuple[RunningBridge, Path]]:
    """A bridge whose child has company that does not hear of SIGTERM, and its event log."""
    log, company = directory / "events.ndjson", directory / "codex-with-company"
    company.write_text(
        f"#!/bin/sh\n(trap '' TERM; while :; do sleep 1; done) &\nexec {prompted_codex(directory)} \"$@\"\n"
    )
    company.chmod(0o755)
    settings = {"CODEX_BIN": str(company), "PROXY_MODELS": MODEL, "PROXY_GRACE": str(grace), "PROXY_KEEPALIVE": "0.2"}
    with running_bridge(directory, f"--log-events={log}", **settings) as bridge:
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        yield bridge, log


def session_of(leader: int) -> list[int]:
    """The processes of a session that are alive: the bridge's child leads one."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == leader and is_alive(int(name)):
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


def is_stopping(bridge: RunningBridge) -> bool:
    return "stopping: " in bridge.stderr.read_text()


def check_log(log: Path, requests: int) -> None:
    """Each request has one beginning and one end, and nothing comes after it."""
    found = turns_in(whole_log([log]))
    # What the recorder has of a request's attempts goes by `id#attempt`.
    ended = {req_id: kinds for req_id, kinds in found.items() if "client_request" in kinds}
    assert len(ended) == requests
    for req_id, kinds in ended.items():
        assert [kinds.count(kind) for kind in ("client_request", "turn_end")] == [1, 1], (req_id, kinds)


def test_fault_32_a_stop_under_load(tmp_path: Path) -> None:
    """SIGTERM with 21 streams of three kinds: those that end within the grace period have their whole answers, all
    others one last event that tells why. Exit code 0, no process is left, no line of the log is missing."""
    grace = 4.0
    readers = [Reader(kind, steps) for kind in KINDS for steps in [TALKING] * 5 + [ENDING] * 2]
    with bridge_to_be_stopped(tmp_path, grace) as (bridge, log):
        (child,) = children_of(bridge.process.pid)
        assert len(session_of(child)) >= 2
        with reading(bridge, readers) as futures:
            bridge.process.send_signal(SIGTERM)
            stopped = time.monotonic()
            outcomes = [outcome_of(future.result(60)) for future in futures]
            assert bridge.process.wait(30) == 0
            took = time.monotonic() - stopped
        expected = ["completed" if reader.steps is ENDING else "shutdown_initiated" for reader in readers]
        assert outcomes == expected
        assert grace < took < grace + 15
        wait_for(lambda: session_of(child) == [], "no process is left", 10)
    check_log(log, requests=1 + len(readers))
    assert "Traceback" not in bridge.stderr.read_text()


def orders() -> Iterator[object]:
    """Which signals come, in which order. A stop is asked for by the first of SIGTERM and SIGINT, and hurried by the
    second; the others change nothing. Most of them take their time together."""
    quick = [(SIGINT, SIGTERM), (SIGPIPE, SIGHUP, SIGTERM, SIGHUP, SIGINT)]
    pairs = itertools.product((SIGTERM, SIGINT), repeat=2)
    asides = [(SIGHUP,), (SIGPIPE,), (SIGHUP, SIGPIPE)]
    slow = [(*before, first, *between, second) for first, second in pairs for before in asides for between in asides]
    for order in quick:
        yield pytest.param(order, id="-".join(number.name for number in order))
    for order in slow:
        yield pytest.param(order, id="-".join(number.name for number in order), marks=pytest.mark.deep)


@pytest.mark.parametrize("order", list(orders()))
def test_fault_32_signals_in_any_order(tmp_path: Path, order: tuple[Signals, ...]) -> None:
    """Until the second signal that counts, streams go on; then each gets its last event, long before the end of the
    grace period. Nothing is left, and the log is whole."""
    readers = [Reader(kind, TALKING) for kind in KINDS]
    with bridge_to_be_stopped(tmp_path, grace=120) as (bridge, log):
        (child,) = children_of(bridge.process.pid)
        with reading(bridge, readers) as futures:
            *others, last = order
            for number in others:
                bridge.process.send_signal(number)
                if number in (SIGTERM, SIGINT):
                    wait_for(lambda: is_stopping(bridge), "the stop", 30)
            assert not any(future.done() for future in futures)
            bridge.process.send_signal(last)
            assert [outcome_of(future.result(60)) for future in futures] == ["shutdown_initiated"] * len(readers)
            assert bridge.process.wait(30) == 0
        wait_for(lambda: session_of(child) == [], "no process is left", 10)
    check_log(log, requests=1 + len(readers))
    assert "Traceback" not in bridge.stderr.read_text()


@pytest.mark.deep
def test_fault_32_a_third_signal_is_the_end(tmp_path: Path) -> None:
    """Whoever insists is not made to wait for anything; and still no process is left."""
    with bridge_to_be_stopped(tmp_path, grace=120) as (bridge, _):
        (child,) = children_of(bridge.process.pid)
        for _ in range(50):
            if bridge.process.poll() is None:
                bridge.process.send_signal(SIGTERM)
        assert bridge.process.wait(30) in (0, -SIGTERM)
        wait_for(lambda: session_of(child) == [], "no process is left", 10)


def test_a_balancer_learns_of_the_stop_before_clients_are_turned_away(tmp_path: Path) -> None:
    """For PROXY_DRAIN_DELAY after SIGTERM, /readyz is 503 on new connections, and turns are still served."""
    with running_bridge(tmp_path, "--mock-only", PROXY_DRAIN_DELAY="600") as bridge, bridge.client() as client:
        ready = f"{bridge.root}/readyz"
        wait_for(lambda: httpx2.get(ready, trust_env=False).status_code == 200, "it is ready")
        bridge.process.send_signal(SIGTERM)
        wait_for(lambda: httpx2.get(ready, trust_env=False).status_code == 503, "it is not ready")
        assert httpx2.get(ready, trust_env=False).json() == {"status": "not_ready", "reason": "shutdown_initiated"}
        assert httpx2.get(f"{bridge.root}/livez", trust_env=False).status_code == 200
        assert client.post("/responses", json={"model": "mock-echo", "input": "hi"}).status_code == 200
        bridge.process.send_signal(SIGTERM)
        assert bridge.process.wait(10) == 0
