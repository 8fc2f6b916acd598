"""The page of a running bridge, as a browser asks for it: with a session's cookie, from the page's own origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from harness import KEY, RunningBridge, running_bridge
from server.prompted import MODEL, prompted_codex, wait_for

from bridge.store.key_store import KeyFile

JSON = {"content-type": "application/json"}


class Event(NamedTuple):
    """One server-sent event."""

    name: str
    data: Any


@contextmanager
def prompted_bridge(directory: Path, *arguments: str, **environment: str) -> Iterator[RunningBridge]:
    """A bridge whose child does what the request says."""
    program = str(prompted_codex(directory))
    with running_bridge(directory, *arguments, CODEX_BIN=program, PROXY_MODELS=MODEL, **environment) as bridge:
        yield bridge


def printed_token(bridge: RunningBridge) -> str:
    """The token in the address that `serve` prints."""
    assert bridge.process.stdout is not None
    found = re.search(r"^page at http://127\.0\.0\.1:\d+/#token=(\S+)", bridge.process.stdout.readline())
    assert found
    return found[1]


@contextmanager
def browser(root: str) -> Iterator[httpx2.Client]:
    """A client that keeps cookies and names its origin, without a key."""
    with httpx2.Client(
        base_url=root, headers={"origin": root} | JSON, timeout=30, trust_env=False, verify=False
    ) as client:
        yield client


@contextmanager
def visitor(bridge: RunningBridge, key: str = KEY) -> Iterator[httpx2.Client]:
    """A client with a session of this key."""
    with browser(bridge.root) as client:
        answer = client.post("/page/session", json={"key": key})
        assert answer.status_code == 204, answer.text
        yield client


def client_key(bridge: RunningBridge, name: str) -> str:
    """A new key of the key store, which sees its own turns only."""
    return KeyFile(bridge.state / "turnbridge" / "keys.json").add(name, now=datetime.now(UTC))[0]


def rows(client: httpx2.Client, **query: str) -> list[dict[str, Any]]:
    """The list of turns."""
    answer = client.get("/page/api/turns", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["turns"]
    return found


def row_with(client: httpx2.Client, text: str, *, running: bool | None = None) -> dict[str, Any]:
    """The row of the turn whose request has this text, once there is one in this state."""

    def find() -> dict[str, Any] | None:
        found = [row for row in rows(client, grep=text) if running is None or row["running"] is running]
        return found[0] if found else None

    return wait_for(find, f"a turn with {text!r}")


def opened(client: httpx2.Client, name: str) -> dict[str, Any]:
    """One turn."""
    answer = client.get(f"/page/api/turns/{name}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@contextmanager
def following(client: httpx2.Client, path: str) -> Iterator[Iterator[Event]]:
    """The events of a stream of the page, as they come. Comments are left out."""
    with client.stream("GET", f"/page/api/{path}") as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream"
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield Event(name, json.loads(line.removeprefix("data: ")))


def until(events: Iterator[Event], name: str) -> list[Event]:
    """The events up to the next one of this name, with it."""
    found = []
    for event in events:
        found.append(event)
        if event.name == name:
            return found
    raise AssertionError(f"the stream ended without {name}: {found}")
