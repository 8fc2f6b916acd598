"""The arguments of a call arrive while the provider still writes them: every provider over HTTP, every client.

The provider holds the rest of a call back until the client has seen the beginning, so that a bridge which waits for the
end of the call would wait for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cli.exec.command import Command
from matrix.client import WEATHER
from matrix.rig import Rig, start_rig
from matrix.upstreams import HttpProvider
from protocols.wire.lines import items_of, read_events
from upstream import anthropic_events, events, openai_chat, openai_chat_chunks
from upstream.answers import Gate, Stream

Json = dict[str, Any]

FIRST, REST = '{"city":', ['"Be', 'rn"}']
ARGUMENTS = '{"city":"Bern"}'
PROMPT = "How is the weather in Bern?"
BACKENDS = ["codex", "responses", "anthropic", "openai"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with start_rig(tmp_path_factory.mktemp("streaming")) as rig:
        yield rig


@pytest.fixture(params=BACKENDS)
def provider(rig: Rig, request: pytest.FixtureRequest) -> Iterator[HttpProvider]:
    provider = rig.providers[request.param]
    assert isinstance(provider, HttpProvider)
    yield provider
    provider.gate.open()
    provider.settle()


def calls(provider: HttpProvider, backend: str, *, held: bool = True, cut: bool = False) -> None:
    """It will call the function; `held` after the first piece, or `cut` there by its limit of tokens."""
    pieces = [FIRST] if cut else [FIRST, *REST]
    if backend == "anthropic":
        block = anthropic_events.tool_use("weather", *pieces)
        parts = anthropic_events.answer(block, stop="max_tokens" if cut else None)
        provider.server.will(Stream(_held(parts, provider.gate) if held else parts))
    elif backend == "openai":
        call = openai_chat_chunks.call("weather", *pieces)
        parts = openai_chat_chunks.answer(call, finish="length" if cut else "auto")
        provider.server.will(openai_chat.stream(_held(parts, provider.gate) if held else parts))
    else:
        parts = events.answer(events.call("weather", *pieces), end=events.incomplete() if cut else None)
        if cut:
            # OpenAI says so of the item, too.
            for part in parts:
                if part["type"] == "response.output_item.done":
                    part["item"]["status"] = "incomplete"
        provider.server.will(Stream(_held(parts, provider.gate) if held else parts))


def _held(parts: list[Json], gate: Gate) -> list[Any]:
    first = json.dumps(FIRST)[1:-1]
    (place, *_) = [at for at, part in enumerate(parts, 1) if first in json.dumps(part)]
    return [*parts[:place], gate, *parts[place:]]


def backend_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["provider"])


def test_a_response_stream_has_the_arguments_as_they_come(
    rig: Rig, provider: HttpProvider, request: pytest.FixtureRequest
) -> None:
    calls(provider, backend_of(request))
    tools: Any = [{"type": "function", **WEATHER}]
    with rig.client.responses.create(model=provider.model, input=PROMPT, tools=tools, stream=True) as stream:
        seen: list[Any] = []
        for event in stream:
            seen.append(event)
            if event.type == "response.function_call_arguments.delta":
                provider.gate.open()
    kinds = [event.type for event in seen if "created" not in event.type and "progress" not in event.type]
    assert kinds == [
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * 3,
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.delta for event in seen if hasattr(event, "delta")] == [FIRST, *REST]
    (item,) = seen[-1].response.output
    assert (item.status, item.name, item.arguments) == ("completed", "weather", ARGUMENTS)


def test_a_chat_stream_has_the_arguments_as_they_come(
    rig: Rig, provider: HttpProvider, request: pytest.FixtureRequest
) -> None:
    calls(provider, backend_of(request))
    tools: Any = [{"type": "function", "function": WEATHER}]
    messages: Any = [{"role": "user", "content": PROMPT}]
    pieces, finish = [], None
    with rig.client.chat.completions.create(
        model=provider.model, messages=messages, tools=tools, stream=True
    ) as stream:
        for chunk in stream:
            (choice,) = chunk.choices
            finish = choice.finish_reason
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                pieces.append(call.function.arguments)
                if pieces[-1]:
                    provider.gate.open()
    assert (pieces, finish) == (["", FIRST, *REST], "tool_calls")


def test_exec_writes_the_arguments_as_they_come(
    rig: Rig, provider: HttpProvider, request: pytest.FixtureRequest
) -> None:
    """With --auto-tools: the tool runs when the call is complete, and the model gets its output."""
    calls(provider, backend_of(request))
    provider.says("It is sunny.")
    schema = json.dumps(WEATHER["parameters"])
    tool = ("--tool", f"weather:inline={schema}", "--tool-output", "weather=sunny", "--auto-tools")
    command = Command(rig.warm.directory, rig.warm.environment)
    with command.start("--json", "--model", provider.model, *tool, "--prompt", PROMPT) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if json.loads(line)["type"] == "response.function_call_arguments.delta":
                provider.gate.open()
        assert process.wait(30) == 0
    told = read_events(b"".join(lines))
    deltas = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == [FIRST, *REST]
    call, message = items_of(told)
    assert call["arguments"] == ARGUMENTS
    assert message["content"][0]["text"] == "It is sunny."
    assert provider.outputs() == ["sunny"]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_call_that_the_limit_cuts_off_is_incomplete(
    rig: Rig, provider: HttpProvider, request: pytest.FixtureRequest, streamed: bool
) -> None:
    """What was sent of it stands, streamed or not; nobody may take it for a whole call."""
    calls(provider, backend_of(request), held=False, cut=True)
    tools: Any = [{"type": "function", **WEATHER}]
    asked: Json = {"model": provider.model, "input": PROMPT, "tools": tools}
    response: Any
    if streamed:
        with rig.client.responses.create(**asked, stream=True) as stream:
            last: Any = list(stream)[-1]
            response = last.response
    else:
        response = rig.client.responses.create(**asked)
    assert response.status == "incomplete"
    (item,) = response.output
    assert (item.type, item.status, item.arguments) == ("function_call", "incomplete", FIRST)
