"""The mock backend: what it plays, apart from the command."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.collect import Result, collect
from bridge.core.events import Finished, TextDelta
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Item, Message, RawItem, Text, ToolChoice
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.routing.mock import PIECE, REQUEST, MockBackend

MODES = ("echo", "text", "tool-call", "tool-loop")
ASKED = Message("user", (Text("hi"),))
CALL, OUTPUT = FunctionCall("call_mock", "f", "{}"), FunctionOutput("call_mock", (Text("ok"),))
RAW = (
    RawItem("function_call", {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
    RawItem("function_call_output", {"type": "function_call_output", "call_id": "c", "output": "ok"}),
)


def turn(*items: Item, **members: Any) -> Turn:
    return Turn("m", "m", items or (ASKED,), **members)


async def play(mode: str, asked: Turn, *, loops: bool = False) -> tuple[Result, bytes]:
    """The answer, and the request that it was told of."""
    sent: list[bytes] = []
    backend = MockBackend(mode, loops=loops, sent=sent.append)
    stream = await backend.start(asked, "req")
    result = collect(await stream.next())
    stream.close()
    assert result.end == Finished("completed")
    assert result.usage is not None
    assert result.usage.output > 0
    (request,) = sent
    return result, request


@pytest.mark.parametrize("mode", MODES)
async def test_the_same_request_gives_the_same_answer(mode: str) -> None:
    """Event by event; and it is always ready."""
    asked = turn(tools=(FunctionTool("f", parameters={"type": "object"}),))
    assert await play(mode, asked) == await play(mode, asked)
    backend = MockBackend(mode)
    assert (backend.models(), await backend.drops(asked), backend.status()[0]) == ([f"mock-{mode}"], [], True)
    assert backend.rate_limits() is None


@pytest.mark.parametrize(
    ("mode", "items", "loops", "kinds"),
    [
        ("tool-loop", (ASKED,), False, ["call", "text"]),
        ("tool-loop", (ASKED,), True, ["call"]),
        ("tool-loop", (ASKED, CALL, OUTPUT), True, ["text"]),
        ("tool-loop", (ASKED, CALL, OUTPUT), False, ["text"]),
        ("tool-loop", (ASKED, *RAW), True, ["text"]),
        ("tool-call", (ASKED, *RAW), True, ["call"]),
    ],
)
async def test_what_a_mode_plays(mode: str, items: tuple[Item, ...], loops: bool, kinds: list[str]) -> None:
    """It looks at the conversation, as a model would."""
    result, _ = await play(mode, turn(*items), loops=loops)
    assert ["call" if hasattr(output, "call_id") else "text" for output in result.outputs] == kinds


async def test_a_call_has_an_id_of_its_own() -> None:
    """Counted over the conversation."""
    for items, end in (((ASKED,), ""), ((ASKED, CALL, OUTPUT), "_2"), ((ASKED, CALL, OUTPUT, *RAW), "_3")):
        result, _ = await play("tool-call", turn(*items))
        assert [(call.id, call.call_id) for call in result.calls] == [(f"fc_mock{end}", f"call_mock{end}")]


async def test_which_tool_is_called() -> None:
    """The forced one, else the first, else one that nobody offered; with an example of its schema."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 7}}, "required": ["n"]}
    tools = (FunctionTool("f"), FunctionTool("g", parameters=schema))
    for choice, name in ((ToolChoice(), "f"), (ToolChoice("named", "g"), "g")):
        (call,) = (await play("tool-call", turn(tools=tools, tool_choice=choice)))[0].calls
        assert call.name == name
        assert call.arguments == "{}" or jsonschema_rs.is_valid(schema, json.loads(call.arguments))
    (call,) = (await play("tool-call", turn()))[0].calls
    assert (call.name, call.arguments) == ("mock_tool", '{"value":42}')


@given(st.text('aé😀\u0301"\\\n', max_size=2000))
def test_the_whole_request_is_echoed(text: str) -> None:
    """In pieces of 800 characters."""
    import trio

    asked = turn(Message("user", (Text(f"{text}.".strip()),)))
    result, request = trio.run(play, REQUEST, asked)
    assert result.text == request.decode()
    assert orjson.loads(request)["prompt_cache_key"] == "session_mock"

    async def pieces() -> list[int]:
        events = await (await MockBackend(REQUEST).start(asked, "req")).next()
        return [len(piece) for event in events if isinstance(event, TextDelta) for piece in event.pieces]

    *whole, rest = trio.run(pieces)
    assert set(whole) <= {PIECE}
    assert 0 < rest <= PIECE


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ((ASKED,), "hi"),
        ((ASKED, Message("assistant", (Text("yes"),))), "hi"),
        ((Message("user", (Text("one"), Text("two"))),), "one\ntwo"),
        ((RawItem("message", {"role": "user", "content": "raw"}),), "raw"),
        ((RawItem("message", {"role": "user", "content": [{"text": "raw"}, 5, {"text": None}]}),), "raw"),
        ((RawItem("message", {"role": "user", "content": 5}),), "(nothing to echo)"),
        ((Message("system", (Text("be brief"),)),), "(nothing to echo)"),
    ],
)
async def test_echo_is_the_last_user_message(items: tuple[Item, ...], text: str) -> None:
    """Whatever shape it has."""
    result, _ = await play("echo", turn(*items))
    assert result.text == text


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ((ASKED, CALL, OUTPUT), "mock tool result: ok"),
        ((ASKED, CALL, FunctionOutput("call_mock", (Text("sunny"),))), "mock tool result: sunny"),
        ((ASKED, CALL, FunctionOutput("call_mock", (Text("a"),)), *RAW), "mock tool result: a; ok"),
        ((ASKED, CALL, FunctionOutput("call_mock", (Text(""),))), "mock tool result: "),
        ((ASKED, CALL, OUTPUT, ASKED), ""),
    ],
)
async def test_a_tool_loop_ends_with_what_the_tools_gave(items: tuple[Item, ...], text: str) -> None:
    """Since the last user message."""
    result, _ = await play("tool-loop", turn(*items), loops=True)
    assert result.text == text


async def test_an_output_without_its_call_is_refused() -> None:
    """As the real one would."""
    with pytest.raises(InvalidRequest) as refused:
        await play("text", turn(ASKED, OUTPUT))
    assert refused.value.code == "missing_function_call"
