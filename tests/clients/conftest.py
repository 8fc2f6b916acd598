"""A bridge over the real Codex for all clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from real.rig import CURRENT, Rig, start_rig

# scripts/test-clients installs the heavy clients or the agents and sets these; without them there is nothing to run.
collect_ignore = []
if not {"TURNBRIDGE_CLIENTS_PYTHON", "TURNBRIDGE_CLIENTS_NODE"} <= os.environ.keys():
    collect_ignore.append("heavy")
if "TURNBRIDGE_AGENTS_PATH" not in os.environ:
    collect_ignore.append("agents")


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for all tests. In each of them `rig.posts` are the model calls since its own beginning."""
    with start_rig(Path(tmp_path_factory.mktemp("clients")), CURRENT) as rig:
        yield rig


@pytest.fixture(scope="session")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Rig]]:
    """Gives the rig with a tool mode, started when the first test needs it."""
    started: dict[str, Rig] = {}
    with ExitStack() as stack:

        def start(mode: str) -> Rig:
            if mode not in started:
                directory = tmp_path_factory.mktemp(mode)
                started[mode] = stack.enter_context(start_rig(directory, CURRENT, PROXY_TOOL_MODE=mode))
            return started[mode]

        yield start


@pytest.fixture(autouse=True)
def _own_model_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test counts model calls from its own beginning, and must leave the provider idle."""
    if "rig" not in request.fixturenames:
        yield
        return
    rig: Rig = request.getfixturevalue("rig")
    rig.since = len(rig.provider.requests)
    yield
    rig.provider.crowd = 0
    rig.provider.wait_idle()
