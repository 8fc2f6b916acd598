"""How many files of the bridge one delta, one request, one verified recording and one lab cell pass through.

A profile hook in the bridge's process notes the file of every function that is called or resumed
(`recorder/sitecustomize.py`). A walk is the sequence of these files: how many different ones, and how often it changes
from one package to another.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "benchmark"))

from bridge_process import Bridge  # noqa: E402
from clients import http  # noqa: E402
from request_costs import STREAMED, ask  # noqa: E402

RECORDER = Path(__file__).resolve().parent / "recorder"
Entry = tuple[float, str]
TIMERS = 3
"""A periodic task of the bridge passes through no more files than these."""


@dataclass(frozen=True)
class Walk:
    name: str
    target: int
    files: tuple[str, ...]
    """Every file in the order in which it was entered; neighbours differ."""

    @property
    def distinct(self) -> int:
        return len(set(self.files))

    @property
    def changes(self) -> int:
        packages = [file.split("/")[0] if "/" in file else "" for file in self.files]
        return sum(before != after for before, after in pairwise(packages))


def steps(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(file for number, (_, file) in enumerate(entries) if number == 0 or entries[number - 1][1] != file)


def between(entries: list[Entry], start: float, end: float) -> list[Entry]:
    return [entry for entry in entries if start <= entry[0] < end]


def bursts(entries: list[Entry], gap: float = 0.05) -> Iterator[list[Entry]]:
    """The entries, separated where nothing happened for a while."""
    burst: list[Entry] = []
    for entry in entries:
        if burst and entry[0] - burst[-1][0] > gap:
            yield burst
            burst = []
        burst.append(entry)
    if burst:
        yield burst


def environment(output: Path) -> dict[str, Any]:
    return {
        "PYTHONPATH": str(RECORDER),
        "WALKS_PACKAGE": str(ROOT / "bridge"),
        "WALKS_OUTPUT": str(output),
    }


def served() -> tuple[list[Entry], list[Entry]]:
    """What a running bridge passes through for one delta, and for one request up to the child's stdin."""
    models = ("bench-short", "bench-idle", "bench-beat-4-16")
    with tempfile.TemporaryDirectory(prefix="turnbridge-walks-") as name:
        output = Path(name) / "walk.json"
        bridge = Bridge(Path(name), models=models, **environment(output))
        try:
            with STREAMED.connect(bridge) as connection:
                for _ in range(5):
                    ask(connection, STREAMED)
            beat = http("POST", "/v1/responses", {"model": "bench-beat-4-16", "input": "hi", "stream": True})
            with beat.connect(bridge) as connection:
                streaming = time.monotonic() + 0.5
                ask(connection, beat)
                streamed = time.monotonic()
            time.sleep(1)
            with bridge.ask("bench-idle"):
                # The child answers nothing, so what follows within a second is the way to its stdin.
                asked = time.monotonic() - 0.05
                time.sleep(1)
                arrived = time.monotonic()
        finally:
            bridge.stop()
        entries = read(output)
    deltas = [burst for burst in bursts(between(entries, streaming, streamed)) if is_delta(burst)]
    if not deltas:
        sys.exit("scripts/house: no delta was seen on its way through the bridge.")
    most_common, _ = Counter(steps(burst) for burst in deltas).most_common(1)[0]
    delta = next(burst for burst in deltas if steps(burst) == most_common)
    request = [burst for burst in bursts(between(entries, asked, arrived)) if len(set(steps(burst))) > TIMERS]
    return delta, [entry for burst in request for entry in burst]


def is_delta(burst: list[Entry]) -> bool:
    """Whether it led from the child's output to an encoder; the timers' bursts do not."""
    files = {file for _, file in burst}
    return any(file.startswith("appserver/") for file in files) and any(file.startswith("protocols/") for file in files)


def read(output: Path) -> list[Entry]:
    return [(at, file) for at, file in json.loads(output.read_text())]


def command(*arguments: str | Path) -> list[Entry]:
    """What one run of a command passes through."""
    with tempfile.TemporaryDirectory(prefix="turnbridge-walks-") as name:
        output = Path(name) / "walk.json"
        env = {"PATH": os.environ["PATH"], "HOME": name, "XDG_STATE_HOME": f"{name}/state", **environment(output)}
        done = subprocess.run(
            [sys.executable, "-m", "bridge", *arguments], cwd=name, env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"scripts/house: turnbridge {arguments[0]} failed with {done.returncode}: {done.stderr[-800:]}")
        return read(output)


def one_recording() -> list[Entry]:
    """Verify the first request of a recorded log; the log is cut after it, so that nothing else is read."""
    first, *others = re.finditer(rb'"req_id":"(\w+)"', recorded := (ROOT / "fixtures/logs/current.ndjson").read_bytes())
    after = next(match.start() for match in others if match[1] != first[1])
    with tempfile.NamedTemporaryFile(suffix=".ndjson") as log:
        log.write(recorded[: recorded.rindex(b"\n", 0, after) + 1])
        log.flush()
        return command("replay", log.name, "--verify")


def one_cell() -> list[Entry]:
    suite = ROOT / "fixtures" / "cases" / "single.yaml"
    return command(
        "lab", "run", suite, "--mock-only", "-m", "mock-tool-call", "-n", "1", "-c", "1", "--case", "weather-in-bern",
        "--results", "results.jsonl",
    )  # fmt: skip


def measured() -> list[Walk]:
    delta, request = served()
    found: list[tuple[str, int, Callable[[], list[Entry]]]] = [
        ("one delta, from the child's stdout to the socket", 8, lambda: delta),
        ("one request, from the socket to the child's stdin", 25, lambda: request),
        ("one `replay --verify`", 30, one_recording),
        ("one lab cell", 45, one_cell),
    ]
    return [Walk(name, target, steps(entries())) for name, target, entries in found]
