"""Real shells load the completion that the wheel installs, and `man` renders the manual page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT

from bridge.cli import COMMANDS

SHARE = ROOT / "share"

ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "fpath=($1 \\$fpath); autoload -Uz compinit; compinit -u -D; bindkey '^I' list-choices; print LOA''DED"
while zpty -r shell line; do [[ $line == *LOADED* ]] && break; done
zpty -w -n shell "$2"$'\\t'
while zpty -r shell line; do print -r -- $line; [[ $line == *$3* ]] && break; done
zpty -d shell
"""
"""A shell on a terminal of its own: completion runs only there. Ends when the choice $3 is listed."""


def run_shell(shell: str, *arguments: str | Path, path: Path) -> str:
    """What a shell prints that finds `turnbridge` in a directory."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    env = {"PATH": f"{path}:{os.environ['PATH']}", "HOME": str(path), "TERM": "dumb"}
    done = subprocess.run(
        [shell, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False, cwd=path
    )
    assert done.stderr == "", done
    return done.stdout


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory with the command, without the user's own files for shells."""
    command = tmp_path / "turnbridge"
    command.write_text(f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -m bridge \"$@\"\n")
    command.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [("turnbridge rep", {"replay"}), ("turnbridge serve --dialect ", {"auto", "current", "legacy"})],
)
class TestCompletion:
    def test_bash_completes(self, path: Path, words: str, offered: set[str]) -> None:
        script = (
            'source "$1/bash-completion/completions/turnbridge"; complete -p turnbridge >/dev/null || exit 1;'
            ' COMP_WORDS=($2); [[ $2 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1));'
            ' _turnbridge_completion turnbridge; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        printed = run_shell("bash", "--norc", "-c", script, "bash", SHARE, words, path=path)
        assert set(printed.split()) == offered

    def test_fish_completes(self, path: Path, words: str, offered: set[str]) -> None:
        script = f"set -p fish_complete_path '{SHARE}/fish/vendor_completions.d'; complete -C '{words}'"
        printed = run_shell("fish", "--no-config", "-c", script, path=path)
        assert {line.split("\t")[0] for line in printed.splitlines()} == offered

    def test_zsh_completes_at_the_first_key(self, path: Path, words: str, offered: set[str]) -> None:
        """Also though zsh has loaded the function only then."""
        (path / "play.zsh").write_text(ZSH)
        last = max(offered)
        printed = run_shell("zsh", "-f", path / "play.zsh", SHARE / "zsh/site-functions", words, last, path=path)
        assert all(re.search(rf"\b{choice}\b", printed) for choice in offered), printed


def test_man_renders_the_manual_page(tmp_path: Path) -> None:
    """Without a warning, with every command and the variables."""
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "MANWIDTH": "200"}
    page = SHARE / "man/man1/turnbridge.1"
    done = subprocess.run(["man", "--warnings", "-l", page], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    headings = re.findall(r"^   (\S.*)$", done.stdout, re.M)
    assert set(COMMANDS) <= set(headings)
    assert "log export" in headings
    assert "PROXY_LOG_EVENTS" in done.stdout
    # `man` shows a line that begins with a dot as nothing at all.
    assert "-m, --model NAME" in done.stdout
