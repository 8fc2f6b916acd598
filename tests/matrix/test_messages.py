"""Messages where they differ from the other protocols: names that their clients have built in, and their records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anthropic import Anthropic
from harness import ROOT, RunningBridge, running_bridge
from matrix.child import AppServer
from matrix.messages_clients import MESSAGES_OPTIONS, Messages, StreamedMessages
from server.prompted import wait_for

pytestmark = pytest.mark.deep  # each test starts several processes
BERN = ("weather", '{"city":"Bern"}')
CLAUDE = "claude-opus-4-8"


@contextmanager
def bridge_to(directory: Path, **environment: str) -> Iterator[tuple[RunningBridge, AppServer, Anthropic]]:
    """A bridge in front of a scripted child, without any other backend."""
    child = AppServer(directory / "child")
    variables = {"CODEX_BIN": str(child.program), "PROXY_MODELS": child.model, **environment}
    with (
        running_bridge(directory, **variables) as bridge,
        Anthropic(base_url=bridge.root, **MESSAGES_OPTIONS) as client,
    ):
        yield bridge, child, client


def test_the_default_model_stands_in_for_claude(tmp_path: Path) -> None:
    """Only for clients of this protocol, and it is reported at the start."""
    with bridge_to(tmp_path) as (bridge, child, client):
        wait_for(lambda: "No backend serves the models claude-" in bridge.stderr.read_text(), "the report")
        assert f"on /v1/messages, {child.model} answers for them" in bridge.stderr.read_text()
        said = child.says("hello")
        message = client.messages.create(
            model=CLAUDE, max_tokens=100, messages=[{"role": "user", "content": "hi"}], metadata={"user_id": "me"}
        )
        assert (message.model, message.content[0].to_dict()["text"]) == (CLAUDE, said)
        assert client.messages.count_tokens(model=CLAUDE, messages=[{"role": "user", "content": "hi"}]).input_tokens
        with bridge.client() as http:
            chat = {"model": CLAUDE, "messages": [{"role": "user", "content": "hi"}]}
            assert http.post("chat/completions", json=chat).json()["error"]["code"] == "model_not_found"


def test_an_alias_decides_instead(tmp_path: Path) -> None:
    with bridge_to(tmp_path, PROXY_MODEL_ALIASES="claude-*=mock-echo") as (bridge, _, client):
        message = client.messages.create(
            model=CLAUDE, max_tokens=100, messages=[{"role": "user", "content": "hi there"}]
        )
        assert message.content[0].to_dict()["text"] == "hi there"
        assert "No backend serves" not in bridge.stderr.read_text()


def turnbridge(*arguments: str) -> str:
    command = [sys.executable, "-m", "bridge", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_a_recorded_message_is_shown_played_and_exported(tmp_path: Path) -> None:
    """Streamed and not, with thinking, calls, their outputs, and a refused request."""
    log = tmp_path / "events.jsonl"
    with bridge_to(tmp_path, PROXY_LOG_EVENTS=str(log)) as (bridge, child, client):
        for kind in (Messages, StreamedMessages):
            child.thinks("I look outside.", BERN)
            conversation = kind(client, child.model, tools=True, thinks=True)
            assert conversation.ask("How is the weather in Bern?").calls == [BERN]
            child.says("It is sunny.")
            assert conversation.give("sunny, 21 degrees").text == "It is sunny."
        headers = {"anthropic-beta": "new-thing-2030-01-01"}
        answer = client.messages.with_raw_response.create(
            model="mock-echo", max_tokens=9, messages=[{"role": "user", "content": "x"}], extra_headers=headers
        )
        assert answer.headers["x-bridge-dropped"] == "anthropic-beta:new-thing-2030-01-01"
        with bridge.client() as http:
            assert http.post("messages", json={"model": "mock-echo", "messages": []}).status_code == 400
    assert "6 request(s): 6 the same" in turnbridge("replay", str(log), "--verify")
    requests = [json.loads(line) for line in turnbridge("log", "ls", str(log), "--json").splitlines()]
    shown = turnbridge("log", "show", str(log), requests[3]["id"])
    for text in ("How is the weather in Bern?", "I look outside.", "Bern", "sunny, 21 degrees", "It is sunny."):
        assert text in shown, shown
    exported = turnbridge("log", "export", str(log), "--jsonl", "-")
    assert "sunny, 21 degrees" in exported
    for name in ("responses", "chat", "wire", "cap", "text", "messages"):
        assert "It is sunny." in turnbridge("replay", str(log), "--as", name, "--outcome", "completed")
    copy = tmp_path / "copy.jsonl"
    turnbridge("log", "redact", str(log), "--texts", "--output", str(copy))
    left = copy.read_text()
    assert not any(text in left for text in ("weather in Bern", "look outside", "21 degrees", "It is sunny"))
    shown = turnbridge("log", "show", str(copy), requests[3]["id"])
    assert "weather" in shown
    assert "tool_result" not in shown, "the output has lost its call"
