"""Every kind of store, for the tests of their common behaviour."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from packages import NotInstalled
from store.postgresql import Postgresql, running_postgresql
from store.stores import Clock, Where, store_of_kind

from bridge.store.base import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgresql]:
    """A running PostgreSQL. Where there is none and none can be installed, its tests are skipped."""
    try:
        context = running_postgresql()
        server = context.__enter__()
    except NotInstalled as reason:
        pytest.skip(str(reason))
    yield server
    context.__exit__(None, None, None)


@pytest.fixture(params=["memory", "waiting", "written", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Where a store of a kind keeps its data: a directory, or an empty database."""

    def of_kind(kind: str) -> Path | str:
        if kind != "postgres":
            return tmp_path
        server: Postgresql = request.getfixturevalue("postgresql")
        return server.empty_database()

    return of_kind


@pytest.fixture
async def store(kind: str, where: Where, clock: Clock) -> AsyncIterator[Store]:
    async with store_of_kind(kind, where(kind), clock) as store:
        yield store
