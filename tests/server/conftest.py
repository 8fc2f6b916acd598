"""A bridge in front of the prompted child, shared by the tests of the HTTP edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from harness import RunningBridge, running_bridge
from server.prompted import MODEL, EventLog, prompted_codex


@dataclass
class LoggedBridge:
    """A bridge and its event log."""

    bridge: RunningBridge
    log: EventLog


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge whose child does what the message says, with an event log and a quick keepalive."""
    directory = tmp_path_factory.mktemp("prompted")
    log = directory / "events.ndjson"
    with running_bridge(
        directory,
        f"--log-events={log}",
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_MODELS=MODEL,
        PROXY_KEEPALIVE="0.2",
    ) as bridge:
        yield LoggedBridge(bridge, EventLog(log))
