"""What the tests share: a bridge as a real process, and a child that plays a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import httpx2
from protocols.open_responses import check_event
from warm import ROOT as ROOT
from warm import Process, WarmProcess

KEY = "test-key-0123456789"
OTHER_KEY = "other-key-0123456789"
"""A second client's, for bridges that are started with `TWO_KEYS`."""
TWO_KEYS = f"{KEY},{OTHER_KEY}"


@dataclass
class RunningBridge:
    """A bridge in a process of its own. `url` ends in /v1."""

    url: str
    process: Process
    state: Path
    stderr: Path

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    @property
    def port(self) -> int:
        return int(self.root.rpartition(":")[2])

    def client(self, *, key: str = KEY, **options: Any) -> httpx2.Client:
        """An HTTP client with the key, or with another one."""
        # There is no TLS here, and to load all certificates takes longer than most requests.
        options.setdefault("verify", False)
        return httpx2.Client(
            base_url=self.url, headers={"authorization": f"Bearer {key}"}, timeout=30, trust_env=False, **options
        )

    def post(self, path: str, body: Any) -> httpx2.Response:
        """One POST of a JSON body."""
        with self.client() as client:
            return client.post(path, json=body)

    def events(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a streamed request, without `[DONE]`."""
        with self.client() as client, client.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200, response.read()
            return list(read_sse(response.iter_lines()))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and give its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


def read_sse(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON payloads of an SSE stream. The events of a response have the specification's form."""
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            payload = json.loads(line.removeprefix("data: "))
            if str(payload.get("type")).startswith("response."):
                check_event(payload)
            yield payload


def resident(bridge: RunningBridge) -> float:
    """MB of memory that the bridge's process has."""
    pages = int(Path(f"/proc/{bridge.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def running_bridge(directory: Path, *arguments: str, **environment: str) -> Iterator[RunningBridge]:
    """Start `turnbridge serve` on a free port; at the end it must stop cleanly, unless it was stopped before."""
    state = directory / "state"
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(state),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        "PROXY_API_KEY": KEY,
        "PORT": "0",
        "PROXY_GRACE": "2",
        **environment,
    }
    stderr = directory / "bridge-stderr.txt"
    with stderr.open("w") as errors:
        process = WarmProcess(
            ["serve", *arguments], stdout=subprocess.PIPE, stderr=errors, env=env, cwd=ROOT, text=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on "), line + stderr.read_text()
        bridge = RunningBridge(line.split()[-1], process, state, stderr)
        yield bridge
        if process.poll() is None:
            assert bridge.stop() == 0, stderr.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def python_program(program: Path, text: str) -> Path:
    """A program in Python that can be run by its path.

    Its first line does not name the interpreter, whose path may have a blank in it.
    """
    script = program.with_name(f"{program.name}.py")
    script.write_text(text)
    program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -Wignore {quote(str(script))} "$@"\n')
    program.chmod(0o755)
    return program


def scripted_codex(directory: Path, script: dict[str, Any], name: str = "codex", dialect: str = "both") -> Path:
    """A program to be used as CODEX_BIN: the stand-in, performing `script`."""
    path = directory / f"{name}.json"
    path.write_text(json.dumps(script))
    program = directory / name
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={quote(str(ROOT))} exec {quote(sys.executable)} -m bridge "$@" '
        f"--script {quote(str(path))} --dialect {dialect}\n"
    )
    program.chmod(0o755)
    return program


def turns(*steps: Sequence[Any], **members: Any) -> dict[str, Any]:
    """A script from the steps of its turns."""
    return {"turns": [{"steps": list(each)} for each in steps], **members}
