"""A bridge in a process of its own, with the benchmark's child: started, asked, weighed, stopped."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from side_by_side import HERE, Run, Unsupported, Version

DIRECTORY = Path(__file__).resolve().parent
KEY = "bench-key-0123456789"
MODELS = (
    "bench-short",
    "bench-idle",
    "bench-flood-1-50000",
    "bench-flood-1-400000",
    "bench-flood-64-500",
    "bench-flood-64-4000",
    "bench-beat-40-120",
    "bench-beat-20-60",
)
"""See child.py."""


class Bridge:
    """A bridge that runs."""

    def __init__(
        self,
        directory: Path,
        *,
        version: Version = HERE,
        legacy: bool = False,
        log: bool = False,
        models: tuple[str, ...] = MODELS,
        flags: tuple[str, ...] = (),
        **settings: str,
    ) -> None:
        program = directory / "child"
        # Without site-packages: the child is there sooner.
        flag = "--legacy" if legacy else ""
        child = f"{quote(sys.executable)} -S {quote(str(DIRECTORY / 'child.py'))} {flag}"
        program.write_text(f"#!/bin/sh\nexec {child}\n")
        program.chmod(0o755)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_API_KEY": KEY,
            "PORT": "0",
            "CODEX_BIN": str(program),
            "PROXY_MODELS": ",".join(models),
            "PROXY_DIALECT": "legacy" if legacy else "current",
            "PROXY_LEGACY_CALLS": "turn",
            "PROXY_MAX_TURNS": "4096",
            "PROXY_MAX_CONNECTIONS": "4096",
            **settings,
        }
        if log:
            env["PROXY_LOG_EVENTS"] = str(directory / "events.ndjson")
        self.stderr = directory / "stderr"
        self.began = time.monotonic()
        with self.stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [version.python, *flags, "-m", "bridge", "serve"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=env,
                text=True,
                cwd=version.checkout,
            )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        said = self.process.stdout.readline() if ready else ""
        self.listening_after = time.monotonic() - self.began
        """Seconds from the start of the process to its first line."""
        found = re.search(r"listening on .*:(\d+)/v1", said)
        if found is None:
            self.stop()
            raise Unsupported(f"the bridge does not start: {said or self.stderr.read_text()[-1000:]}")
        self.port = int(found[1])

    def cpu(self) -> float:
        """Seconds of CPU used so far, by all threads, also those that have ended."""
        return time.clock_gettime((~self.process.pid << 3) | 2)  # as clock_getcpuclockid(3) makes it on Linux

    def loop_cpu(self) -> float:
        """The same of the main thread alone, which runs the event loop."""
        thread = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat")
        return int(thread.read_text().split()[0]) / 1e9

    def settled_cpu(self) -> float:
        """The same, once it does nothing any more: what it writes after an answer (store, log) counts, too."""
        used, since = self.cpu(), time.monotonic()
        until = since + 2
        while since < until and time.monotonic() - since < 0.03:
            time.sleep(0.01)
            now = self.cpu()
            if now - used > 0.0002:
                since = time.monotonic()
            used = now
        return used

    def rss(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def connect(self) -> socket.socket:
        """A connection. A bridge that answers nothing for a minute is an error."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, model: str) -> socket.socket:
        """A new connection on which a streamed request has been sent."""
        connection = self.connect()
        connection.sendall(message("POST", "/v1/responses", {"model": model, "input": "hi", "stream": True}))
        return connection

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def message(method: str, path: str, body: object = None) -> bytes:
    """A whole HTTP request."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
    if content:
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


@contextmanager
def bridge(**options: Any) -> Iterator[Bridge]:
    """A bridge with an empty home."""
    with tempfile.TemporaryDirectory(prefix="turnbridge-bench-") as directory:
        running = Bridge(Path(directory), **options)
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def bridges(run: Run, **options: Any) -> Iterator[list[Bridge | None]]:
    """A bridge of each version; none of one that cannot be started so."""
    with ExitStack() as stack:
        running: list[Bridge | None] = []
        for number, version in enumerate(run.versions):
            try:
                running.append(stack.enter_context(bridge(version=version, **options)))
            except Unsupported as reason:
                run.lacks(number, reason)
                running.append(None)
        yield running
