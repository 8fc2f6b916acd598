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


_FORKING = """
import json, os, sys
import jsonschema_rs
import bridge.lab.run, bridge.settings.file, bridge.lab.suite
from bridge.cli import main
orders = json.loads(sys.argv[1])
sys.argv = ["turnbridge", "lab", "cases"]
try:
    main()  # for nothing: what this loads stays loaded
except SystemExit:
    pass
for place, arguments, variables in orders:
    if (child := os.fork()) == 0:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{place}.{name}", os.O_WRONLY | os.O_CREAT), number)
        os.environ.update(variables)
        sys.argv = ["turnbridge", "lab", *arguments]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    code: int
    stdout: str
    stderr: str


def run_each(directory: Path, *runs: Sequence[str | Path], outputs: Path, **more: str) -> list[Ran]:
    """`turnbridge lab` with each of these arguments, forked from one interpreter: much quicker than `lab`.

    What they write is kept in `outputs`; words like `NAME=value` at the end are variables.
    """
    outputs.mkdir()
    orders = []
    for number, run in enumerate(runs):
        words = list(map(str, run))
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        arguments = [word for word in words if word not in variables]
        orders.append((str(outputs / str(number)), arguments, dict(word.split("=", 1) for word in variables)))
    done = subprocess.run(
        [*BRIDGE[:2], "-c", _FORKING, json.dumps(orders)],
        cwd=directory,
        env=environment(directory, **more),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    codes = map(int, done.stdout.split())
    found = [
        Ran(code, *(Path(f"{place}.{name}").read_text(encoding="utf-8") for name in ("stdout", "stderr")))
        for code, (place, _, _) in zip(codes, orders, strict=True)
    ]
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
