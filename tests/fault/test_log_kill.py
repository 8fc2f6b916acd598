"""kill -9 of a recording bridge, many times (tests/log/test_writer_killed.py does it a few times)."""

from __future__ import annotations

from pathlib import Path

import pytest
from log.killing import kill_and_look

pytestmark = pytest.mark.deep


def test_a_hundred_times(tmp_path: Path) -> None:
    """Every log can be read to its last whole line."""
    kill_and_look(tmp_path, 100)
