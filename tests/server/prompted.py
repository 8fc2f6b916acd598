"""A child that performs the steps which the client's own message holds, so that one bridge serves many fault tests.

It is the stand-in with another way to choose its steps: the last user message is their JSON (see `docs/standin.md`),
or an object `{"steps": […], "repeat": n}`. Beside it: how tests wait, read the event log, and use the socket.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

from harness import KEY, ROOT, RunningBridge, python_program

MODEL = "prompted"
LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
"""A tool in the spelling of responses."""

_PROGRAM = """import sys

sys.path.insert(0, {root!r})
import orjson
import trio
from bridge.appserver.standin import server


def steps(mode, prompt):
    # With tools in the request, tags in user text arrive escaped.
    wanted = orjson.loads(prompt.user.replace("&lt;", "<"))
    return wanted["steps"] * wanted["repeat"] if isinstance(wanted, dict) else wanted


trio.run(server.Standin(dialect={dialect!r}, steps=steps).run)
"""

T = TypeVar("T")


def prompted_codex(directory: Path, dialect: str = "both") -> Path:
    """The child as a program, to be used as CODEX_BIN together with PROXY_MODELS=MODEL."""
    return python_program(directory / "prompted-codex", _PROGRAM.format(root=str(ROOT), dialect=dialect))


def ask(*steps: Any, repeat: int | None = None, **members: Any) -> dict[str, Any]:
    """A responses body whose answer is these steps."""
    wanted: Any = list(steps) if repeat is None else {"steps": list(steps), "repeat": repeat}
    return {"model": MODEL, "input": json.dumps(wanted), **members}


def ask_chat(*steps: Any, **members: Any) -> dict[str, Any]:
    """A chat body whose answer is these steps."""
    return {"model": MODEL, "messages": [{"role": "user", "content": json.dumps(list(steps))}], **members}


def wait_for(condition: Callable[[], T | None], what: str, seconds: float = 60) -> T:
    """Look again and again until `condition` gives something true; its value. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return value


# The event log


class EventLog:
    """An event log that is being written; only what is new is read each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[dict[str, Any]] = []
        self._offset = 0

    def records(self) -> list[dict[str, Any]]:
        """The records that are on disk by now; a line that is still being written is left out."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._offset += len(whole) + 1
            self._records += [json.loads(line) for line in whole.split(b"\n")]
        return self._records

    def of(self, req_id: str, kind: str) -> list[dict[str, Any]]:
        """The records of one kind of a request."""
        return [
            record
            for record in self.records()
            if (record["req_id"] or "").partition("#")[0] == req_id and record["kind"] == kind
        ]

    def calls(self, req_id: str) -> list[str]:
        """The methods that a request called in the child, in order."""
        return [record["method"] for record in self.of(req_id, "rpc_request")]

    def request_of(self, text: str) -> str | None:
        """The id of the request whose body holds `text`."""
        for record in self.records():
            if record["kind"] == "client_request" and text in json.dumps(record["payload"].get("body")):
                return str(record["req_id"])
        return None

    def is_interrupted(self, req_id: str) -> bool:
        """Whether the child was told to stop the turn."""
        return "turn/interrupt" in self.calls(req_id)

    def turn_end(self, req_id: str) -> dict[str, Any] | None:
        """How a request ended; None while it runs."""
        ends = self.of(req_id, "turn_end")
        return ends[0]["payload"] if ends else None

    def ended(self, text: str) -> str:
        """The id of the request whose body holds `text`, once its end is written."""

        def find() -> str | None:
            req_id = self.request_of(text)
            return req_id if req_id is not None and self.turn_end(req_id) is not None else None

        return wait_for(find, f"the end of {text!r}") or ""

    def running(self, text: str) -> str:
        """Wait until the child works on the request whose body holds `text`; its id."""

        def started() -> str | None:
            req_id = self.request_of(text)
            replies = self.of(req_id, "rpc_response") if req_id else []
            return req_id if any(reply["method"] == "turn/start" for reply in replies) else None

        return wait_for(started, f"the turn of {text} runs")

    def said(self, req_id: str, text: str) -> None:
        """Wait until the child has said this piece in a request."""

        def pieces() -> list[Any]:
            notes = self.of(req_id, "rpc_notification")
            return [note["payload"]["params"]["delta"] for note in notes if note["method"] == "item/agentMessage/delta"]

        wait_for(lambda: text in pieces(), f"the child says {text}")


# Processes


def is_alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and is_alive(int(entry)):
                found.append(int(entry))
    return found


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """Memory of a process (VmHWM: its peak)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field} of {pid}")


# The socket


def open_response(bridge: RunningBridge, path: str, body: dict[str, Any]) -> tuple[HTTPConnection, HTTPResponse]:
    """Send a request and read the head of its response; the rest can be read as it comes."""
    connection = HTTPConnection("127.0.0.1", bridge.port, timeout=20)
    connection.request("POST", path, json.dumps(body), request_headers())
    return connection, connection.getresponse()


def send_request(bridge: RunningBridge, path: str, body: dict[str, Any], *, buffer: int | None = None) -> socket.socket:
    """Send a request and read nothing. `buffer` makes the socket's receive buffer that small."""
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.settimeout(20)
    try:
        client.connect(("127.0.0.1", bridge.port))
        client.sendall(raw_request("POST", path, json.dumps(body).encode(), request_headers()))
    except OSError:
        client.close()
        raise
    return client


def request_headers(**more: str) -> dict[str, str]:
    """The headers of a good request."""
    return {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **more}


def raw_request(method: str, path: str, body: bytes, headers: dict[str, str], host: str = "127.0.0.1") -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
