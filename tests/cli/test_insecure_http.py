"""Plain http to another machine, for those who say so: `insecure_http` of a backend, `--insecure-http` of a command.

The other machine is 0.0.0.0: to the rules a stranger, to Linux a way to a server on this one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.exec.command import Command, environment
from cli.test_cap_run import lines, request, run
from harness import KEY, RunningBridge, running_bridge
from upstream.openai_chat import ChatServer, serving_in_thread
from warm import run_warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="0.0.0.0 leads here on Linux alone")

REMEDY = "plain http is only allowed for this machine; use https, or "


def elsewhere(url: str) -> str:
    """The same server, by an address that is not loopback's."""
    return url.replace("127.0.0.1", "0.0.0.0")


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    with serving_in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that is asked by that address, too."""
    with running_bridge(tmp_path_factory.mktemp("there"), "--mock-only", PROXY_ALLOWED_HOSTS="0.0.0.0") as running:
        yield running


def config(directory: Path, chat: ChatServer, *lines: str) -> Path:
    """A server of chat completions on another machine, with these lines beside its address."""
    path = directory / "bridge.toml"
    own = [
        '[backends.lan]\ntype = "openai"\npreset = "vllm"',
        f'key = "{chat.key}"',
        f'base_url = "{elsewhere(chat.url)}/v1"',
        *lines,
    ]
    path.write_text("\n".join(own) + "\ndiscovery = true\n")
    return path


def test_a_backend_on_another_machine(tmp_path: Path, chat: ChatServer) -> None:
    """It is listed and answers, as one that is here does."""
    path = config(tmp_path, chat, "insecure_http = true")
    with running_bridge(tmp_path, "--config", str(path), CODEX_BIN="/bin/false") as bridge:
        answer = bridge.post(
            "/chat/completions", {"model": "some-model", "messages": [{"role": "user", "content": "hi"}]}
        )
        assert answer.status_code == 200, answer.text
        assert chat.requests[-1].headers["host"].startswith("0.0.0.0:")


def test_without_it_the_file_is_refused_with_the_remedy(tmp_path: Path, chat: ChatServer) -> None:
    """One line with the place and what to do."""
    path = config(tmp_path, chat)
    done = run_warm("models", "--config", str(path), text=True, env=environment(tmp_path))
    assert done.returncode == 2
    assert f"{path}:5: backends.lan.base_url: {REMEDY}set insecure_http = true" in done.stderr


def test_exec_asks_a_bridge_on_another_machine(tmp_path: Path, bridge: RunningBridge) -> None:
    """With the flag; without it nothing is sent, and the message names the flag."""
    command = Command(tmp_path, environment(tmp_path, PROXY_API_KEY=KEY), ("--url", elsewhere(bridge.root), "--json"))
    said = ("--model", "mock-echo", "--prompt", "hello")
    assert f"{REMEDY}add --insecure-http" in command.run(*said).failed("usage_error", exit_code=2)
    command.run(*said, "--insecure-http").succeeded()
    alone = Command(tmp_path, environment(tmp_path), ("--json",)).run("--mock", "--prompt", "hi", "--insecure-http")
    assert "--insecure-http requires --url" in alone.failed("usage_error", exit_code=2)


def test_cap_asks_a_bridge_on_another_machine(tmp_path: Path, bridge: RunningBridge) -> None:
    """As `exec` does."""
    where, stdin = ("--url", elsewhere(bridge.root), "--provider-key", KEY), lines(request("hello"))
    refused = run(tmp_path, *where, stdin=stdin)
    assert (refused.code, f"{REMEDY}add --insecure-http" in refused.stderr) == (2, True)
    answered = run(tmp_path, *where, "--insecure-http", stdin=stdin)
    assert (answered.code, b"hello" in answered.stdout) == (0, True), answered
