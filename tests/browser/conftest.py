"""One Chromium for all tests of the page."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from browser.chromium import Browser, running_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A running browser. Where there is none and none can be had, the tests fail: what they show is not shown."""
    with running_chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that would see whatever a page asks for there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server
