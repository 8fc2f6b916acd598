"""What the API rooms read and write, as the official client sees it on a running bridge with mock models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from harness import KEY, RunningBridge, read_sse, running_bridge
from openai import OpenAI
from protocols.official import check_chunk, check_completion, check_event, check_response

HI: Any = [{"role": "user", "content": "hi"}]
PATCH: Any = {"type": "custom", "name": "patch", "description": "Patches a file."}
NESTED_PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "Patches a file."}}
FIND: Any = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}
SCHEMA: Any = {"type": "json_schema", "name": "n"}
FILES: Any = {"type": "namespace", "name": "files", "description": "Files.", "tools": [FIND]}


def connect(bridge: RunningBridge) -> OpenAI:
    return OpenAI(
        api_key=KEY,
        base_url=bridge.url,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


@pytest.fixture
def client(mock_bridge: RunningBridge) -> Iterator[OpenAI]:
    with connect(mock_bridge) as client:
        yield client


# Custom tools


@pytest.mark.parametrize("streamed", [True, False])
def test_a_custom_call_in_responses(client: OpenAI, streamed: bool) -> None:
    """The client's own accumulator gives a call with a text; its output goes back in the same way."""
    if streamed:
        with client.responses.stream(model="mock-tool-loop", input="hi", tools=[PATCH]) as stream:
            output: Sequence[Any] = stream.get_final_response().output
    else:
        output = client.responses.create(model="mock-tool-loop", input="hi", tools=[PATCH]).output
    (call,) = output
    assert call.type == "custom_tool_call"
    assert call.name == "patch"
    items = [*HI, call.to_dict(), {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}]
    answer = client.responses.create(model="mock-tool-loop", input=items, tools=[PATCH])
    assert [item.type for item in answer.output] == ["message"]


def test_a_custom_call_in_chat(client: OpenAI) -> None:
    """The message has it; its output goes back as a `tool` message."""
    completion = client.chat.completions.create(model="mock-tool-loop", messages=HI, tools=[NESTED_PATCH])
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "custom"
    assert call.custom.name == "patch"
    messages = [*HI, choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    answer = client.chat.completions.create(model="mock-tool-loop", messages=messages, tools=[NESTED_PATCH])
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_custom_call_in_chat(client: OpenAI) -> None:
    """The pieces add up; the client's types do not know them, but it hands them on."""
    stream = client.chat.completions.create(model="mock-tool-call", messages=HI, tools=[NESTED_PATCH], stream=True)
    parts = [part.to_dict() for chunk in stream for choice in chunk.choices for part in choice.delta.tool_calls or ()]
    assert [part["index"] for part in parts] == [0] * len(parts)
    assert parts[0]["type"] == "custom"
    assert parts[0]["custom"]["name"] == "patch"  # type: ignore[index]
    assert "".join(part["custom"]["input"] for part in parts)  # type: ignore[index]


# Namespaces and choices


def test_a_namespace_in_both_apis(client: OpenAI) -> None:
    """A member of its own in responses, a part of the name in chat; both come back as they were."""
    (call,) = client.responses.create(model="mock-tool-loop", input="hi", tools=[FILES]).output
    assert call.type == "function_call"
    assert (call.name, call.namespace) == ("find", "files")
    items = [*HI, call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "x"}]
    assert client.responses.create(model="mock-tool-loop", input=items, tools=[FILES]).output_text

    message = client.chat.completions.create(model="mock-tool-loop", messages=HI, tools=[FILES]).choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].type == "function"
    assert message.tool_calls[0].function.name == "files.find"
    messages = [*HI, message.to_dict(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "x"}]
    answer = client.chat.completions.create(model="mock-tool-loop", messages=messages, tools=[FILES])
    assert answer.choices[0].message.content


def test_allowed_tools_in_both_apis(client: OpenAI) -> None:
    """The model is offered no others: the mock calls the first that it sees."""
    other = FIND | {"name": "other"}
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    response = client.responses.create(model="mock-tool-call", input="hi", tools=[FIND, other], tool_choice=choice)
    assert [item.name for item in response.output if item.type == "function_call"] == ["other"]

    tools: Any = [{"type": "function", "function": {"name": name}} for name in ("find", "other")]
    allowed: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools[1:]}}
    completion = client.chat.completions.create(model="mock-tool-call", messages=HI, tools=tools, tool_choice=allowed)
    calls = completion.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls if call.type == "function"] == ["other"]


def test_tools_in_the_input(client: OpenAI) -> None:
    """They are offered like any others."""
    offer: Any = {"type": "additional_tools", "role": "developer", "tools": [FIND]}
    response = client.responses.create(model="mock-tool-call", input=[*HI, offer])
    assert [item.name for item in response.output if item.type == "function_call"] == ["find"]


# From before there were tools


@pytest.mark.parametrize("streamed", [True, False])
def test_an_old_client(client: OpenAI, streamed: bool) -> None:
    """Functions, a function call, a function message, an answer."""
    functions: Any = [{"name": "find", "parameters": {"type": "object", "properties": {}}}]
    if streamed:
        stream = client.chat.completions.create(model="mock-tool-loop", messages=HI, functions=functions, stream=True)
        choices = [choice for chunk in stream for choice in chunk.choices]
        deltas = [choice.delta.function_call for choice in choices if choice.delta.function_call]
        name = "".join(delta.name or "" for delta in deltas)
        arguments = "".join(delta.arguments or "" for delta in deltas)
        assert choices[-1].finish_reason == "function_call"
    else:
        (choice,) = client.chat.completions.create(model="mock-tool-loop", messages=HI, functions=functions).choices
        assert choice.finish_reason == "function_call"
        assert choice.message.tool_calls is None
        assert choice.message.function_call is not None
        name, arguments = choice.message.function_call.name, choice.message.function_call.arguments
    assert (name, json.loads(arguments)) == ("find", {})
    messages: Any = [
        *HI,
        {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": arguments}},
        {"role": "function", "name": name, "content": "found"},
    ]
    answer = client.chat.completions.create(model="mock-tool-loop", messages=messages, functions=functions)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.function_call is None


# Choices and stops


def test_several_choices(client: OpenAI) -> None:
    """Each is an answer of its own; the usage is that of all."""
    one = client.chat.completions.create(model="mock-echo", messages=HI)
    three = client.chat.completions.create(model="mock-echo", messages=HI, n=3)
    assert [(choice.index, choice.message.content) for choice in three.choices] == [(0, "hi"), (1, "hi"), (2, "hi")]
    assert one.usage is not None
    assert three.usage is not None
    assert three.usage.total_tokens == 3 * one.usage.total_tokens


def test_several_streamed_choices(client: OpenAI) -> None:
    """The client's own accumulator puts them together again."""
    with client.chat.completions.stream(
        model="mock-text", messages=HI, n=3, stream_options={"include_usage": True}
    ) as stream:
        completion = stream.get_final_completion()
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert {choice.message.content for choice in completion.choices} == {"mock response text"}
    assert {choice.finish_reason for choice in completion.choices} == {"stop"}
    assert completion.usage is not None


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "one two "),
        (["absent", " two"], "one"),
        ("o t", "one tw"),
        ("one", ""),
        ("absent", "one two three"),
        (["e", "n"], "o"),
    ],
)
def test_an_answer_ends_before_a_stop(client: OpenAI, stop: Any, text: str, streamed: bool) -> None:
    """However the model cuts its words; what was not counted is estimated, and says so."""
    messages: Any = [{"role": "user", "content": "one two three"}]
    if streamed:
        with client.chat.completions.stream(
            model="mock-echo", messages=messages, stop=stop, stream_options={"include_usage": True}
        ) as stream:
            completion: Any = stream.get_final_completion()
    else:
        completion = client.chat.completions.create(model="mock-echo", messages=messages, stop=stop)
    (choice,) = completion.choices
    assert (choice.message.content or "", choice.finish_reason) == (text, "stop")
    assert completion.usage is not None
    assert completion.usage.to_dict().get("estimated", False) is (text != "one two three")


# Either body on either path


def post(client: OpenAI, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, body=body, cast_to=object)


def test_a_responses_body_on_the_chat_path(mock_bridge: RunningBridge, client: OpenAI) -> None:
    """It is answered by a completion, streamed too."""
    body: dict[str, Any] = {"model": "mock-echo", "instructions": "be kind", "input": HI, "tools": [FIND]}
    completion = post(client, "/chat/completions", body)
    check_completion(completion)
    assert completion["choices"][0]["message"]["content"] == "hi"
    with mock_bridge.client() as http, http.stream("POST", "/chat/completions", json=body | {"stream": True}) as answer:
        chunks = list(read_sse(answer.iter_lines()))
    for chunk in chunks:
        check_chunk(chunk)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hi"


def test_a_chat_body_on_the_responses_path(mock_bridge: RunningBridge, client: OpenAI) -> None:
    """It is answered by a response, streamed too."""
    body: dict[str, Any] = {"model": "mock-echo", "messages": HI, "tools": [{"type": "function", "function": FIND}]}
    response = post(client, "/responses", body)
    check_response(response)
    assert response["output"][0]["content"][0]["text"] == "hi"
    events = mock_bridge.events("/responses", body)
    for event in events:
        check_event(event)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "hi"


# What cannot be done


def dropped(answer: Any) -> list[str]:
    return (answer.headers.get("x-bridge-dropped") or "").split(",")


def test_what_is_dropped_is_named(client: OpenAI) -> None:
    """In a header; the answer comes."""
    chat = client.chat.completions.with_raw_response.create(
        model="mock-echo", messages=HI, temperature=0, seed=1, stop="x", n=1, response_format={"type": "json_object"}
    )
    assert sorted(dropped(chat)) == ["seed", "temperature"]
    responses = client.responses.with_raw_response.create(
        model="mock-echo", input="hi", truncation="auto", tools=[{"type": "file_search", "vector_store_ids": ["v"]}]
    )
    assert dropped(responses) == ["truncation", "tools:file_search"]
    plain = client.responses.with_raw_response.create(model="mock-echo", input="hi")
    assert "x-bridge-dropped" not in plain.headers


@pytest.fixture(scope="module")
def strict_bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge whose operator wants nothing dropped."""
    directory = Path(tmp_path_factory.mktemp("strict"))
    with running_bridge(directory, "--mock-only", PROXY_UNSUPPORTED="reject") as bridge:
        yield bridge


@pytest.mark.parametrize("streamed", [True, False])
def test_what_would_be_dropped_can_be_refused(strict_bridge: RunningBridge, streamed: bool) -> None:
    """By a 400 with the name of the field; everything else is served."""
    with connect(strict_bridge) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="mock-echo", messages=HI, temperature=0, stream=streamed)
        assert (caught.value.param, caught.value.code) == ("temperature", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(
                model="mock-echo", input="hi", stream=streamed, tools=[{"type": "image_generation"}]
            )
        assert (caught.value.param, caught.value.code) == ("tools:image_generation", "unsupported_parameter")
        assert client.responses.create(model="mock-echo", input="hi").output_text == "hi"


# Nothing is a mistake of ours


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("/responses", {"input": [{"type": []}]}),
        ("/responses", {"input": [{"type": "compaction", "encrypted_content": "cbc1.AAAA"}]}),
        ("/responses", {"input": "hi", "tools": [{"type": "namespace", "name": "n", "tools": {"a": 1}}]}),
        ("/responses", {"input": "hi", "tool_choice": {"type": "allowed_tools", "tools": [{"type": []}]}}),
        ("/responses", {"messages": HI, "text": "x"}),
        ("/responses", {"messages": HI, "include": 5}),
        ("/chat/completions", {"messages": HI, "include": True}),
        ("/chat/completions", {"messages": HI, "stop": {"a": 1}}),
        ("/chat/completions", {"messages": HI, "functions": [5]}),
        ("/responses", {"input": "hi", "text": {"format": SCHEMA | {"schema": {"type": "object", "required": [[]]}}}}),
        ("/responses", {"input": "hi", "text": {"format": SCHEMA | {"schema": {"type": "object", "properties": 5}}}}),
    ],
)
def test_an_odd_request_is_answered_or_refused(mock_bridge: RunningBridge, path: str, members: Any) -> None:
    """200 or 400, never 500."""
    answer = mock_bridge.post(path, {"model": "mock-echo", **members})
    assert answer.status_code in (200, 400), answer.text
