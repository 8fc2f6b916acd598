"""What the tests of `turnbridge log` share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.log.making import LogCommand


@pytest.fixture
def log(tmp_path: Path) -> LogCommand:
    """The command, with a home and a cache of its own."""
    return LogCommand(tmp_path)
