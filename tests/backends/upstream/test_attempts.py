"""What is tried again and what is not: a refused login, a busy provider, a connection that breaks."""

from __future__ import annotations

import datetime
import email.utils
import json
from pathlib import Path
from typing import Any

import pytest
import trio
from backends.upstream.rig import Rig, rigged
from trio.testing import MockClock
from upstream.answers import CUT, RESET, Plain, Stream, Truncated, html, plain_json, refusal, usage_limit
from upstream.chatgpt import DEFAULT_TEXT, serving
from upstream.events import answer, error, text

from bridge.errors import LOG_IN
from bridge.upstream.client import FIRST_DELAY, LONGEST_DELAY, RETRIES

ALL_PAUSES = sum(FIRST_DELAY * 2**n for n in range(RETRIES))
"""Seconds between the attempts, with the rig's jitter."""


def token_on_disk(rig: Rig) -> str:
    return str(json.loads(rig.auth.read_bytes())["tokens"]["access_token"])


# A login that is refused


async def test_a_login_that_ran_out_is_refreshed_once_and_the_request_repeated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.expire_access()
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert rig.statuses == [401, 200]
        assert len(rig.chatgpt.token_requests) == 1
        first, second = rig.chatgpt.requests
        assert first.raw == second.raw
        assert second.headers["authorization"] == f"Bearer {token_on_disk(rig)}" != first.headers["authorization"]
        assert {name: value for name, value in first.headers.items() if name != "authorization"} == {
            name: value for name, value in second.headers.items() if name != "authorization"
        }
        assert len(rig.sent) == 1


async def test_a_refreshed_login_that_is_refused_again_is_an_error(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.expire_access()
        rig.chatgpt.will(refusal(401, "token_invalid", "who are you?"))
        failure, _ = await rig.failed()
        assert (failure.code, failure.http_status) == ("upstream_unauthorized", 401)
        assert rig.statuses == [401, 401]
        assert len(rig.chatgpt.token_requests) == 1


async def test_each_turn_may_refresh_for_itself(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        for _ in range(3):
            rig.chatgpt.logins.expire_access()
            await rig.answered()
        assert rig.statuses == [401, 200] * 3
        assert len(rig.chatgpt.token_requests) == 3


async def test_many_turns_at_once_refresh_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.expire_access()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(rig.answered)
        assert list(rig.chatgpt.logins.uses.values()) == [1]
        assert sorted(map(str, rig.statuses)) == ["200"] * 20 + ["401"] * 20


async def test_what_another_program_has_refreshed_is_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        stream = await rig.start()
        rig.chatgpt.logins.expire_access()
        rig.chatgpt.home(tmp_path)
        while not (events := await stream.next()):
            pass
        assert events
        stream.close()
        assert rig.statuses == [401, 200]
        assert rig.chatgpt.token_requests == []


@pytest.mark.parametrize("oauth_form", [False, True])
@pytest.mark.parametrize(
    ("state", "code"),
    [("expired", "refresh_token_expired"), ("used", "refresh_token_reused"), ("revoked", "refresh_token_revoked")],
)
async def test_a_login_that_cannot_be_refreshed_says_why_and_how_to_log_in(
    tmp_path: Path, state: Any, code: str, oauth_form: bool, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        logins = rig.chatgpt.logins
        logins.oauth_form = oauth_form
        logins.expire_access()
        for token in logins.states:
            logins.states[token] = state
        before = rig.auth.read_bytes()
        failure, _ = await rig.failed()
        assert (failure.code, failure.http_status, failure.severity) == (code, 401, "fatal")
        assert failure.message.endswith(LOG_IN)
        assert rig.statuses == [401]
        assert len(rig.chatgpt.token_requests) == 1
        assert rig.auth.read_bytes() == before


@pytest.mark.parametrize("trouble", [html(502), refusal(429), RESET, CUT], ids=range(4))
async def test_trouble_with_the_token_endpoint_asks_to_try_again(
    tmp_path: Path, trouble: Any, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.expire_access()
        rig.chatgpt.token_script.append(trouble)
        failure, _ = await rig.failed()
        assert (failure.code, failure.severity) == ("refresh_failed", "transient")
        assert LOG_IN not in failure.message
        assert rig.statuses == [401]
        assert (await rig.answered()).text == DEFAULT_TEXT


@pytest.mark.parametrize("form", ["apikey", "api_key", "no_mode_key"])
async def test_an_api_key_that_is_refused_cannot_be_refreshed(
    tmp_path: Path, form: Any, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path, form) as rig:
        rig.chatgpt.logins.keys = {"another"}
        failure, _ = await rig.failed()
        assert (failure.code, failure.http_status) == ("codex_not_logged_in", 401)
        assert failure.message.endswith(LOG_IN)
        assert rig.statuses == [401]
        assert rig.chatgpt.token_requests == []


async def test_a_refresh_is_no_retry(tmp_path: Path, autojump_clock: MockClock) -> None:
    """After it there are still as many attempts as without; and a 401 between two attempts is refreshed, too."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(503), refusal(401), *[refusal(503)] * (RETRIES - 1))
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert rig.statuses == [503, 401, 503, 503, 200]


# A provider that is busy or broken


PASSING: list[tuple[Any, str, int]] = [
    (refusal(500), "upstream_error", 502),
    (refusal(502), "upstream_error", 502),
    (refusal(503), "overloaded", 503),
    (refusal(504), "upstream_error", 502),
    (refusal(529, "overloaded_error"), "overloaded", 503),
    (refusal(500, "server_is_overloaded"), "overloaded", 503),
    (refusal(429, "rate_limit_exceeded"), "rate_limit_exceeded", 429),
    (Plain(500, b""), "upstream_error", 502),
    (html(502), "upstream_error", 502),
    (RESET, "upstream_unreachable", 502),
    (CUT, "upstream_unreachable", 502),
    (Stream([RESET]), "upstream_unreachable", 502),
    (Stream([CUT]), "upstream_unreachable", 502),
    (Stream([]), "stream_truncated", 502),
    (Stream([Truncated(answer(text("a"))[0])]), "upstream_unreachable", 502),
    (Stream([b": hello\n\n", RESET]), "upstream_unreachable", 502),
]
"""What the provider does, and the code and status of the error when it goes on doing so."""


async def test_trouble_before_the_first_event_is_tried_again_three_times(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        for reply, code, status in PASSING:
            rig.chatgpt.requests.clear()
            rig.chatgpt.will(*[reply] * RETRIES)
            begun = trio.current_time()
            assert (await rig.answered()).text == DEFAULT_TEXT, reply
            assert len(rig.statuses) == RETRIES + 1
            assert trio.current_time() - begun == pytest.approx(ALL_PAUSES)
            rig.chatgpt.will(*[reply] * (RETRIES + 1))
            failure, result = await rig.failed()
            assert (failure.code, failure.http_status, failure.severity) == (code, status, "transient"), reply
            assert len(rig.statuses) == 2 * (RETRIES + 1)
            assert result.outputs == []
            assert not rig.chatgpt.script


async def test_different_troubles_count_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(503), RESET, html(502), refusal(500, None, "the fourth"))
        failure, _ = await rig.failed()
        assert failure.message == "the fourth"


async def test_nobody_there_is_tried_again_and_told(tmp_path: Path, autojump_clock: MockClock) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nobody = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    await listener.aclose()
    async with rigged(tmp_path, base_url=nobody) as rig:
        begun = trio.current_time()
        failure, _ = await rig.failed()
        assert (failure.code, failure.severity) == ("upstream_unreachable", "transient")
        assert trio.current_time() - begun == pytest.approx(ALL_PAUSES)


FINAL: list[tuple[Any, str, int, str]] = [
    (refusal(400, "context_length_exceeded", "too long"), "context_length_exceeded", 400, "too long"),
    (refusal(404, "model_not_found", "no such model"), "model_not_found", 404, "no such model"),
    (plain_json(400, {"detail": "not supported"}), "upstream_rejected", 400, "not supported"),
    (plain_json(422, {"detail": [{"msg": "x"}]}), "upstream_rejected", 400, "422"),
    (Plain(400, b"plain words\n of a refusal"), "upstream_rejected", 400, "plain words of a refusal"),
    (Plain(418, b""), "upstream_rejected", 400, "418"),
    (refusal(403, "forbidden", "not for you"), "upstream_forbidden", 403, "not for you"),
    (html(403, "Just a moment"), "upstream_forbidden", 403, "web page"),
    (html(404), "upstream_rejected", 400, "web page"),
    (html(200), "upstream_error", 502, "web page"),
    (plain_json(201, {}), "upstream_rejected", 400, "201"),
    (usage_limit(3600), "insufficient_quota", 429, "The usage limit has been reached"),
    (refusal(429, "insufficient_quota", "pay first"), "insufficient_quota", 429, "pay first"),
    (plain_json(429, {"error": {"type": "usage_not_included"}}), "insufficient_quota", 429, "429"),
    (Stream(answer(end=error("rate_limit_exceeded", "slower"))), "rate_limit_exceeded", 429, "slower"),
]
"""What the provider says, the code and status of the error, and some of its words."""


async def test_what_a_moment_does_not_mend_is_told_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        for number, (reply, code, status, said) in enumerate(FINAL, 1):
            rig.chatgpt.will(reply)
            begun = trio.current_time()
            failure, _ = await rig.failed()
            assert (failure.code, failure.http_status) == (code, status), reply
            assert said in failure.message
            assert len(rig.statuses) == number
            assert trio.current_time() == begun


async def test_a_redirect_is_not_followed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig, serving() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            rig.chatgpt.will(Plain(status, b"", {"location": f"{elsewhere.base_url}/responses?canary=1"}))
            failure, _ = await rig.failed()
            assert (failure.code, failure.severity) == ("upstream_error", "fatal")
            assert str(status) in failure.message
            assert "base URL" in failure.message
        assert rig.statuses == [301, 302, 303, 307, 308]
        assert (elsewhere.requests, elsewhere.faults) == ([], [])


# Retry-After


def in_seconds(seconds: float) -> str:
    """A date for the header."""
    return email.utils.format_datetime(
        datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds), usegmt=True
    )


PAUSES: list[tuple[dict[str, str], float]] = [
    ({"retry_after": "7"}, 7),
    ({"retry_after": "0"}, 0),
    ({"retry_after": "0.5"}, 0.5),
    ({"retry_after_ms": "1500"}, 1.5),
    ({"retry_after_ms": "20", "retry_after": "25"}, 0.02),
    ({"retry_after": str(int(LONGEST_DELAY))}, LONGEST_DELAY),
    ({"retry_after": "soon"}, FIRST_DELAY),
    ({"retry_after": "-3"}, FIRST_DELAY),
    ({"retry_after": "nan"}, FIRST_DELAY),
    ({}, FIRST_DELAY),
]
"""What the provider asks for, and how long it is waited."""


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_retry_after_is_respected(tmp_path: Path, status: int, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        for headers, waited in PAUSES:
            rig.chatgpt.will(refusal(status, None, **headers))
            begun = trio.current_time()
            await rig.answered()
            assert trio.current_time() - begun == pytest.approx(waited, abs=1e-6), headers
        assert rig.statuses == [status, 200] * len(PAUSES)


async def test_retry_after_may_be_a_date(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(429, None, retry_after=in_seconds(20)), refusal(429, None, retry_after=in_seconds(-9)))
        begun = trio.current_time()
        await rig.answered()
        assert trio.current_time() - begun == pytest.approx(20, abs=3)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_longer_pause_is_told_and_not_made(tmp_path: Path, status: int, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path) as rig:
        for headers in ({"retry_after": "31"}, {"retry_after_ms": "3600000"}, {"retry_after": in_seconds(3600)}):
            rig.chatgpt.will(refusal(status, None, "busy", **headers))
            begun = trio.current_time()
            failure, _ = await rig.failed()
            assert failure.code in ("rate_limit_exceeded", "overloaded")
            assert failure.retry_after is not None
            assert failure.retry_after > LONGEST_DELAY
            assert trio.current_time() == begun
        assert rig.statuses == [status] * 3


# After the first event nothing is tried again

STORY = answer(text("one ", "two ", "three"))
SAID = {4: "", 5: "one ", 6: "one two ", 7: "one two three"}
"""What was said when the stream breaks after so many events."""


@pytest.mark.parametrize("fault", [RESET, CUT, "truncated", "end"])
async def test_a_stream_that_breaks_is_a_failure_that_keeps_its_text(
    tmp_path: Path, fault: Any, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        for number, after in enumerate((1, 4, 5, 6, 7, len(STORY) - 1), 1):
            rig.traced.clear()
            last = {"truncated": [Truncated(STORY[after])], "end": []}.get(fault, [fault])
            rig.chatgpt.will(Stream([*STORY[:after], *last]))
            failure, result = await rig.failed()
            assert (failure.code, failure.severity) == ("stream_truncated", "transient")
            assert result.text == SAID.get(after, "" if after < 4 else "one two three")
            assert result.usage is None
            assert len(rig.statuses) == number
            assert len(rig.traced) == after


@pytest.mark.parametrize("kind", ["response.created", "response.surprise"])
async def test_any_event_at_all_is_a_beginning(tmp_path: Path, kind: str, autojump_clock: MockClock) -> None:
    """Whatever it says: the provider has begun to count tokens."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([{"type": kind, "response": {}}, RESET]))
        failure, _ = await rig.failed()
        assert failure.code == "stream_truncated"
        assert len(rig.statuses) == 1
