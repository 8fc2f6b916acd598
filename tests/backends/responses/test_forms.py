"""A streamed answer in every form that its bytes can have: the same answer comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from backends.upstream.rig import rigged
from upstream.answers import KEEPALIVE, Stream
from upstream.events import (
    NOTHING,
    answer,
    call,
    completed,
    error,
    failed,
    incomplete,
    padding,
    reasoning,
    search,
    text,
)

from bridge.core.events import ToolCall, Usage

STORY = answer(
    reasoning("thinking"), search("weather"), text("é", "\u2028 ", "<&>😀"), call("add", '{"a"', ":2}"), tag="story"
)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"chunk": 1},
        {"chunk": 7},
        {"line_end": "\r\n"},
        {"line_end": "\r\n", "chunk": 1},
        {"names": False},
        {"done": True},
        {"gzip": True},
        {"gzip": True, "chunk": 1},
        {"headers": {"content-type": "application/octet-stream"}},
        {"names": False, "done": True, "line_end": "\r\n", "gzip": True, "chunk": 3},
    ],
    ids=str,
)
async def test_every_form_gives_the_same_answer(tmp_path: Path, form: Any) -> None:
    async with rigged(tmp_path) as rig:
        story = STORY[10:] if form.get("chunk") == 1 else STORY
        commented = [part for event in story for part in (KEEPALIVE, event)]
        rig.chatgpt.will(Stream(story), Stream(commented, **form))
        plain, other = await rig.answered(), await rig.answered()
        assert other == plain
        assert plain.text == "é\u2028 <&>😀"
        assert [call.arguments for call in plain.calls] == ['{"a":2}']
        assert rig.traced[: len(story)] == rig.traced[len(story) :]


async def test_an_event_may_be_spread_over_several_lines(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        spread = b'data: {"type": "response.output_text.delta",\ndata:   "item_id": "m",\ndata: "delta": "a"}\n\n'
        rig.chatgpt.will(Stream([spread, answer()[-1]]))
        assert (await rig.answered()).text == "a"


async def test_a_stream_may_end_without_its_last_blank_line(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        end = Stream([]).encode(STORY[-1]).rstrip(b"\n")
        rig.chatgpt.will(Stream([*STORY[:-1], end]))
        assert (await rig.answered()).text == "é\u2028 <&>😀"


@pytest.mark.parametrize(
    ("size", "where"), [(20_000_000, "unknown"), (20_000_000, "delta"), (33 * 1024 * 1024, "output")]
)
async def test_one_line_may_be_large(tmp_path: Path, size: int, where: str) -> None:
    """Also where it is compressed, or where nobody knows what it is."""
    said = "x" * size
    parts = {
        "unknown": [padding(size), *answer(text("a"))],
        "delta": [{"type": "response.output_text.delta", "item_id": "m", "delta": said}, answer()[-1]],
        "output": answer(text(said))[-1:],
    }[where]
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(parts, gzip=where == "unknown"))
        assert (await rig.answered()).text == ("a" if where == "unknown" else said)


async def test_a_line_beyond_all_limits_is_refused(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*answer(text("a"))[:5], b"data: " + b"x" * 66 * 1024 * 1024]))
        failure, result = await rig.failed()
        assert (failure.code, result.text) == ("message_too_large", "a")
        assert len(rig.statuses) == 1


# Ends


ERRORS = [
    ("server_error", "upstream_error", 502),
    ("rate_limit_exceeded", "rate_limit_exceeded", 429),
    ("usage_limit_reached", "insufficient_quota", 429),
    ("context_length_exceeded", "context_length_exceeded", 400),
    ("server_is_overloaded", "overloaded", 503),
    (None, "upstream_error", 502),
]
"""The provider's code, ours, and the HTTP status."""


@pytest.mark.parametrize("nested", [False, True])
async def test_an_error_event_is_a_failure_that_keeps_its_text(tmp_path: Path, nested: bool) -> None:
    async with rigged(tmp_path) as rig:
        for code, ours, status in ERRORS:
            rig.chatgpt.will(Stream(answer(text("so far"), end=error(code, "what went wrong", nested=nested))))
            failure, result = await rig.failed()
            assert (failure.code, failure.http_status, failure.message) == (ours, status, "what went wrong")
            assert result.text == "so far"
        assert len(rig.statuses) == len(ERRORS)


async def test_a_failed_response_is_a_failure_that_keeps_its_text(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(answer(text("so far"), end=failed("server_error", "it broke"))))
        failure, result = await rig.failed()
        assert (failure.code, failure.message, result.text) == ("upstream_error", "it broke", "so far")


@pytest.mark.parametrize("said", [{}, {"error": None}, {"error": {}}, {"error": {"message": None}}], ids=str)
async def test_a_failure_without_words_is_one_all_the_same(tmp_path: Path, said: Any) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([{"type": "response.failed", "response": said}]), Stream([{"type": "error", **said}]))
        for _ in range(2):
            failure, _ = await rig.failed()
            assert failure.code == "upstream_error"
            assert "without saying why" in failure.message


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter", "something new"])
async def test_an_incomplete_response_keeps_its_text_and_reason(tmp_path: Path, reason: str) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(answer(text("so far"), end=incomplete(reason))))
        result = await rig.ask()
        assert result.end is not None
        assert (result.end.outcome, result.end.reason) == ("incomplete", reason)
        assert result.text == "so far"
        assert result.usage == Usage(11, 3, 7, 2)


@pytest.mark.parametrize("details", [None, {}, {"reason": None}], ids=str)
async def test_an_incomplete_response_without_a_reason(tmp_path: Path, details: Any) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([{"type": "response.incomplete", "response": {"incomplete_details": details}}]))
        result = await rig.ask()
        assert result.end is not None
        assert (result.end.outcome, result.end.reason) == ("incomplete", "unknown")


async def test_no_end_is_a_failure(tmp_path: Path) -> None:
    """`[DONE]` is no end either: it says nothing of how it went."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(*[Stream(answer(text("so far"), end=NOTHING), done=done) for done in (False, True)])
        for _ in range(2):
            failure, result = await rig.failed()
            assert (failure.code, result.text) == ("stream_truncated", "so far")


async def test_nothing_counts_after_the_end(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*answer(text("first")), *answer(text("second")), b"data: {broken\n\n", *STORY]))
        assert (await rig.answered()).text == "first"


@pytest.mark.parametrize(
    "items",
    [
        [],
        [text()],
        [reasoning("hm")],
        [search("x")],
        pytest.param([text("")]),
    ],
    ids=["nothing", "an empty message", "a thought", "a search", "an empty delta"],
)
async def test_an_empty_answer_is_an_error(tmp_path: Path, items: list[Any]) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(answer(*items)))
        failure, _ = await rig.failed()
        assert failure.code == "empty_response"


async def test_usage_is_told_with_its_cached_tokens(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(answer(text("a"), end=completed(input=100, cached=64, reasoning=5))))
        assert (await rig.answered()).usage == Usage(100, 64, 7, 5)
        bare = {"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 2}}}
        rig.chatgpt.will(Stream([*answer(text("a"))[:-1], bare]))
        assert (await rig.answered()).usage == Usage(1, 0, 2, 0)
        rig.chatgpt.will(Stream([*answer(text("a"))[:-1], {"type": "response.completed", "response": {}}]))
        assert (await rig.answered()).usage is None


# Events that make no sense


BROKEN = [
    b"{",
    b"7",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b"\xff",
    b"{" * 100_000,
    b'{"type": "response.output_text.delta", "item_id": "m"}',
    b'{"type": "response.output_text.delta", "item_id": "m", "delta": 7}',
    b'{"type": "response.output_text.delta", "item_id": "m", "delta": null}',
    b'{"type": "response.reasoning_summary_text.delta", "item_id": "m", "delta": "a", "summary_index": "x"}',
    b'{"type": "response.function_call_arguments.delta", "item_id": "m", "delta": {}}',
    b'{"type": "response.output_item.done"}',
    b'{"type": "response.output_item.done", "item": "x"}',
    b'{"type": "response.output_item.done", "item": {"type": "function_call", "arguments": "{}"}}',
    b'{"type": "response.output_item.done", "item": {"type": "function_call", "call_id": 7, "name": "f"}}',
    b'{"type": "response.output_item.done", "item": {"type": "function_call", "call_id": "c", "name": null}}',
    b'{"type": "response.output_item.done", "item": {"type": "message", "content": ["a"]}}',
    b'{"type": "response.output_item.done", "item": {"type": "reasoning", "summary": [{}]}}',
    b'{"type": "response.completed"}',
    b'{"type": "response.completed", "response": null}',
    b'{"type": "response.completed", "response": {"usage": {}}}',
    b'{"type": "response.completed", "response": {"usage": {"input_tokens": "x", "output_tokens": 1}}}',
    b'{"type": "response.completed", "response": {"output": 7}}',
    b'{"type": "response.incomplete", "response": {"incomplete_details": "x"}}',
    b'{"type": "response.failed", "response": {"error": "x"}}',
]


async def test_a_broken_event_is_a_failure_that_keeps_its_text(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        for number, broken in enumerate(BROKEN, 1):
            rig.chatgpt.will(Stream([*answer(text("so far", "never"))[:5], b"data: " + broken + b"\n\n", *STORY]))
            failure, result = await rig.failed()
            assert (failure.code, result.text) == ("broken_event", "so far"), broken
            assert len(rig.statuses) == number


async def test_unknown_events_and_items_are_ignored(tmp_path: Path) -> None:
    unknown: list[Any] = [
        {"type": "response.surprise", "delta": 7},
        {"type": ""},
        {"type": "response.output_item.done", "item": {"type": "surprise", "id": "x"}},
        {"type": "response.output_item.done", "item": {}},
        {"type": "response.output_item.added", "item": None},
        {"type": "codex.rate_limits", "rate_limits": {"primary": {}}},
    ]
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*unknown, *STORY[:6], *unknown, *STORY[6:]]))
        result = await rig.answered()
        assert result.text == "é\u2028 <&>😀"
        assert [type(output) for output in result.outputs].count(ToolCall) == 1
