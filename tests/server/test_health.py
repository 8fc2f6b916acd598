"""/healthz and /readyz: each state of the bridge and of its child has a name, and the docs tell what it means."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import orjson
import pytest
from harness import ROOT
from server.inprocess import Program, python, supervised, until
from server.prompted import prompted_codex

from bridge.app.service import Service
from bridge.appserver.backend import AppServerBackend
from bridge.appserver.process import signal_group
from bridge.appserver.supervisor import Pool, RestartPolicy, State, Supervisor
from bridge.appserver.turn import ChildSettings
from bridge.http.pages import PageRequest
from bridge.ids import new_id
from bridge.routing.router import Router
from bridge.server.pages import Pages
from bridge.store.sqlite import SqliteStore
from bridge.telemetry import MEMORY_PRESSURE

NEVER_AGAIN = RestartPolicy(first_delay=3600)
GIVES_UP = RestartPolicy(first_delay=0.01, max_deaths=2)
FAULTS = (
    "shutdown_initiated",
    MEMORY_PRESSURE,
    "event_log_failing",
    "store_failing",
    "key_store_failing",
    "shared_limits_failing",
    "codex_config_invalid",
)


def pages_of(supervisor: Supervisor, fault: Callable[[], str | None] = lambda: None) -> Pages:
    """What a bridge with this child tells of itself."""
    backend = AppServerBackend("codex", Pool([supervisor]), new_id=new_id, settings=ChildSettings())
    store = SqliteStore(None, ttl=60, max_bytes=1024**2, now=lambda: 0.0)
    return Pages(Service(Router(backend), new_id, 1000, 15, store), fault, 0, lambda: 0.0)


async def told(pages: Pages) -> tuple[str, str, int, str]:
    """(status and reason of /healthz, the HTTP status and reason of /readyz)."""
    request = PageRequest("/", {}, {}, "")
    health, ready = await pages.health(request), await pages.ready(request)
    assert health.status == (await pages.live(request)).status == 200
    alive, can = orjson.loads(health.body), orjson.loads(ready.body)
    assert can["status"] == ("ready" if ready.status == 200 else "not_ready")
    return alive["status"], alive["reason"], ready.status, can["reason"]


@asynccontextmanager
async def child_that(state: State, directory: Path) -> AsyncIterator[Supervisor]:
    """A supervisor in this state."""
    well = Program(prompted_codex(directory), "app-server")
    ends, sleeps = python("raise SystemExit(3)"), python("import time; time.sleep(3600)")
    if state == "worker_not_started":
        yield Supervisor(well, ChildSettings())
        return
    program = {"handshake_pending": sleeps, "handshake_failed": ends, "degraded": ends}.get(state, well)
    policy = GIVES_UP if state == "degraded" else NEVER_AGAIN
    async with supervised(program, policy=policy) as supervisor:
        if state in ("restarting", "shutdown_initiated"):
            await until(lambda: supervisor.state == "handshake_complete", "it is ready")
            if state == "restarting":
                assert supervisor.child is not None
                signal_group(supervisor.child.process, signal.SIGKILL)
            else:
                supervisor.shut_down()
        await until(lambda: supervisor.state == state, state)
        yield supervisor


@pytest.mark.parametrize("state", get_args(State))
async def test_each_state_of_the_child(state: State, tmp_path: Path) -> None:
    """Its name is the reason; only one of them is ready."""
    async with child_that(state, tmp_path) as supervisor:
        well = state == "handshake_complete"
        assert await told(pages_of(supervisor)) == (
            ("ok", state, 200, state) if well else ("degraded", state, 503, state)
        )


async def test_each_fault_of_the_bridge(tmp_path: Path) -> None:
    """It comes before the child's state; two of them take no turns."""
    fault = ""
    async with child_that("handshake_complete", tmp_path) as supervisor:
        pages = pages_of(supervisor, lambda: fault)
        for fault in FAULTS:
            takes_none = fault in ("shutdown_initiated", MEMORY_PRESSURE)
            ready = (503, fault) if takes_none else (200, "handshake_complete")
            assert await told(pages) == ("degraded", fault, *ready)


def test_the_docs_have_them_all() -> None:
    """With whether the bridge is ready then."""
    section = (ROOT / "docs/operations.md").read_text().partition("\n## Health\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| .+ \| (yes|no) \|$", section, re.MULTILINE))
    assert set(rows) == {*get_args(State), *FAULTS}
    assert {name for name, ready in rows.items() if ready == "yes"} == {
        "handshake_complete",
        "event_log_failing",
        "store_failing",
        "key_store_failing",
        "shared_limits_failing",
        "codex_config_invalid",
    }
