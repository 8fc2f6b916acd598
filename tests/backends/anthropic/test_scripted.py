"""The scripted API speaks as the real one: its events and refusals are what Anthropic's own package reads."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import RawMessageStreamEvent, ThinkingBlock
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter
from upstream.answers import Stream
from upstream.anthropic_checks import body_faults
from upstream.anthropic_events import answer, cited, found, redacted, search, text, thinking, tool_use
from upstream.anthropic_server import KEY, refusal, serving_in_thread

ALL = answer(
    thinking("hm", " …", signature="c2ln"),
    redacted(),
    search('{"query": ', '"bern"}'),
    found("https://example.com"),
    text("a", "b"),
    cited("c", "https://example.com"),
    tool_use("add", '{"a":', "2}"),
    tool_use("now"),
    thinking_tokens=4,
)


def test_its_events_are_of_the_official_types() -> None:
    known: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for event in ALL:
        if event["type"] != "ping":
            known.validate_python(event, strict=True)


def test_its_refusals_are_of_the_official_type() -> None:
    body = refusal(529, "overloaded_error", "Overloaded").body
    assert TypeAdapter(ErrorResponse).validate_json(body).error.type == "overloaded_error"


def test_the_official_client_reads_it() -> None:
    ours = {
        "anthropic-version": "2023-06-01",
        "accept": "text/event-stream",
        "user-agent": "turnbridge/0",
        "x-api-key": KEY,
        "authorization": anthropic.Omit(),
    }
    with serving_in_thread() as api, httpx2.Client(trust_env=False) as http:
        api.will(Stream(ALL))
        client = anthropic.Anthropic(api_key=KEY, base_url=api.url, http_client=http, default_headers=ours)  # type: ignore[arg-type]
        blocks: list[Any] = [{"type": "text", "text": "hi"}]
        with client.messages.stream(
            model="claude-opus-5", max_tokens=5, messages=[{"role": "user", "content": blocks}]
        ) as stream:
            message = stream.get_final_message()
        assert api.faults == []
    kinds = [block.type for block in message.content]
    assert kinds == [
        "thinking",
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "text",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert isinstance(message.content[0], ThinkingBlock)
    assert message.content[0].signature == "c2ln"
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"a": 2}, {}]
    assert message.stop_reason == "tool_use"


RIGHT: dict[str, Any] = {
    "model": "claude-opus-5-5",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "stream": True,
}


def block(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"max_tokens": None}, "valid integer"),
        ({"surprise": 1}, "members that nobody knows"),
        (block(type="text", text="hi", surprise=1), "members that nobody knows"),
        (block(type="text", text=" "), "non-whitespace"),
        (block(type="thinking", thinking="", signature=""), "thinking from the user"),
        ({"messages": []}, "roles []"),
        ({"temperature": 0.5}, "temperature"),
        ({"thinking": {"type": "disabled"}}, "not supported for this model"),
        ({"tools": [{"name": "a.b", "input_schema": {"type": "object"}}]}, "name 'a.b'"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "schema"),
        ({"tool_choice": {"type": "auto"}}, "without tools"),
    ],
)
def test_it_refuses_what_the_real_one_refuses(wrong: dict[str, Any], fault: str) -> None:
    assert list(body_faults(RIGHT)) == []
    assert any(fault in each for each in body_faults(RIGHT | wrong))
