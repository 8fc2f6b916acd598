"""`turnbridge models`: what can be named, who serves it, and what is not there."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli.exec.command import environment, left_of
from harness import ROOT, scripted_codex, turns
from server.prompted import is_alive, wait_for
from upstream.openai_chat import ChatServer, serving_in_thread
from warm import WarmProcess, run_warm

CHAT_KEY = "sk-canary-chat-0123456789"


@dataclass(frozen=True)
class Place:
    """A directory with a configuration, a Codex that plays a script, and a provider."""

    directory: Path
    chat: ChatServer

    def variables(self, **more: str) -> dict[str, str]:
        own = {"CODEX_BIN": str(self.directory / "codex"), "PROXY_MODELS": "own-model", "CHAT_KEY": CHAT_KEY}
        return environment(self.directory, **{**own, **more})

    def config(self, text: str, name: str = "bridge.toml") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return run_warm("models", *arguments, text=True, env=self.variables(**more), timeout=30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("models")
    scripted_codex(directory, turns([{"text": "hello"}]))
    with serving_in_thread() as chat:
        chat.key = CHAT_KEY
        yield Place(directory, chat)


def usual(place: Place) -> Path:
    """Two backends that are on, and two that are not."""
    return place.config(
        f"""
[backends.chat]
type = "openai"
base_url = "{place.chat.url}/v1"
key_env = "CHAT_KEY"
discovery = true
models = ["by-hand"]

[backends.claude]
type = "anthropic"
key_env = "TEAM_KEY"

[routing.patterns]
chat = ["llama-"]

[routing.aliases]
quick = "some-model"
""",
    )


def test_every_model_has_a_line_with_its_backend(place: Place) -> None:
    """Then the patterns, then what is not there; it fits a terminal of 80 columns but for the reasons."""
    done = place.run("--config", str(usual(place)))
    assert done.returncode == 0, done.stderr
    table, patterns, off = done.stdout.split("\n\n")
    rows = dict(line.split() for line in table.splitlines())
    assert {
        "own-model": "app-server",
        "some-model": "chat",
        "other-model": "chat",
        "by-hand": "chat",
    }.items() <= rows.items()
    assert rows["mock-echo"] == "mock"
    assert rows["quick"] == "chat"
    assert "sonnet" not in rows
    assert max(map(len, [*table.splitlines(), *patterns.splitlines()])) <= 80
    columns = {line.rindex(" ") for line in table.splitlines()}
    assert len(columns) == 1
    assert patterns.splitlines()[0] == "patterns"
    assert "  llama-" in patterns
    assert off.splitlines()[0] == "not available"
    assert "  claude: The backend claude is off: TEAM_KEY is not set." in off.splitlines()
    assert "  gemini: The backend gemini is off: GEMINI_API_KEY is not set." in off.splitlines()
    assert "anthropic:" not in off
    assert "canary" not in done.stdout + done.stderr


def test_the_same_as_json(place: Place) -> None:
    """One object; warnings are on stderr alone."""
    done = place.run("--json", PROXY_CONFIG=str(usual(place)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"model": "some-model", "backend": "chat"} in found["models"]
    assert {"pattern": "llama-", "backend": "chat"} in found["patterns"]
    assert {"pattern": "gpt-", "backend": "app-server"} in found["patterns"]
    assert set(found["off"]) == {"claude", "gemini"}
    assert done.stdout.count("\n") == 1


def test_without_a_file(place: Place) -> None:
    """A key in the environment is enough for the built-in names."""
    done = place.run("--json", ANTHROPIC_API_KEY="k")
    found = json.loads(done.stdout)
    assert {"model": "sonnet", "backend": "anthropic"} in found["models"]
    assert {"pattern": "claude-", "backend": "anthropic"} in found["patterns"]
    assert set(found["off"]) == {"gemini"}


def test_the_mock_models_alone(place: Place) -> None:
    """Nothing is started and nobody is asked."""
    done = place.run("--mock-only", "--config", str(usual(place)), CODEX_BIN="/nowhere/codex")
    assert done.returncode == 0
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"mock"}
    assert done.stderr == ""


def test_a_codex_that_dies_is_not_there(place: Place) -> None:
    """The others are listed all the same."""
    program = place.directory / "dying-codex"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    done = place.run("--json", "--config", str(usual(place)), "--codex-bin", str(program))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "app-server" in found["off"]
    assert {"model": "some-model", "backend": "chat"} in found["models"]
    assert "app-server" not in {entry["backend"] for entry in found["models"]}
    assert "Traceback" not in done.stderr


def test_a_codex_that_is_not_there_is_a_mistake(place: Place) -> None:
    """As for serve: one line, exit code 2."""
    done = place.run("--codex-bin", "/nowhere/codex")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: CODEX_BIN: /nowhere/codex does not exist or is not executable.\n"


def test_a_mistake_in_the_file_is_one_line(place: Place) -> None:
    """With file, line and key."""
    path = place.config('\n[backends.a]\ntype = "x"\n', "wrong.toml")
    done = place.run("--config", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {path}:3: backends.a.type: ")
    assert done.stderr.count("\n") == 1


@dataclass(frozen=True)
class Interrupted:
    """How it ended after Ctrl-C, while it waited for a Codex that hangs."""

    code: int
    stdout: str
    stderr: str
    child: int


@pytest.fixture(scope="module")
def interrupted(place: Place) -> Interrupted:
    started = place.directory / "started"
    program = place.directory / "hanging-codex"
    program.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 1000\n")
    program.chmod(0o755)
    with WarmProcess(
        ["models", "--codex-bin", str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=place.variables(),
        cwd=ROOT,
    ) as process:
        child = int(wait_for(lambda: started.read_text().strip() if started.exists() else None, "Codex is started"))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    return Interrupted(process.wait(), stdout, stderr, child)


def test_ctrl_c_leaves_nothing_behind(place: Place, interrupted: Interrupted) -> None:
    """Neither the child nor half a table."""
    wait_for(lambda: not is_alive(interrupted.child), "the child is gone")
    assert left_of(place.directory) == []
    assert interrupted.stdout == ""


def test_ctrl_c_is_no_traceback(interrupted: Interrupted) -> None:
    """As everywhere: one line, exit code 130."""
    assert "Traceback" not in interrupted.stderr
    assert interrupted.code == 130


@pytest.mark.parametrize(
    "routing",
    [
        pytest.param('[routing.patterns]\napp-server = ["by-"]\n', id="a pattern takes it away"),
        pytest.param('[routing]\ndefault = "mock"\n[routing.aliases]\nquick = "nobody"\n', id="an alias to nothing"),
    ],
)
def test_what_leads_nowhere_does_not_hide_the_rest(place: Place, routing: str) -> None:
    """It is left out, or told among what is not there."""
    backend = f'[backends.chat]\ntype = "openai"\nbase_url = "{place.chat.url}/v1"\nmodels = ["by-hand", "other"]\n'
    done = place.run("--json", "--config", str(place.config(backend + routing, "nowhere.toml")))
    assert "Traceback" not in done.stderr
    assert {"model": "other", "backend": "chat"} in json.loads(done.stdout)["models"]


def test_an_app_server_of_another_name(place: Place) -> None:
    """Its usual name still means it, or is refused with file, line and key."""
    text = '[backends.main]\ntype = "app-server"\n[routing]\ndefault = "app-server"\n'
    done = place.run("--json", "--config", str(place.config(text, "main.toml")))
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "main.toml:4: routing.default: " in done.stderr


def test_a_provider_cannot_write_to_the_terminal(place: Place) -> None:
    """No lines of its own, that is; and no signs that a terminal would obey."""
    before = place.chat.models
    place.chat.models = ["good", "evil\x1b[2J\nmock-echo  evil"]
    try:
        done = place.run("--config", str(usual(place)))
    finally:
        place.chat.models = before
    assert "good" in done.stdout
    assert not any(line.startswith("mock-echo  evil") for line in done.stdout.splitlines())
