"""Providers that nobody configured: they are there because of their key, or because Claude Code is logged in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from backends.upstream.test_discovery import KEY, Lister, listed
from harness import RunningBridge, running_bridge
from server.prompted import prompted_codex, wait_for
from upstream.anthropic_server import Anthropic, credentials, write_credentials
from upstream.serving import served_in_thread
from upstream.tls_proxy import tls_proxy

CLAUDE, TOKENS, GOOGLE = "api.anthropic.com", "console.anthropic.com", "generativelanguage.googleapis.com"


@contextmanager
def providers(directory: Path) -> Iterator[tuple[dict[str, Lister], dict[str, str]]]:
    """Servers by host that list a model each, and the variables that lead there instead of to the internet."""
    with ExitStack() as stack:
        servers = {}
        for host, model in {CLAUDE: "claude-listed-1", GOOGLE: "models/gemini-listed-1"}.items():
            servers[host] = stack.enter_context(served_in_thread(Lister(), host))
            servers[host].answers.append(listed(model))
        proxy = stack.enter_context(tls_proxy(directory, {host: each.url for host, each in servers.items()}))
        yield servers, proxy.environment


def names(bridge: RunningBridge) -> list[str]:
    """What GET /v1/models lists."""
    with bridge.client() as client:
        return [entry["id"] for entry in client.get("/models").json()["data"]]


@pytest.mark.parametrize(
    ("variable", "host", "asked", "model", "alias"),
    [
        ("ANTHROPIC_API_KEY", CLAUDE, ("GET /v1/models?limit=1000", "x-api-key", KEY), "claude-listed-1", "sonnet"),
        (
            "GEMINI_API_KEY",
            GOOGLE,
            ("GET /v1beta/openai/models", "authorization", f"Bearer {KEY}"),
            "gemini-listed-1",
            "flash",
        ),
    ],
)
def test_a_key_alone_lists_the_models_of_its_provider(
    tmp_path: Path, variable: str, host: str, asked: tuple[str, str, str], model: str, alias: str
) -> None:
    """Without a configuration file; a provider without its key is not asked."""
    codex = str(prompted_codex(tmp_path))
    with (
        providers(tmp_path) as (servers, variables),
        running_bridge(tmp_path, CODEX_BIN=codex, **variables, **{variable: KEY}) as bridge,
    ):
        wait_for(lambda: model in names(bridge), "the provider's models")
        assert alias in names(bridge)
        path, header, key = asked
        assert [(request.path, request.headers[header]) for request in servers[host].lists] == [(path, key)]
        assert [each.lists for name, each in servers.items() if name != host] == [[]]


def test_a_login_that_has_run_out_is_renewed_for_the_list(tmp_path: Path) -> None:
    """Claude Code's, which nobody has used for a while; the new tokens are written back."""
    with (
        served_in_thread(Lister(), CLAUDE) as claude,
        served_in_thread(Anthropic(), TOKENS) as tokens,
        tls_proxy(tmp_path, {CLAUDE: claude.url, TOKENS: tokens.url}) as proxy,
    ):
        claude.answers.append(listed("claude-listed-1"))
        path = write_credentials(tmp_path / ".claude", credentials(tokens.logins, expires_at=1_000_000_000))
        codex = str(prompted_codex(tmp_path))
        with running_bridge(tmp_path, CODEX_BIN=codex, **proxy.environment) as bridge:
            wait_for(lambda: "claude-listed-1" in names(bridge), "the provider's models")
        renewed = json.loads(path.read_text())["claudeAiOauth"]["accessToken"]
        assert [request.headers["authorization"] for request in claude.lists] == [f"Bearer {renewed}"]
        assert {f"{CLAUDE}:443", f"{TOKENS}:443"} == set(proxy.connected)
        assert tokens.faults == []
