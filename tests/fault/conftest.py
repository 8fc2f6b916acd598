"""One bridge in front of every kind of provider, for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault.rig import Rig, rigged


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("faults")) as ready:
        yield ready
