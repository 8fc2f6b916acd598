"""fixtures/examples/orchestrator.py, as docs/exec-wire.md shows it: it runs tools between two runs of the command."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli.exec.command import environment
from harness import ROOT
from real import codex_binaries
from real.provider import Provider, codex_home
from real.rig import said

PROGRAM = (sys.executable, str(ROOT / "fixtures/examples/orchestrator.py"))
BRIDGE = ("--bridge", shlex.join((sys.executable, "-P", "-m", "bridge")))


def orchestrate(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*PROGRAM, *BRIDGE, *arguments],
        env=environment(directory, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_mock_loop(tmp_path: Path) -> None:
    """Two runs: the mock calls, the tool runs here, and the mock has its output."""
    ran = orchestrate(tmp_path, "hello", "--", "--model", "mock-tool-call", "--mock-mode", "tool-loop")
    assert (ran.returncode, ran.stdout) == (0, "mock tool result: 0\n"), ran


def test_a_real_codex(tmp_path: Path) -> None:
    """The model is told what the tools really gave, the failures too; then it answers."""
    binary = codex_binaries.find(codex_binaries.CURRENT)
    if isinstance(binary, str):
        pytest.skip(binary)
    calls = [
        {"name": "add", "arguments": '{"a":2,"b":3.5}'},
        {"name": "word_count", "arguments": '{"text":"a b c"}'},
        {"name": "add", "arguments": '{"a":"x","b":1}'},
    ]
    with Provider() as provider:
        home = codex_home(tmp_path / "codex-home", provider)
        ran = orchestrate(
            tmp_path,
            said({"do": "calls", "pieces": ["I count."], "calls": calls}),
            CODEX_BIN=str(binary),
            CODEX_HOME=str(home),
        )
        first, second = [request.body["input"] for request in provider.requests]
    assert (ran.returncode, ran.stdout) == (0, "result: 5.5; 3; err: a and b must be numbers\n"), ran
    assert "tool: add" in ran.stderr
    added = second[len(first) :]
    assert [item["type"] for item in added] == ["message", *["function_call"] * 3, *["function_call_output"] * 3]
    assert json.dumps(added).count("I count.") == 1


def test_a_run_that_fails(tmp_path: Path) -> None:
    """It says why, and gives up."""
    ran = orchestrate(tmp_path, "hello", "--", "--mock", "--mock-mode", "parrot")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "usage_error" in ran.stderr
    assert "Traceback" not in ran.stderr
