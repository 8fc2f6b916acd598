"""A bridge that the tests of the page share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from harness import RunningBridge
from page.visiting import prompted_bridge, visitor


@pytest.fixture(scope="session")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """Without an event log; its child does what a request says."""
    with prompted_bridge(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def client(bridge: RunningBridge) -> Iterator[httpx2.Client]:
    """A browser with a session of the operator."""
    with visitor(bridge) as signed_in:
        yield signed_in
