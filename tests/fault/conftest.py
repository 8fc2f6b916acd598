"""One bridge in front of every kind of provider, for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault.rig import Rig, rigged


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("faults")) as ready:
        yield ready


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it waits for real time to pass."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.deep)
