"""Calls from pieces, in every form that servers give them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from backends.openai_compatible.rig import decode, turn

from bridge.core.collect import collect
from bridge.core.items import FunctionTool
from bridge.protocols.chat.calls import Calls
from bridge.protocols.chat.decoder import ChatBuffer

Json = dict[str, Any]

KNOWN = ("weather", "clock", "get", "get_weather")
BERN, BASEL = '{"city":"Bern"}', '{"city":"Basel"}'
TWO = [("weather", BERN), ("weather", BASEL)]


def piece(index: Any = ..., id: Any = ..., name: Any = ..., arguments: Any = ...) -> Json:
    """One entry of `tool_calls`; what is not given is not there."""
    function = {"name": name, "arguments": arguments}
    entry = {"index": index, "id": id, "function": {key: value for key, value in function.items() if value is not ...}}
    return {key: value for key, value in entry.items() if value is not ...}


def calls_of(*chunks: list[Json], known: tuple[str, ...] = KNOWN) -> list[tuple[str, str]]:
    calls = Calls(known)
    for entries in chunks:
        calls.add(entries)
    return [(call.name, call.arguments) for call in calls.all]


def ids_of(*entries: Json) -> list[str]:
    tools = tuple(FunctionTool(name) for name in KNOWN)
    chunks = [{"id": "chatcmpl-7", "choices": [{"index": 0, "delta": {"tool_calls": [entry]}}]} for entry in entries]
    return [call.call_id for call in decode(chunks, turn(tools=tools)).calls]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                [piece(0, "a", "weather", "")],
                [piece(0, arguments=BERN[:5])],
                [piece(0, arguments=BERN[5:])],
                [piece(1, "b", "weather", "")],
                [piece(1, arguments=BASEL)],
            ],
            id="OpenAI",
        ),
        pytest.param(
            [
                [piece(0, "a", "weather", ""), piece(1, "b", "weather", "")],
                [piece(0, arguments=BERN[:5]), piece(1, arguments=BASEL[:7])],
                [piece(1, arguments=BASEL[7:])],
                [piece(0, arguments=BERN[5:])],
            ],
            id="at once",
        ),
        pytest.param([[piece(..., "a", "weather", BERN)], [piece(..., "b", "weather", BASEL)]], id="Gemini"),
        pytest.param([[piece(..., "a", "weather", BERN), piece(..., "b", "weather", BASEL)]], id="Gemini in one chunk"),
        pytest.param([[piece(..., "", "weather", BERN)], [piece(..., "", "weather", BASEL)]], id="empty ids"),
        pytest.param(
            [[piece(..., "", "weather", BERN), piece(..., "", "weather", BASEL)]], id="empty ids in one chunk"
        ),
        pytest.param([[piece(0, "a", "weather", BERN)], [piece(0, "b", "weather", BASEL)]], id="Ollama"),
        pytest.param([[piece(0, "a", "weather", BERN), piece(0, "b", "weather", BASEL)]], id="Ollama in one chunk"),
        pytest.param([[piece(0, ..., "weather", BERN)], [piece(0, ..., "weather", BASEL)]], id="index 0, no ids"),
        pytest.param(
            [[piece(name="weather", arguments=BERN)], [piece(name="weather", arguments=BASEL)]], id="old Ollama"
        ),
        pytest.param(
            [[piece(name="weather", arguments={"city": "Bern"}), piece(name="weather", arguments={"city": "Basel"})]],
            id="arguments that are objects",
        ),
        pytest.param(
            [
                [piece(0, "a", "weather", "")],
                [piece(0, "", None, BERN)],
                [piece(0, "b", "weather", "")],
                [piece(0, "", None, BASEL)],
            ],
            id="vLLM",
        ),
        pytest.param(
            [
                [piece(0, "a", "weather", BERN[:3])],
                [piece(0, "a", "weather", BERN[3:])],
                [piece(1, "b", "weather", BASEL[:3])],
                [piece(1, "b", "weather", BASEL[3:])],
            ],
            id="id and name in every piece",
        ),
        pytest.param(
            [
                [piece(..., "a", "weather", BERN[:3])],
                [piece(..., "a", "weather", BERN[3:])],
                [piece(..., "b", "weather", BASEL[:3])],
                [piece(..., "b", "weather", BASEL[3:])],
            ],
            id="id and name in every piece, no index",
        ),
        pytest.param(
            [
                [piece(..., "a", "weather", "")],
                [piece(..., "b", "weather", "")],
                [piece(..., "a", arguments=BERN[:4])],
                [piece(..., "b", arguments=BASEL)],
                [piece(..., "a", arguments=BERN[4:])],
            ],
            id="told apart by id alone",
        ),
        pytest.param(
            [
                [piece(0, "a", "weather", "")],
                [piece(0, "random1", None, BERN)],
                [piece(1, "b", "weather", "")],
                [piece(1, "random2", None, BASEL)],
            ],
            id="another id in every piece",
        ),
        pytest.param(
            [[piece(0, ..., "weather", "")], [piece(0, "a", arguments=BERN)], [piece(1, ..., "weather", BASEL)]],
            id="the id comes late",
        ),
        pytest.param(
            [[piece(..., "same", "weather", BERN)], [piece(..., "same", "weather", BASEL)]], id="one id for all"
        ),
        pytest.param(
            [[piece(0, 0, "weather", BERN[:4])], [piece(0, 0, None, BERN[4:])], [piece(0, 1, "weather", BASEL)]],
            id="ids that are numbers",
        ),
        pytest.param(
            [[piece(0, "a", "weather", BERN)], [piece(0, "a", "weather", "")], [piece(1, "b", "weather", BASEL)]],
            id="the name once more at the end",
        ),
    ],
)
def test_two_calls_in_any_form(chunks: list[list[Json]]) -> None:
    assert calls_of(*chunks) == TWO


@pytest.mark.parametrize("index", [0, ...])
@pytest.mark.parametrize("known", [KNOWN, ()], ids=["offered", "not offered"])
def test_a_name_in_pieces(index: Any, known: tuple[str, ...]) -> None:
    chunks = [[piece(index, "a", "get_", "")], [piece(index, name="weather")], [piece(index, arguments="{}")]]
    assert calls_of(*chunks, known=known) == [("get_weather", "{}")]


def test_a_name_whose_beginning_is_a_function_too() -> None:
    assert calls_of([piece(0, "a", "get")], [piece(0, name="_weather")], [piece(0, arguments="{}")]) == [
        ("get_weather", "{}")
    ]


def test_calls_without_arguments_or_ids_are_told_apart_by_their_names() -> None:
    assert calls_of([piece(name="weather", arguments="")], [piece(name="clock", arguments="")]) == [
        ("weather", ""),
        ("clock", ""),
    ]
    assert calls_of([piece(name="clock"), piece(name="clock")]) == [("clock", ""), ("clock", "")]


def test_an_entry_of_nothing_begins_no_call() -> None:
    assert calls_of([piece(0, "", "", "")], [piece()], [{"index": 0, "function": None}]) == []


def test_arguments_that_are_no_object_are_kept_as_they_are() -> None:
    assert calls_of([piece(0, "a", "weather", "{broken")]) == [("weather", "{broken")]
    assert calls_of([piece(0, "a", "weather", [1, 2])]) == [("weather", "[1,2]")]


def test_every_call_has_an_id_that_no_other_has() -> None:
    assert ids_of(piece(0, "a", "weather", "{}"), piece(1, "b", "clock", "{}")) == ["a", "b"]
    assert ids_of(piece(0, ..., "weather", "{}"), piece(1, "", "clock", "{}")) == [
        "call_chatcmpl-7_0",
        "call_chatcmpl-7_1",
    ]
    assert ids_of(piece(0, "a", "weather", "{}"), piece(1, "a", "clock", "{}"), piece(2, "a_1", "clock", "{}")) == [
        "a",
        "a_1",
        "a_1_2",
    ]


def test_an_id_is_one_that_the_client_may_give_back() -> None:
    odd, long = ids_of(piece(0, "a b\né", "weather", "{}"), piece(1, "x" * 999, "clock", "{}"))
    assert (odd, long) == ("a_b__", "x" * 200)


def test_a_long_call_whose_name_comes_with_every_piece_is_not_looked_through_each_time() -> None:
    """Pieces end with braces as code does: the cheap look is not enough, the id is."""
    arguments = orjson.dumps({"text": "}" * 300_000}).decode()
    buffer = ChatBuffer((FunctionTool("weather"),))
    for start in range(0, len(arguments), 6):
        entry = piece(0, "a", "weather", arguments[start : start + 6])
        buffer.receive(orjson.dumps({"choices": [{"delta": {"tool_calls": [entry]}}]}))
    buffer.over(told=True)
    assert collect(buffer.take()).calls[0].arguments == arguments
