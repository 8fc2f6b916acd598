"""The Codex CLI as a client: `codex exec` with the bridge as its model provider, before a bridge over the same Codex.

The outer Codex runs commands and changes files as the model asks; the inner one only passes the model on.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest
from harness import KEY
from real import codex_binaries
from real.provider import Json, offered_tools
from real.rig import Rig, said

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SLOW = {"do": "slow", "n": 600, "seconds": 60}
LIMIT = 60
"""Seconds for a run."""


@pytest.fixture
def rig(request: pytest.FixtureRequest, rigs: Callable[[str], Rig]) -> Rig:
    """The rig of the test's tool mode."""
    return rigs(getattr(request, "param", "native"))


EITHER_MODE = pytest.mark.parametrize("rig", ["native", "text"], indirect=True)
"""How the bridge offers the tools to its own model."""


# The client


@dataclass(frozen=True)
class Run:
    """What the CLI told of one run."""

    code: int
    events: list[Json]

    def items(self, kind: str) -> list[Json]:
        """The finished items of one kind."""
        done = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in done if item["type"] == kind]

    @property
    def texts(self) -> list[str]:
        """What the model said."""
        return [item["text"] for item in self.items("agent_message")]

    @property
    def usage(self) -> Json:
        """The tokens of a run that ended well."""
        last = self.events[-1]
        assert (self.code, last["type"]) == (0, "turn.completed"), self.events
        usage: Json = last["usage"]
        return usage

    @property
    def failure(self) -> str:
        """The message of a run that failed, and of nothing else."""
        last = self.events[-1]
        assert (self.code, last["type"]) == (1, "turn.failed"), self.events
        assert not [event for event in self.events if event["type"] == "turn.completed"]
        return str(last["error"]["message"])


@dataclass(frozen=True)
class Cli:
    """`codex exec` with a home and a working directory of its own."""

    binary: Path
    home: Path
    work: Path

    def configure(self, url: str, *, websockets: bool = False) -> None:
        """Make the bridge its provider."""
        self.home.mkdir(exist_ok=True)
        # Without plugins = false Codex looks for the internet.
        (self.home / "config.toml").write_text(
            f"""\
model_provider = "bridge"

[model_providers.bridge]
name = "bridge"
base_url = "{url}"
wire_api = "responses"
env_key = "BRIDGE_KEY"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = {str(websockets).lower()}

[features]
plugins = false
"""
        )

    def start(self, prompt: str, *arguments: str, model: str = "gpt-5.5", key: str = KEY) -> subprocess.Popen[str]:
        """A run that has begun. `arguments` may end with a subcommand: the prompt is the last word."""
        return subprocess.Popen(
            [
                self.binary,
                "exec",
                "--json",
                "--skip-git-repo-check",
                f"--model={model}",
                "--sandbox=workspace-write",
                *arguments,
                prompt,
            ],
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "CODEX_HOME": str(self.home), "BRIDGE_KEY": key},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, action: Json, *arguments: str, **options: str) -> Run:
        """A whole run in which the model does `action`."""
        with self.start(said(action), *arguments, **options) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Run(process.returncode, [json.loads(line) for line in output.splitlines()])


@pytest.fixture
def cli(rig: Rig, tmp_path: Path) -> Cli:
    """The CLI, in front of the rig."""
    binary = codex_binaries.find(codex_binaries.CURRENT)
    assert isinstance(binary, Path)
    cli = Cli(binary, tmp_path / "home", tmp_path / "work")
    cli.work.mkdir()
    cli.configure(rig.bridge.url)
    return cli


@contextmanager
def watched(port: int) -> Iterator[tuple[str, list[str]]]:
    """A URL that leads to the bridge, and the requests that have come by, as `POST /v1/responses`."""
    seen: list[str] = []

    class Relay(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as bridge:
                other = {self.request: bridge, bridge: self.request}
                while True:
                    for source in select.select([*other], [], [])[0]:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        if source is self.request:
                            seen.extend(line.decode() for line in re.findall(rb"(?m)^(\S+ \S+) HTTP/1.1\r$", data))
                        other[source].sendall(data)

    with ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", seen
        finally:
            server.shutdown()
            thread.join()


def call(name: str, **arguments: Any) -> Json:
    """A call that the model makes."""
    return {"name": name, "arguments": json.dumps(arguments)}


def shell(command: str) -> Json:
    return call("exec_command", cmd=command)


def outputs(rig: Rig) -> list[str]:
    """The outputs of calls in the last prompt."""
    return [item["output"] for item in rig.posts[-1].body["input"] if item["type"].endswith("_call_output")]


# Answers


def test_text(rig: Rig, cli: Cli) -> None:
    """The answer arrives whole, for one model call, in which the prompt is the last thing said."""
    text = "Grüße <b> \\ 世界 🌍\n"
    action = {"do": "text", "pieces": [text], "chunk": 3}
    run = cli.run(action)
    assert (run.code, run.texts) == (0, [text])
    (post,) = rig.posts
    (*_, prompt) = post.body["input"]
    assert (prompt["role"], prompt["content"][-1]["text"]) == ("user", said(action))


def test_usage(cli: Cli) -> None:
    """The tokens are those that the model's provider counted."""
    run = cli.run({"do": "text", "usage": {"input": 1000, "cached": 900, "output": 50, "reasoning": 20}})
    assert run.usage["input_tokens"] == 1000
    assert run.usage["cached_input_tokens"] == 900
    assert run.usage["output_tokens"] == 50
    assert run.usage["reasoning_output_tokens"] == 20


def test_reasoning(cli: Cli) -> None:
    """Thoughts are shown before the answer."""
    run = cli.run({"do": "reasoning", "summary": ["**Counting** to 42"], "pieces": ["42"], "chunk": 4})
    shown = [event["item"] for event in run.events if event["type"] == "item.completed"]
    assert [(item["type"], item["text"]) for item in shown] == [
        ("reasoning", "**Counting** to 42"),
        ("agent_message", "42"),
    ]


def test_structured_output(rig: Rig, cli: Cli) -> None:
    """--output-schema reaches the model's provider."""
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    (cli.work / "schema.json").write_text(json.dumps(schema))
    run = cli.run({"do": "text", "pieces": ['{"n": 3}']}, "--output-schema=schema.json")
    assert run.texts == ['{"n": 3}']
    assert rig.posts[0].body["text"]["format"]["schema"] == schema


# Tools


@EITHER_MODE
def test_a_shell_command(request: pytest.FixtureRequest, rig: Rig, cli: Cli) -> None:
    """The CLI runs the command that the model asks for, and the second answer knows its output."""
    (cli.work / "note.txt").write_text("moin\n")
    run = cli.run({"do": "calls", "calls": [shell("cat note.txt; exit 3")]})
    (command,) = run.items("command_execution")
    assert (command["aggregated_output"], command["exit_code"]) == ("moin\n", 3)
    (answer,) = run.texts
    assert re.search(r"^result: .*exited with code 3\b.*\bmoin\n$", answer, re.DOTALL)
    assert run.usage["input_tokens"] == 22
    first, _ = rig.posts
    # The tools are functions of the inner model, or stand in its instructions.
    assert bool(offered_tools(first.body)) == (request.node.callspec.params["rig"] == "native")
    assert bool(offered_tools(first.body)) != ("tool_call>" in json.dumps(first.body["input"]))


@EITHER_MODE
def test_parallel_commands_beside_a_text(rig: Rig, cli: Cli) -> None:
    """Two calls in one answer are both run, and the text that came with them is shown."""
    run = cli.run({"do": "calls", "pieces": ["I look. "], "calls": [shell("echo one"), shell("echo two")]})
    assert sorted(item["aggregated_output"] for item in run.items("command_execution")) == ["one\n", "two\n"]
    first, answer = run.texts
    assert first.strip() == "I look."
    assert "<" not in first
    assert re.search(r"\bone\n; .*\btwo\n$", answer, re.DOTALL)
    assert len(rig.posts) == 2


@EITHER_MODE
def test_apply_patch(rig: Rig, cli: Cli) -> None:
    """The CLI's freeform tool: the patch arrives as the plain text that it is, and the file has changed."""
    (cli.work / "poem.txt").write_text("one\ntwo\n")
    patch = '*** Begin Patch\n*** Update File: poem.txt\n@@\n one\n-two\n+<b>"zwei"\\n 🌍\n*** End Patch\n'
    run = cli.run({"do": "calls", "calls": [call("apply_patch", input=patch)]})
    (change,) = run.items("file_change")
    assert change["status"] == "completed"
    assert (cli.work / "poem.txt").read_text() == 'one\n<b>"zwei"\\n 🌍\n'
    assert "M poem.txt" in run.texts[0]
    assert len(rig.posts) == 2


@EITHER_MODE
@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_the_tools_of_the_newest_models(rig: Rig, cli: Cli, websockets: bool) -> None:
    """For these the CLI's tools stand in its input, over a WebSocket only in the first one. One of them, which runs
    JavaScript that calls the others, is called in two rounds."""
    cli.configure(rig.bridge.url, websockets=websockets)
    one, two = (
        call("exec", input=f'const run = await tools.exec_command({{cmd: "echo {word}"}}); text(run.output);')
        for word in ("moin", "tschüss")
    )
    run = cli.run({"do": "calls", "calls": [one], "then": {"do": "calls", "calls": [two]}}, model="gpt-6.1-sol")
    assert [item["aggregated_output"] for item in run.items("command_execution")] == ["moin\n", "tschüss\n"]
    assert run.texts[-1].endswith("tschüss\n")
    assert len(rig.posts) == 3


@EITHER_MODE
def test_images(rig: Rig, cli: Cli) -> None:
    """A picture of the prompt and one that a tool has looked at arrive as pictures."""
    (cli.work / "dot.png").write_bytes(PIXEL)
    look = {"do": "calls", "calls": [call("view_image", path=str(cli.work / "dot.png"))], "then": {"do": "text"}}
    assert cli.run(look, "--image=dot.png").code == 0
    said_or_put_out = [item.get("content") or item.get("output") or () for item in rig.posts[-1].body["input"]]
    urls = [part["image_url"] for parts in said_or_put_out for part in parts if part["type"] == "input_image"]
    assert urls == ["data:image/png;base64," + base64.b64encode(PIXEL).decode()] * 2


# The conversation


@EITHER_MODE
def test_a_second_run_knows_the_first(rig: Rig, cli: Cli) -> None:
    """`resume --last`: the model is sent what was said, called and put out before."""
    first = cli.run({"do": "calls", "calls": [shell("echo moin")], "then": {"do": "text", "pieces": ["Said moin."]}})
    assert first.texts == ["Said moin."]
    run = cli.run({"do": "recall"}, "resume", "--last")
    heard = json.loads(run.texts[0])
    assert ["assistant", "Said moin."] in heard
    prompts = [text for role, text in heard if role == "user" and "@@" in text]
    assert [("moin" in text, "recall" in text) for text in prompts] == [(True, False), (False, True)]
    sent = rig.posts[-1].body["input"]
    (asked,) = [item for item in sent if item["type"] == "function_call"]
    assert "echo moin" in asked["arguments"]
    assert "moin\n" in outputs(rig)[0]


def test_a_conversation_that_is_compacted(rig: Rig, cli: Cli) -> None:
    """When the CLI finds its history too long, it has it summed up and goes on."""
    cli.run({"do": "text", "pieces": ["the gist"], "usage": {"input": 5000}})
    run = cli.run({"do": "recall"}, "--config=model_auto_compact_token_limit=1000", "resume", "--last")
    assert (run.code, len(rig.posts)) == (0, 3)
    assert ["assistant", "the gist"] not in json.loads(run.texts[-1])
    assert "the gist" in json.dumps([text for role, text in json.loads(run.texts[-1]) if role == "user"][-2])


# Failures


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"do": "error", "status": 429}, "429 Too Many Requests"),
        ({"do": "error", "status": 400, "message": "Your prompt is odd"}, "Your prompt is odd"),
        ({"do": "failed", "code": "context_length_exceeded"}, "context_length_exceeded"),
        ({"do": "empty"}, "without an answer"),
    ],
    ids=["429", "400", "too-long", "empty"],
)
def test_failures(rig: Rig, cli: Cli, action: Json, message: str) -> None:
    """What fails upstream fails the run, with the reason, and is tried once."""
    run = cli.run(action)
    assert message in run.failure
    assert run.texts == []
    assert len(rig.posts) == 1


@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
def test_a_broken_stream(rig: Rig, cli: Cli, websockets: bool) -> None:
    """A stream that breaks off is no success, although its words were shown."""
    cli.configure(rig.bridge.url, websockets=websockets)
    run = cli.run({"do": "drop", "n": 3, "delay": 0.02})
    assert "stream disconnected before completion" in run.failure
    assert run.texts[0] == "word0 word1 word2 "


def test_a_rate_limit_over_a_websocket(rig: Rig, cli: Cli) -> None:
    """As over HTTP: the run fails, and the provider that refuses is not asked again."""
    cli.configure(rig.bridge.url, websockets=True)
    run = cli.run({"do": "error", "status": 429})
    assert "429 Too Many Requests" in run.failure
    assert len(rig.posts) == 1


def test_a_wrong_key(rig: Rig, cli: Cli) -> None:
    """The CLI says that the key is wrong, and does not show it."""
    run = cli.run({"do": "text"}, key="not-the-key-of-the-bridge")
    assert "401 Unauthorized" in run.failure
    assert "API key" in run.failure
    assert "not-the-key" not in json.dumps(run.events)
    assert rig.posts == []


def test_an_unknown_model(rig: Rig, cli: Cli) -> None:
    """The provider is asked for it, and the CLI shows what that says."""
    missing = {"do": "error", "status": 404, "code": "model_not_found", "message": "There is no gpt-nonesuch."}
    run = cli.run(missing, model="gpt-nonesuch")
    assert "There is no gpt-nonesuch." in run.failure
    assert {post.body["model"] for post in rig.posts} == {"gpt-nonesuch"}


# Transports


@pytest.mark.parametrize(
    ("websockets", "requests"),
    [(False, ["POST /v1/responses"] * 2), (True, ["GET /v1/responses"])],
    ids=["http", "websocket"],
)
def test_transports(rig: Rig, cli: Cli, websockets: bool, requests: list[str]) -> None:
    """Over HTTP each answer is a request; with `supports_websockets` one WebSocket serves the whole run."""
    with watched(rig.bridge.port) as (url, seen):
        cli.configure(url, websockets=websockets)
        run = cli.run({"do": "calls", "calls": [shell("echo moin")]})
    assert run.texts[-1].endswith("moin\n")
    assert run.items("error") == []
    assert seen == requests
    assert len(rig.posts) == 2


@EITHER_MODE
def test_a_patch_and_a_second_run_over_a_websocket(rig: Rig, cli: Cli) -> None:
    """Over a WebSocket the CLI sends only what is new; the model still sees everything."""
    cli.configure(rig.bridge.url, websockets=True)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+moin\n*** End Patch\n"
    steps = {"do": "calls", "calls": [shell("cat new.txt")], "then": {"do": "text", "pieces": ["Both done."]}}
    run = cli.run({"do": "calls", "calls": [call("apply_patch", input=patch)], "then": steps})
    assert (run.texts, run.items("error")) == (["Both done."], [])
    assert run.items("command_execution")[0]["aggregated_output"] == "moin\n"
    assert [text.count("moin") for text in outputs(rig)] == [0, 1]
    assert ["assistant", "Both done."] in json.loads(cli.run({"do": "recall"}, "resume", "--last").texts[0])


@pytest.mark.parametrize("websockets", [False, True], ids=["http", "websocket"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_a_cli_that_is_stopped(rig: Rig, cli: Cli, number: signal.Signals, websockets: bool) -> None:
    """Whoever stops the CLI stops the model."""
    cli.configure(rig.bridge.url, websockets=websockets)
    left = len(rig.provider.gone)
    with cli.start(said(SLOW)) as process:
        rig.provider.wait_requests(rig.since + 1)
        process.send_signal(number)
        assert rig.provider.wait_gone(left + 1)[left:] == [rig.since]
        process.communicate(timeout=LIMIT)
    assert process.returncode != 0
