"""Rigs, each started when the first test needs it and kept for the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from real.rig import CHAT, CURRENT, LEGACY, RESPONSES, TEXT_HISTORY, Api, Rig, Target, UseRig, start_rig


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UseRig]:
    """Gives the rig with these settings."""
    rigs: dict[tuple[object, ...], Rig] = {}
    with ExitStack() as stack:

        def start(target: Target, *, retries: int = 0, **environment: Any) -> Rig:
            key = (target, retries, *sorted(environment.items()))
            if key not in rigs:
                directory = tmp_path_factory.mktemp(str(target))
                rigs[key] = stack.enter_context(start_rig(directory, target, retries=retries, **environment))
            return rigs[key]

        yield start


@pytest.fixture
def use(started: UseRig) -> Iterator[UseRig]:
    """The same, for one test: it counts model calls from its own beginning, and must leave the provider idle."""
    used: list[Rig] = []

    def begin(target: Target, *, retries: int = 0, **environment: str) -> Rig:
        rig = started(target, retries=retries, **environment)
        rig.since = len(rig.provider.requests)
        used.append(rig)
        return rig

    yield begin
    for rig in used:
        rig.provider.wait_idle()


@pytest.fixture(params=[CURRENT, LEGACY], ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """Both binaries, each in its own dialect."""
    chosen: Target = request.param
    return chosen


@pytest.fixture
def codex(target: Target, use: UseRig) -> Rig:
    """Both binaries, each in its own dialect, running."""
    return use(target)


@pytest.fixture(params=[CURRENT, LEGACY, TEXT_HISTORY], ids=str)
def any_codex(request: pytest.FixtureRequest, use: UseRig) -> Rig:
    """The same, and the old binary in the current dialect."""
    return use(request.param)


@pytest.fixture(params=[RESPONSES, CHAT], ids=str)
def api(request: pytest.FixtureRequest) -> Api:
    """Both endpoints."""
    chosen: Api = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Both ways to be answered."""
    return bool(request.param)
