"""The commands as a person types them: help, versions, and mistakes that are one line and exit code 2."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from warm import WarmProcess, run_warm

from bridge import __version__
from bridge.cli import COMMANDS, load_command
from bridge.settings import SETTINGS


@dataclass(frozen=True)
class Typed:
    """A command line and its environment. `{dir}` in both is a directory of its own."""

    arguments: str
    environment: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """What the error must mention."""


HELP = {
    "root": Typed("--help"),
    "serve": Typed("serve --help"),
    "app-server": Typed("app-server --help"),
    "doctor": Typed("doctor --help"),
    "keys": Typed("keys --help"),
    "keys_add": Typed("keys add --help"),
    "keys_list": Typed("keys list --help"),
    "keys_revoke": Typed("keys revoke --help"),
    "version": Typed("--version"),
    "nothing": Typed(""),
    "unknown_command": Typed("sreve"),
    "unknown_flag": Typed("serve --dialekt auto"),
}

MISTAKES = {
    "sandbox": Typed("serve", {"PROXY_SANDBOX_MODE": "bogus"}, ("PROXY_SANDBOX_MODE", "read-only")),
    "approval": Typed("serve", {"PROXY_APPROVAL_POLICY": "always"}, ("PROXY_APPROVAL_POLICY", "never")),
    "port": Typed("serve", {"PORT": "x"}, ("PORT",)),
    "dialect": Typed("serve --dialect x", {}, ("--dialect x", "legacy")),
    "empty_key": Typed("serve --mock-only --api-key=", {"PROXY_API_KEY": ""}, ("--api-key",)),
    "on_miss": Typed("serve --mock-only --on-miss guess", {}, ("--on-miss guess", "nearest")),
    "open_to_the_world": Typed("serve --mock-only --host 0.0.0.0", {"PROXY_API_KEY": ""}, ("0.0.0.0", "PROXY_API_KEY")),
    "a_key_to_guess": Typed(
        "serve --mock-only --host 0.0.0.0", {"PROXY_API_KEY": "a"}, ("0.0.0.0", "PROXY_API_KEY", "keys add NAME")
    ),
    "unknown_host": Typed("serve --mock-only --host no.such.host.invalid", {}, ("no.such.host.invalid", "--host")),
    "port_in_use": Typed("serve --mock-only --port {busy}", {}, ("{busy}", "--port")),
    "workdir_link": Typed(
        "serve --codex-bin cat", {"PROXY_CODEX_WORKDIR": "{dir}/link"}, ("PROXY_CODEX_WORKDIR", "link")
    ),
    "workdir_open": Typed(
        "serve --codex-bin /bin/true", {"PROXY_CODEX_WORKDIR": "{dir}/open"}, ("PROXY_CODEX_WORKDIR", "other users")
    ),
    "workdir_file": Typed("serve --codex-bin cat", {"PROXY_CODEX_WORKDIR": "{dir}/file"}, ("PROXY_CODEX_WORKDIR",)),
    "no_binary": Typed("serve --codex-bin /no/such/codex", {}, ("CODEX_BIN", "/no/such/codex")),
    "log_nowhere": Typed("serve --mock-only --log-events {dir}/none/events", {}, ("event log", "{dir}/none")),
    "log_in_a_file": Typed("serve --mock-only --log-events {dir}/wrong.json/", {}, ("event log", "wrong.json")),
    "no_recording": Typed("serve --replay {dir}/none.ndjson", {}, ("{dir}/none.ndjson", "does not exist")),
    "no_log": Typed("log ls {dir}/none.ndjson", {}, ("{dir}/none.ndjson",)),
    "no_protocol": Typed("replay {dir}/none.ndjson --as morse", {}, ("--as", "responses")),
    "no_state": Typed("serve --mock-only", {"PROXY_API_KEY": "", "XDG_STATE_HOME": "/proc/nowhere"}, ("key",)),
    "mode": Typed("app-server --mode parrot", {}, ("--mode", "echo")),
    "no_script": Typed("app-server --script {dir}/none.json", {}, ("--script",)),
    "wrong_script": Typed("app-server --script {dir}/wrong.json", {}, ("steps",)),
}


@pytest.fixture(scope="module")
def busy() -> Any:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, busy: str) -> dict[str, subprocess.CompletedProcess[str]]:
    """All of them, run side by side, by name."""
    base = tmp_path_factory.mktemp("commands")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        typed = (HELP | MISTAKES)[name]
        directory = base / name
        directory.mkdir()
        (directory / "real").mkdir(mode=0o700)
        (directory / "link").symlink_to("real")
        (directory / "open").mkdir()
        (directory / "open").chmod(0o777)
        (directory / "file").write_text("")
        (directory / "wrong.json").write_text('{"turns": [{"stepps": []}]}')
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_API_KEY": "a-key-for-this-test",
            "PORT": "0",
            "COLUMNS": "200",
        } | {key: fill(value, directory, busy) for key, value in typed.environment.items()}
        words = [fill(word, directory, busy) for word in typed.arguments.split()]
        process = WarmProcess(
            words,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            # It serves, although it should not have started.
            process.terminate()
            printed, errors = process.communicate(timeout=10)
        return subprocess.CompletedProcess(words, process.wait(), printed, errors)

    names = list(HELP | MISTAKES)
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


def fill(text: str, directory: Path | str, busy: str) -> str:
    """The placeholders' values."""
    return text.replace("{dir}", str(directory)).replace("{busy}", busy)


Ran = dict[str, subprocess.CompletedProcess[str]]


# Help


def test_every_command_explains_itself(ran: Ran) -> None:
    """--help exits 0 and writes to stdout."""
    for name in ("root", "serve", "app-server", "doctor", "keys", "keys_add", "keys_list", "keys_revoke"):
        assert ran[name].returncode == 0
        assert ran[name].stdout.startswith("Usage:")
        assert ran[name].stderr == ""
    for command in ("serve", "app-server", "doctor"):
        assert command in ran["root"].stdout


def test_the_help_of_serve_names_every_flag_and_its_variable(ran: Ran) -> None:
    """Each flag of the issue, with the environment variable in brackets."""
    text = " ".join(ran["serve"].stdout.split())
    for flag, variable in {
        "--host": "PROXY_HOST",
        "--port": "PORT",
        "--api-key": "PROXY_API_KEY",
        "--codex-bin": "CODEX_BIN",
        "--codex-home": "CODEX_HOME",
        "--dialect": "PROXY_DIALECT",
        "--tool-mode": "PROXY_TOOL_MODE",
        "--native-tools": "PROXY_NATIVE_TOOLS",
        "--workers": "PROXY_WORKERS",
        "--log-events": "PROXY_LOG_EVENTS",
    }.items():
        assert flag in text
        assert f"[{variable}" in text
    assert "--mock-only" in text


def test_the_help_of_the_others_is_complete(ran: Ran) -> None:
    """All their flags."""
    for flag in ("--mode", "--script", "--dialect", "-c"):
        assert flag in ran["app-server"].stdout
    for flag in ("--codex-bin", "--codex-home", "--port"):
        assert flag in ran["doctor"].stdout


def test_the_version_is_one_line(ran: Ran) -> None:
    """For scripts and bug reports."""
    assert (ran["version"].returncode, ran["version"].stdout) == (0, f"turnbridge {__version__}\n")


def test_an_unfinished_command_line_gets_help(ran: Ran) -> None:
    """Nothing: the usage. A wrong command, a wrong flag: one line that tells where help is, exit 2, no traceback."""
    assert "Usage:" in ran["nothing"].stdout + ran["nothing"].stderr
    for name in ("unknown_command", "unknown_flag"):
        assert ran[name].returncode == 2
        (line,) = ran[name].stderr.splitlines()
        assert line.startswith("error: No such ")
        assert line.endswith(" --help`.")
        assert re.search(r"[.?] See `turnbridge", line), line


# Mistakes


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(ran: Ran, busy: str, name: str) -> None:
    """Exit code 2, `error: …` on stderr, nothing on stdout, no traceback, nothing started."""
    done = ran[name]
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for word in MISTAKES[name].names:
        assert fill(word, "", busy) in lines[0]


# Names, widths and completion


def every_command() -> dict[str, Any]:
    """The commands and their subcommands by what a person types."""
    found: dict[str, Any] = {}
    for name in COMMANDS:
        command = load_command(name)
        found[name] = command
        found |= {f"{name} {sub}": each for sub, each in getattr(command, "commands", {}).items()}
    return found


def help_of(command: Any, name: str) -> str:
    """What --help prints in a terminal of 80 columns."""
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=80, max_content_width=80)
    return str(context.get_help())


def test_the_help_of_every_command_fits_80_columns() -> None:
    """No line is longer, and nothing is cut."""
    for name, command in every_command().items():
        for line in help_of(command, name).splitlines():
            assert len(line) <= 80, (name, line)
            assert line.startswith("Usage:") or not line.endswith("..."), (name, line)


def test_help_names_values_and_not_types_of_python() -> None:
    """An argument stands in the usage line as it is typed; an option is named once."""
    for name, command in every_command().items():
        text = help_of(command, name)
        assert re.findall(r"<[^>]*\b(?:str|int|float|path|list)\b[^>]*>", text) == [], name
        assert "{" not in text.partition("\n\n")[0], name
        assert re.findall(r"(--[\w-]+), \1\b", text) == [], name


def test_a_command_in_the_list_takes_one_line() -> None:
    width = max(map(len, COMMANDS))
    assert all(2 + width + 2 + len(text) <= 80 and text.endswith(".") for text in COMMANDS.values())


def test_options_are_grouped_and_choices_are_shown(ran: Ran) -> None:
    """In the order of docs/settings.md."""
    text = ran["serve"].stdout
    groups = [setting.group for setting in SETTINGS.values() if setting.flags]
    headings = re.findall(r"^([A-Z][\w -]+):$", text, re.M)
    assert headings == [*dict.fromkeys(groups), "Options"]
    for setting in SETTINGS.values():
        if setting.flags and setting.choices and setting.name != "log_level":
            assert f"{setting.flags[0]} [{'|'.join(setting.choices)}]" in text


def test_every_flag_of_serve_is_a_setting(ran: Ran) -> None:
    """But for --check and --help."""
    typed = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", ran["serve"].stdout, re.M))
    declared = {setting.flags[0].partition("/")[0] for setting in SETTINGS.values() if setting.flags}
    assert typed == declared | {"--check", "--help"}


@pytest.mark.parametrize("arguments", ["-h", "serve -h", "keys -h", "keys add -h", "log -h", "log ls -h"])
def test_the_short_flag_of_help_works(arguments: str) -> None:
    done = run_warm(*arguments.split(), cwd=ROOT, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: turnbridge")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("turnbridge se", ["serve"]),
        ("turnbridge keys ", ["add", "list", "show", "revoke"]),
        ("turnbridge serve --dial", ["--dialect"]),
        ("turnbridge serve --dialect ", ["auto", "current", "legacy"]),
        ("turnbridge serve --dialect l", ["legacy"]),
    ],
)
def test_the_shell_completes(words: str, offered: list[str]) -> None:
    """Commands, flags and choices."""
    env = {
        "PATH": os.environ["PATH"],
        "_TURNBRIDGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "bridge"], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_completion_can_be_installed(ran: Ran) -> None:
    assert "--install-completion" in ran["root"].stdout
    assert "--show-completion" in ran["root"].stdout
