"""Credentials: a key, the login of Claude Code, the key of a request; and what happens when one is rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backends.anthropic.rig import NOW, Rig, reasoning, rigged, said, turn
from upstream.answers import RESET, html
from upstream.anthropic_checks import BINDING_BETA, OAUTH_BETA
from upstream.anthropic_server import DEFAULT_TEXT, KEY, LIFETIME, Anthropic, credentials, refusal, write_credentials
from upstream.tokens import assert_no_secrets

from bridge.protocols.messages.models import pack_thought
from bridge.upstream.anthropic import API_URL, SIGN_IN, AnthropicCredentials, NotSignedIn
from bridge.upstream.login import EARLY


def file(directory: Path, expires_in: float | None = 3600) -> Callable[[Anthropic], Path]:
    expires_at = None if expires_in is None else NOW + expires_in
    return lambda api: write_credentials(directory, credentials(api.logins, expires_at))


def on_disk(rig: Rig) -> dict[str, Any]:
    assert rig.credentials is not None
    login: dict[str, Any] = json.loads(rig.credentials.read_bytes())["claudeAiOauth"]
    return login


# Keys


async def test_the_key_of_a_request_wins() -> None:
    async with rigged(key="sk-ant-api03-canary-other") as rig:
        await rig.answered(turn(provider_key=KEY))
        assert rig.api.requests[0].headers["x-api-key"] == KEY


async def test_the_key_of_a_request_wins_over_a_login(tmp_path: Path) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=-1)) as rig:
        await rig.answered(turn(provider_key=KEY))
        assert rig.api.token_requests == []


@pytest.mark.parametrize(
    ("own", "words"),
    [(None, f"Anthropic rejects the API key. {SIGN_IN}"), ("sk-canary-x", "rejects the key of this request")],
)
async def test_a_key_that_is_refused(own: str | None, words: str) -> None:
    async with rigged(key="sk-ant-api03-canary-wrong") as rig:
        problem = await rig.failed(turn(provider_key=own))
        assert (problem.code, problem.http_status) == ("claude_not_logged_in", 401)
        assert words in problem.message
        assert rig.api.statuses == [401]


async def test_without_a_key_or_a_login_nothing_is_asked() -> None:
    async with rigged(key=None) as rig:
        with pytest.raises(NotSignedIn, match="ANTHROPIC_API_KEY"):
            await rig.backend.start(turn(), "req_1")
        assert rig.api.requests == []


# The login


async def test_a_login_that_is_good_is_used(tmp_path: Path) -> None:
    async with rigged(credentials=file(tmp_path)) as rig:
        assert (await rig.answered()).text == DEFAULT_TEXT
        headers = rig.api.requests[0].headers
        assert headers["authorization"] == f"Bearer {on_disk(rig)['accessToken']}"
        assert headers["anthropic-beta"] == OAUTH_BETA
        assert "x-api-key" not in headers
        assert rig.api.token_requests == []


@pytest.mark.parametrize(("left", "refreshed"), [(EARLY + 1, False), (EARLY, True), (1, True), (-1000, True)])
async def test_a_login_that_runs_out_is_renewed_before_it_is_used(tmp_path: Path, left: float, refreshed: bool) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=left)) as rig:
        await rig.answered()
        assert rig.api.statuses == [200]
        assert len(rig.api.token_requests) == int(refreshed)
        if refreshed:
            assert on_disk(rig)["expiresAt"] == (NOW + LIFETIME) * 1000
        await rig.answered()
        assert len(rig.api.token_requests) == int(refreshed)


async def test_a_login_that_is_refused_is_renewed_once(tmp_path: Path) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=None)) as rig:
        rig.api.logins.access.clear()
        assert (await rig.answered()).text == DEFAULT_TEXT
        first, second = rig.api.requests
        assert rig.api.statuses == [401, 200]
        assert first.raw == second.raw
        assert second.headers["authorization"] == f"Bearer {on_disk(rig)['accessToken']}"


async def test_a_renewed_login_that_is_refused_again_is_an_error(tmp_path: Path) -> None:
    async with rigged(credentials=file(tmp_path)) as rig:
        rig.api.logins.access.clear()
        rig.api.will(refusal(401, "authentication_error", "who are you?"))
        problem = await rig.failed()
        assert (problem.code, problem.http_status, problem.message) == ("upstream_unauthorized", 401, "who are you?")
        assert len(rig.api.token_requests) == 1


@pytest.mark.parametrize("trouble", [RESET, html(502), refusal(400, "invalid_request_error")], ids=range(3))
async def test_a_login_that_cannot_be_renewed_early_is_used_while_it_lasts(tmp_path: Path, trouble: Any) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=60)) as rig:
        rig.api.token_script.append(trouble)
        assert (await rig.answered()).text == DEFAULT_TEXT


@pytest.mark.parametrize("trouble", [RESET, html(502), refusal(429, "rate_limit_error")], ids=range(3))
async def test_a_login_that_is_over_and_cannot_be_renewed_asks_to_try_again(tmp_path: Path, trouble: Any) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=-1)) as rig:
        rig.api.token_script.append(trouble)
        problem = await rig.failed()
        assert (problem.code, problem.severity) == ("refresh_failed", "transient")
        assert rig.api.requests == []
        assert (await rig.answered()).text == DEFAULT_TEXT


async def test_a_login_that_is_not_accepted_any_more_says_what_to_do(tmp_path: Path) -> None:
    async with rigged(credentials=file(tmp_path, expires_in=-1)) as rig:
        rig.api.logins.fresh.clear()
        before = rig.credentials and rig.credentials.read_bytes()
        problem = await rig.failed()
        assert (problem.code, problem.http_status, problem.severity) == ("refresh_token_refused", 401, "fatal")
        assert problem.message.endswith(SIGN_IN)
        assert rig.credentials is not None
        assert rig.credentials.read_bytes() == before


async def test_a_login_that_is_gone_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    async with rigged(credentials=lambda _: tmp_path / "nowhere") as rig:
        with pytest.raises(NotSignedIn, match="/login"):
            await rig.backend.start(turn(), "req_1")


# Betas, and other requests


@pytest.mark.parametrize("oauth", [False, True])
async def test_bound_thoughts_need_a_beta(tmp_path: Path, oauth: bool) -> None:
    model = "claude-opus-5-5"
    thought = reasoning(pack_thought(model, {"type": "thinking", "thinking": "", "signature": "c2ln"}))
    async with rigged(credentials=file(tmp_path) if oauth else None) as rig:
        await rig.answered(turn(said("user", "hi"), thought, said("assistant", "a"), said("user", "b"), model=model))
        betas = [OAUTH_BETA] if oauth else []
        assert rig.api.requests[0].headers["anthropic-beta"] == ",".join([*betas, BINDING_BETA])


async def test_the_models_are_listed_with_the_same_key() -> None:
    credentials = AnthropicCredentials(f"{API_URL}/", key=KEY)
    assert credentials.models_url == "https://api.anthropic.com/v1/models"
    assert (await credentials.headers())["x-api-key"] == KEY
    with pytest.raises(NotSignedIn):
        await AnthropicCredentials().headers()
    assert_no_secrets(credentials)
