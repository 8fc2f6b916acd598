"""The bridge of a soak: a process with a log, two children, and short limits; and what it uses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from shlex import quote

import trio
from clients import MAX_BODY, MODEL
from slope import growth
from wire import KEY, ask, connect, request_bytes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LOG = "log"
STDERR = "stderr.txt"
GRACE = 5
ALLOWED = {"RSS, MB": 12.0, "fds": 12.0, "threads": 4.0}
"""By how much each may seem to grow in the time after the warm-up."""
WARM_UP = 60.0
"""Seconds in which caches fill."""


class Bridge:
    """The process. `samples` are (seconds, value) by what was measured."""

    def __init__(self, directory: Path, dialect: str) -> None:
        self.directory = directory
        self.log = directory / LOG
        self.stderr = directory / STDERR
        self.samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.log.mkdir()
        program = directory / "child"
        command = f"{quote(sys.executable)} -Wignore {quote(str(HERE / 'child.py'))} {dialect}"
        program.write_text(f"#!/bin/sh\nPYTHONPATH={quote(str(ROOT))} exec {command}\n")
        program.chmod(0o755)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_API_KEY": KEY,
            "PORT": "0",
            "CODEX_BIN": str(program),
            "PROXY_MODELS": MODEL,
            "PROXY_WORKERS": "2",
            "PROXY_MAX_BODY": str(MAX_BODY),
            "PROXY_FIRST_EVENT_TIMEOUT": "20",
            "PROXY_IDLE_TIMEOUT": "20",
            "PROXY_KEEPALIVE": "2",
            "PROXY_CAP_GRACE": "1",
            "PROXY_GRACE": str(GRACE),
            "PROXY_LOG_EVENTS": f"{self.log}/",
            "PROXY_LOG_MAX_BYTES": str(8 * 1024 * 1024),
        }
        with self.stderr.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bridge", "serve"],
                stdout=subprocess.PIPE, stderr=errors, env=env, cwd=ROOT, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)/v1", line)
        if found is None:
            raise SystemExit(f"the bridge did not start: {line}{self.stderr.read_text()}")
        self.port = int(found[1])

    def sample(self) -> None:
        """Note what it uses now."""
        proc, now = Path(f"/proc/{self.process.pid}"), time.monotonic()
        pages = int((proc / "statm").read_text().split()[1])
        self.samples["RSS, MB"].append((now, pages * os.sysconf("SC_PAGE_SIZE") / 1e6))
        self.samples["fds"].append((now, len(os.listdir(proc / "fd"))))
        self.samples["threads"].append((now, len(os.listdir(proc / "task"))))

    async def metrics(self) -> dict[str, float]:
        """What it says of itself, summed up by name; nothing where it has no metrics."""
        async with await connect(self.port) as stream:
            answer = await ask(stream, request_bytes("GET", "/metrics", b""))
            if answer is None:
                return {}
            text = (await answer.read()).decode()
        if answer.status != 200:
            return {}
        found: dict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.M):
            found[name] += float(value)
        return found

    def grown(self) -> list[str]:
        """What grows after the warm-up; a run that is not much longer than it shows nothing."""
        found = []
        for name, samples in self.samples.items():
            kept = [(at, value) for at, value in samples if at >= samples[0][0] + WARM_UP]
            if not kept or kept[-1][0] - kept[0][0] < WARM_UP:
                continue
            grows = growth(kept)
            if grows > ALLOWED[name]:
                found.append(f"{name} grows: by {grows:.1f} after the warm-up, up to {kept[-1][1]:.1f}")
        return found

    async def stop(self) -> list[str]:
        """SIGTERM; what is wrong with how it ends."""
        children = children_of(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        found = []
        with trio.move_on_after(GRACE + 15):
            await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)
        if self.process.poll() is None:
            found.append(f"the bridge still runs {GRACE + 15} s after SIGTERM")
            self.process.kill()
            self.process.wait()
        elif self.process.returncode != 0:
            found.append(f"after SIGTERM the bridge ended with exit code {self.process.returncode}")
        left = [pid for pid in children if is_alive(pid)]
        return found + ([f"processes are left behind: {left}"] if left else [])


def children_of(pid: int) -> list[int]:
    """The children of a process."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (tasks / "children").read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
