"""The state of a running bridge for the page: its account's limits, its children, its health and its models."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from bridge.app.admission import visible_models
from bridge.app.app import App
from bridge.app.rate_limits import limits_object
from bridge.appserver.supervisor import Pool, Supervisor
from bridge.page.history import History
from bridge.page.live import Watchers
from bridge.page.ring import Ring
from bridge.telemetry import resident_bytes

LIMITS_PATIENCE = 2.0
"""Seconds that the account's limits are waited for."""
MAX_MODELS = 500


async def overview(
    app: App, history: History, ring: Ring, watchers: Watchers, *, hours: int, key: str | None
) -> dict[str, Any]:
    """What GET /page/api/overview shows: everything, or what a client's `key` may know."""
    shown = history.shown(hours, key)
    if key is not None:
        names = visible_models(app.service.router, app.service.admission.key(key))
        models = [{"name": name, "available": True} for name in names[:MAX_MODELS]]
        return shown | {"limits": [], "children": [], "health": {"status": _status(app)[0]}, "models": models}
    limits: Mapping[str, Any] | None = None
    with trio.move_on_after(LIMITS_PATIENCE):
        limits = await app.service.router.read_rate_limits()
    return shown | {
        "limits": _limits(limits),
        "children": list(_children(app)),
        "health": _health(app, ring, watchers),
        "models": list(_models(app)),
    }


def _limits(limits: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    windows = limits_object(limits, time.time())
    found = []
    for name in ("primary", "secondary"):
        if (window := windows[name]) is not None:
            minutes = window["window_minutes"]
            length = f"{minutes / 60:g} h window" if isinstance(minutes, int | float) else f"{name} window"
            found.append({"name": length, **window})
    return found


def _children(app: App) -> Iterator[dict[str, Any]]:
    for backend, runner in app.runners_by_backend.items():
        if isinstance(runner, Pool):
            for supervisor in runner.supervisors:
                yield {"backend": backend, **_child(supervisor)}


def _child(supervisor: Supervisor) -> dict[str, Any]:
    about: dict[str, Any] = {
        "state": supervisor.state,
        "reason": supervisor.reason,
        "restarts": supervisor.restarts,
        "turns": 0,
    }
    child = supervisor.child
    if child is not None:
        about |= {
            "pid": child.process.pid,
            "version": child.info.version if child.info is not None else None,
            "dialect": child.info.dialect if child.info is not None else None,
            "memory_bytes": _memory_of(child.process.pid),
            "turns": child.turns,
        }
    return about


def _memory_of(pid: int) -> int | None:
    """The resident memory of another process; None where the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _status(app: App) -> tuple[str, str]:
    ready, reason = app.router.default.status()
    fault = app.fault()
    return ("ok" if ready and fault is None else "degraded"), fault or reason


def _health(app: App, ring: Ring, watchers: Watchers) -> dict[str, Any]:
    status, reason = _status(app)
    lag, admission, store = app.watchdog.lag, app.service.admission, app.store
    return {
        "status": status,
        "reason": reason,
        "running": admission.running,
        "queued": admission.waiting,
        "loop_lag_s": round(lag.sum / lag.count, 6) if lag.count else None,
        "loop_stalls": app.watchdog.stalls,
        "memory_bytes": resident_bytes(),
        "log": None
        if app.log is None
        else {"file": app.log.writer.shown, "dropped": app.log.writer.dropped, "fault": app.log.writer.fault},
        "store": {"kind": app.settings.store, "fault": store.fault},
        "page": {
            "turns": len(ring.turns),
            "used_bytes": ring.size,
            "limit_bytes": ring.max_bytes,
            "watchers": len(watchers),
            "missed": watchers.missed,
        },
    }


def _models(app: App) -> Iterator[dict[str, Any]]:
    known = app.router.describe()
    for entry in known["models"][:MAX_MODELS]:
        yield {"name": entry["model"], "backend": entry["backend"], "route": "model", "available": True, "why": None}
    for entry in known["patterns"]:
        backend = entry["backend"]
        route = f"alias of {entry['model']}" if "model" in entry else "pattern"
        yield {
            "name": _shown(entry["pattern"]),
            "backend": backend,
            "route": route,
            "available": backend is not None,
            "why": None,
        }
    for name, why in known["off"].items():
        yield {"name": name, "backend": name, "route": "backend", "available": False, "why": why}


def _shown(pattern: str) -> str:
    """A pattern as people read it: one without wildcards is the beginning of a name."""
    return pattern if any(character in pattern for character in "*?[") else f"{pattern}*"
