"""Refreshing a login against a real token endpoint, and without a word too many."""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from auth.login_rig import NOW, rigged
from upstream.answers import CUT, RESET, Gate, Plain, html, plain_json, refusal
from upstream.chatgpt import serving
from upstream.tokens import CHATGPT_FORMS, SAID, auth_json, write_auth_json

from bridge.errors import LOG_IN, UpstreamError
from bridge.upstream.codex import NotLoggedIn
from bridge.upstream.login import REFRESH_SECONDS, Login

# The good way


@pytest.mark.parametrize("form", CHATGPT_FORMS)
async def test_refused_tokens_are_replaced(tmp_path: Path, form: Any) -> None:
    async with rigged(tmp_path, form, surprise=[1]) as rig:
        before = json.loads(rig.path.read_bytes())
        login = rig.login()
        old = login.current()
        rig.chatgpt.logins.expire_access()
        new = await login.refresh(old)
        assert {new.token} == rig.chatgpt.logins.access
        assert (new.mode, new.account_id) == ("chatgpt", old.account_id)
        assert new.refresh_token != old.refresh_token
        assert rig.on_disk() == login.current() == new
        after = json.loads(rig.path.read_bytes())
        assert after["last_refresh"] == NOW
        assert after["surprise"] == [1]
        assert list(after) == list(before)
        assert type(after["tokens"]["id_token"]) is type(before["tokens"]["id_token"])
        assert {stat.S_IMODE(file.stat().st_mode) for file in rig.home.iterdir()} == {0o600}
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1}
        await login.refresh(new)
        assert rig.chatgpt.logins.uses == {old.refresh_token: 1, new.refresh_token: 1}


async def test_a_refresh_token_that_works_again_and_again_is_kept(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        old = rig.on_disk()
        rig.chatgpt.token_script.append(plain_json(200, {"access_token": "new", "refresh_token": None}))
        assert await rig.login().refresh(old) == Login("chatgpt", "new", old.refresh_token, old.account_id)


async def test_a_login_that_another_program_has_refreshed_is_only_read(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        write_auth_json(rig.home, auth_json("chatgpt_object", rig.chatgpt.logins))
        assert await login.refresh(old) == rig.on_disk() != old
        write_auth_json(rig.home, auth_json("apikey", rig.chatgpt.logins))
        assert await login.refresh(old) == Login("api_key", rig.chatgpt.logins.key)
        assert rig.chatgpt.token_requests == []


# The three refusals, and the others


@pytest.mark.parametrize("oauth_form", [False, True])
@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("expired", "refresh_token_expired"),
        ("used", "refresh_token_reused"),
        ("revoked", "refresh_token_revoked"),
    ],
)
async def test_each_refusal_has_its_own_code(tmp_path: Path, state: Any, code: str, oauth_form: bool) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.oauth_form = oauth_form
        rig.chatgpt.logins.states[rig.on_disk().refresh_token or ""] = state
        error, _ = await rig.refused()
        assert type(error) is NotLoggedIn
        assert (error.code, error.http_status, error.kind) == (code, 401, "authentication_error")
        assert error.message.startswith("Your access token could not be refreshed: ")
        assert error.message.endswith(LOG_IN)
        assert error.severity == "fatal"


@pytest.mark.parametrize(
    "answer",
    [
        refusal(400, "invalid_request", f"canary {SAID}"),
        plain_json(400, {"error": "invalid_grant"}),
        Plain(401, b"\xff\xfe" + SAID.encode()),
        Plain(401, b""),
        plain_json(400, [SAID] * 100_000),
    ],
    ids=range(5),
)
async def test_an_unknown_refusal_says_how_to_log_in(tmp_path: Path, answer: Plain) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_script.append(answer)
        error, _ = await rig.refused()
        assert type(error) is NotLoggedIn
        assert error.message.endswith(LOG_IN)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"error": {"code": "refresh_token_reused", "message": "It expired: it was revoked"}}, "refresh_token_reused"),
        (
            {"error": {"code": "refresh_token_invalidated", "message": "Your session has expired"}},
            "refresh_token_revoked",
        ),
        ({"error": {"code": "refresh_token_expired", "message": "It was already used"}}, "refresh_token_expired"),
        ({"error": {"code": "invalid_grant", "message": "It has already been used"}}, "refresh_token_reused"),
        ({"error": "invalid_grant", "error_description": "It has already been used"}, "refresh_token_reused"),
        ({"error": "invalid_grant", "error_description": "It was revoked"}, "refresh_token_revoked"),
        ({"code": "refresh_token_expired", "message": "It was revoked"}, "refresh_token_expired"),
    ],
    ids=range(7),
)
async def test_the_code_of_a_refusal_wins_over_its_message(tmp_path: Path, body: Any, code: str) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_script.append(plain_json(401, body))
        error, _ = await rig.refused()
        assert (type(error), error.code) == (NotLoggedIn, code)


async def test_a_key_that_is_refused_cannot_be_refreshed(tmp_path: Path) -> None:
    async with rigged(tmp_path, "apikey") as rig:
        error, _ = await rig.refused()
        assert error.message == f"The provider rejects the API key in auth.json. {LOG_IN}"
        assert rig.chatgpt.token_requests == []


async def test_tokens_without_a_refresh_token_cannot_be_refreshed(tmp_path: Path) -> None:
    async with rigged(tmp_path, tokens={"access_token": "canary", "id_token": "canary"}) as rig:
        error, _ = await rig.refused()
        assert isinstance(error, NotLoggedIn)
        assert "no refresh token" in error.message
        assert rig.chatgpt.token_requests == []


@pytest.mark.parametrize("token", ["\ud800", "canary\n", "canär", 7, ""], ids=ascii)
async def test_a_text_that_cannot_be_sent_is_not_a_refresh_token(tmp_path: Path, token: Any) -> None:
    """Half of a character, for one, stands in a JSON file like any other."""
    tokens = {"access_token": "canary", "id_token": "canary", "refresh_token": token}
    async with rigged(tmp_path, tokens=tokens) as rig:
        error, _ = await rig.refused()
        assert isinstance(error, NotLoggedIn)
        assert "no refresh token" in error.message
        assert rig.chatgpt.token_requests == []


@pytest.mark.parametrize("content", [None, b"{", b"{}"])
async def test_a_login_that_was_removed_is_not_refreshed(tmp_path: Path, content: bytes | None) -> None:
    async with rigged(tmp_path) as rig:
        login = rig.login()
        old = login.current()
        rig.path.unlink()
        if content is not None:
            rig.path.write_bytes(content)
        with pytest.raises(NotLoggedIn) as caught:
            await login.refresh(old)
        assert caught.value.message.endswith(LOG_IN)
        assert rig.chatgpt.token_requests == []
        assert rig.path.exists() == (content is not None)


# Trouble that passes


@pytest.mark.parametrize(
    "answer", [refusal(500, None, SAID), html(502, SAID), html(503), refusal(429), RESET, CUT], ids=range(6)
)
async def test_a_failing_endpoint_is_a_temporary_fault(tmp_path: Path, answer: Any) -> None:
    """It asks to try again, not to log in; and another attempt is as good as the first."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_script.append(answer)
        error, _ = await rig.refused()
        assert isinstance(error, UpstreamError)
        assert (error.code, error.severity, error.http_status) == ("refresh_failed", "transient", 502)
        assert error.message.endswith("Try again.")
        assert LOG_IN not in error.message
        assert {(await rig.login().refresh(rig.on_disk())).token} == rig.chatgpt.logins.access


@pytest.mark.parametrize(
    "answer",
    [
        html(403, "Just a moment: your link has expired"),
        html(401, "already revoked"),
        html(404),
        Plain(302, b"", {"location": "/elsewhere"}),
        Plain(408, b""),
    ],
    ids=["403", "401", "404", "302", "408"],
)
async def test_an_answer_of_another_server_does_not_say_to_log_in(tmp_path: Path, answer: Plain) -> None:
    """A machine in between or a wrong address: the login is as good as before."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_script.append(answer)
        error, _ = await rig.refused()
        assert (error.code, error.severity) == ("refresh_failed", "transient")
        assert LOG_IN not in error.message


async def test_an_endpoint_that_is_not_there_is_a_temporary_fault(tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with rigged(tmp_path) as rig:
        rig.chatgpt.url, url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}", rig.chatgpt.url
        await listener.aclose()
        error, _ = await rig.refused()
        assert (error.code, error.severity) == ("refresh_failed", "transient")
        rig.chatgpt.url = url


async def test_an_endpoint_that_is_silent_is_a_temporary_fault(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_gate = Gate()
        begun = trio.current_time()
        error, _ = await rig.refused()
        assert (error.code, error.severity) == ("refresh_failed", "transient")
        assert trio.current_time() - begun == pytest.approx(REFRESH_SECONDS, abs=1)
        await rig.chatgpt.until(lambda: rig.chatgpt.gone)


async def test_an_endpoint_that_answers_too_slowly_is_not_waited_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The limit is for the whole answer, and the lock is free again after it."""

    async def drip(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b" ")
                await trio.sleep(1)

    async with rigged(tmp_path) as rig, trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, drip, 0, host="127.0.0.1"))
        rig.chatgpt.url, url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}", rig.chatgpt.url
        begun = trio.current_time()
        error, _ = await rig.refused()
        assert (error.code, error.severity) == ("refresh_failed", "transient")
        assert trio.current_time() - begun == pytest.approx(REFRESH_SECONDS, abs=1)
        rig.chatgpt.url = url
        assert {(await rig.login().refresh(rig.on_disk())).token} == rig.chatgpt.logins.access
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"null", b"{}", b'{"access_token": 7}', b'{"access_token": ""}']
)
async def test_an_answer_without_a_token_changes_nothing(tmp_path: Path, body: bytes) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.token_script.append(Plain(200, body, {"content-type": "application/json"}))
        error, _ = await rig.refused()
        assert error.code == "refresh_failed"


@pytest.mark.parametrize("form", CHATGPT_FORMS)
@pytest.mark.parametrize("token", ["canary canary\n", "canär"])
async def test_a_new_token_that_cannot_be_sent_changes_nothing(tmp_path: Path, form: Any, token: str) -> None:
    """A key beside the tokens does not take their place, either."""
    async with rigged(tmp_path, form, OPENAI_API_KEY="sk-canary") as rig:
        rig.chatgpt.token_script.append(plain_json(200, {"access_token": token, "refresh_token": "canary"}))
        error, _ = await rig.refused()
        assert (error.code, error.severity) == ("refresh_failed", "transient")


async def test_a_refresh_token_is_sent_to_the_token_endpoint_only(tmp_path: Path) -> None:
    """A redirect is not followed."""
    async with rigged(tmp_path) as rig, serving() as elsewhere:
        rig.chatgpt.token_script.append(Plain(307, b"", {"location": elsewhere.token_url}))
        await rig.refused()
        assert elsewhere.token_requests == []
