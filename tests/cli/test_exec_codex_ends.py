"""`exec --backend codex` when something goes wrong: one error, last, and an exit code; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from cli.direct import ADD, HI, Direct, directly
from cli.exec.command import Ran, finish
from upstream.answers import RESET, Gate, Stream, Truncated, html, refusal, usage_limit
from upstream.chatgpt import DEFAULT_TEXT
from upstream.events import NOTHING, answer, error, failed, incomplete, padding, text
from upstream.tokens import assert_no_secrets

from bridge.errors import LOG_IN

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

STORY = answer(text("one ", "two"))


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Direct]:
    with directly(tmp_path) as ready:
        yield ready


# Ends of a stream


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (Stream(answer(text("one ", "two"), end=failed("server_error"))), "upstream_error", "one two"),
        (Stream(answer(text("one ", "two"), end=error("server_error"))), "upstream_error", "one two"),
        (Stream(answer(text("one ", "two"), end=incomplete())), "max_output_tokens", "one two"),
        (Stream(answer(text("one ", "two"), end=NOTHING)), "stream_truncated", "one two"),
        (Stream([*STORY[:5], RESET]), "stream_truncated", "one "),
        (Stream([*STORY[:5], Truncated(STORY[5])]), "stream_truncated", "one "),
        (Stream([*STORY[:5], b"data: {\n\n"]), "broken_event", "one "),
        (Stream(answer()), "empty_response", ""),
        (refusal(400, "context_length_exceeded"), "context_length_exceeded", ""),
        (html(200), "upstream_error", ""),
        (usage_limit(), "insufficient_quota", ""),
    ],
    ids=range(11),
)
def test_a_bad_end_is_an_error_and_never_completed(direct: Direct, reply: Any, code: str, said: str) -> None:
    direct.chatgpt.will(reply)
    ran = direct.run(*HI, "--json")
    ran.failed(code)
    assert ran.text == said
    assert len(direct.statuses) == 1
    assert_no_secrets(ran)


def test_a_bad_end_in_text_mode(direct: Direct) -> None:
    """What was said, its newline, and one line on stderr."""
    direct.chatgpt.will(Stream(STORY[:5]), Stream(answer(text("one\n"), end=incomplete())), refusal(403))
    for stdout in (b"one \n", b"one\n", b""):
        ran = direct.run(*HI)
        assert (ran.code, ran.stdout) == (1, stdout)
        assert ran.stderr.startswith("error: ")
        assert ran.stderr.count("\n") == 1


def test_what_passes_is_tried_again(direct: Direct) -> None:
    direct.chatgpt.will(refusal(503), Stream([RESET]), refusal(429, None, retry_after_ms="1"))
    assert direct.run(*HI, "--json").text == DEFAULT_TEXT
    assert direct.statuses == [503, 200, 429, 200]
    assert len({request.raw for request in direct.chatgpt.requests}) == 1


def test_a_pause_that_is_too_long_is_told(direct: Direct) -> None:
    direct.chatgpt.will(refusal(429, None, "busy", retry_after="60"))
    assert "60" in direct.run(*HI, "--json").failed("rate_limit_exceeded")


def test_times_are_settings(direct: Direct) -> None:
    direct.chatgpt.will(Stream([Gate()]), Stream([*STORY[:5], Gate()]), Stream([*STORY[:5], Gate()]))
    ran = direct.run(*HI, "--json", PROXY_FIRST_EVENT_TIMEOUT="1")
    assert "1 s" in ran.failed("backend_timeout")
    ran = direct.run(*HI, "--json", PROXY_IDLE_TIMEOUT="1.5")
    assert "sent nothing more" in ran.failed("backend_timeout")
    assert ran.text == "one "
    ran = direct.run(*HI, "--json", "--timeout", "3")
    ran.failed("timeout")
    direct.chatgpt.wait_for(lambda: len(direct.chatgpt.gone) == 3)


# Logins


def test_no_login(direct: Direct) -> None:
    direct.auth.unlink()
    ran = direct.run(*HI, "--json")
    assert ran.failed("codex_not_logged_in") == f"Codex is not logged in. {LOG_IN}"
    assert len(ran.events) == 1
    assert direct.chatgpt.requests == []


@pytest.mark.parametrize("form", ["chatgpt", "chatgpt_object", "no_mode"])
def test_a_refresh_keeps_everything_else(tmp_path: Path, form: Any) -> None:
    with directly(tmp_path, form, surprise={"kept": [1, None]}, agent_identity="x") as direct:
        before = json.loads(direct.auth.read_bytes())
        direct.chatgpt.logins.expire_access()
        assert direct.run(*HI, "--json").text == DEFAULT_TEXT
        assert direct.statuses == [401, 200]
        after = json.loads(direct.auth.read_bytes())
        assert {after["tokens"]["access_token"]} == direct.chatgpt.logins.access
        assert list(after) == list(before)
        assert after["last_refresh"] > before["last_refresh"]
        same = {name for name in before if before[name] == after[name]}
        assert same == before.keys() - {"tokens", "last_refresh"}
        assert type(after["tokens"]["id_token"]) is type(before["tokens"]["id_token"])
        assert after["tokens"]["account_id"] == before["tokens"]["account_id"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in direct.home.iterdir()} == {0o600}
        assert direct.run(*HI).code == 0
        assert direct.statuses == [401, 200, 200]


@pytest.mark.parametrize(
    ("state", "code"),
    [("expired", "refresh_token_expired"), ("used", "refresh_token_reused"), ("revoked", "refresh_token_revoked")],
)
def test_a_login_that_cannot_be_refreshed(direct: Direct, state: Any, code: str) -> None:
    direct.chatgpt.logins.expire_access()
    for token in direct.chatgpt.logins.states:
        direct.chatgpt.logins.states[token] = state
    ran = direct.run(*HI, "--json")
    assert ran.failed(code).endswith(LOG_IN)
    assert_no_secrets(ran)


def test_two_runs_at_once_use_a_one_time_token_once(tmp_path: Path) -> None:
    with directly(tmp_path) as direct:
        direct.chatgpt.logins.expire_access()
        gate = direct.chatgpt.token_gate = Gate()
        with direct.command.start(*HI, "--json") as one, direct.command.start(*HI, "--json") as other:
            direct.chatgpt.wait_for(lambda: gate.held and direct.statuses == [401, 401])
            gate.open()
            assert finish(one).text == finish(other).text == DEFAULT_TEXT
        assert list(direct.chatgpt.logins.uses.values()) == [1]
        assert sorted(map(str, direct.statuses)) == ["200", "200", "401", "401"]


# Leaving


def stopped(direct: Direct) -> Ran:
    """A run that is interrupted while the backend holds its answer back, and must be gone within a second."""
    with direct.command.start(*HI, "--json") as process:
        assert process.stdout is not None
        begun = b"".join(process.stdout.readline() for _ in range(4))
        sent = monotonic()
        process.send_signal(signal.SIGINT)
        direct.chatgpt.wait_for(lambda: direct.chatgpt.gone)
        left = direct.chatgpt.gone[-1].left_at
        assert left is not None
        assert left - sent < 1
        ran = finish(process, seconds=8)
    return Ran(ran.code, begun + ran.stdout, ran.stderr)


def test_a_signal_closes_the_connection(tmp_path: Path) -> None:
    with directly(tmp_path) as direct:
        direct.chatgpt.will(Stream([*STORY[:5], Gate()]))
        stopped(direct).failed("interrupted", exit_code=130)
        assert len(direct.statuses) == 1


def test_a_signal_while_the_login_is_refreshed_loses_no_login(tmp_path: Path) -> None:
    with directly(tmp_path) as direct:
        direct.chatgpt.logins.expire_access()
        gate = direct.chatgpt.token_gate = Gate()
        with direct.command.start(*HI, "--json") as process:
            direct.chatgpt.wait_for(lambda: gate.held)
            process.send_signal(signal.SIGINT)
            gate.open()
            finish(process, seconds=8).failed("interrupted", exit_code=130)
        assert direct.statuses == [401]
        assert {json.loads(direct.auth.read_bytes())["tokens"]["access_token"]} == direct.chatgpt.logins.access


def test_a_reader_that_leaves_closes_the_connection(tmp_path: Path) -> None:
    """Quietly, and not with success."""
    with directly(tmp_path) as direct:
        gate = Gate()
        direct.chatgpt.will(Stream([*STORY[:5], gate, *[STORY[4]] * 10, Gate()]))
        reading, writing = os.pipe()
        with direct.command.start(*HI, stdout=writing) as process:
            os.close(writing)
            assert os.read(reading, 4) == b"one "
            os.close(reading)
            gate.open()
            direct.chatgpt.wait_for(lambda: direct.chatgpt.gone)
            ran = finish(process)
        assert (ran.code, ran.stderr) == (1, "")


# Mistakes of the place where it runs


@pytest.mark.parametrize(
    "variables",
    [
        {"ALL_PROXY": "socks5://127.0.0.1:9"},
        {"HTTPS_PROXY": "foo://127.0.0.1:9"},
        {"SSL_CERT_FILE": "/nowhere"},
        {"PROXY_CODEX_BASE_URL": "https://a..invalid"},
        {"PROXY_CODEX_BASE_URL": f"https://{'a' * 64}.invalid"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_one_line(direct: Direct, variables: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "PROXY_CODEX_BASE_URL": "https://upstream.invalid",
        "PROXY_FIRST_EVENT_TIMEOUT": "2",
        **variables,
    }
    ran = direct.run(*HI, "--json", **settings)
    assert ran.code in (1, 2)
    assert ran.events[-1]["code"] != "internal_error"
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("PROXY_CODEX_BASE_URL", "http://upstream.example/x"),
        ("PROXY_CODEX_API_BASE_URL", "http://upstream.example/x"),
        ("PROXY_CODEX_TOKEN_URL", "http://upstream.example/x"),
        ("PROXY_CODEX_BASE_URL", "https://user:canary@host"),
        ("PROXY_CODEX_TOKEN_URL", "https://host/?key=canary"),
    ],
)
def test_a_url_that_is_not_safe_is_a_wrong_setting(direct: Direct, variable: str, url: str) -> None:
    setting: dict[str, Any] = {variable: url}
    ran = direct.run(*HI, "--json", **setting)
    assert ran.failed("invalid_configuration", exit_code=2).startswith(f"{variable}: ")
    assert_no_secrets(ran)
    assert direct.chatgpt.requests == []


@pytest.mark.parametrize("name", ["auth.json.lock", ".auth.json.new"])
def test_a_codex_home_in_which_nothing_can_be_written(direct: Direct, name: str) -> None:
    """Before the one-time token is used, or without losing the login of this run."""
    (direct.home / name).mkdir()
    direct.chatgpt.logins.expire_access()
    ran = direct.run(*HI, "--json")
    assert "Traceback" not in ran.stderr
    if name == "auth.json.lock":
        ran.failed("refresh_failed")
        assert direct.chatgpt.token_requests == []
    else:
        ran.succeeded(silent=False)
        assert "cannot write auth.json" in ran.stderr
    assert_no_secrets(ran)


def test_a_flood_is_shown_whole(direct: Direct) -> None:
    """Of events that nobody knows, and of text."""
    flood = [*[padding(1_000_000)] * 5, *STORY[:4], *[STORY[4]] * 5_000, STORY[-1]]
    direct.chatgpt.will(Stream(flood, chunk=1 << 20))
    assert len(direct.run(*HI).stdout) == len("one ") * 5_000 + 1


def test_what_is_typed_wrong_is_not_sent(direct: Direct) -> None:
    direct.run(*HI, *ADD, "--tool-choice", "function:mul", "--json").failed("usage_error", exit_code=2)
    direct.run(*HI, "--provider-key", "", "--json").failed("usage_error", exit_code=2)
    assert direct.chatgpt.requests == []
