"""Agent programs that people use, against a bridge over the real Codex, with the settings from docs/clients.md.

Each agent runs in a home and a working directory of its own. The prompt says what the model is to do; a test checks
the files that the agent wrote, what it prints, and what reached the model's provider. Settings and commands are read
from the documentation, so the tests run what users are told to write.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from harness import KEY
from real.provider import Json, offered_tools
from real.rig import Rig, said

CLIENTS_PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
LIMIT = 120
"""Seconds for a run."""

NOWHERE = "http://127.0.0.1:9"
"""Stands for the internet: plugins, updates and statistics are looked for here, and nothing listens."""

# Some agents print the prompt. There the accents are escaped, so these texts can only come from the model.
DONE = "Voilà, done."
REFUSAL = "Your prompt is too naïve."


# The calls that the model makes


def call(name: str, **arguments: Any) -> Json:
    return {"name": name, "arguments": json.dumps(arguments)}


def new_file_patch(path: Path, text: str) -> str:
    added = "".join(f"+{line}\n" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path.name}\n{added}*** End Patch\n"


def changed_line_patch(path: Path, old: str, new: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path.name}\n@@\n-{old}\n+{new}\n*** End Patch\n"


def code(function: str, argument: Any) -> Json:
    """Code mode of the Codex CLI: JavaScript that calls one of the other tools."""
    return call("exec", input=f"const run = await tools.{function}({json.dumps(argument)}); text(run.output ?? run);")


# The agents


@dataclass(frozen=True)
class Agent:
    """How the tests use a section of docs/clients.md."""

    section: str
    shell: Callable[[str], Json] | None = None
    """The call that runs a command. aider has none: it asks the model for edits as text."""
    write: Callable[[Path, str], Json] | None = None
    """The call that makes a file."""
    read: Callable[[Path], Json] | None = None
    """The call that reads a file. These two are for the agents with a long session."""
    edit: Callable[[Path, str, str], Json] | None = None
    """The call that replaces a line of a file."""
    changes: dict[str, str] = field(default_factory=dict)
    """Parts of the section to replace: by an alternative that it names, or by what only a test needs."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment beyond the documentation: no telemetry, updates, downloads or questions."""
    failure_code: int = 1
    """The exit code when the provider refuses the request."""
    failure_attempts: int = 1
    """How often it sends a request that is refused."""


CODEX = Agent(
    "Codex CLI",
    shell=lambda command: call("exec_command", cmd=command),
    write=lambda path, text: call("apply_patch", input=new_file_patch(path, text)),
    read=lambda path: call("exec_command", cmd=f"cat {path.name}"),
    edit=lambda path, old, new: call("apply_patch", input=changed_line_patch(path, old, new)),
)
CODEX_CODE_MODE = Agent(
    "Codex CLI",
    shell=lambda command: code("exec_command", {"cmd": command}),
    write=lambda path, text: code("apply_patch", new_file_patch(path, text)),
    changes={"gpt-5.5": "gpt-6.1-sol"},
)
HTTP = {"supports_websockets = true": "supports_websockets = false"}

OPENCODE = Agent(
    "opencode",
    shell=lambda command: call("bash", command=command),
    write=lambda path, text: call("apply_patch", patchText=new_file_patch(path, text)),
    # It escapes the quotes of an argument that has spaces, which would spoil the script in the prompt.
    changes={'opencode run "hello"': 'printf %s "hello" | opencode run'},
    variables={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_SHARE": "1",
    },
)

CLAUDE_CODE = Agent(
    "Claude Code",
    shell=lambda command: call("Bash", command=command, description="Run it"),
    write=lambda path, text: call("Write", file_path=str(path), content=text),
    read=lambda path: call("Read", file_path=str(path)),
    edit=lambda path, old, new: call("Edit", file_path=str(path), old_string=old, new_string=new),
    variables={
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it refuses to run every command for the superuser otherwise
    },
)

GEMINI_CLI = Agent(
    "gemini-cli",
    shell=lambda command: call("run_shell_command", command=command),
    write=lambda path, text: call("write_file", file_path=str(path), content=text),
    read=lambda path: call("read_file", file_path=str(path)),
    edit=lambda path, old, new: call(
        "replace", file_path=str(path), old_string=old, new_string=new, instruction="Count on."
    ),
)

AGENTS = {
    "claude-code": CLAUDE_CODE,
    "codex-http": replace(CODEX, changes=HTTP),
    "codex-websocket": CODEX,
    "codex-code-mode-http": replace(CODEX_CODE_MODE, changes=CODEX_CODE_MODE.changes | HTTP),
    "codex-code-mode-websocket": CODEX_CODE_MODE,
    "gemini-cli": GEMINI_CLI,
    "opencode-chat": OPENCODE,
    "opencode-responses": replace(OPENCODE, changes=OPENCODE.changes | {"@ai-sdk/openai-compatible": "@ai-sdk/openai"}),
    "goose": Agent(
        "goose",
        shell=lambda command: call("shell", command=command),
        write=lambda path, text: call("write", path=str(path), content=text),
        variables={
            "GOOSE_DISABLE_KEYRING": "1",
            "GOOSE_DISABLE_SESSION_NAMING": "true",
            "GOOSE_PROVIDER_SKIP_BACKOFF": "true",
            "GOOSE_TELEMETRY_OFF": "1",
        },
        failure_code=0,
        failure_attempts=4,
    ),
    "qwen-code": Agent(
        "qwen-code",
        shell=lambda command: call("run_shell_command", command=command, is_background=False),
        write=lambda path, text: call("write_file", file_path=str(path), content=text),
    ),
    "continue": Agent(
        "Continue CLI",
        shell=lambda command: call("Bash", command=command),
        write=lambda path, text: call("Write", filepath=str(path), content=text),
        variables={"CONTINUE_CLI_AUTO_UPDATED": "true", "CONTINUE_METRICS_ENABLED": "0"},
    ),
    "aider": Agent(
        "aider",
        variables={
            "AIDER_ANALYTICS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "AIDER_GIT": "false",
            "AIDER_YES_ALWAYS": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        },
        failure_code=0,
    ),
}
WITH_TOOLS = [name for name, agent in AGENTS.items() if agent.shell]
WITH_LONG_SESSIONS = ["claude-code", "gemini-cli", "codex-http", "codex-websocket"]


def read_section(title: str) -> tuple[dict[str, str], str]:
    """The settings files of a section, by their paths below the home, and its command."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", CLIENTS_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"docs/clients.md has no section {title}"
    files = re.findall(r"^In `~/(\S+)`:\n\n```\w+\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^```sh\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
    return dict(files), command


# A run


@dataclass(frozen=True)
class Run:
    """The exit code of an agent, and all that it printed."""

    code: int
    output: str


@dataclass(frozen=True)
class Desk:
    """An agent's home and working directory, in front of a bridge."""

    agent: Agent
    rig: Rig
    home: Path
    work: Path

    def run(self, action: Json) -> Run:
        """The documented command, with a prompt that says what the model is to do."""
        files, command = read_section(self.agent.section)
        changes = self.agent.changes | {"http://127.0.0.1:11435": self.rig.bridge.root}
        assert all(old in command + "".join(files.values()) for old in self.agent.changes), "the documentation changed"
        for name, text in files.items():
            file = self.home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(replace_all(text, changes))
        command = replace_all(command, changes)
        assert command.count('"hello"') == 1
        # In a session of its own, so that what the agent leaves running can be ended with it.
        with subprocess.Popen(
            ["sh", "-euc", command.replace('"hello"', '"$PROMPT"')],
            env={
                # Nothing else is inherited, so that no proxy, key or setting of this machine reaches an agent.
                "PATH": os.environ["TURNBRIDGE_AGENTS_PATH"] + os.pathsep + os.environ["PATH"],
                "HOME": str(self.home),
                "OPENAI_BASE_URL": self.rig.bridge.url,
                "OPENAI_API_KEY": KEY,
                "PROMPT": said(action),
                "HTTPS_PROXY": NOWHERE,
                "https_proxy": NOWHERE,
                "NO_PROXY": "127.0.0.1",
                **self.agent.variables,
            },
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return Run(process.returncode, output)


def replace_all(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@pytest.fixture(params=["native", "text"])
def rig(request: pytest.FixtureRequest, rigs: Callable[[str], Rig]) -> Rig:
    """Bridges with each tool mode."""
    return rigs(request.param)


@pytest.fixture
def desk(request: pytest.FixtureRequest, rig: Rig, tmp_path: Path) -> Desk:
    desk = Desk(AGENTS[request.param], rig, tmp_path / "home", tmp_path / "work")
    desk.home.mkdir()
    desk.work.mkdir()
    return desk


def outputs(rig: Rig) -> list[str]:
    """The outputs of calls that the model was sent, from the prompt that has most of them."""
    found = [
        [json.dumps(item["output"]) for item in post.body["input"] if item["type"].endswith("_call_output")]
        for post in rig.posts
    ]
    return max(found, key=len)


# The tests


@pytest.mark.parametrize("desk", WITH_TOOLS, indirect=True)
def test_a_command_and_a_new_file(request: pytest.FixtureRequest, rig: Rig, desk: Desk) -> None:
    """The agent runs the model's command, sends its output, makes the file that is asked for next, and ends well."""
    assert desk.agent.shell
    assert desk.agent.write
    poem = 'Grüße <b> & "zwei" \\n 世界 🌍\n'
    (desk.work / "note.txt").write_text("moin\n")
    write = desk.agent.write(desk.work / "poem.txt", poem)
    then = {"do": "calls", "calls": [write], "then": {"do": "text", "pieces": [DONE]}}
    # The output, MOIN, is neither in the prompt nor in the command.
    command = desk.agent.shell("tr a-z A-Z < note.txt | tee shouted.txt")
    run = desk.run({"do": "calls", "calls": [command], "then": then})
    assert run.code == 0, run.output
    assert DONE in run.output
    assert (desk.work / "shouted.txt").read_text() == "MOIN\n"
    assert (desk.work / "poem.txt").read_text() == poem
    command_output, _ = outputs(rig)
    assert "MOIN" in command_output
    # The tools are functions of the model, or text in its prompt.
    native = request.node.callspec.params["rig"] == "native"
    assert any(offered_tools(post.body) for post in rig.posts) == native
    assert any("tool_call>" in json.dumps(post.body["input"]) for post in rig.posts) != native


@pytest.mark.parametrize("rig", ["native"], indirect=True)
@pytest.mark.parametrize("desk", WITH_LONG_SESSIONS, indirect=True)
def test_a_long_session(rig: Rig, desk: Desk) -> None:
    """The agent reads a file, edits it and runs a command, again and again: every output arrives, in order."""
    agent = desk.agent
    assert agent.shell
    assert agent.read
    assert agent.edit
    file = desk.work / "count.txt"
    file.write_text("count: 0\n")
    calls = []
    for number in range(8):
        calls += [
            agent.read(file),
            agent.edit(file, f"count: {number}", f"count: {number + 1}"),
            agent.shell(f"tr a-z A-Z < count.txt; echo step {number}"),
        ]
    action: Json = {"do": "text", "pieces": [DONE]}
    for each in reversed(calls):
        action = {"do": "calls", "calls": [each], "then": action}
    run = desk.run(action)
    assert run.code == 0, run.output
    assert DONE in run.output
    assert file.read_text() == "count: 8\n"
    assert len(calls) == 24
    found = outputs(rig)
    assert len(found) == len(calls)
    for number, output in enumerate(found[0::3]):
        assert f"count: {number}" in output
    for number, output in enumerate(found[2::3]):
        assert f"COUNT: {number + 1}" in output
        assert f"step {number}" in output


@pytest.mark.parametrize("desk", ["aider"], indirect=True)
def test_an_edit_as_text(rig: Rig, desk: Desk) -> None:
    """The model is shown the file, and its answer, the new text of the file, is written."""
    (desk.work / "poem.txt").write_text("one\nMOIN\n")
    run = desk.run({"do": "text", "pieces": ['poem.txt\n```\none\n<b> & "zwei" 🌍\n```\n'], "chunk": 3})
    assert run.code == 0, run.output
    assert "Applied edit to poem.txt" in run.output
    assert (desk.work / "poem.txt").read_text() == 'one\n<b> & "zwei" 🌍\n'
    (post,) = rig.posts
    assert "one\\nMOIN\\n" in json.dumps(post.body["input"])


@pytest.mark.parametrize("rig", ["native"], indirect=True)
@pytest.mark.parametrize("desk", AGENTS, indirect=True)
def test_a_refused_request(rig: Rig, desk: Desk) -> None:
    """The provider's message is what the user reads, and the request is not sent again and again."""
    action = {"do": "error", "status": 400, "message": REFUSAL}
    (desk.work / "poem.txt").write_text("one\n")
    run = desk.run(action)
    assert REFUSAL in run.output
    assert run.code == desk.agent.failure_code, run.output
    with_tools = [post for post in rig.posts if offered_tools(post.body) or not desk.agent.shell]
    assert len(with_tools) == desk.agent.failure_attempts
