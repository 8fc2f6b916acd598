"""Whatever a server may do wrong: it is mapped, it is bounded, and nothing is tried again after the first chunk."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from backends.openai_compatible.rig import called, rigged
from trio.testing import MockClock
from upstream.answers import CUT, RESET, Gate, Plain, Truncated, html, plain_json, refusal
from upstream.openai_chat import DEFAULT_TEXT, stream
from upstream.openai_chat_chunks import answer, call, chunk, text

from bridge.upstream.client import RETRIES

STORY = answer(text("one ", "two ", "three"))


@pytest.mark.parametrize(
    ("reply", "code", "status"),
    [
        (refusal(400, "context_length_exceeded", "too long"), "context_length_exceeded", 400),
        (refusal(401, "invalid_api_key", "who?"), "upstream_unauthorized", 401),
        (refusal(403, None, "not you"), "upstream_forbidden", 403),
        (refusal(404, "model_not_found", "no such model"), "model_not_found", 404),
        (refusal(429, "insufficient_quota", "no money"), "insufficient_quota", 429),
        (plain_json(404, {"error": "model 'x' not found, try pulling it first"}), "model_not_found", 404),
        (
            plain_json(400, {"object": "error", "message": "vLLM says no", "type": "BadRequestError"}),
            "BadRequestError",
            400,
        ),
        (html(403, "go away"), "upstream_forbidden", 403),
        (Plain(302, b"", {"location": "http://127.0.0.1:9/"}), "upstream_error", 502),
        (html(200), "upstream_error", 502),
    ],
)
async def test_a_refusal_is_told_at_once(reply: Any, code: str, status: int, autojump_clock: MockClock) -> None:
    async with rigged() as rig:
        rig.server.will(reply)
        error, result = await rig.failed()
        assert (error.code, error.http_status) == (code, status)
        assert (len(rig.statuses), result.text) == (1, "")


@pytest.mark.parametrize(
    "reply", [refusal(429, None, retry_after="2"), refusal(500), html(502), refusal(503), RESET, CUT, stream([RESET])]
)
async def test_what_may_pass_is_tried_again(reply: Any, autojump_clock: MockClock) -> None:
    async with rigged() as rig:
        rig.server.will(reply, reply)
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert len(rig.statuses) == 3


async def test_but_not_for_ever(autojump_clock: MockClock) -> None:
    async with rigged() as rig:
        rig.server.will(*[refusal(429, "rate_limit_exceeded", "slow down")] * 9)
        error, _ = await rig.failed()
        assert (error.code, error.severity, len(rig.statuses)) == ("rate_limit_exceeded", "transient", RETRIES + 1)


@pytest.mark.parametrize("fault", [RESET, CUT, "truncated", "end"])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
async def test_a_stream_that_breaks_keeps_its_text_and_is_not_tried_again(fault: Any, after: int) -> None:
    last = {"truncated": [Truncated(STORY[after])], "end": []}.get(fault, [fault])
    async with rigged() as rig:
        rig.server.will(stream([*STORY[:after], *last], done=False))
        error, result = await rig.failed()
        assert (error.code, error.severity) == ("stream_truncated", "transient")
        assert result.text == "one two three"[: 4 * (after - 1) if after < 4 else 13]
        assert (len(rig.statuses), result.usage) == (1, None)


@pytest.mark.parametrize("fault", [RESET, CUT, []])
async def test_calls_of_a_stream_that_breaks_are_not_told(fault: Any) -> None:
    chunks = answer(call("weather", "{}"), finish=None, usage=None)[:-1]
    async with rigged() as rig:
        rig.server.will(stream([*chunks, *([fault] if fault else [])], done=False))
        error, result = await rig.failed()
        assert (error.code, called(result)) == ("stream_truncated", [])


async def test_an_empty_body_is_tried_again(autojump_clock: MockClock) -> None:
    async with rigged() as rig:
        rig.server.will(stream([], done=False))
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert len(rig.statuses) == 2


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"error": {"message": "busy", "type": "server_error"}}, "upstream_error"),
        ({"error": {"message": "busy", "code": 429}}, "rate_limit_exceeded"),
        ({"error": "busy"}, "upstream_error"),
        (chunk({"content": ""}, "error", error={"code": 503, "message": "busy"}), "overloaded"),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
async def test_an_error_inside_a_stream(said: Any, code: str, before: int) -> None:
    async with rigged() as rig:
        rig.server.will(stream([*STORY[:before], said]))
        error, result = await rig.failed()
        assert (error.code, error.message) == (code, "busy")
        assert (result.text, len(rig.statuses)) == ("one " if before else "", 1)


async def test_an_error_as_json_with_status_200() -> None:
    async with rigged() as rig:
        rig.server.will(plain_json(200, {"error": {"message": "no credits left", "code": 402}}))
        error, _ = await rig.failed()
        assert "no credits left" in error.message


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"choices": 7}', b"{} {}"])
async def test_json_that_makes_no_sense(body: bytes) -> None:
    async with rigged() as rig:
        rig.server.will(Plain(200, body, {"content-type": "application/json"}))
        error, _ = await rig.failed()
        assert error.code in ("broken_event", "empty_response")


# The reader leaves the body half read, and httpx2's generators are found by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_chunk_that_makes_no_sense() -> None:
    async with rigged() as rig:
        rig.server.will(stream([*STORY[:2], b"data: {nonsense\n\n", *STORY[2:]]))
        error, result = await rig.failed()
        assert (error.code, result.text, len(rig.statuses)) == ("broken_event", "one ", 1)


async def test_our_key_is_not_repeated() -> None:
    """Some repeat what they refuse, in the status or in the stream."""
    async with rigged() as rig:
        key = rig.server.key
        rig.server.will(
            refusal(400, "bad", f"you sent {key}"),
            stream([{"error": f"you sent {key}"}]),
            stream(answer(text(f"{key}"))),
        )
        for _ in range(2):
            error, _ = await rig.failed()
            assert "[redacted]" in error.message
        assert (await rig.answered()).text == "[redacted]"


@pytest.mark.parametrize(("held", "limit"), [(0, "first_event"), (2, "idle")])
async def test_silence_has_a_limit(held: int, limit: str, autojump_clock: MockClock) -> None:
    gate = Gate()
    limits: dict[str, Any] = {limit: 5}
    async with rigged(**limits) as rig:
        rig.server.will(stream([*STORY[:held], gate, *STORY[held:]]))
        begun = trio.current_time()
        error, _ = await rig.failed()
        assert error.code == "backend_timeout"
        assert trio.current_time() - begun == pytest.approx(5, abs=0.5)
        gate.open()


async def test_comments_are_no_beginning(autojump_clock: MockClock) -> None:
    """A server may say that it is still there for as long as it likes; something must come of it."""
    gate = Gate()
    async with rigged(first_event=5) as rig:
        rig.server.will(stream([b": OPENROUTER PROCESSING\n\n", gate]))
        error, _ = await rig.failed()
        assert error.code == "backend_timeout"
        gate.open()
