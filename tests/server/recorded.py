"""Bridges that record what they do, and bridges that answer from such a log."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from harness import RunningBridge, running_bridge
from server.prompted import MODEL, EventLog, prompted_codex, wait_for


def recording(
    directory: Path, *arguments: str, dialect: str = "both", **settings: str
) -> AbstractContextManager[RunningBridge]:
    """A bridge in front of a child that does what it is told; its log is `log_of` it."""
    return running_bridge(
        directory,
        *arguments,
        CODEX_BIN=str(prompted_codex(directory, dialect)),
        PROXY_MODELS=MODEL,
        PROXY_LOG_EVENTS=str(directory / "log.ndjson"),
        PROXY_STORE="memory",
        **settings,
    )


def replaying(directory: Path, log: Path, *arguments: str, **settings: str) -> AbstractContextManager[RunningBridge]:
    """A bridge that answers from a log."""
    directory.mkdir(exist_ok=True)
    return running_bridge(directory, "--replay", str(log), *arguments, PROXY_STORE="memory", **settings)


def log_of(bridge: RunningBridge) -> Path:
    """The log that a bridge of `recording` writes."""
    return bridge.stderr.parent / "log.ndjson"


def ended(bridge: RunningBridge) -> Path:
    """The log, once every request in it has its end."""
    log = EventLog(log_of(bridge))

    def have_ended() -> bool:
        kinds = [record["kind"] for record in log.records()]
        return kinds.count("client_request") == kinds.count("turn_end")

    wait_for(have_ended, "all requests have ended")
    return log.path
