"""Bridges that are shared by the tests of the HTTP edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest
from harness import OTHER_KEY, TWO_KEYS, RunningBridge, running_bridge
from real.rig import CURRENT, Rig, start_rig
from server.prompted import MODEL, EventLog, prompted_codex


@dataclass
class LoggedBridge:
    """A bridge and its event log."""

    bridge: RunningBridge
    log: EventLog


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge whose child does what the message says, with an event log and a quick keepalive."""
    directory = tmp_path_factory.mktemp("prompted")
    log = directory / "events.ndjson"
    with running_bridge(
        directory,
        f"--log-events={log}",
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_MODELS=MODEL,
        PROXY_KEEPALIVE="0.2",
    ) as bridge:
        yield LoggedBridge(bridge, EventLog(log))


@pytest.fixture(scope="session")
def two_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge with the mock models, a store and two clients' keys."""
    with running_bridge(tmp_path_factory.mktemp("two-keys"), "--mock-only", PROXY_API_KEY=TWO_KEYS) as bridge:
        yield bridge


@pytest.fixture(scope="session")
def client(two_keys: RunningBridge) -> Iterator[httpx2.Client]:
    """A client of that bridge."""
    with two_keys.client() as client:
        yield client


@pytest.fixture(scope="session")
def stranger(two_keys: RunningBridge) -> Iterator[httpx2.Client]:
    """Another client of the same bridge, with a key of its own."""
    with two_keys.client(key=OTHER_KEY) as client:
        yield client


@pytest.fixture(scope="session")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A bridge over the real Codex, where a test needs to know what the model was sent."""
    with start_rig(tmp_path_factory.mktemp("rig"), CURRENT) as rig:
        yield rig


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    """The same for one test: it counts model calls from its own beginning, and must leave the provider idle."""
    shared_rig.since = len(shared_rig.provider.requests)
    yield shared_rig
    shared_rig.provider.crowd = 0
    shared_rig.provider.wait_idle()
