"""OpenAI's protocols over the scripted model of `play`: what its client sees, and when."""

from __future__ import annotations

from typing import Any

import pytest
from play import MODEL, Json, open_desk
from trio.testing import MockClock

from bridge.errors import UpstreamError

BODIES: dict[str, Json] = {
    "/v1/responses": {"model": MODEL, "input": "Hello"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]},
}
paths = pytest.mark.parametrize("path", BODIES)


def text_of(path: str, events: list[Json]) -> str:
    if path == "/v1/responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    deltas = (choice["delta"] for event in events for choice in event["choices"])
    return "".join(delta.get("content") or "" for delta in deltas)


@paths
async def test_a_stream_arrives_as_it_is_said(autojump_clock: MockClock, path: str) -> None:
    async with open_desk() as desk:
        call = desk.post(path, {**BODIES[path], "stream": True})
        play = await desk.model.play()
        assert play.history() == ["Hello"]
        play.say("Hel", "lo")
        await call.until('"lo"')
        assert not call.done.is_set()
        play.say(" there")
        play.finish()
        await call.whole()
        assert (call.status, text_of(path, call.events)) == (200, "Hello there")
        assert play.closed.is_set()


@paths
async def test_a_client_that_leaves_ends_its_turn(autojump_clock: MockClock, path: str) -> None:
    async with open_desk() as desk:
        call = desk.post(path, {**BODIES[path], "stream": True})
        play = await desk.model.play()
        play.say("Half")
        await call.until("Half")
        call.leave()
        await play.closed.wait()
        await call.whole()


@paths
async def test_a_failure_before_the_first_word_is_a_status(autojump_clock: MockClock, path: str) -> None:
    async with open_desk() as desk:
        call = desk.post(path, {**BODIES[path], "stream": True})
        play = await desk.model.play()
        play.fail(UpstreamError("No.", code="rate_limit_exceeded", http_status=429))
        await call.whole()
        error: Any = call.json["error"]
        assert (call.status, error["code"], error["message"]) == (429, "rate_limit_exceeded", "No.")
