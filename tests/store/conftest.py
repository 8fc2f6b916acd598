"""Every kind of store, for the tests of their common behaviour."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store.stores import Clock, store_of_kind

from bridge.store.base import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "waiting", "written"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
async def store(kind: str, tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with store_of_kind(kind, tmp_path, clock) as store:
        yield store
