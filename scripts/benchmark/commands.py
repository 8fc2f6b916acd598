"""Commands beside `serve`: `exec` from start to end, the lab's cells, CAP's packets."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from bridge_process import DIRECTORY
from side_by_side import Unsupported, Values, Version
from table import Part, at_most, rate_at_least, time_at_most


def checked(version: Version, *arguments: str | Path) -> str:
    """What a Python program of this version prints."""
    done = subprocess.run(
        [version.python, *arguments], cwd=version.checkout, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise Unsupported(f"{arguments[0]} {arguments[1]} ends with {done.returncode}: {done.stderr[-600:]}")
    return done.stdout


def timed(version: Version, *arguments: str | Path) -> float:
    """Seconds that it takes."""
    began = time.monotonic()
    checked(version, *arguments)
    return time.monotonic() - began


def exec_pair(version: Version) -> Values:
    imports = timed(version, "-c", "import trio, orjson, typer")
    whole = timed(version, "-m", "bridge", "exec", "--mock", "--json", "--prompt", "hi")
    milliseconds, ratio = EXEC.rows
    return {milliseconds: 1000 * whole, ratio: whole / imports}


EXEC = Part(
    "exec",
    {
        "exec --mock --json, start to end, ms": None,
        "exec --mock --json, start to end, against importing its libraries": at_most(2.5),
    },
    lambda run: run.medians(run.versions, exec_pair, rounds=3 * run.rounds),
)


def lab_cells(version: Version, least: int = 1000, concurrency: int = 16) -> Values:
    """Cells per second of a run of all shipped cases on the stand-in, without its start and its report."""
    suite = version.checkout / "fixtures" / "cases"
    run = ("-m", "bridge", "lab", "run", suite, "--mock-only", "-m", "mock-tool-call", "-c", str(concurrency))
    with tempfile.TemporaryDirectory() as directory:

        def cells(repeat: int) -> tuple[float, int]:
            results = Path(directory) / f"{repeat}.jsonl"
            seconds = timed(version, *run, "-n", str(repeat), "--results", results)
            return seconds, len(results.read_bytes().splitlines()) - 1

        seconds, few = cells(1)
        more_seconds, many = cells(1 + -(-least // few))
    return dict.fromkeys(LAB.rows, (many - few) / (more_seconds - seconds))


LAB = Part(
    "lab",
    {"lab: cells per second on the stand-in": rate_at_least(300)},
    lambda run: run.medians(run.versions, lab_cells, rounds=min(3, run.rounds)),
)


def cap_packets(version: Version) -> Values:
    return dict(zip(CAP.rows, json.loads(checked(version, DIRECTORY / "cap_packets.py", "")), strict=True))


CAP = Part(
    "CAP",
    {"CAP: reading a delta packet, µs": time_at_most(3), "CAP: writing a delta packet, µs": time_at_most(1)},
    lambda run: run.medians(run.versions, cap_packets),
)
