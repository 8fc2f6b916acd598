"""`turnbridge lab` as a process of its own, on suites of a few cases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT
from warm import run_warm

BRIDGE = [sys.executable, "-P", "-m", "bridge"]
MODEL = "scripted"
RIGHT = '<tool_call>{"name":"get_weather","arguments":"{\\"city\\":\\"Bern\\"}"}</tool_call>'
"""What a right answer to each case of `write_suite` is."""
WEATHER = {
    "description": "Today's weather of a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

Json = dict[str, Any]


def write_suite(path: Path, *ids: str, asked: str = "How is it in Bern?") -> Path:
    """Cases that differ in their ids."""
    expect = {"calls": [{"name": "get_weather", "arguments": {"city": "Bern"}}]}
    cases = [
        {
            "id": name,
            "category": "single",
            "tools": ["get_weather"],
            "messages": [{"role": "user", "content": f"{asked} ({name})"}],
            "expect": expect,
        }
        for name in ids
    ]
    path.write_text(json.dumps({"tools": {"get_weather": WEATHER}, "cases": cases}))
    return path


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Nothing of this machine's but PATH; everything that is written lands in `directory`."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        "PYTHONPATH": str(ROOT),
        **more,
    }


def lab(
    directory: Path, command: str, *arguments: str | Path, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    """`turnbridge lab COMMAND`, which must exit with this code, and never with a traceback."""
    env = environment(directory, **more)
    done = run_warm("lab", command, *arguments, env=env, cwd=directory, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done
    return done


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    code: int
    stdout: str
    stderr: str


def run_each(directory: Path, *runs: Sequence[str | Path], **more: str) -> list[Ran]:
    """`turnbridge lab` with each of these arguments. Words like `NAME=value` at their end are variables."""
    found = []
    for run in runs:
        words = list(map(str, run))
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        env = environment(directory, **more) | dict(word.split("=", 1) for word in variables)
        done = run_warm("lab", *(word for word in words if word not in variables), env=env, cwd=directory, timeout=120)
        found.append(Ran(done.returncode, done.stdout.decode(), done.stderr.decode()))
    assert not [ran for ran in found if "Traceback" in ran.stderr]
    return found


def scripted(codex: Path) -> dict[str, Any]:
    """The variables of a run over a scripted child that serves MODEL."""
    return {"CODEX_BIN": str(codex), "PROXY_MODELS": MODEL}


def read_results(path: Path) -> list[Json]:
    """The lines of a file of results but those that tell what was run; a torn one is left out."""
    found = []
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "lab" not in entry:
            found.append(entry)
    return found


def cells(results: list[Json], status: str = "scored") -> list[tuple[str, str, int]]:
    """(variant, case, repetition) of the results with this status, in their order."""
    return [(each["variant"], each["case"], each["repeat"]) for each in results if each["status"] == status]
