"""Refreshing a login when several want to: one refresh in a process, one among all processes, and the lock between."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from auth.login_rig import NOW, rigged
from upstream.answers import Gate
from upstream.chatgpt import serving_in_thread
from upstream.refreshing import (
    holding,
    refresh_in_many_tasks,
    refresh_into,
    refresh_within,
    refresher,
    told_after_a_kill,
    told_by_three,
)
from upstream.tokens import auth_json, write_auth_json

from bridge.errors import UpstreamError
from bridge.upstream.codex import CodexLogin, NotLoggedIn
from bridge.upstream.login import LOCK_SECONDS, POLL, REFRESH_SECONDS, Login

REFRESHER = refresher(CodexLogin, NOW)


async def test_many_tasks_refresh_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        got = await refresh_in_many_tasks(rig.chatgpt, rig.login(), rig.login())
        assert got == [rig.on_disk()] * 100


async def test_a_caller_that_leaves_does_not_stop_the_others(tmp_path: Path) -> None:
    """The others wait for the refresh that it has begun."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        gate = rig.chatgpt.token_gate = Gate()
        leaving = trio.CancelScope()
        got: list[Login] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh_within, leaving, login, old)
            await rig.chatgpt.until(lambda: gate.held)
            nursery.start_soon(refresh_into, got, login, old)
            nursery.start_soon(refresh_into, got, login, old)
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel()
            gate.open()
        assert got == [rig.on_disk()] * 2
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1}


async def test_another_caller_refreshes_when_one_leaves_before_its_request(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        leaving = trio.CancelScope()
        got: list[Login] = []
        async with trio.open_nursery() as nursery:
            with (rig.home / "auth.json.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                nursery.start_soon(refresh_within, leaving, login, old)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(refresh_into, got, login, old)
                nursery.start_soon(refresh_into, got, login, old)
                await trio.testing.wait_all_tasks_blocked()
                leaving.cancel()
        assert leaving.cancelled_caught
        assert got == [rig.on_disk()] * 2
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1}


async def test_a_refused_refresh_is_requested_once(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        rig.chatgpt.logins.states[old.refresh_token or ""] = "expired"

        async def refresh() -> None:
            with pytest.raises(NotLoggedIn) as refused:
                await login.refresh(old)
            assert refused.value.code == "refresh_token_expired"

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(refresh)
        assert len(rig.chatgpt.token_requests) == 1


async def test_a_silent_endpoint_is_waited_for_once(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        rig.chatgpt.token_gate = Gate()

        async def refresh() -> None:
            with pytest.raises(UpstreamError):
                await login.refresh(old)

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(refresh)
        assert trio.current_time() - begun == pytest.approx(REFRESH_SECONDS, abs=1)
        assert len(rig.chatgpt.token_requests) == 1


async def test_two_homes_with_one_linked_login_have_one_lock(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        second = tmp_path / "second"
        second.mkdir()
        (second / "auth.json").symlink_to(rig.path)
        other = CodexLogin(second, token_url=rig.chatgpt.token_url, client=rig.client, now=lambda: NOW)
        old = rig.on_disk()
        gate = rig.chatgpt.token_gate = Gate()
        got: list[Login] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh_into, got, rig.login(), old)
            await rig.chatgpt.until(lambda: gate.held)
            nursery.start_soon(refresh_into, got, other, old)
            await trio.sleep(20 * POLL)  # of the clock that jumps: the second has looked at the lock many times
            assert got == []
            gate.open()
        assert got == [rig.on_disk()] * 2
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1}


def test_several_processes_refresh_once(tmp_path: Path) -> None:
    """The one-time token is used once, and every process ends with the new login."""
    with serving_in_thread() as chatgpt:
        home = chatgpt.home(tmp_path)
        old = json.loads((home / "auth.json").read_bytes())["tokens"]["refresh_token"]
        told = told_by_three(REFRESHER, home, chatgpt)
        (token,) = chatgpt.logins.access
        assert told == [token] * 3
        assert chatgpt.logins.uses == {old: 1}
        assert chatgpt.faults == []


def test_a_process_that_is_killed_while_refreshing_blocks_nobody(tmp_path: Path) -> None:
    """The file is whole and the lock free. Its one-time token is lost, and that is told."""
    with serving_in_thread() as chatgpt:
        home = chatgpt.home(tmp_path)
        assert told_after_a_kill(REFRESHER, home, chatgpt, home / "auth.json") == "refresh_token_reused"
        assert chatgpt.faults == []


# The lock file


async def test_a_lock_that_is_held_for_too_long_is_reported(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        with holding(rig.home / "auth.json.lock"):
            begun = trio.current_time()
            error, _ = await rig.refused()
            assert (error.code, error.severity) == ("refresh_failed", "transient")
            assert rig.chatgpt.token_requests == []
            assert trio.current_time() - begun == pytest.approx(LOCK_SECONDS, abs=1)
        assert await rig.login().refresh(rig.on_disk()) == rig.on_disk()


async def test_a_lock_is_free_when_its_holder_dies(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig, trio.open_nursery() as nursery:
        old = rig.on_disk()
        with holding(rig.home / "auth.json.lock"):
            nursery.start_soon(rig.login().refresh, old)
            await trio.testing.wait_all_tasks_blocked()
            assert rig.chatgpt.token_requests == []
        await rig.chatgpt.until(lambda: rig.chatgpt.token_requests)


async def test_a_login_that_is_refreshed_during_the_wait_for_the_lock_is_only_read(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        got: list[Any] = []
        old = rig.on_disk()
        async with trio.open_nursery() as nursery:
            with (rig.home / "auth.json.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                nursery.start_soon(refresh_into, got, rig.login(), old)
                await trio.testing.wait_all_tasks_blocked()
                write_auth_json(rig.home, auth_json("chatgpt", rig.chatgpt.logins))
        assert got == [rig.on_disk()] != [old]
        assert rig.chatgpt.token_requests == []


async def test_waiting_for_the_lock_can_be_cancelled(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        with holding(rig.home / "auth.json.lock"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rig.login().refresh, rig.on_disk())
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        assert rig.chatgpt.token_requests == []


@pytest.mark.parametrize("what", ["link", "directory", "no home"])
async def test_a_lock_file_that_cannot_be_opened_is_reported(tmp_path: Path, what: str) -> None:
    """A link is not followed, and the token is not used."""
    bait = tmp_path / "bait"
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        lock = rig.home / "auth.json.lock"
        if what == "link":
            lock.symlink_to(bait)
        elif what == "directory":
            lock.mkdir()
        else:
            rig.home.rename(tmp_path / "moved")
        with pytest.raises(UpstreamError, match=r"auth\.json\.lock cannot be opened") as caught:
            await login.refresh(old)
        assert (caught.value.code, caught.value.severity) == ("refresh_failed", "fatal")
        assert str(tmp_path) not in caught.value.message
        assert not bait.exists()
        assert rig.chatgpt.token_requests == []
