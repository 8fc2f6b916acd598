"""A running Redis server for the tests of shared limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from packages import NotInstalled
from shared.redis import Redis, running_redis


@pytest.fixture(scope="session")
def server() -> Iterator[Redis]:
    """Where there is none and none can be installed, its tests are skipped."""
    try:
        context = running_redis()
        server = context.__enter__()
    except NotInstalled as reason:
        pytest.skip(str(reason))
    yield server
    context.__exit__(None, None, None)


@pytest.fixture
def redis(server: Redis) -> Redis:
    """The server, without what the test before left there."""
    server.command("FLUSHALL")
    return server
