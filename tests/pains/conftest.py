"""What the tests of the pains run against, each started when the first of them needs it and kept for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from harness import RunningBridge, running_bridge
from real.rig import CHAT, CURRENT, RESPONSES, Api, Rig, start_rig
from server.prompted import MODEL, EventLog, prompted_codex

StartRig = Callable[[str], Rig]


@pytest.fixture(scope="session")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRig]:
    """Gives the bridge over a real Codex with a tool mode."""
    started: dict[str, Rig] = {}
    with ExitStack() as stack:

        def start(mode: str) -> Rig:
            if mode not in started:
                directory = tmp_path_factory.mktemp(f"pains-{mode}")
                started[mode] = stack.enter_context(start_rig(directory, CURRENT, PROXY_TOOL_MODE=mode))
            return started[mode]

        yield start


@pytest.fixture
def codex(request: pytest.FixtureRequest, rigs: StartRig) -> Iterator[Rig]:
    """A bridge over a real Codex; the test counts model calls from its own beginning and leaves the provider idle."""
    rig = rigs(getattr(request, "param", "native"))
    rig.since = len(rig.provider.requests)
    yield rig
    rig.provider.wait_idle()


@pytest.fixture(params=[RESPONSES, CHAT], ids=str)
def api(request: pytest.FixtureRequest) -> Api:
    """Both endpoints."""
    chosen: Api = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Both ways to be answered."""
    return bool(request.param)


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge whose child does what the message says, with a quick keepalive. Its event log is `log_of(bridge)`."""
    directory = tmp_path_factory.mktemp("pains-prompted")
    settings = {"CODEX_BIN": str(prompted_codex(directory)), "PROXY_MODELS": MODEL, "PROXY_KEEPALIVE": "0.2"}
    with running_bridge(directory, f"--log-events={directory / 'events.ndjson'}", **settings) as bridge:
        yield bridge


def log_of(bridge: RunningBridge) -> EventLog:
    """What the prompted bridge and its child have said to each other."""
    return EventLog(bridge.stderr.with_name("events.ndjson"))
