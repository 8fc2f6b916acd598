"""Providers over HTTP, recorded by a bridge and by `exec`: their answers are played again byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cli.exec.command import Command, environment
from harness import running_bridge
from log.replayed import compared, play_log, recordings_in, told
from matrix.upstreams import (
    AnthropicProvider,
    ChatProvider,
    HttpProvider,
    PlainResponsesProvider,
    serving_plain_responses,
)
from server.prompted import LOOK, prompted_codex
from upstream import anthropic_events, anthropic_server, events, openai_chat, openai_chat_chunks
from upstream.answers import RESET, Stream

from bridge.replay.compare import Comparison

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

CONFIG = """
[backends.plain]
type = "responses"
base_url = "{plain}"
key = "{plain_key}"

[backends.claude]
type = "anthropic"
base_url = "{claude}"
key = "{claude_key}"

[backends.some]
type = "openai"
base_url = "{chat}"
key = "{chat_key}"

[routing.patterns]
plain = ["plain-*"]
some = ["some-"]
claude = ["claude-"]
"""
HALVES = {
    PlainResponsesProvider: Stream([*events.answer(events.text("half"))[:5], RESET]),
    AnthropicProvider: Stream([*anthropic_events.answer(anthropic_events.text("half"))[:4], RESET]),
    ChatProvider: openai_chat.stream(
        [*openai_chat_chunks.answer(openai_chat_chunks.text("half"))[:2], RESET], done=False
    ),
}
"""Answers that break off."""
ARGUMENTS = '{"q":"tea"}'
FORMS = [(path, stream) for path in ("/responses", "/chat/completions") for stream in (True, False)]


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, HttpProvider]]]:
    """A configuration, and the providers that it names."""
    directory = tmp_path_factory.mktemp("providers")
    with ExitStack() as stack:
        plain = stack.enter_context(serving_plain_responses())
        claude = stack.enter_context(anthropic_server.serving_in_thread())
        chat = stack.enter_context(openai_chat.serving_in_thread())
        config = directory / "config.toml"
        config.write_text(
            CONFIG.format(
                plain=plain.api_base_url,
                plain_key=plain.logins.key,
                claude=claude.url,
                claude_key=anthropic_server.KEY,
                chat=chat.base_url,
                chat_key=chat.key,
            )
        )
        found: dict[str, HttpProvider] = {
            "responses": PlainResponsesProvider(plain),
            "anthropic": AnthropicProvider(claude),
            "openai": ChatProvider(chat),
        }
        yield config, found


def script(provider: HttpProvider) -> list[str]:
    """What a provider does next, one after the other; the names of it."""
    provider.says("Good ", "morning ☕")
    provider.calls(("look", ARGUMENTS), ("look", '{"q":"milk"}'))
    provider.thinks("Let me see.")
    provider.thinks("Let me look.", ("look", ARGUMENTS))
    provider.cuts("cut of")
    provider.refuses(400, "no such thing")
    provider.refuses(429, "not now")
    provider.server.will(HALVES[type(provider)])
    return ["text", "calls", "thoughts", "thoughts, calls", "cut", "refused", "limited", "broken"]


@pytest.fixture(scope="module")
def played(
    providers: tuple[Path, dict[str, HttpProvider]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Comparison]]:
    """Every answer of every provider in every form."""
    config, found = providers
    directory = tmp_path_factory.mktemp("recorded")
    log = directory / "log.ndjson"
    with running_bridge(
        directory,
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_CONFIG=str(config),
        PROXY_LOG_EVENTS=str(log),
        PROXY_STORE="memory",
    ) as bridge:
        for name, provider in found.items():
            for path, stream in FORMS:
                for kind in script(provider):
                    body = {"model": provider.model, "stream": stream, "user": f"{name} {kind}"}
                    if path == "/responses":
                        body |= {"input": "hi", "tools": [LOOK]}
                    else:
                        tool = {"type": "function", "function": {key: LOOK[key] for key in ("name", "parameters")}}
                        body |= {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
                    bridge.post(path, body)
                provider.settle()
    cases: dict[str, list[Comparison]] = {}
    for each in compared(recordings_in(log)):
        cases.setdefault((each.recording.body or {})["user"], []).append(each)
    return cases


@pytest.mark.parametrize("provider", ["responses", "anthropic", "openai"])
@pytest.mark.parametrize(
    "kind", ["text", "calls", "thoughts", "thoughts, calls", "cut", "refused", "limited", "broken"]
)
def test_a_recorded_provider_verifies(played: dict[str, list[Comparison]], provider: str, kind: str) -> None:
    found = played[f"{provider} {kind}"]
    assert [each.outcome for each in found] == ["same"] * len(FORMS), told(found)


@pytest.fixture
def command(providers: tuple[Path, dict[str, HttpProvider]], tmp_path: Path) -> Command:
    settings = environment(tmp_path, PROXY_CONFIG=str(providers[0]))
    return Command(tmp_path, settings, ("--json", "--log-events", tmp_path / "log.ndjson"))


@pytest.mark.parametrize("name", ["responses", "anthropic", "openai"])
def test_a_run_of_exec_is_the_same_again(
    providers: tuple[Path, dict[str, HttpProvider]], command: Command, name: str
) -> None:
    """With and without --auto-tools, and when it is refused."""
    provider = providers[1][name]
    tool = f"look:inline={json.dumps(LOOK['parameters'])}"
    provider.says("Good ", "morning")
    command.run("--prompt", "hi", "--model", provider.model).succeeded()
    provider.calls(("look", ARGUMENTS))
    provider.says("There it is.")
    looked = ("--prompt", "look", "--model", provider.model, "--tool", tool, "--auto-tools")
    command.run(*looked, "--tool-output", "look=found").succeeded()
    provider.refuses(400, "no such thing")
    assert command.run("--prompt", "hi", "--model", provider.model).code == 1
    provider.settle()
    assert len(play_log(command.directory / "log.ndjson")) == 3
