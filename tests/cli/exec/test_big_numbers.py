"""Integers beyond 64 bits: the digits that stand in a file are the digits that a provider gets, on every backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, Word, environment, steps
from cli.running import run_command
from harness import KEY, RunningBridge, running_bridge
from real import codex_binaries
from real.provider import Provider, codex_home
from real.rig import said
from server.prompted import MODEL, prompted_codex
from upstream import anthropic_server, openai_chat
from upstream.anthropic_server import Anthropic
from upstream.chatgpt import ChatGPT, serving_in_thread

MOST, LEAST, ID = 123456789012345678901234567890, -(2**63) - 1, 2**64
BOUNDS = {"type": "integer", "minimum": LEAST, "maximum": MOST}
SCHEMA = {"type": "object", "properties": {"n": BOUNDS}, "required": ["n"], "additionalProperties": False}
ARGUMENTS = f'{{"n":{ID}}}'
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "shard": ID}},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": ARGUMENTS},
    {"type": "function_call_output", "call_id": "c1", "output": "seen"},
]


@dataclass
class Upstreams:
    """The scripted providers, and a configuration that leads to them."""

    chatgpt: ChatGPT
    anthropic: Anthropic
    chat: openai_chat.ChatServer
    config: Path
    environment: dict[str, str]

    def sent(self, backend: str) -> Any:
        """The last request that this one got; Python reads integers as they are."""
        servers: dict[str, ChatGPT | Anthropic] = {"claude": self.anthropic, "chat": self.chat}
        server = servers.get(backend, self.chatgpt)
        assert server.faults == []
        return json.loads(server.requests[-1].raw)


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstreams]:
    directory = tmp_path_factory.mktemp("upstreams")
    with (
        serving_in_thread() as chatgpt,
        anthropic_server.serving_in_thread() as anthropic,
        openai_chat.serving_in_thread() as chat,
    ):
        keys = {"CLAUDE_KEY": anthropic_server.KEY, "CHAT_KEY": chat.key or ""}
        config = directory / "config.toml"
        config.write_text(
            f"""
[backends.claude]
type = "anthropic"
base_url = "{anthropic.url}"
key_env = "CLAUDE_KEY"
models = ["claude-test"]
[backends.chat]
type = "openai"
base_url = "{chat.base_url}"
key_env = "CHAT_KEY"
models = ["chat-test"]
[backends.direct]
type = "codex"
models = ["gpt-test"]
"""
        )
        settings = environment(directory, **chatgpt.environment(chatgpt.home(directory)), **keys)
        yield Upstreams(chatgpt, anthropic, chat, config, settings | {"PROXY_CONFIG": str(config)})


@pytest.fixture(scope="module")
def command(upstreams: Upstreams) -> Command:
    return Command(upstreams.config.parent, upstreams.environment)


@pytest.fixture(scope="module")
def given(upstreams: Upstreams) -> tuple[Word, ...]:
    """The schemas and the items as a user's files."""
    directory = upstreams.config.parent
    for name, content in (("schema.json", SCHEMA), ("items.json", ITEMS)):
        (directory / name).write_text(json.dumps(content))
    schema = directory / "schema.json"
    return ("--json", "--tool", f"look:json={schema}", "--output-schema", schema)


def items(command: Command) -> tuple[Word, ...]:
    return ("--input-json", command.directory / "items.json")


# Each backend


def responses_body(body: Any) -> None:
    """The Responses API, as a server gets it."""
    assert body["tools"][0]["parameters"] == SCHEMA
    assert body["text"]["format"]["schema"] == SCHEMA
    assert body["input"][1]["action"]["shard"] == ID
    assert body["input"][2]["arguments"] == ARGUMENTS


def claude_body(body: Any) -> None:
    """The Messages API, which takes a call's arguments as an object."""
    assert body["tools"][0]["input_schema"] == SCHEMA
    uses = [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_use"]
    assert uses[0]["input"] == {"n": ID}


def chat_body(body: Any) -> None:
    """The chat completions API."""
    assert body["tools"][0]["function"]["parameters"] == SCHEMA
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS


BODIES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "direct": ("gpt-test", responses_body),
    "claude": ("claude-test", claude_body),
    "chat": ("chat-test", chat_body),
}


@pytest.mark.parametrize("backend", BODIES)
def test_a_provider_gets_the_digits_of_the_files(
    command: Command, given: tuple[Word, ...], upstreams: Upstreams, backend: str
) -> None:
    """From --tool, --output-schema and --input-json to the body; a float would be another number."""
    model, check = BODIES[backend]
    log = command.directory / "requests"
    command.run(*given, *items(command), "--model", model, "--log-requests", log).succeeded(silent=False)
    check(upstreams.sent(backend))
    check(json.loads(log.read_text()))


@pytest.fixture(scope="module")
def bridge(upstreams: Upstreams, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge in front of the same providers."""
    with served(tmp_path_factory.mktemp("served"), upstreams) as running:
        yield running


def served(directory: Path, upstreams: Upstreams, **more: str) -> AbstractContextManager[RunningBridge]:
    theirs = ("PATH", "HOME", "XDG_STATE_HOME", "PROXY_CODEX_WORKDIR")
    settings = {name: value for name, value in upstreams.environment.items() if name not in theirs}
    return running_bridge(directory, **settings, **more)


@pytest.mark.parametrize("backend", BODIES)
def test_a_bridge_in_between_keeps_them(
    command: Command, given: tuple[Word, ...], upstreams: Upstreams, bridge: RunningBridge, backend: str
) -> None:
    """--url: what the bridge reads from HTTP is read as exactly."""
    model, check = BODIES[backend]
    there = ("--url", bridge.root, "--provider-key", KEY, "--model", model)
    command.run(*given, *items(command), *there).succeeded(silent=False)
    check(upstreams.sent(backend))


def test_an_app_server_gets_them(given: tuple[Word, ...], tmp_path: Path) -> None:
    """In its JSON-RPC: an item as it came, the schemas of the tool and of the answer in the injected text.

    Codex refuses a whole call with such a number in it, so no schema that has one goes to it as JSON.
    """
    settings = environment(tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL)
    command = Command(tmp_path, settings, ("--model", MODEL))
    conversation = [*ITEMS, {"role": "user", "content": steps({"text": "Done."})[1]}]
    (tmp_path / "items.json").write_text(json.dumps(conversation))
    log = tmp_path / "requests"
    command.run(*given, *items(command), "--log-requests", log).succeeded(silent=False)
    start, inject, turn = [json.loads(line)["params"] for line in log.read_text().splitlines()]
    assert start["developerInstructions"].count(f'"minimum":{LEAST},"maximum":{MOST}') == 2
    assert inject["items"][1]["action"]["shard"] == ID
    assert "outputSchema" not in turn


@pytest.mark.parametrize("mode", ["text", "native"])
@pytest.mark.parametrize("version", [codex_binaries.CURRENT, codex_binaries.NEWEST])
def test_a_real_codex_passes_them_on(given: tuple[Word, ...], tmp_path: Path, version: str, mode: str) -> None:
    """The provider gets them in words, also where the operator prefers native tools."""
    binary = codex_binaries.find(version)
    if isinstance(binary, str):
        pytest.skip(binary)
    with Provider() as provider:
        home = codex_home(tmp_path / "codex-home", provider)
        settings = environment(tmp_path, CODEX_BIN=str(binary), CODEX_HOME=str(home), PROXY_TOOL_MODE=mode)
        ran = Command(tmp_path, settings).run(*given, said({"do": "text", "pieces": ["Done."]}))
        ran.succeeded()
        (request,) = provider.requests
    assert json.dumps(request.body["input"]).count(f'\\"minimum\\":{LEAST},\\"maximum\\":{MOST}') == 2


def test_the_mock_shows_them(command: Command, given: tuple[Word, ...]) -> None:
    """Its call is an example of the schema, also where only a large number is one."""
    schema = json.dumps({"type": "object", "properties": {"n": {"const": MOST}}, "required": ["n"]})
    ran = command.run("--mock", "--mock-mode", "tool-call", "--json", "--prompt", "hi", "--tool", f"f:inline={schema}")
    assert ran.events[-2]["item"]["arguments"] == f'{{"n":{MOST}}}'


# What is kept of them


def test_a_response_repeats_and_stores_them(bridge: RunningBridge, upstreams: Upstreams) -> None:
    """Streamed or not, stored, continued, and in a conversation; nothing on the way refuses such a number."""
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    search: dict[str, Any] = ITEMS[1]
    body = {"model": "gpt-test", "tools": [tool], "input": [ITEMS[0], search]}
    with bridge.client() as client:
        first = client.post("/responses", json=body)
        assert first.status_code == 200, first.text
        assert first.json()["tools"][0]["parameters"] == SCHEMA
        name = first.json()["id"]
        assert client.get(f"/responses/{name}").json()["tools"][0]["parameters"] == SCHEMA
        kept = client.get(f"/responses/{name}/input_items").json()["data"]
        assert search["action"] in [item.get("action") for item in kept]
        client.post("/responses", json={**body, "input": "and?", "previous_response_id": name})
        assert upstreams.sent("direct")["input"][1]["action"] == search["action"]
        made = client.post("/conversations", json={"items": [ITEMS[0], search]}).json()
        client.post("/responses", json={**body, "input": "so?", "conversation": made["id"]})
        assert upstreams.sent("direct")["input"][1]["action"] == search["action"]
        later = client.post("/responses", json={**body, "background": True})
        assert later.json()["tools"][0]["parameters"] == SCHEMA
        chat = {"model": "gpt-test", "messages": [ITEMS[0]], "tools": [{"type": "function", "function": tool}]}
        assert client.post("/chat/completions", json=chat).status_code == 200
        assert client.post("/responses/input_tokens", json=body).status_code == 200
    events = bridge.events("/responses", body)
    assert events[0]["response"]["tools"][0]["parameters"] == SCHEMA
    assert events[-1]["response"]["tools"][0]["parameters"] == SCHEMA


def test_a_log_with_them_is_played_again(upstreams: Upstreams, tmp_path: Path) -> None:
    """The answer repeats the tools, so a replay that read a float would differ. Every view of the log shows it."""
    log = tmp_path / "own.ndjson"
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
    body = {"model": "gpt-test", "tools": [tool], "input": ITEMS[:2], "metadata": {"password": "s3cr3t-word"}}
    with served(tmp_path, upstreams, PROXY_LOG_EVENTS=str(log)) as bridge:
        assert bridge.post("/responses", body).status_code == 200
        bridge.events("/responses", body)
    assert str(MOST).encode() in log.read_bytes()
    assert b"s3cr3t-word" not in log.read_bytes()
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for words in (
        ("replay", "--verify", str(log)),
        ("log", "ls", str(log)),
        ("log", "verify", str(log)),
        ("log", "stats", str(log)),
        ("log", "show", str(log)),
        ("log", "export", str(log), "--html", str(tmp_path / "page.html")),
        ("log", "export", str(log), "--har", str(tmp_path / "page.har")),
        ("log", "redact", str(log), "--secret", "hello from", "--output", str(tmp_path / "clean.ndjson")),
        ("replay", "--verify", str(tmp_path / "clean.ndjson")),
    ):
        done = run_command(*words, **state)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert str(MOST).encode() in (tmp_path / "clean.ndjson").read_bytes()
