"""A new login that cannot be written is kept by the program, and written as soon as that is possible."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from auth.login_rig import Rig, rigged
from upstream.answers import plain_json
from upstream.tokens import assert_no_secrets, auth_json, write_auth_json

from bridge.upstream.codex import NotLoggedIn
from bridge.upstream.login import Login


def block_writing(rig: Rig) -> Path:
    """Something that is in the way of the new file, until it is removed."""
    obstacle = rig.home / ".auth.json.new"
    obstacle.mkdir()
    return obstacle


async def test_a_login_that_cannot_be_written_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log tells it, without a token."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        first = login.current()
        block_writing(rig)
        second = await login.refresh(first)
        assert {second.token} == rig.chatgpt.logins.access
        assert login.current() == await login.refresh(first) == second
        assert rig.on_disk() == first
        (told,) = caplog.records
        assert told.levelno == logging.WARNING
        assert "cannot write auth.json" in told.getMessage()
        assert_no_secrets(told.getMessage())


async def test_logins_that_cannot_be_written_follow_each_other(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        tried = [login.current()]
        obstacle = block_writing(rig)
        for _ in range(3):
            tried.append(await login.refresh(tried[-1]))
            assert {tried[-1].token} == rig.chatgpt.logins.access
            assert login.current() == tried[-1]
        assert rig.on_disk() == tried[0]
        obstacle.rmdir()
        last = await login.refresh(tried[-1])
        assert rig.on_disk() == login.current() == last
        assert rig.chatgpt.logins.uses == {each.refresh_token: 1 for each in tried}


async def test_a_newer_login_on_disk_wins_over_one_that_could_not_be_written(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        block_writing(rig)
        second = await login.refresh(login.current())
        write_auth_json(rig.home, auth_json("chatgpt", rig.chatgpt.logins))
        assert await login.refresh(second) == login.current() == rig.on_disk() != second


async def test_a_write_that_failed_is_tried_again(tmp_path: Path) -> None:
    """As soon as somebody looks at the login; nothing is refreshed for that."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        first = login.current()
        obstacle = block_writing(rig)
        second = await login.refresh(first)
        assert login.current() == second
        assert rig.on_disk() == first
        obstacle.rmdir()
        assert login.current() == await login.refresh(first) == rig.on_disk() == second
        assert rig.chatgpt.logins.uses == {first.refresh_token: 1}


async def test_a_login_that_could_not_be_written_keeps_what_an_answer_lacks(tmp_path: Path) -> None:
    """The refresh token on disk is older, and used up."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        block_writing(rig)
        second = await login.refresh(login.current())
        rig.chatgpt.token_script.append(plain_json(200, {"access_token": "third"}))
        third = await login.refresh(second)
        assert third == login.current() == Login("chatgpt", "third", second.refresh_token, second.account_id)


async def test_an_older_login_on_disk_does_not_replace_a_token_that_was_used(tmp_path: Path) -> None:
    """It is the one that was refreshed before; who is asked to log in gets to know why."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        first = login.current()
        block_writing(rig)
        second = await login.refresh(first)
        rig.chatgpt.logins.states[second.refresh_token or ""] = "used"
        with pytest.raises(NotLoggedIn) as refused:
            await login.refresh(second)
        assert refused.value.code == "refresh_token_reused"
        assert rig.on_disk() == first


@pytest.mark.parametrize("written_since", [False, True])
async def test_a_new_login_is_kept_after_a_write_that_failed(tmp_path: Path, written_since: bool) -> None:
    """Until that write was made up for, and later: it allows nobody to overwrite what others write."""
    async with rigged(tmp_path) as rig:
        login = rig.login()
        obstacle = block_writing(rig)
        second = await login.refresh(login.current())
        if written_since:
            obstacle.rmdir()
            assert await login.refresh(second) == rig.on_disk()
        anew = {"access_token": "anew", "refresh_token": "anew-too", "id_token": "anew-as-well"}
        logged_in = auth_json("chatgpt", rig.chatgpt.logins, anew)

        def log_in() -> None:
            write_auth_json(rig.home, logged_in)
            if not written_since:
                obstacle.rmdir()

        assert await rig.changed_while_asking(log_in, login) == login.current() == rig.on_disk()
        assert json.loads(rig.path.read_bytes()) == logged_in
