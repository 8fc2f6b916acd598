"""The commands in the tutorials and how-to pages do what the pages show, typed one after the other in an empty HOME.

A block of `sh` is run by bash; the `text` after it is what it prints, where … stands for anything. A block that
serves runs beside the ones that follow, until the next one that serves. A block after a comment
`<!-- not run: reason -->` is not run. `export` lines hold for the rest of the page.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import ROOT
from test_readme import YOU, free_port

PAGES = ("install", "tutorial-proxy", "tutorial-record", "tutorial-lab", "record-in-ci", "deploy")
SERVES = "turnbridge serve "
PORT = 11435


class Step(NamedTuple):
    """What is typed, and what it must print (nothing if the page does not show it)."""

    command: str
    shown: str | None


def blocks(page: str) -> Iterator[tuple[str, str, bool]]:
    """The language and the text of each fenced block, and whether it is run."""
    text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    for reason, language, block in re.findall(
        r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)\n^```$", text, re.M | re.S
    ):
        yield language, block, not reason


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    runs = False
    for language, text, is_run in blocks(page):
        if language == "sh":
            runs = is_run
            if runs:
                found.append(Step(text, None))
        elif language == "text" and runs and found:
            found[-1] = Step(found[-1].command, text)
    return found


class Reader:
    """A person with an empty HOME, the program on the PATH, and a checkout."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.exports: list[str] = []
        self.home = directory / "home"
        self.home.mkdir()
        (self.home / "deploy").symlink_to(ROOT / "deploy")
        programs = directory / "bin"
        programs.mkdir()
        program = programs / "turnbridge"
        python = shlex.quote(sys.executable)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {python} -Wignore -m bridge "$@"\n')
        program.chmod(0o755)
        self.environment = {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PORT": str(self.port),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
        }

    def here(self, text: str) -> str:
        """A text of a page with this reader's port and home."""
        return text.replace(str(PORT), str(self.port)).replace(YOU, str(self.home))

    def type(self, command: str) -> str:
        """What a block prints; it must succeed."""
        script = "\n".join(["set -e", *self.exports, self.here(command)])
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        self.exports += re.findall(r"^export .*$", self.here(command), re.M)
        return done.stdout

    @contextmanager
    def serving(self, step: Step) -> Iterator[None]:
        """A bridge in another terminal."""
        with (self.directory / "errors.txt").open("w") as errors:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {step.command}"],
                cwd=self.home,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert process.stdout is not None
        try:
            printed = process.stdout.readline()
            assert printed.startswith("listening on "), (self.directory / "errors.txt").read_text()
            if step.shown is not None:
                count = step.shown.count("\n")
                self.check(step, printed + "".join(process.stdout.readline() for _ in range(count)))
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)

    def check(self, step: Step, printed: str) -> None:
        if step.shown is not None:
            pattern = ".*?".join(map(re.escape, self.here(step.shown).split("…")))
            assert re.fullmatch(pattern, printed.rstrip("\n"), re.S), f"{step.command}\nprints\n{printed}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_shows(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    if page == "deploy":
        reader.type("turnbridge keys add laptop")  # there is something to back up
    waiting = steps(page)
    assert waiting
    while waiting:
        step = waiting.pop(0)
        if not step.command.startswith(SERVES):
            reader.check(step, reader.type(step.command))
            continue
        with reader.serving(step):
            while waiting and not waiting[0].command.startswith(SERVES):
                step = waiting.pop(0)
                reader.check(step, reader.type(step.command))


def test_every_block_of_these_pages_is_run_or_says_why_not() -> None:
    """No block of another language hides a command; a reason is a sentence, not a mark."""
    for page in PAGES:
        for language, text, is_run in blocks(page):
            assert language in ("sh", "text") or not is_run, (page, text)
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        assert len(re.findall(r"^```\w+$", text, re.M)) == len(list(blocks(page))), page
