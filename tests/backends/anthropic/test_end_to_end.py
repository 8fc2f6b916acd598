"""Turns over the loopback: what goes out is what the API takes, and what comes back is told."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from backends.anthropic.rig import ADD, PIXEL, rigged, said, turn
from trio.testing import MockClock
from upstream.answers import CUT, RESET, Gate, Stream, Truncated, html
from upstream.anthropic_events import NOTHING, answer, error, redacted, search, text, thinking, tool_use
from upstream.anthropic_server import DEFAULT_TEXT, KEY, refusal
from upstream.noting import collect

from bridge.app.tool_loop import follow_up
from bridge.core.collect import ReasoningOutput
from bridge.core.events import TextDelta, TurnEvent, Usage, WebSearch
from bridge.core.items import Image, Message, RawItem, Text, ToolChoice, WebSearchOptions
from bridge.protocols.messages.models import thought_in


async def test_a_text() -> None:
    async with rigged() as rig:
        result = await rig.answered(turn(instructions="be kind"))
        assert result.text == DEFAULT_TEXT
        assert result.usage == Usage(16, 3, 7, cache_write=2)
        (request,) = rig.api.requests
        assert request.headers["x-api-key"] == KEY
        assert "authorization" not in request.headers
        assert request.raw == rig.sent[0]
        assert rig.bodies[0]["system"][0]["text"] == "be kind"


@pytest.mark.parametrize("form", [{"chunk": 1}, {"line_end": "\r\n"}, {"names": False}, {"gzip": True, "chunk": 7}])
async def test_however_it_comes(form: dict[str, object]) -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(text("é", "\u2028", "😀")), **form))  # type: ignore[arg-type]
        assert (await rig.answered()).text == "é\u2028😀"


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-5-5"])
async def test_thoughts_go_back_with_the_results_of_the_calls_that_followed_them(model: str) -> None:
    """Two calls at once; the model goes on where it was, with its thoughts, signed as they were."""
    async with rigged() as rig:
        rig.api.will(
            Stream(
                answer(
                    thinking("let me ", "think", signature="c2ln"),
                    redacted("aGlkZGVu"),
                    text("Adding."),
                    tool_use("add", '{"a": 2}', call_id="toolu_1"),
                    tool_use("add", '{"a": 3}', call_id="toolu_2"),
                )
            )
        )
        asked = turn(said("user", "2 and 3?"), model=model, tools=(ADD,), effort="low")
        first = await rig.answered(asked)
        assert [call.arguments for call in first.calls] == ['{"a": 2}', '{"a": 3}']
        second = await rig.answered(follow_up(asked, first, ["4", "6"]))
        assert second.text == "result: 4; 6"
        assert [message["role"] for message in rig.bodies[1]["messages"]] == ["user", "assistant", "user"]
        assert rig.bodies[1]["messages"][1]["content"] == [
            {"type": "thinking", "thinking": "let me think", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "aGlkZGVu"},
            {"type": "text", "text": "Adding."},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2}},
            {"type": "tool_use", "id": "toolu_2--2", "name": "add", "input": {"a": 3}},
        ]
        assert rig.bodies[1]["thinking"]["type"] == ("adaptive" if "5-5" in model else "enabled")


async def test_a_client_that_keeps_no_thoughts_gets_its_answer_without() -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(thinking("hm"), tool_use("add", '{"a": 2}'))))
        asked = turn(tools=(ADD,), effort="low")
        following = follow_up(asked, await rig.answered(asked), ["4"])
        forgetful = turn(
            *[item for item in following.items if not isinstance(item, RawItem)], tools=(ADD,), effort="low"
        )
        assert (await rig.answered(forgetful)).text == "result: 4"
        assert "thinking" not in rig.bodies[1]
        assert await rig.backend.drops(forgetful) == ["reasoning.effort"]
        assert await rig.backend.drops(following) == []


async def test_thoughts_are_told_while_they_come() -> None:
    gate = Gate()
    events = answer(thinking("hm", signature="c2ln"), text("a"))
    async with rigged() as rig:
        rig.api.will(Stream([*events[:4], gate, *events[4:]]))
        stream = await rig.backend.start(turn(effort="low"), "req_1")
        seen: list[TurnEvent] = []
        while not any(getattr(event, "pieces", None) == ["hm"] for event in seen):
            seen += await stream.next()
        gate.open()
        result = await collect(stream)
        assert result.text == "a"
        (thought,) = [output for output in result.outputs if isinstance(output, ReasoningOutput)]
        held = RawItem("reasoning", {"encrypted_content": thought.encrypted})
        assert thought_in(held, "claude-sonnet-4-5") is not None


async def test_images_go_out() -> None:
    async with rigged() as rig:
        message = Message("user", (Text("what is it?"), Image(PIXEL), Image("https://example.com/a.png")))
        await rig.answered(turn(message))
        kinds = [block.get("source", {}).get("type") for block in rig.bodies[0]["messages"][0]["content"]]
        assert kinds == [None, "base64", "url"]


async def test_the_web_is_searched() -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(search('{"query": "bern"}'), text("sunny"))))
        result = await rig.answered(turn(web_search=WebSearchOptions()))
        assert isinstance(result.outputs[0], WebSearch)
        assert result.text == "sunny"


async def test_a_forced_call() -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(tool_use("add", '{"a": 2}'))))
        result = await rig.answered(turn(tools=(ADD,), tool_choice=ToolChoice("named", "add"), parallel=False))
        assert [call.name for call in result.calls] == ["add"]
        assert rig.bodies[0]["tool_choice"] == {"type": "tool", "name": "add", "disable_parallel_tool_use": True}


# Ends that are none


@pytest.mark.parametrize(("stop", "reason"), [("max_tokens", "max_output_tokens"), ("refusal", "content_filter")])
async def test_an_answer_that_is_cut_short_keeps_its_words(stop: str, reason: str) -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(text("half"), stop=stop)))
        result = await rig.ask()
        assert result.end is not None
        assert (result.end.outcome, result.end.reason, result.text) == ("incomplete", reason, "half")
        assert result.usage == Usage(16, 3, 7, cache_write=2)


@pytest.mark.parametrize(
    ("refused", "code", "status", "severity", "tries"),
    [
        (refusal(400, "invalid_request_error"), "invalid_request_error", 400, "fatal", 1),
        (refusal(403, "permission_error"), "upstream_forbidden", 403, "fatal", 1),
        (refusal(429, "rate_limit_error"), "rate_limit_exceeded", 429, "transient", 4),
        (refusal(429, "rate_limit_error", retry_after="60"), "rate_limit_exceeded", 429, "transient", 1),
        (refusal(500, "api_error"), "upstream_error", 502, "transient", 4),
        (refusal(504, "timeout_error"), "upstream_error", 502, "transient", 4),
        (refusal(529, "overloaded_error"), "overloaded", 503, "transient", 4),
        (html(502), "upstream_error", 502, "transient", 4),
    ],
    ids=range(8),
)
async def test_a_refusal_is_told_as_what_it_is(
    refused: Any, code: str, status: int, severity: str, tries: int, autojump_clock: MockClock
) -> None:
    async with rigged() as rig:
        rig.api.will(*[refused] * 4)
        problem = await rig.failed()
        assert (problem.code, problem.http_status, problem.severity) == (code, status, severity)
        assert len(rig.api.requests) == tries


async def test_what_passes_is_tried_again(autojump_clock: MockClock) -> None:
    async with rigged() as rig:
        rig.api.will(refusal(529, "overloaded_error"), RESET, refusal(429, "rate_limit_error", retry_after="2"))
        begun = trio.current_time()
        assert (await rig.answered()).text == DEFAULT_TEXT
        assert rig.api.statuses == [529, None, 429, 200]
        assert trio.current_time() - begun > 2


async def test_a_refusal_in_the_middle_is_not_tried_again() -> None:
    async with rigged() as rig:
        rig.api.will(Stream(answer(text("half"), end=error("overloaded_error", "Overloaded"))))
        result = await rig.ask()
        assert result.end is not None
        assert result.end.error is not None
        assert (result.end.error.code, result.text) == ("overloaded", "half")
        assert len(rig.api.requests) == 1


@pytest.mark.parametrize(
    "rest", [NOTHING, [RESET], [CUT], [Truncated(answer(text("more"))[3])]], ids=["end", "reset", "cut", "truncated"]
)
async def test_a_stream_that_breaks_off_is_told(rest: list[object]) -> None:
    async with rigged() as rig:
        rig.api.will(Stream([*answer(text("half"), end=NOTHING), *rest]))  # type: ignore[list-item]
        result = await rig.ask()
        assert result.end is not None
        assert result.end.error is not None
        assert (result.end.error.code, result.text) == ("stream_truncated", "half")
        assert len(rig.api.requests) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_event_that_makes_no_sense_is_told() -> None:
    async with rigged() as rig:
        rig.api.will(Stream([*answer(text("half"), end=NOTHING), b'data: {"type": 5\n\n']))
        assert (await rig.failed()).code == "broken_event"


async def test_silence_has_an_end(autojump_clock: MockClock) -> None:
    async with rigged(idle=5) as rig:
        rig.api.will(Stream([*answer(text("half"), end=NOTHING), Gate()]))
        assert (await rig.failed()).code == "backend_timeout"
        await rig.api.until(lambda: rig.api.gone)


async def test_a_client_that_leaves_is_a_connection_that_is_closed() -> None:
    async with rigged() as rig:
        rig.api.will(Stream([*answer(text("half"), end=NOTHING), Gate()]))
        stream = await rig.backend.start(turn(), "req_1")
        while not any(isinstance(event, TextDelta) for event in await stream.next()):
            pass
        stream.close()
        await rig.api.until(lambda: rig.api.gone)
        assert (await rig.answered()).text == DEFAULT_TEXT
