"""README's commands do what it says: typed literally by a newcomer, in an empty HOME whose path has a space.

The newcomer gets a copy of the checkout. The blocks of sh and Python are run in their order, the first of them installs
into a new `.venv`. Commands in running text follow. A command that is in none of the tables below fails the test:
give it a line in `BLOCKS` or `RUN`, or, with the reason, in `NOT_RUN`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import ROOT
from real.provider import DEFAULT_TEXT, Provider, codex_home

README = (ROOT / "README.md").read_text(encoding="utf-8")
PORT = 11435
YOU = "/home/you"
"""The home in the output that README shows."""

SERVE = re.compile(r"scripts/serve( --\S.*)?")
BLOCKS = {
    r"curl .*/v1/responses .*mock-echo.*": r'"text":"hello"',
    r"curl .*/v1/chat/completions .*mock-text.*": r"data: \[DONE\]",
    r"curl .*/v1/responses .*mock-tool-call.*": r'"type":"function_call".*"name":"weather"',
    r"curl .*/v1/models .*": r'"object":"list".*"id":"gpt-',
    r"from openai import OpenAI\n.*mock-echo.*": r"^hello\n$",
    r'\.venv/bin/turnbridge exec "Say hello"': f"^{DEFAULT_TEXT}\n$",
    r"\.venv/bin/turnbridge exec --mock --mock-mode tool-call --json .*": r'"type":"response.completed"',
    r"(\.venv/bin/turnbridge keys [^\n]+\n?)+": r"laptop.*ci ",
}
"""Blocks, and what they print. Blocks that serve are known by `SERVE`."""
RUN = {
    ".venv/bin/turnbridge doctor": (0, "ok  login      not needed by this provider"),
    "turnbridge auth status": (1, "Codex is not logged in."),
    "turnbridge models": (0, "mock-echo"),
    "turnbridge usage": (0, "mock-echo"),
    "scripts/serve --help": (0, "--mock-only"),
    "scripts/serve --config FILE": (0, "listening on"),
}
"""Commands in running text: their exit codes, and what they print."""
NAMED = {
    "turnbridge",
    "turnbridge cap run",
    "turnbridge exec",
    "turnbridge keys add",
    "turnbridge lab run",
    "turnbridge log",
    "turnbridge record -- COMMAND",
    "turnbridge replay --verify",
    "turnbridge serve --replay LOG",
}
"""Commands that README only names: their help is printed."""
NOT_RUN = {
    ".venv/bin/turnbridge auth login": "waits for a person who logs in; tests/cli/test_auth.py runs it",
    "scripts/test": "runs this test",
}
"""Commands that are not run here, and why."""


class Block(NamedTuple):
    """A fenced block of README."""

    language: str
    text: str


def fenced() -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)\n```$", README, re.M | re.S)]


def typed() -> list[Block]:
    """The blocks that a reader types, one that serves and all others."""
    return [block for block in fenced() if block.language in ("sh", "python")]


def commands_in_text() -> list[str]:
    """Code spans that are commands of ours, in their order, each once."""
    text = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
    # A span may go over the end of a line.
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    ours = re.compile(r"scripts/|(\.venv/bin/)?turnbridge\b(?!-)")
    return list(dict.fromkeys(span for span in spans if ours.match(span)))


def expected(block: Block) -> str:
    """What a block is to print, as a pattern."""
    known = [pattern for form, pattern in BLOCKS.items() if re.fullmatch(form, block.text, re.S)]
    assert len(known) == 1, f"README has a command that this test does not know:\n{block.text}"
    return known[0]


def test_every_command_is_known_and_no_table_has_more() -> None:
    blocks = [block for block in typed() if not SERVE.fullmatch(block.text) and block.text not in NOT_RUN]
    assert {expected(block) for block in blocks} == set(BLOCKS.values())
    in_text = {*commands_in_text(), *(block.text for block in typed())}
    tables = (*RUN, *NAMED, *NOT_RUN)
    assert [command for command in commands_in_text() if command not in tables] == []
    assert [command for command in tables if command not in in_text] == []
    assert {block.language for block in fenced()} == {"sh", "python", "toml", ""}


def test_it_is_short_and_shows_the_page_and_the_report() -> None:
    assert README.count("\n") <= 150
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert shown == ["docs/images/page-turns.png", "docs/images/lab-report.png"]
    assert [image for image in shown if not (ROOT / image).is_file()] == []


def test_every_script_that_is_named_is_there() -> None:
    scripts = {command.split()[0] for command in commands_in_text() if command.startswith("scripts/")}
    assert [script for script in scripts if not os.access(ROOT / script, os.X_OK)] == []


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == ">=3.11.2"
    (told,) = re.findall(r"Python 3\.11\.2 or later: (.*?) are tested", README)
    assert re.findall(r"\b3\.\d+\b(?!\.)", told) == classified
    scripts = (ROOT / "scripts/environment").read_text()
    for names in re.findall(r"for candidate in (.*); do", scripts):
        assert sorted(re.findall(r"python(3\.\d+)", names)) == classified


class Newcomer:
    """A person with a checkout and a HOME of their own, and this machine's settings for pip."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "a new home"
        self.home.mkdir()
        self.checkout = self.home / "turnbridge"
        self.port = PORT
        self._errors = directory / "stderr.txt"
        ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().split()]
        shutil.copytree(ROOT, self.checkout, ignore=shutil.ignore_patterns(".git", *ignored))
        kept = re.compile(r"PATH|LANG|LC_.*|TMPDIR|PIP_.*|SSL_.*|.*_CA_BUNDLE|\w+_proxy", re.I)
        self.env = {name: value for name, value in os.environ.items() if kept.fullmatch(name)} | {
            "HOME": str(self.home),
            "PYTHON": sys.executable,  # the one under test, and not the first one on the PATH
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            **pip_settings(),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.checkout, env=self.env, capture_output=True, text=True, timeout=120, check=False
        )

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """In the shell; `turnbridge` is found on the PATH."""
        path = shlex.quote(f"{self.checkout}/.venv/bin:{self.env['PATH']}")
        return self.run("sh", "-ec", f"PATH={path}\n{self.on_my_port(command)}")

    def on_my_port(self, text: str) -> str:
        return text.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")

    @contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """A bridge in another terminal; what it printed when it was ready."""
        process, printed = self._start(command)
        if not printed and is_taken(PORT):
            # Somebody uses a bridge on this machine: README's commands are typed with another port.
            self.port = free_port()
            self.env["PORT"] = str(self.port)
            process, printed = self._start(command)
        try:
            assert printed.startswith("listening on "), printed + self._errors.read_text()
            yield printed
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _start(self, command: str) -> tuple[subprocess.Popen[str], str]:
        """A process, and its first four lines; nothing if it has ended before."""
        with self._errors.open("w") as errors:
            process = subprocess.Popen(
                ["sh", "-c", command],
                cwd=self.checkout,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        printed = "".join(process.stdout.readline() for _ in range(4))
        if not printed:
            process.communicate()
        return process, printed


def pip_settings() -> dict[str, str]:
    """Where pip keeps what it has loaded, and the user's own configuration: both are found by HOME."""
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    found = {"PIP_CACHE_DIR": cache.stdout.strip()}
    for name in (".config/pip/pip.conf", ".pip/pip.conf"):
        if (path := Path.home() / name).exists():
            found.setdefault("PIP_CONFIG_FILE", os.environ.get("PIP_CONFIG_FILE", str(path)))
    return found


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def check_blocks(newcomer: Newcomer, provider: Provider) -> None:
    blocks = fenced()
    starts = [index for index, block in enumerate(blocks) if block.language == "sh" and SERVE.fullmatch(block.text)]
    assert len(starts) == 2
    for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
        with newcomer.serving(blocks[start].text) as printed:
            if start == starts[0]:
                check_output(newcomer, blocks[start + 1].text, printed)
                exported = newcomer.type(printed.splitlines()[2] + '\nprintf %s "$OPENAI_API_KEY"')
                newcomer.env["OPENAI_API_KEY"] = exported.stdout
                # Codex may be configured from now on: a provider in config.toml needs no login.
                codex_home(newcomer.home / ".codex", provider, model="gpt-5.5")
            for block in blocks[start + 1 : end]:
                check_block(newcomer, block)


def check_block(newcomer: Newcomer, block: Block) -> None:
    if block.language == "toml":
        (newcomer.checkout / "FILE").write_text(block.text)  # for `--config FILE`
    if block.language not in ("sh", "python") or block.text in NOT_RUN:
        return
    text = newcomer.on_my_port(block.text)
    done = newcomer.run(sys.executable, "-c", text) if block.language == "python" else newcomer.type(text)
    assert done.returncode == 0, (block, done)
    assert re.search(expected(block), done.stdout, re.S), (block, done)


def check_output(newcomer: Newcomer, shown: str, printed: str) -> None:
    """What README shows is what is printed, but for the page's token, and the home, whose path must be quoted here."""
    printed = re.sub(r"#token=[\w-]{32}", "#token=…", printed)
    path = re.escape(YOU) + r"[^\s)]*"
    shown = re.sub(rf"\(cat ({path})\)", lambda found: f"(cat {shlex.quote(at_home(newcomer, found[1]))})", shown)
    assert printed == newcomer.on_my_port(at_home(newcomer, shown)) + "\n"


def at_home(newcomer: Newcomer, text: str) -> str:
    return text.replace(YOU, str(newcomer.home))


def check_commands_in_text(newcomer: Newcomer) -> None:
    for command in commands_in_text():
        if command in NAMED:
            done = newcomer.type(f"{command.partition(' -- ')[0]} --help")
            assert done.returncode == 0, done
            assert done.stdout.startswith("Usage: turnbridge"), done
        elif command in RUN and SERVE.fullmatch(command) and "--help" not in command:
            with newcomer.serving(command):
                pass
        elif command in RUN:
            code, printed = RUN[command]
            done = newcomer.type(command)
            assert done.returncode == code, done
            assert printed in done.stdout + done.stderr, done


def test_a_newcomer_can_type_everything(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.fail("README's commands need curl. Install it.")
    newcomer = Newcomer(tmp_path)
    assert os.listdir(newcomer.home) == ["turnbridge"]
    before = set(os.listdir(newcomer.checkout))
    with Provider() as provider:
        check_blocks(newcomer, provider)
        check_commands_in_text(newcomer)
    # FILE is this test's own.
    assert set(os.listdir(newcomer.checkout)) - before == {".venv", "FILE"}
