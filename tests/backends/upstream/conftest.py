"""Clocks for tests with sockets: what one end has written is at the other end a moment later, not at once."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def autojump_clock() -> MockClock:
    """Jumps when nothing has happened for a moment."""
    return MockClock(autojump_threshold=0.005)


@pytest.fixture
def patient_clock() -> MockClock:
    """The same where many megabytes are on their way."""
    return MockClock(autojump_threshold=0.1)
