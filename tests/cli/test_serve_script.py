"""`scripts/serve`: what is checked before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest
from harness import ROOT


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that has the project and no Codex; what is to be installed into it is noted instead."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text('#!/bin/sh\necho "$@" >>"$(dirname "$0")/installed"\nexit 1\n')
    (programs / "turnbridge").write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -m bridge "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    with (ROOT / "pyproject.toml").open() as project:
        known = subprocess.run(["cksum"], stdin=project, capture_output=True, text=True, check=True).stdout
    (tmp_path / "venv" / ".installed").write_text(f"{known.strip()}\n\n")
    return tmp_path / "venv"


def run_script(venv: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(place for place in os.defpath.split(os.pathsep) if place)
    if shutil.which("codex", path=path):
        pytest.skip("this system has a Codex of its own")
    env = {"PATH": path, "HOME": str(venv.parent), "TURNBRIDGE_VENV": str(venv)}
    return subprocess.run([ROOT / "scripts/serve", *flags], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--dialcet=legacy", "No such option: --dialcet"),
        ("--dialect=klingon", "--dialect klingon: choose one of auto, current, legacy"),
        ("--config=nowhere.toml", "nowhere.toml: No such file or directory"),
    ],
)
def test_a_wrong_flag_is_told_before_codex_is_installed(venv: Path, flag: str, told: str) -> None:
    """Codex is 140 MB."""
    ran = run_script(venv, flag)
    assert ran.returncode == 2, ran.stderr
    assert told in ran.stderr
    assert "140 MB" not in ran.stderr
    assert not (venv / "bin" / "installed").exists()


def test_with_good_flags_it_is_installed(venv: Path) -> None:
    ran = run_script(venv, "--port=0")
    assert "140 MB" in ran.stderr
    assert "codex" in (venv / "bin" / "installed").read_text()
