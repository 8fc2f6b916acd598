"""kill -9 of a recording bridge: the log can be read to its last whole line."""

from __future__ import annotations

from pathlib import Path

from log.killing import kill_and_look


def test_five_times(tmp_path: Path) -> None:
    """In a directory, and in a file that each run appends to: no record before the cut is missing or broken."""
    kill_and_look(tmp_path, 5)
