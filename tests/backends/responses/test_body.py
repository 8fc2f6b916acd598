"""The body of a request, member by member as in seed 001; and items that go out exactly as they came in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from backends.upstream.rig import SESSION, turn
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Message,
    OutputFormat,
    RawItem,
    RawTool,
    Text,
    ToolChoice,
)
from bridge.errors import InvalidRequest
from bridge.protocols.responses.build import build_codex_request, check_pairs
from bridge.protocols.wire import WEB_SEARCH, make_format, read_input_items

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
ADD = FunctionTool("add", "Add two numbers", SCHEMA, strict=False)
PATCH = {"name": "apply_patch", "description": "…", "format": {"type": "text", "syntax": "diff", "definition": "…"}}


def built(*items: Any, **more: Any) -> dict[str, Any]:
    return build_codex_request(turn(*items, **more), SESSION)


def test_every_member_of_seed_001() -> None:
    body = built(
        instructions="system text",
        tools=(ADD, WEB_SEARCH, FunctionTool("apply_patch", raw=PATCH)),
        parallel=False,
        output_format=make_format({"type": "object"}),
    )
    assert body == {
        "model": "gpt-5.2-codex",
        "instructions": "system text",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add two numbers",
                "strict": False,
                "parameters": SCHEMA,
            },
            {"type": "web_search", "external_web_access": True},
            {"type": "custom", **PATCH},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "text": {
            "verbosity": "medium",
            # The API wants a name for it; the seed's example leaves it out.
            "format": {"type": "json_schema", "name": "output", "strict": True, "schema": {"type": "object"}},
        },
    }
    assert list(body["tools"][0]) == ["type", "name", "description", "strict", "parameters"]


def test_the_least_that_is_sent() -> None:
    body = built()
    assert (body["instructions"], body["tools"], body["tool_choice"]) == ("", [], "auto")
    assert body["text"] == {"verbosity": "medium"}
    assert "previous_response_id" not in body


def test_what_a_turn_says_otherwise() -> None:
    body = built(effort="high", summary="detailed", verbosity="low", parallel=True, stream=False, temperature=1.0)
    assert body["reasoning"] == {"effort": "high", "summary": "detailed"}
    assert (body["text"], body["parallel_tool_calls"]) == ({"verbosity": "low"}, True)
    assert (body["stream"], body["store"]) == (True, False)
    assert "temperature" not in body, "the ChatGPT backend refuses it"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice("none"), "none"),
        (ToolChoice("required"), "required"),
        (ToolChoice("named", "add"), {"type": "function", "name": "add"}),
        (ToolChoice("named", "apply_patch"), {"type": "custom", "name": "apply_patch"}),
        (ToolChoice("named", "files.read"), {"type": "function", "name": "files__read"}),
        (ToolChoice("named", "unknown"), {"type": "function", "name": "unknown"}),
    ],
    ids=str,
)
def test_each_choice(choice: ToolChoice, sent: Any) -> None:
    tools = (ADD, FunctionTool("apply_patch", raw=PATCH), FunctionTool("read", namespace="files"))
    assert built(tools=tools, tool_choice=choice)["tool_choice"] == sent


@pytest.mark.parametrize(
    ("tool", "sent"),
    [
        (ADD, {"description": "Add two numbers", "strict": False, "parameters": SCHEMA}),
        (replace(ADD, strict=True), {"description": "Add two numbers", "strict": True, "parameters": SCHEMA}),
        (FunctionTool("add"), {"strict": False, "parameters": {"type": "object", "properties": {}}}),
        (FunctionTool("add", parameters={}), {"strict": False, "parameters": {}}),
        (FunctionTool("add", parameters=True), {"strict": False, "parameters": True}),
        (
            FunctionTool("add", parameters={"$ref": "x", "ü": [1]}),
            {"strict": False, "parameters": {"$ref": "x", "ü": [1]}},
        ),
    ],
    ids=range(6),
)
def test_each_function(tool: FunctionTool, sent: dict[str, Any]) -> None:
    assert built(tools=(tool,))["tools"] == [{"type": "function", "name": "add", **sent}]


def test_tools_of_other_types_are_passed_as_they_are() -> None:
    data = {"type": "file_search", "vector_store_ids": ["a"], "surprise": None}
    assert built(tools=(RawTool("file_search", data),))["tools"] == [data]


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (OutputFormat("json_object", {"type": "json_object"}), {"type": "json_object"}),
        (
            OutputFormat("json_schema", {"name": "n", "schema": {}}, {}, strict=False),
            {"type": "json_schema", "name": "n", "strict": False, "schema": {}},
        ),
        (
            OutputFormat("json_schema", {"json_schema": {"name": "chat"}}, {"type": "object"}, strict=True),
            {"type": "json_schema", "name": "chat", "strict": True, "schema": {"type": "object"}},
        ),
    ],
    ids=range(3),
)
def test_each_format(wanted: OutputFormat, sent: dict[str, Any]) -> None:
    assert built(output_format=wanted)["text"]["format"] == sent


# Items


@pytest.mark.parametrize(
    ("item", "sent"),
    [
        (
            Message("system", (Text("a"),)),
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        ),
        (
            Message("assistant", (Text("a"), Text("b"))),
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}],
            },
        ),
        (
            Message("user", (Text("a"), Image("data:image/png;base64,AA==", "low"), Image("data:x"))),
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                    {"type": "input_image", "image_url": "data:x", "detail": "auto"},
                ],
            },
        ),
        (
            FunctionCall("call_1", "add", '{"a":2,"b":3}'),
            {"type": "function_call", "name": "add", "arguments": '{"a":2,"b":3}', "call_id": "call_1"},
        ),
        (
            FunctionCall("call_1", "apply_patch", "text", custom=True),
            {"type": "custom_tool_call", "name": "apply_patch", "input": "text", "call_id": "call_1"},
        ),
        (
            FunctionOutput("call_1", (Text("5"),)),
            {"type": "function_call_output", "call_id": "call_1", "output": "5"},
        ),
        (
            FunctionOutput("call_1", (Text("err: mul failed"),), custom=True),
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "err: mul failed"},
        ),
        (
            FunctionOutput("call_1", (Text("a"), Image("data:x"))),
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "data:x", "detail": "auto"},
                ],
            },
        ),
    ],
    ids=range(8),
)
def test_each_item(item: Any, sent: dict[str, Any]) -> None:
    assert built(item)["input"] == [sent]


def test_a_call_has_the_name_under_which_its_function_is_offered() -> None:
    tool = FunctionTool("read", namespace="files")
    body = built(FunctionCall("c", "read", "{}", namespace="files"), tools=(tool,))
    assert body["input"][0]["name"] == body["tools"][0]["name"]
    assert "namespace" not in body["input"][0]


VERBATIM: list[dict[str, Any]] = [
    {"role": "user", "content": "no type"},
    {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "ü"}},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "not json", "surprise": [None, 1.5, True]},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x", "odd": 1}]},
    {"surprise": {"nested": {"ü": "\u2028"}}},
]


def test_items_from_outside_go_out_exactly_as_they_came() -> None:
    """Images, reasoning, unknown members and unknown types, in their order."""
    items = read_input_items(json.dumps(VERBATIM).encode(), "x", verbatim=True)
    body = orjson.loads(orjson.dumps(built(*items)))
    assert body["input"] == VERBATIM
    assert [list(item) for item in body["input"]] == [list(item) for item in VERBATIM]


NAMES = st.text(max_size=6)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=3))
def test_any_item_goes_out_exactly_as_it_came(items: list[dict[str, Any]]) -> None:
    read = read_input_items(json.dumps(items).encode(), "x", verbatim=True)
    assert orjson.loads(orjson.dumps(built(*read)))["input"] == items


# An output needs its call

PAIRS = {
    "typed": (FunctionCall("c", "f", "{}"), FunctionOutput("c", (Text("5"),))),
    "typed custom": (FunctionCall("c", "f", "x", custom=True), FunctionOutput("c", (Text("5"),), custom=True)),
    "verbatim": tuple(
        RawItem(kind, {"type": kind, "call_id": "c"}) for kind in ("function_call", "function_call_output")
    ),
    "verbatim custom": tuple(
        RawItem(kind, {"type": kind, "call_id": "c"}) for kind in ("custom_tool_call", "custom_tool_call_output")
    ),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_an_output_needs_its_call(pair: tuple[Any, Any]) -> None:
    call, output = pair
    hello = Message("user", (Text("hi"),))
    check_pairs((hello, call, output))
    check_pairs((hello, call, hello, output, hello))
    check_pairs((hello, call))
    for items in ((hello, output), (output,), (hello, FunctionCall("other", "f", "{}"), output)):
        with pytest.raises(InvalidRequest) as caught:
            check_pairs(items)
        assert (caught.value.code, caught.value.http_status) == ("missing_function_call", 400)
        assert "'c'" in caught.value.message
        assert "together" in caught.value.message


def test_outputs_may_come_in_any_order() -> None:
    calls = [FunctionCall(f"c{n}", "f", "{}") for n in range(4)]
    outputs = [FunctionOutput(f"c{n}", (Text(str(n)),)) for n in (2, 0, 3, 1)]
    check_pairs((*calls, *outputs))


@pytest.mark.parametrize("call_id", [None, 7, ["c"], {}, ""], ids=str)
def test_an_output_that_names_no_call_is_refused(call_id: Any) -> None:
    output = RawItem("function_call_output", {"type": "function_call_output", "call_id": call_id})
    with pytest.raises(InvalidRequest) as caught:
        check_pairs((output,))
    assert caught.value.code == "missing_function_call"


def test_other_outputs_are_left_to_the_provider() -> None:
    check_pairs((RawItem("mcp_call_output", {"call_id": "c"}), RawItem("local_shell_call_output", {"id": "c"})))
