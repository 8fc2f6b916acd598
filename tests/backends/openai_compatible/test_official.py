"""The scripted server is one that the official client understands, and what it streams is what its types say."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from protocols.official import check_chunk, check_completion
from upstream.answers import refusal
from upstream.openai_chat import DEFAULT_TEXT, serving_in_thread, stream
from upstream.openai_chat_checks import body_faults
from upstream.openai_chat_chunks import answer, call, completion, reasoning, refusing, text

ANSWERS: list[Any] = [
    answer(text("hel", "lo")),
    answer(reasoning("hm"), text("a"), call("weather", '{"a":', "1}"), call("clock")),
    answer(refusing("no"), finish="content_filter"),
    answer(text("a"), finish="length", usage=None),
]


@pytest.mark.parametrize("chunks", ANSWERS)
def test_chunks_and_completions_are_valid(chunks: Any) -> None:
    for chunk in chunks:
        check_chunk(chunk)
    whole = completion(chunks)
    if whole["usage"] is None:
        del whole["usage"]
    check_completion(whole)


def test_the_official_client_reads_it() -> None:
    with serving_in_thread() as server:
        headers = {"accept": "text/event-stream"}
        client = openai.OpenAI(base_url=server.base_url, api_key=server.key, max_retries=0, default_headers=headers)
        server.will(stream(answer(text("a"), call("weather", '{"a":', "1}"), tag="t")))
        with client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
        ) as reading:
            final = reading.get_final_completion()
        message = final.choices[0].message
        assert message.content == "a"
        assert message.tool_calls is not None
        assert message.tool_calls[0].function.arguments == '{"a":1}'
        assert final.usage is not None
        assert final.usage.total_tokens == 18
        assert [model.id for model in client.models.list()] == server.models
        server.will(refusal(429, "rate_limit_exceeded"))
        with pytest.raises(openai.RateLimitError):
            _ask(client)
        with pytest.raises(openai.AuthenticationError):
            _ask(client.with_options(api_key="wrong"))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in _ask(client) if chunk.choices) == DEFAULT_TEXT
        assert server.faults == []


def _ask(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )


GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}],
}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stream_options": None},
        {"messages": []},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
        {"messages": [{"role": "developer", "content": "x"}]},
        {"messages": [{"role": "assistant"}]},
        {"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]},
        {"messages": [CALL, {"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "reasoning": "y"}]},
        {"tools": []},
        {"tools": [TOOL, TOOL]},
        {"tools": [{"type": "function", "function": {"name": "a.b"}}]},
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"parallel_tool_calls": False},
        {"reasoning_effort": "ultra"},
        {"stop": ["x"]},
        {"n": 1},
    ],
    ids=str,
)
def test_what_is_wrong_with_a_body_is_found(wrong: dict[str, Any]) -> None:
    assert list(body_faults(GOOD)) == []
    assert list(body_faults(GOOD | wrong))
