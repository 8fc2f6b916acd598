"""Garbage is collected and memory returned at intervals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from bridge.server.process import INTERVAL, tidy_up


class Circle:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture
def _without_collector() -> Iterator[None]:
    """Python looks for nothing by itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collector")
async def test_reference_cycles_are_collected_in_time(autojump_clock: MockClock) -> None:
    """However old they are."""
    circle = Circle()
    gc.collect()
    gc.collect()
    dead = weakref.ref(circle)
    del circle
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy_up)
        await trio.sleep(INTERVAL - 1)
        assert dead() is not None
        await trio.sleep(2)
        assert dead() is None
        nursery.cancel_scope.cancel()
