"""Anthropic's official Python client against a bridge over the real Codex, and over mock models.

Every event and object is held against the client's own types: strictly, and without members that they do not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from harness import KEY, RunningBridge
from protocols.official import unknown_members
from pydantic import BaseModel, TypeAdapter
from real.provider import Json
from real.rig import Rig, said

MODEL = "gpt-5.2"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
LOOK: Any = {
    "name": "look",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
MEANT = {"Usage.estimated", "MessageDeltaUsage.estimated"}
"""Members that we send beside those of the types."""
ODD = "quote \" and ' and back\\slash\nline\ttab 😀 \u2028 {curly} <b>"


def connect(url: str, **options: Any) -> Anthropic:
    given: Json = {"api_key": KEY, "max_retries": 0, "timeout": 30} | options
    return Anthropic(base_url=url, http_client=anthropic.DefaultHttpxClient(trust_env=False), **given)


@pytest.fixture
def client(rig: Rig) -> Iterator[Anthropic]:
    with connect(rig.bridge.root) as client:
        yield client


@pytest.fixture
def mock_client(mock_bridge: RunningBridge) -> Iterator[Anthropic]:
    with connect(mock_bridge.root) as client:
        yield client


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def body(content: Any, **more: Any) -> Any:
    """A request for an answer to this, or to what the provider is told to do."""
    content = said(content) if isinstance(content, dict) else content
    return {"model": MODEL, "max_tokens": 5000, "messages": [user(content)], **more}


def check(value: BaseModel) -> None:
    """An object has no members that its type does not know."""
    assert not set(unknown_members(value)) - MEANT


def ask(client: Anthropic, request: Json, *, streamed: bool) -> Message:
    """The message that answers a request; of a stream, every event is checked, and what they add up to."""
    whole: Any = request | ({"stream": True} if streamed else {})
    raw = client.messages.with_raw_response.create(**whole)
    if not streamed:
        message = Message.model_validate(json.loads(raw.text()), strict=False)
        check(message)
        return message
    names = []
    for line in raw.text().split("\n"):
        if line.startswith("event: "):
            names.append(line.removeprefix("event: "))
        elif line.startswith("data: "):
            payload = json.loads(line.removeprefix("data: "))
            assert payload["type"] == names[-1]
            if payload["type"] != "ping":  # the client leaves it out
                check(EVENT.validate_python(payload, strict=True))
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop")
    with client.messages.stream(**request) as stream:
        return stream.get_final_message()


streams = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@streams
def test_a_text(client: Anthropic, streamed: bool) -> None:
    """Every character of it, and the usage."""
    message = ask(client, body({"do": "text", "pieces": [ODD, " more"]}), streamed=streamed)
    (block,) = message.content
    assert block.type == "text"
    assert block.text == ODD + " more"
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", MODEL)
    assert message.usage.input_tokens > 0 < message.usage.output_tokens


@streams
def test_tools(client: Anthropic, streamed: bool) -> None:
    """Two calls, one with an error as its output, and the answer to both."""
    calls = [{"name": "look", "arguments": json.dumps({"q": q})} for q in (ODD, "coffee")]
    request = body({"do": "calls", "calls": calls}, tools=[LOOK])
    message = ask(client, request, streamed=streamed)
    used = [block for block in message.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in used] == [("look", {"q": ODD}), ("look", {"q": "coffee"})]
    assert message.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": used[0].id, "content": [{"type": "text", "text": "found"}]},
        {"type": "tool_result", "tool_use_id": used[1].id, "content": "not there", "is_error": True},
    ]
    history = [*request["messages"], {"role": "assistant", "content": message.content}, user(results)]
    answer = ask(client, {**request, "messages": history}, streamed=streamed)
    assert answer.content[0].type == "text"
    assert "found" in answer.content[0].text
    assert "[The tool reported an error.]" in answer.content[0].text


@streams
def test_thinking(client: Anthropic, rig: Rig, streamed: bool) -> None:
    """Blocks of thinking only for those who ask for it; their signature goes back to the provider that made it."""
    action = {"do": "reasoning", "summary": ["I look."], "pieces": ["42"]}
    plain = ask(client, body(action), streamed=streamed)
    assert [block.type for block in plain.content] == ["text"]
    thinking = {"type": "enabled", "budget_tokens": 10_000}
    request = body(action, thinking=thinking)
    message = ask(client, request, streamed=streamed)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == "I look."
    assert message.content[0].signature
    assert rig.posts[-1].body["reasoning"]["effort"] == "high"
    omitted = ask(client, body(action, thinking={**thinking, "display": "omitted"}), streamed=streamed)
    assert omitted.content[0].type == "thinking"
    assert (omitted.content[0].thinking, bool(omitted.content[0].signature)) == ("", True)
    history = [*request["messages"], {"role": "assistant", "content": message.content}, user("go on")]
    ask(client, {**request, "messages": history}, streamed=False)
    sealed = [item.get("encrypted_content") for item in rig.posts[-1].body["input"] if item["type"] == "reasoning"]
    assert sealed == ["c2VjcmV0"]


@streams
def test_a_stop_sequence(mock_client: Anthropic, streamed: bool) -> None:
    """It ends the answer, and is named."""
    request = {**body("one two three"), "model": "mock-echo", "stop_sequences": ["none", " three"]}
    message = ask(mock_client, request, streamed=streamed)
    assert message.content[0].type == "text"
    assert message.content[0].text == "one two"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " three")


@streams
def test_a_limit_of_tokens(mock_client: Anthropic, streamed: bool) -> None:
    request = {**body("one two three four five six"), "model": "mock-echo", "max_tokens": 2}
    message = ask(mock_client, request, streamed=streamed)
    assert message.stop_reason == "max_tokens"
    assert message.content[0].type == "text"
    assert message.content[0].text.startswith("one two")


def test_what_is_dropped_is_named(mock_client: Anthropic) -> None:
    """Fields, tools of Anthropic's servers, and features in beta; what is understood is not named."""
    tools: Any = [
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    raw = mock_client.messages.with_raw_response.create(
        **{**body("hi"), "model": "mock-echo"},
        tools=tools,
        metadata={"user_id": "me"},
        cache_control={"type": "ephemeral"},
        extra_body={"top_k": 5},
        extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14,context-1m-2025-08-07"},
    )
    assert raw.headers["x-bridge-dropped"] == (
        "top_k,tools:code_execution_20250825,anthropic-beta:context-1m-2025-08-07"
    )


@pytest.mark.parametrize(
    ("choice", "called"), [({"type": "any"}, True), ({"type": "tool", "name": "look"}, True), ({"type": "none"}, False)]
)
def test_tool_choices(mock_client: Anthropic, choice: Json, called: bool) -> None:
    request = {**body("hi"), "model": "mock-tool-call", "tools": [LOOK], "tool_choice": choice}
    assert (ask(mock_client, request, streamed=False).stop_reason == "tool_use") == called


@streams
def test_errors(client: Anthropic, streamed: bool) -> None:
    """The provider's, before the answer has begun: the client's own exceptions."""
    with pytest.raises(anthropic.RateLimitError) as limited:
        refused: Json = {"do": "error", "status": 429, "message": "Slow down.", "code": "rate_limit_exceeded"}
        client.messages.create(**body(refused), stream=streamed)
    assert limited.value.type == "rate_limit_error"
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**body("hi"), "messages": []}, stream=streamed)


def test_access(mock_bridge: RunningBridge) -> None:
    """The key in either header or in both; unknown models, wrong keys and unknown paths have Anthropic's errors."""
    bearer = {"default_headers": {"authorization": f"Bearer {KEY}"}}
    for options in ({"api_key": KEY}, {"api_key": None, "auth_token": KEY}, {"api_key": KEY, **bearer}):
        with connect(mock_bridge.root, **options) as client:
            assert ask(client, {**body("hi"), "model": "mock-echo"}, streamed=False).content
    with connect(mock_bridge.root) as client, pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**{**body("hi"), "model": "claude-none"})
    assert unknown.value.type == "not_found_error"
    with connect(mock_bridge.root) as client, pytest.raises(anthropic.NotFoundError) as unserved:
        client.messages.batches.list()
    assert unserved.value.type == "not_found_error"
    with connect(mock_bridge.root, api_key="wrong") as client:
        for call in (client.models.list, lambda: client.messages.create(**body("hi"))):
            with pytest.raises(anthropic.AuthenticationError) as denied:
                call()
            assert denied.value.type == "authentication_error"


def test_models(mock_client: Anthropic) -> None:
    """The list, page by page, and each of them."""
    listed = list(mock_client.models.list(limit=2))
    assert [model.id for model in listed] == ["mock-echo", "mock-text", "mock-tool-call", "mock-tool-loop"]
    backwards = mock_client.models.list(limit=2, before_id="mock-tool-loop")
    assert [model.id for model in backwards.data] == ["mock-text", "mock-tool-call"]
    for model in listed:
        check(ModelInfo.model_validate(mock_client.models.retrieve(model.id).model_dump(), strict=True))
    with pytest.raises(anthropic.NotFoundError):
        mock_client.models.retrieve("none")
    with pytest.raises(anthropic.BadRequestError):
        mock_client.models.list(after_id="none")


def test_a_count_of_tokens(mock_client: Anthropic) -> None:
    request: Any = {"model": "mock-echo", "messages": [user("one two three")]}
    small = mock_client.messages.count_tokens(**request)
    check(MessageTokensCount.model_validate(small.model_dump(), strict=True))
    assert 0 < small.input_tokens < mock_client.messages.count_tokens(**request, tools=[LOOK]).input_tokens
    with pytest.raises(anthropic.NotFoundError):
        mock_client.messages.count_tokens(**{**request, "model": "none"})


def test_the_asynchronous_client(rig: Rig) -> None:
    async def run() -> list[str]:
        options: Json = {"api_key": KEY, "base_url": rig.bridge.root, "max_retries": 0}
        async with anthropic.AsyncAnthropic(**options, http_client=anthropic.DefaultAsyncHttpxClient()) as client:

            async def one(number: int) -> str:
                async with client.messages.stream(**body({"do": "text", "pieces": [f"answer {number}"]})) as stream:
                    return await stream.get_final_text()

            return await asyncio.gather(*map(one, range(4)))

    assert asyncio.run(run()) == [f"answer {number}" for number in range(4)]
