"""Claude Code's login: read, refreshed once whoever asks, and written back with everything that stood beside it."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from upstream.answers import RESET, Gate, html, plain_json
from upstream.anthropic_server import LIFETIME, Anthropic, credentials, serving, serving_in_thread, write_credentials
from upstream.refreshing import (
    holding,
    refresh_in_many_tasks,
    refresh_into,
    refresh_within,
    refresher,
    refreshing,
    told_after_a_kill,
    told_by_three,
)
from upstream.tokens import assert_no_secrets

from bridge.errors import BridgeError
from bridge.store.private_files import encode_json
from bridge.upstream.anthropic import FILE, SIGN_IN, ClaudeLogin, NotSignedIn, parse_credentials
from bridge.upstream.login import EARLY, LOCK_SECONDS, REFRESH_SECONDS, Login

Json = dict[str, Any]
NOW = 2_000_000_000.0
REFRESHER = refresher(ClaudeLogin, NOW)


@dataclass
class Rig:
    """A login on disk, and the token endpoint that it belongs to."""

    api: Anthropic
    path: Path
    client: httpx2.AsyncClient

    def login(self) -> ClaudeLogin:
        """A login as each program has its own."""
        return ClaudeLogin(self.path, client=self.client, now=lambda: NOW, token_url=self.api.token_url)

    def on_disk(self) -> Login:
        return parse_credentials(json.loads(self.path.read_bytes()))

    async def refused(self) -> BridgeError:
        """A refresh that must fail, leave the file alone and tell no secret."""
        before = self.path.read_bytes()
        login = self.login()
        with pytest.raises(BridgeError) as caught:
            await login.refresh(login.current())
        assert self.path.read_bytes() == before
        assert_no_secrets(caught.value, caught.value.body(), caught.value.message, login, login.current())
        assert self.api.url not in caught.value.message
        assert str(self.path) not in caught.value.message
        return caught.value


@asynccontextmanager
async def rigged(directory: Path, **more: Any) -> AsyncIterator[Rig]:
    """A login that works; at the end nothing wrong may have been sent."""
    async with serving() as api, httpx2.AsyncClient(trust_env=False) as client:
        yield Rig(api, write_credentials(directory, credentials(api.logins, NOW - 1, **more)), client)
        assert api.faults == []


# Reading


def test_a_login_is_read() -> None:
    login = {"accessToken": "canary-a", "refreshToken": "canary-r", "expiresAt": 1500, "subscriptionType": "max"}
    tokens = parse_credentials({"claudeAiOauth": login})
    assert tokens == Login("claude", "canary-a", "canary-r", expires_at=1.5)
    assert_no_secrets(tokens)
    assert parse_credentials({"claudeAiOauth": {"accessToken": "a"}}) == Login("claude", "a")
    assert parse_credentials({"claudeAiOauth": {**login, "expiresAt": "soon"}}).expires_at is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"claudeAiOauth": None},
        {"claudeAiOauth": {}},
        {"claudeAiOauth": {"accessToken": ""}},
        {"claudeAiOauth": {"accessToken": 5}},
        {"claudeAiOauth": {"accessToken": "with\nnewline"}},
        {"claudeAiOauth": {"accessToken": "with space"}},
    ],
)
def test_a_file_without_a_login_says_what_to_do(data: Any) -> None:
    with pytest.raises(NotSignedIn, match="ANTHROPIC_API_KEY"):
        parse_credentials(data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
    ids=["half", "list", "bytes", "deep"],
)
def test_a_file_that_cannot_be_read_says_so(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / ".credentials.json"
    path.write_bytes(content)
    with pytest.raises(NotSignedIn, match=words) as caught:
        FILE.read(path)
    assert str(tmp_path) not in caught.value.message
    assert caught.value.message.endswith(SIGN_IN)


def test_a_missing_or_invalid_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotSignedIn, match="not logged in here"):
        FILE.read(tmp_path / "nowhere")
    with pytest.raises(NotSignedIn, match="cannot be read"):
        FILE.read(tmp_path)
    large = tmp_path / "large"
    large.write_bytes(b" " * 2_000_000)
    with pytest.raises(NotSignedIn, match="too large"):
        FILE.read(large)


# Refreshing


async def test_a_refresh_keeps_all_that_it_does_not_know(tmp_path: Path) -> None:
    digits = 12345678901234567890123456789
    async with rigged(tmp_path, number=digits, nested={"a": [1, "é"]}) as rig:
        before = json.loads(rig.path.read_bytes())
        login = rig.login()
        old = login.current()
        new = await login.refresh(old)
        after = json.loads(rig.path.read_bytes())
        assert new == rig.on_disk() == login.current() != old
        assert new.token in rig.api.logins.access
        changed = {"accessToken", "refreshToken", "expiresAt", "scopes"}
        assert {name: value for name, value in after.items() if name != "claudeAiOauth"} == {
            name: value for name, value in before.items() if name != "claudeAiOauth"
        }
        assert after["claudeAiOauth"]["subscriptionType"] == "max"
        assert {
            name for name in after["claudeAiOauth"] if after["claudeAiOauth"][name] != before["claudeAiOauth"][name]
        } == changed
        assert after["claudeAiOauth"]["expiresAt"] == (NOW + LIFETIME) * 1000
        assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600
        assert sorted(path.name for path in tmp_path.iterdir()) == [".credentials.json", ".credentials.json.lock"]


async def test_a_link_stays_a_link(tmp_path: Path) -> None:
    async with rigged(tmp_path / "real") as rig:
        link = tmp_path / "link.json"
        link.symlink_to(rig.path)
        login = ClaudeLogin(link, client=rig.client, now=lambda: NOW, token_url=rig.api.token_url)
        await login.refresh(login.current())
        assert link.is_symlink()
        assert login.current() == rig.on_disk()


async def test_an_answer_without_all_members_is_enough(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.api.token_script.append(plain_json(200, {"access_token": "canary-new"}))
        old = rig.on_disk()
        new = await rig.login().refresh(old)
        assert new == Login("claude", "canary-new", old.refresh_token)
        assert json.loads(rig.path.read_bytes())["claudeAiOauth"]["scopes"] == ["user:inference"]


def test_when_a_login_is_renewed(tmp_path: Path) -> None:
    login = ClaudeLogin(tmp_path, client=httpx2.AsyncClient(), now=lambda: NOW)
    assert not login.expires_soon(Login("claude", "a", expires_at=NOW + EARLY + 1))
    assert login.expires_soon(Login("claude", "a", expires_at=NOW + EARLY))
    assert not login.has_expired(Login("claude", "a", expires_at=NOW + 1))
    assert login.has_expired(Login("claude", "a", expires_at=NOW))
    assert not login.expires_soon(Login("claude", "a"))


async def test_a_login_that_another_program_has_refreshed_is_only_read(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        old = rig.on_disk()
        write_credentials(tmp_path, credentials(rig.api.logins))
        assert await rig.login().refresh(old) == rig.on_disk()
        assert rig.api.token_requests == []


async def test_a_login_that_another_program_has_renewed_is_used(tmp_path: Path) -> None:
    """Claude Code itself does not know our lock: our token was used up, but its new login is there."""
    async with rigged(tmp_path) as rig:
        login, old = rig.login(), rig.on_disk()
        rig.api.logins.fresh.clear()
        async with refreshing(rig.api, old, login) as got:
            write_credentials(tmp_path, credentials(rig.api.logins))
        assert got == [rig.on_disk()] != [old]


@pytest.mark.parametrize(
    ("answer", "code", "severity"),
    [
        (None, "refresh_token_refused", "fatal"),
        (plain_json(401, {"error": "invalid_client"}), "refresh_token_refused", "fatal"),
        (html(403), "refresh_failed", "transient"),
        (html(502), "refresh_failed", "transient"),
        (plain_json(429, {"error": "slow down"}), "refresh_failed", "transient"),
        (plain_json(200, {}), "refresh_failed", "transient"),
        (plain_json(200, []), "refresh_failed", "transient"),
        (plain_json(200, {"access_token": "with\nnewline"}), "refresh_failed", "transient"),
        (RESET, "refresh_failed", "transient"),
    ],
    ids=range(9),
)
async def test_a_refresh_that_fails_changes_nothing(tmp_path: Path, answer: Any, code: str, severity: str) -> None:
    async with rigged(tmp_path) as rig:
        if answer is None:
            rig.api.logins.fresh.clear()
        else:
            rig.api.token_script.append(answer)
        problem = await rig.refused()
        assert (problem.code, problem.severity) == (code, severity)
        assert severity == "transient" or problem.message.endswith(SIGN_IN)


async def test_a_login_without_a_refresh_token_sends_no_request(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        write_credentials(tmp_path, {"claudeAiOauth": {"accessToken": "canary-old"}})
        assert "no refresh token" in (await rig.refused()).message
        assert rig.api.token_requests == []


def test_content_that_is_nested_too_deep_cannot_be_written() -> None:
    """That is looked at before a one-time token is used."""
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        encode_json({"deep": deep})


async def test_a_login_that_cannot_be_written_lasts_as_long_as_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        blocked = tmp_path / "..credentials.json.new"
        blocked.mkdir()  # where the new file would be written
        old = rig.on_disk()
        new = await login.refresh(old)
        assert rig.on_disk() == old
        assert login.current() == new != old
        assert "cannot write" in caplog.text
        assert_no_secrets(caplog.text)
        blocked.rmdir()
        assert await login.refresh(new) == rig.on_disk() == login.current()
        assert rig.api.logins.uses == {old.refresh_token: 1, new.refresh_token: 1}


@pytest.mark.parametrize("unwritten", [False, True])
async def test_a_login_during_a_refresh_is_kept(tmp_path: Path, unwritten: bool) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        if unwritten:
            (blocked := tmp_path / "..credentials.json.new").mkdir()
            await login.refresh(login.current())
        old = login.current()
        if unwritten:
            blocked.rmdir()
        async with refreshing(rig.api, old, login) as got:
            write_credentials(tmp_path, anew := credentials(rig.api.logins))
        assert got == [parse_credentials(anew)] == [rig.on_disk()]


async def test_an_endpoint_that_does_not_answer_is_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        rig.api.token_gate = Gate()
        begun = trio.current_time()
        assert (await rig.refused()).code == "refresh_failed"
        assert trio.current_time() - begun == pytest.approx(REFRESH_SECONDS, abs=1)


async def test_a_refresh_that_was_requested_is_stored_if_its_caller_leaves(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login, old = rig.login(), rig.on_disk()
        gate = rig.api.token_gate = Gate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(login.refresh, old)
            await rig.api.until(lambda: gate.held)
            nursery.cancel_scope.cancel()
            gate.open()
        assert rig.on_disk() != old
        assert rig.on_disk().token in rig.api.logins.access


# At once


async def test_many_tasks_refresh_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        got = await refresh_in_many_tasks(rig.api, rig.login(), rig.login())
        assert got == [rig.on_disk()] * 100


async def test_all_waiting_callers_get_the_failure(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login, old = rig.login(), rig.on_disk()
        rig.api.logins.fresh.clear()
        gate = rig.api.token_gate = Gate()
        codes: list[str] = []

        async def refresh() -> None:
            with pytest.raises(NotSignedIn) as caught:
                await login.refresh(old)
            codes.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(refresh)
            await rig.api.until(lambda: gate.held)
            gate.open()
        assert codes == ["refresh_token_refused"] * 5
        assert len(rig.api.token_requests) == 1


async def test_another_caller_takes_over_when_the_one_that_refreshes_leaves(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        got: list[Any] = []
        login, old, first = rig.login(), rig.on_disk(), trio.CancelScope()
        with holding(rig.path.with_name(".credentials.json.lock")) as holder:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refresh_within, first, login, old)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(refresh_into, got, login, old)
                await trio.testing.wait_all_tasks_blocked()
                first.cancel()
                await trio.testing.wait_all_tasks_blocked()
                assert rig.api.token_requests == []
                holder.kill()
        assert got == [rig.on_disk()] != [old]


async def test_a_lock_that_is_held_for_too_long_is_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        with holding(rig.path.with_name(".credentials.json.lock")):
            begun = trio.current_time()
            problem = await rig.refused()
            assert (problem.code, rig.api.token_requests) == ("refresh_failed", [])
            assert trio.current_time() - begun == pytest.approx(LOCK_SECONDS, abs=1)
        assert await rig.login().refresh(rig.on_disk()) == rig.on_disk()


async def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    async with rigged(tmp_path / "claude") as rig:
        bait = tmp_path / "bait"
        rig.path.with_name(".credentials.json.lock").symlink_to(bait)
        assert "cannot be opened" in (await rig.refused()).message
        assert not bait.exists()


def test_several_processes_refresh_once_and_a_killed_one_blocks_nobody(tmp_path: Path) -> None:
    with serving_in_thread() as api:
        path = write_credentials(tmp_path, credentials(api.logins, NOW - 1))
        old: Json = json.loads(path.read_bytes())["claudeAiOauth"]
        told = told_by_three(REFRESHER, path, api)
        (token,) = api.logins.access
        assert told == [token] * 3
        assert api.logins.uses == {old["refreshToken"]: 1}
        assert told_after_a_kill(REFRESHER, path, api, path) == "refresh_token_refused"
        assert api.faults == []
