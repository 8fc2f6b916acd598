"""Fixtures for all tests, and the profiles of hypothesis."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import RunningBridge, running_bridge
from hypothesis import HealthCheck, settings

# Who is started in the background of a script ignores Ctrl-C, and so would every program that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "fast", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile(
    "deep",
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "20000")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(scope="session")
def mock_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge with the mock models alone, shared by all tests that leave no traces in it."""
    with running_bridge(Path(tmp_path_factory.mktemp("mock")), "--mock-only") as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "ready?"}).status_code == 200
        yield bridge
