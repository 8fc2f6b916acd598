"""The official OpenAI client talks to a running bridge as it would to OpenAI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import trio
from harness import KEY, RunningBridge
from openai import OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from protocols.official import check_chunk, check_completion, check_event, check_response

MOCK_TEXT = "mock response text"
MOCK_RESULT = "mock tool result: sunny"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FLAT_TOOL: Any = {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA}
STRICT_TOOL: Any = FLAT_TOOL | {"strict": True}
NESTED_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA},
}


def connect(bridge: RunningBridge, key: str = KEY) -> OpenAI:
    return OpenAI(
        api_key=key,
        base_url=bridge.url,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


@pytest.fixture
def client(mock_bridge: RunningBridge) -> Iterator[OpenAI]:
    with connect(mock_bridge) as client:
        yield client


def raw_payloads(body: bytes) -> list[dict[str, Any]]:
    """The payloads of a raw SSE body; names and types agree."""
    payloads = []
    for frame in body.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if line and not line.startswith(b":"))
        if fields.get(b"data", b"[DONE]") == b"[DONE]":
            continue
        payload = json.loads(fields[b"data"])
        assert fields.get(b"event", b"").decode() == payload.get("type", "")
        payloads.append(payload)
    return payloads


def check_arguments(arguments: str) -> None:
    """The mock model copies the example of the instructions, and examples conform to the schema."""
    given = json.loads(arguments)
    assert given.keys() == {"city", "days"}
    assert isinstance(given["city"], str)
    assert isinstance(given["days"], int)


# Responses


def test_a_response(client: OpenAI) -> None:
    """Text comes back under the model's name, with usage."""
    response = client.responses.create(model="mock-text", input="hi")
    assert response.output_text == MOCK_TEXT
    assert (response.status, response.model, response.error) == ("completed", "mock-text", None)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens > 0


@pytest.mark.parametrize("text", ["hello", "ünïcödé 😀 \u2028 \u0085", 'quotes " and \\ and\nlines\r\n', "x" * 5000])
def test_an_echoed_response(client: OpenAI, text: str) -> None:
    """Every character survives the way there and back, streamed or not."""
    assert client.responses.create(model="mock-echo", input=text).output_text == text
    with client.responses.stream(model="mock-echo", input=text) as stream:
        assert stream.get_final_response().output_text == text


def test_a_streamed_response(client: OpenAI) -> None:
    """The events come in the API's order and add up."""
    events = list(client.responses.create(model="mock-text", input="hi", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == MOCK_TEXT
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == MOCK_TEXT


@pytest.mark.parametrize("tool", [FLAT_TOOL, STRICT_TOOL])
def test_a_responses_tool_call(client: OpenAI, tool: Any) -> None:
    """A call that the client can execute: ids, name, arguments that conform."""
    response = client.responses.create(model="mock-tool-call", input="hi", tools=[tool])
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "weather"
    assert call.call_id.startswith("call_")
    check_arguments(call.arguments)


def test_a_streamed_responses_tool_call(client: OpenAI) -> None:
    """The client's own accumulator gives the same call that the events tell of."""
    with client.responses.stream(model="mock-tool-call", input="hi", tools=[FLAT_TOOL]) as stream:
        events = list(stream)
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    check_arguments(call.arguments)
    assert "<tool_call>" not in "".join(event.model_dump_json() for event in events)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_whole_responses_tool_loop(client: OpenAI, streamed: bool) -> None:
    """Call, output, answer: the history is what the client was given, sent back."""

    def ask(items: list[Any]) -> Response:
        if not streamed:
            return client.responses.create(model="mock-tool-loop", input=items, tools=[FLAT_TOOL])
        with client.responses.stream(model="mock-tool-loop", input=items, tools=[FLAT_TOOL]) as stream:
            return stream.get_final_response()

    items: list[Any] = [{"role": "user", "content": "What is the weather?"}]
    first = ask(items)
    (call,) = first.output
    assert call.type == "function_call"
    items += [
        call.to_dict(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    second = ask(items)
    assert second.output_text == MOCK_RESULT
    assert all(item.type == "message" for item in second.output)
    assert second.id != first.id


def test_without_tools_a_tag_is_text(client: OpenAI) -> None:
    """A request that offers no functions gets no calls."""
    response = client.responses.create(model="mock-tool-call", input="hi")
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text.startswith("<tool_call>")


def test_the_forced_tool_is_called(client: OpenAI) -> None:
    """A choice that names a function reaches the model."""
    other = FLAT_TOOL | {"name": "other"}
    response = client.responses.create(
        model="mock-tool-call",
        input="hi",
        tools=[FLAT_TOOL, other],
        tool_choice={"type": "function", "name": "other"},
    )
    assert [item.name for item in response.output if item.type == "function_call"] == ["other"]
    silent = client.responses.create(model="mock-tool-call", input="hi", tools=[FLAT_TOOL], tool_choice="none")
    assert [item.type for item in silent.output] == ["message"]


# Chat


def test_a_completion(client: OpenAI) -> None:
    """One choice with text, and usage."""
    completion = client.chat.completions.create(model="mock-text", messages=[{"role": "user", "content": "hi"}])
    (choice,) = completion.choices
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (MOCK_TEXT, "assistant", "stop")
    assert choice.message.tool_calls is None
    assert completion.usage is not None
    assert completion.usage.total_tokens > 0


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_streamed_completion(client: OpenAI, include_usage: bool) -> None:
    """Role first, content that adds up, one finish reason, usage only on request and last."""
    chunks = list(
        client.chat.completions.create(
            model="mock-echo",
            messages=[{"role": "user", "content": "ünï 😀 \u2028 hello"}],
            stream=True,
            stream_options={"include_usage": include_usage},
        )
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == "ünï 😀 \u2028 hello"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert [chunk for chunk in chunks if chunk.usage] == (chunks[-1:] if include_usage else [])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_tool_call(client: OpenAI) -> None:
    """Calls in the message, and the reason for the end."""
    completion = client.chat.completions.create(
        model="mock-tool-call", messages=[{"role": "user", "content": "hi"}], tools=[NESTED_TOOL]
    )
    (choice,) = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    check_arguments(call.function.arguments)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_whole_chat_tool_loop(client: OpenAI, streamed: bool) -> None:
    """Call, output, answer, with the client's own accumulator when streamed."""

    def ask(messages: list[Any]) -> Any:
        if not streamed:
            return client.chat.completions.create(model="mock-tool-loop", messages=messages, tools=[NESTED_TOOL])
        with client.chat.completions.stream(model="mock-tool-loop", messages=messages, tools=[NESTED_TOOL]) as stream:
            return stream.get_final_completion()

    messages: list[Any] = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "What weather?"}]
    message = ask(messages).choices[0].message
    (call,) = message.tool_calls
    check_arguments(call.function.arguments)
    messages += [
        {
            "role": "assistant",
            "content": message.content,
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = ask(messages).choices[0]
    assert (answer.message.content, answer.finish_reason) == (MOCK_RESULT, "stop")
    assert not answer.message.tool_calls


# Raw bodies against the client's own types


@pytest.mark.parametrize("model", ["mock-text", "mock-echo", "mock-tool-call", "mock-tool-loop"])
@pytest.mark.parametrize("tools", [[], [FLAT_TOOL]])
def test_every_raw_responses_event_is_the_clients_type(client: OpenAI, model: str, tools: Any) -> None:
    """What goes over the wire validates, strictly, and the whole object too; nothing in it is unknown to the types."""
    raw = client.responses.with_raw_response.create(model=model, input="hi", tools=tools, stream=True)
    payloads = raw_payloads(raw.http_response.read())
    assert payloads[-1]["type"] == "response.completed"
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))
    for payload in payloads:
        check_event(payload)
    body = client.responses.with_raw_response.create(model=model, input="hi", tools=tools)
    check_response(json.loads(body.http_response.read()))


@pytest.mark.parametrize("model", ["mock-text", "mock-echo", "mock-tool-call", "mock-tool-loop"])
@pytest.mark.parametrize("tools", [openai.omit, [NESTED_TOOL]])
def test_every_raw_chunk_is_the_clients_type(client: OpenAI, model: str, tools: Any) -> None:
    """What goes over the wire validates, strictly, and the whole object too."""
    messages: Any = [{"role": "user", "content": "hi"}]
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
    )
    body = raw.http_response.read()
    assert body.endswith(b"data: [DONE]\n\n")
    for payload in raw_payloads(body):
        check_chunk(payload)
    whole = client.chat.completions.with_raw_response.create(model=model, messages=messages, tools=tools)
    check_completion(json.loads(whole.http_response.read()))


@pytest.mark.parametrize("model", ["mock-text", "mock-tool-call"])
def test_streamed_and_not_streamed_are_the_same(client: OpenAI, model: str) -> None:
    """But for ids and times."""

    def shape(response: Response) -> list[dict[str, Any]]:
        return [item.model_dump(exclude={"id", "call_id"}) for item in response.output]

    whole = client.responses.create(model=model, input="hi", tools=[FLAT_TOOL])
    last = list(client.responses.create(model=model, input="hi", tools=[FLAT_TOOL], stream=True))[-1]
    assert last.type == "response.completed"
    assert shape(whole) == shape(last.response)
    assert whole.usage == last.response.usage


# Errors


@pytest.mark.parametrize("streamed", [True, False])
def test_a_wrong_key(mock_bridge: RunningBridge, streamed: bool) -> None:
    """401 is the client's AuthenticationError on every route."""
    with connect(mock_bridge, "wrong") as client:
        for call in (
            lambda: client.models.list(),
            lambda: client.responses.create(model="mock-text", input="hi", stream=streamed),
            lambda: client.chat.completions.create(
                model="mock-text", messages=[{"role": "user", "content": "hi"}], stream=streamed
            ),
        ):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": "no-such-model"}, "model", "model_not_found"),
        ({"input": ""}, "input", "invalid_request"),
        ({"temperature": 9}, "temperature", "invalid_request"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_request"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_not_found"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "unsupported_item"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ],
)
def test_a_bad_response_request(client: OpenAI, streamed: bool, members: Any, param: str, code: str) -> None:
    """400 is the client's BadRequestError, with place and code; the next request works."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**({"model": "mock-text", "input": "hi", "stream": streamed} | members))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id is not None
    assert client.responses.create(model="mock-text", input="hi").output_text == MOCK_TEXT


def test_a_bad_chat_request(client: OpenAI) -> None:
    """The same for the other endpoint."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="mock-text", messages=[])
    assert caught.value.param == "messages"


def test_an_unknown_model_names_some_that_exist(client: OpenAI) -> None:
    """The message helps."""
    with pytest.raises(openai.BadRequestError, match="mock-text"):
        client.responses.create(model="gpt-none", input="hi")


def test_an_unknown_route(client: OpenAI) -> None:
    """404 is the client's NotFoundError."""
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="mock-text", input="hi")


# Models


def test_the_models(client: OpenAI) -> None:
    """Every listed model can be retrieved and used."""
    listed = [model.id for model in client.models.list()]
    assert {"mock-echo", "mock-text", "mock-tool-call", "mock-tool-loop"} <= set(listed)
    for name in listed:
        assert client.models.retrieve(name).id == name
        assert client.responses.create(model=name, input="hi").status == "completed"


def test_an_unknown_model_cannot_be_retrieved(client: OpenAI) -> None:
    """404 is the client's NotFoundError."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def test_model_names_know_no_case(client: OpenAI) -> None:
    """The client gets back the name that it wrote."""
    response = client.responses.create(model="MOCK-Text", input="hi")
    assert (response.output_text, response.model) == (MOCK_TEXT, "MOCK-Text")


# The asynchronous client, on trio


async def test_the_asynchronous_client(mock_bridge: RunningBridge) -> None:
    """Both endpoints, streamed and not, several at once."""
    async with openai.AsyncOpenAI(
        api_key=KEY,
        base_url=mock_bridge.url,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    ) as client:

        async def ask(number: int) -> None:
            stream = await client.responses.create(model="mock-echo", input=f"number {number}", stream=True)
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            assert text == f"number {number}"

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(ask, number)
        completion = await client.chat.completions.create(
            model="mock-text", messages=[{"role": "user", "content": "hi"}]
        )
        assert completion.choices[0].message.content == MOCK_TEXT
