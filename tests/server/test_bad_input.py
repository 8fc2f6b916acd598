"""Whatever a client sends: the right status, OpenAI's error object and nothing else, and the next request works."""

from __future__ import annotations

import json
import re
import socket
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

import httpx2
import pytest
from harness import KEY, RunningBridge
from server.prompted import raw_request, request_headers

from bridge.app.service import Service
from bridge.server.gate import OPEN_PATHS
from bridge.server.routes import build_app

RESPONSES, CHAT, MESSAGES = "/v1/responses", "/v1/chat/completions", "/v1/messages"
PATHS = [RESPONSES, CHAT, MESSAGES]
GOOD: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "mock-echo", "input": "hi"},
    CHAT: {"model": "mock-echo", "messages": [{"role": "user", "content": "hi"}]},
    MESSAGES: {"model": "mock-echo", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]},
}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes


def send(
    bridge: RunningBridge,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    connection: HTTPConnection | None = None,
) -> Answer:
    """One exchange, on a connection of its own unless one is given."""
    used = connection or HTTPConnection("127.0.0.1", bridge.port, timeout=10)
    try:
        used.request(method, path, body, request_headers() if headers is None else headers)
        return read_answer(used.getresponse())
    finally:
        if connection is None:
            used.close()


def raw(bridge: RunningBridge, data: bytes) -> Answer:
    """Bytes in, the one response out; after what is no HTTP the server must close the connection."""
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(data)
        response = HTTPResponse(client)
        response.begin()
        answer = read_answer(response)
        if b'"bad_http"' in answer.body:
            assert client.recv(1) == b""
    return answer


def read_answer(response: HTTPResponse) -> Answer:
    """The whole of a response."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status, headers, response.read())


def error_of(answer: Answer, status: int) -> dict[str, Any]:
    """The error object of a response that must be exactly one."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    body = json.loads(answer.body)
    if body.get("type") == "error":
        assert list(body) == ["type", "error"]
        assert list(body["error"]) == ["type", "message", "param", "code"]
    else:
        assert list(body) == ["error"]
        assert list(body["error"]) == ["message", "type", "param", "code"]
    error: dict[str, Any] = body["error"]
    assert error["message"]
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["code"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    return error


def check_next(bridge: RunningBridge, connection: HTTPConnection | None = None, path: str = RESPONSES) -> None:
    """A good request is answered."""
    answer = send(bridge, "POST", path, json.dumps(GOOD[path]).encode(), connection=connection)
    assert answer.status == 200, answer
    assert b'"hi"' in answer.body


def refused(bridge: RunningBridge, path: str, body: bytes, status: int = 400) -> dict[str, Any]:
    """The error that a POST gets; then a good request on the same connection is answered."""
    with closing(HTTPConnection("127.0.0.1", bridge.port, timeout=10)) as connection:
        error = error_of(send(bridge, "POST", path, body, connection=connection), status)
        check_next(bridge, connection, path)
    return error


# JSON

NOT_JSON = {
    "empty": b"",
    "blank": b" \r\n\t",
    "null": b"null",
    "array": b"[]",
    "array_of_good": b'[{"model":"mock-echo","input":"hi"}]',
    "number": b"5",
    "string": b'"model"',
    "true": b"true",
    "cut": b'{"model":"mock-echo","input":"hi"',
    "trailing": b'{"model":"mock-echo","input":"hi"} {}',
    "bom": b'\xef\xbb\xbf{"model":"mock-echo","input":"hi"}',
    "utf16": '{"model":"mock-echo","input":"hi"}'.encode("utf-16"),
    "bad_utf8": b'{"model":"mock-echo","input":"\xff\xfe"}',
    "lone_surrogate": b'{"model":"mock-echo","input":"\\ud800"}',
    "encoded_surrogate": b'{"model":"mock-echo","input":"\xed\xa0\x80"}',
    "nan": b'{"model":"mock-echo","input":"hi","temperature":NaN}',
    "infinity": b'{"model":"mock-echo","input":"hi","temperature":-Infinity}',
    "huge_float": b'{"model":"mock-echo","input":"hi","temperature":1e400}',
    "single_quotes": b"{'model':'mock-echo'}",
    "comment": b'{"model":"mock-echo" /* so */}',
    "raw_newline": b'{"model":"mock-echo","input":"a\nb"}',
    "form": b"model=mock-echo&input=hi",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
def test_a_body_that_is_no_json_object_is_refused(mock_bridge: RunningBridge, path: str, body: bytes) -> None:
    """Only one whole JSON object in UTF-8 is a request."""
    error = refused(mock_bridge, path, body)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_json")


@pytest.mark.parametrize("depth", [65, 1_000, 10_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_deep_nesting_is_refused(mock_bridge: RunningBridge, depth: int, opening: str, closing: str) -> None:
    """Depth is limited before anything recursive sees the body."""
    deep = opening * depth + "1" + closing * depth
    error = refused(mock_bridge, RESPONSES, f'{{"model":"mock-echo","input":"hi","x":{deep}}}'.encode())
    assert error["code"] in ("nesting_too_deep", "invalid_json")


def test_moderate_nesting_and_surplus_members_are_served(mock_bridge: RunningBridge) -> None:
    """Sixty levels, duplicate keys, huge integers and 20 000 unknown members are no reason to refuse."""
    deep = "[" * 60 + "]" * 60
    many = ",".join(f'"k{number}":{number}' for number in range(20_000))
    body = f'{{"model":"x","model":"mock-echo","input":"hi","deep":{deep},"big":{10**30},{many}}}'
    assert send(mock_bridge, "POST", RESPONSES, body.encode()).status == 200


# Fields


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_object_is_told_what_it_lacks(mock_bridge: RunningBridge, path: str) -> None:
    error = refused(mock_bridge, path, b"{}")
    assert (error["message"], error["param"]) == ("'model' is missing; GET /v1/models lists them.", "model")


def test_a_limit_of_no_tokens_is_told_how_to_ask_for_none(mock_bridge: RunningBridge) -> None:
    error = refused(mock_bridge, RESPONSES, b'{"model":"mock-echo","input":"hi","max_output_tokens":-1}')
    assert error["message"].endswith("greater than or equal to 1; leave it out for no limit.")


BAD_MEMBERS: list[tuple[dict[str, Any], str | None]] = [
    ({"model": None}, "model"),
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"model": ["mock-echo"]}, "model"),
    ({"model": "m" * 300}, "model"),
    ({"stream": "true"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": "all"}, "stream_options"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"temperature": "x"}, "temperature"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_p": True}, "top_p"),
    ({"tools": {}}, "tools"),
    ({"tools": "look"}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [TOOL | {"name": ""}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "two words"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "naïve"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "line\nbreak"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "look\n"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "</tool_call>"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"name": "n" * 300}]}, "tools[0].name"),
    ({"tools": [TOOL | {"parameters": [1]}]}, "tools[0].parameters"),
    ({"tools": [TOOL | {"description": 5}]}, "tools[0].description"),
    ({"tools": [TOOL | {"strict": "yes"}]}, "tools[0].strict"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [TOOL | {"name": f"tool{number}"} for number in range(600)]}, "tools"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "absent"}}, "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "absent"}}},
        "tool_choice",
    ),
]


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, {"role": role, "content": list(blocks)}]}


TEXT = "messages[1].content[0]"
CALL = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
SCHEMA = {"type": "object"}
BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    *[({"max_tokens": limit}, "max_tokens") for limit in (0, -1, 1.5, "many")],
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": []}]}, "messages"),
    (said("user", 5), TEXT),
    (said("user", {}), f"{TEXT}.type"),
    (said("user", {"type": ["text"]}), f"{TEXT}.type"),
    (said("user", {"type": "text"}), f"{TEXT}.text"),
    (said("user", {"type": "audio"}), f"{TEXT}.type"),
    (said("user", CALL), f"{TEXT}.type"),
    (said("user", {"type": "container_upload", "file_id": "file_1"}), f"{TEXT}.type"),
    (said("user", {"type": "image"}), f"{TEXT}.source"),
    (said("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}), f"{TEXT}.source.type"),
    (said("user", {"type": "image", "source": {"type": "base64", "data": "AA=="}}), f"{TEXT}.source.media_type"),
    (said("user", {"type": "image", "source": {"type": "url"}}), f"{TEXT}.source.url"),
    (said("user", {"type": "document", "source": {"type": "base64", "data": "AA=="}}), f"{TEXT}.source.media_type"),
    (said("user", {"type": "document", "source": {"type": "file", "file_id": "f"}}), f"{TEXT}.source.type"),
    (said("user", {"type": "document", "source": {"type": "text"}}), f"{TEXT}.source.data"),
    (said("user", {"type": "search_result", "title": "t", "source": "s"}), f"{TEXT}.content"),
    (said("user", {"type": "tool_result", "content": "x"}), f"{TEXT}.tool_use_id"),
    (said("user", {"type": "tool_result", "tool_use_id": "c1", "content": "x"}), "messages"),
    (said("user", {"type": "tool_result", "tool_use_id": "c1", "content": 5}), f"{TEXT}.content"),
    (said("assistant", CALL | {"input": "{}"}), f"{TEXT}.input"),
    (said("assistant", CALL | {"id": ""}), f"{TEXT}.id"),
    (said("assistant", CALL | {"name": None}), f"{TEXT}.name"),
    (said("assistant", {"type": "thinking"}), f"{TEXT}.thinking"),
    (said("assistant", {"type": "thinking", "thinking": "x", "signature": 5}), f"{TEXT}.signature"),
    (said("assistant", {"type": "redacted_thinking"}), f"{TEXT}.data"),
    ({"system": 5}, "system"),
    ({"system": [5]}, "system[0]"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"tools": "all"}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{"input_schema": SCHEMA}]}, "tools[0].name"),
    ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "tools[0].name"),
    ({"tools": [{"name": "f", "description": 5, "input_schema": SCHEMA}]}, "tools[0].description"),
    ({"tools": [{"type": 5, "name": "f", "input_schema": SCHEMA}]}, "tools[0].type"),
    ({"tools": [{"name": "f", "input_schema": SCHEMA}] * 2}, "tools"),
    ({"tools": [{"name": f"f{number}", "input_schema": SCHEMA} for number in range(600)]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {}}, "tool_choice.type"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool", "name": "absent"}}, "tool_choice.name"),
    ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences[0]"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"temperature": 2}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"stream": "yes"}, "stream"),
    ({"metadata": "me"}, "metadata"),
]
BAD_FIELDS: list[tuple[str, dict[str, Any], str | None]] = [
    *[(path, fields, param) for path in (RESPONSES, CHAT) for fields, param in BAD_MEMBERS],
    *[(RESPONSES, {"max_output_tokens": limit}, "max_output_tokens") for limit in (0, -1, 1.5, "many")],
    *[(CHAT, {name: limit}, name) for name in ("max_tokens", "max_completion_tokens") for limit in (0, -1, "many")],
    (RESPONSES, {"input": None}, "input"),
    (RESPONSES, {"input": ""}, "input"),
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": 5}, "input"),
    (RESPONSES, {"input": {"role": "user"}}, "input"),
    (RESPONSES, {"input": [5]}, "input[0]"),
    (RESPONSES, {"input": [[]]}, "input[0]"),
    (RESPONSES, {"input": [{}]}, "input[0].type"),
    (RESPONSES, {"input": [{"type": "nonsense"}]}, "input[0].type"),
    (RESPONSES, {"input": [{"role": "robot", "content": "hi"}]}, "input[0].role"),
    (RESPONSES, {"input": [{"role": None, "content": "hi"}]}, "input[0].role"),
    (RESPONSES, {"input": [{"role": "tool", "content": "hi"}]}, "input[0].tool_call_id"),
    (RESPONSES, {"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    (RESPONSES, {"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c1", "output": "x"}]}, "input"),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c1", "arguments": "{}"}]}, "input[0].name"),
    (
        RESPONSES,
        {"input": [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": {}}]},
        "input[0].arguments",
    ),
    (
        RESPONSES,
        {
            "input": [
                {"type": "function_call_output", "call_id": "c1", "output": "x"},
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            ]
        },
        "input",
    ),
    (RESPONSES, {"instructions": 5}, "instructions"),
    (RESPONSES, {"max_output_tokens": "5"}, "max_output_tokens"),
    (RESPONSES, {"reasoning": "high"}, "reasoning"),
    (RESPONSES, {"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    (RESPONSES, {"metadata": {"a": 1}}, "metadata.a"),
    (RESPONSES, {"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"background": "yes"}, "background"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": {"role": "user", "content": "hi"}}, "messages"),
    (CHAT, {"messages": [5]}, "messages[0]"),
    (CHAT, {"messages": [{}]}, "messages[0].type"),
    (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": ["user"], "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
    (CHAT, {"messages": [{"role": "assistant", "content": None}]}, "messages"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "c1"}]}]}, "messages[0].tool_calls[0].function"),
    (CHAT, {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "x"}]}, "messages"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (CHAT, {"n": "2"}, "n"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": -1}, "n"),
    (CHAT, {"n": 1.5}, "n"),
    (CHAT, {"n": 1000}, "n"),
    (CHAT, {"max_tokens": "5"}, "max_tokens"),
    (CHAT, {"max_completion_tokens": "5"}, "max_completion_tokens"),
    (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort"),
    (CHAT, {"response_format": "json"}, "response_format"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.schema"),
    *[(MESSAGES, fields, param) for fields, param in BAD_MESSAGES],
]


def test_a_thread_of_messages_is_refused(mock_bridge: RunningBridge) -> None:
    """Each request of a thread has only new messages. On this code Anthropic's tool runner then sends all of them."""
    body = json.dumps(GOOD[MESSAGES] | {"thread": {"type": "create"}}).encode()
    answer = send(mock_bridge, "POST", MESSAGES, body)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", "thread")
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    BAD_FIELDS,
    ids=[f"{path.rpartition('/')[2]}-{str(fields)[:60]}" for path, fields, _ in BAD_FIELDS],
)
def test_a_wrong_field_is_named(mock_bridge: RunningBridge, path: str, fields: dict[str, Any], param: str) -> None:
    """A field of the wrong type or value gives 400, and `param` is its place in the request."""
    error = refused(mock_bridge, path, json.dumps(GOOD[path] | fields).encode())
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_missing_model_is_named(mock_bridge: RunningBridge, path: str, streamed: bool) -> None:
    """A request without its model is refused, streamed or not, with a status code."""
    body = {name: value for name, value in GOOD[path].items() if name != "model"} | {"stream": streamed}
    assert refused(mock_bridge, path, json.dumps(body).encode())["param"] == "model"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", ["gpt-4", "mock", "mock-echo ", "../mock-echo", "a\0b", "модель", "m" * 256])
def test_an_unknown_model_is_told_some_that_exist(mock_bridge: RunningBridge, path: str, model: str) -> None:
    """400 model_not_found names models that can be asked for instead. Anthropic's status is 404."""
    status = 404 if path == MESSAGES else 400
    error = refused(mock_bridge, path, json.dumps(GOOD[path] | {"model": model}).encode(), status)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "mock-echo" in error["message"]
    assert len(error["message"]) < 1000


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/i.png", "https://example.org/i.png", "file:///etc/passwd", "/etc/passwd", ""]
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_image_that_is_no_data_url_is_refused_and_not_fetched(
    mock_bridge: RunningBridge, url: str, streamed: bool
) -> None:
    """The bridge fetches nothing on a client's behalf."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        place = url.replace("{port}", str(listener.getsockname()[1]))
        image = {"type": "image_url", "image_url": {"url": place}}
        body = {"model": "mock-echo", "messages": [{"role": "user", "content": [image]}], "stream": streamed}
        error = refused(mock_bridge, CHAT, json.dumps(body).encode())
        assert error["code"] == "unsupported_image_url"
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_data_url_image_is_taken(mock_bridge: RunningBridge) -> None:
    """The rule above leaves inline images alone."""
    gif = "data:image/gif;base64,R0lGODdhCAAGAIEAAMgeHgAAAAAAAAAAACwAAAAACAAGAAAIDgABCBxIsKDBgwgTDgwIADs="
    image = {"type": "input_image", "image_url": gif}
    content = [{"type": "input_text", "text": "hi"}, image]
    body = {"model": "mock-echo", "input": [{"role": "user", "content": content}]}
    assert send(mock_bridge, "POST", RESPONSES, json.dumps(body).encode()).status == 200


# Sizes and encodings


@pytest.mark.parametrize("path", PATHS)
def test_a_body_declared_too_large_is_refused_at_once(mock_bridge: RunningBridge, path: str) -> None:
    """413 comes before the body does."""
    headers = request_headers(**{"Content-Length": "30000000", "Connection": "close"})
    error = error_of(raw(mock_bridge, raw_request("POST", path, b"", headers)), 413)
    assert error["code"] == "request_too_large"
    assert "PROXY_MAX_BODY" in error["message"]
    check_next(mock_bridge)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_that_grows_too_large_is_refused(mock_bridge: RunningBridge, declared: bool) -> None:
    """A client that sends it all, with or without its length, can read the 413."""
    body = json.dumps(GOOD[RESPONSES] | {"x": "x" * (21 * 1024 * 1024)}).encode()
    if declared:
        answer = raw(mock_bridge, raw_request("POST", RESPONSES, body, request_headers(Connection="close")))
    else:
        head = raw_request(
            "POST", RESPONSES, b"", request_headers(Connection="close", **{"Transfer-Encoding": "chunked"})
        )
        answer = raw(mock_bridge, head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert error_of(answer, 413)["code"] == "request_too_large"
    check_next(mock_bridge)


def test_a_large_body_within_the_limit_is_served(mock_bridge: RunningBridge) -> None:
    """Ten megabytes, chunked, are a request like any other."""
    body = json.dumps({"model": "mock-text", "input": "x" * 10_000_000}).encode()
    head = raw_request("POST", RESPONSES, b"", request_headers(Connection="close", **{"Transfer-Encoding": "chunked"}))
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[at : at + 65536]), body[at : at + 65536]) for at in range(0, len(body), 65536)
    )
    answer = raw(mock_bridge, head + chunks + b"0\r\n\r\n")
    assert answer.status == 200
    assert b"mock response text" in answer.body


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, identity"])
def test_a_compressed_body_is_refused(mock_bridge: RunningBridge, encoding: str) -> None:
    """415, since nothing here unpacks what a client packed."""
    body = json.dumps(GOOD[RESPONSES]).encode()
    answer = send(mock_bridge, "POST", RESPONSES, body, request_headers(**{"Content-Encoding": encoding}))
    assert error_of(answer, 415)["code"] == "unsupported_encoding"
    check_next(mock_bridge)


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_a_wrong_content_type_is_refused(mock_bridge: RunningBridge, kind: str | None) -> None:
    """415: what a web page can send without asking is not JSON."""
    headers = {"Authorization": f"Bearer {KEY}"} | ({} if kind is None else {"Content-Type": kind})
    answer = send(mock_bridge, "POST", RESPONSES, json.dumps(GOOD[RESPONSES]).encode(), headers)
    assert error_of(answer, 415)["code"] == "unsupported_media_type"
    check_next(mock_bridge)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y"])
def test_every_spelling_of_json_is_taken(mock_bridge: RunningBridge, kind: str) -> None:
    """Case and parameters of the content type do not matter."""
    headers = request_headers(**{"Content-Type": kind})
    assert send(mock_bridge, "POST", RESPONSES, json.dumps(GOOD[RESPONSES]).encode(), headers).status == 200


# Keys

BAD_KEYS: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "empty": [("Authorization", "")],
    "bearer_alone": [("Authorization", "Bearer")],
    "wrong": [("Authorization", "Bearer wrong")],
    "prefix": [("Authorization", f"Bearer {KEY[:-1]}")],
    "longer": [("Authorization", f"Bearer {KEY}x")],
    "upper": [("Authorization", f"Bearer {KEY.upper()}")],
    "not_ascii": [("Authorization", "Bearer clé-ÿ")],
    "long": [("Authorization", "Bearer " + "k" * 20_000)],
    "no_scheme": [("Authorization", KEY)],
    "basic": [("Authorization", f"Basic {KEY}")],
    "joined": [("Authorization", f"Bearer {KEY},Bearer {KEY}")],
    "doubled": [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")],
    "doubled_wrong_first": [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {KEY}")],
    "both_kinds_differ": [("Authorization", f"Bearer {KEY}"), ("x-api-key", "wrong")],
    "x_empty": [("x-api-key", "")],
    "x_wrong": [("x-api-key", "wrong")],
    "x_with_scheme": [("x-api-key", f"Bearer {KEY}")],
    "other_header": [("api-key", KEY)],
    "cookie": [("Cookie", f"key={KEY}")],
}


@pytest.mark.parametrize("headers", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_wrong_key_is_refused(mock_bridge: RunningBridge, headers: list[tuple[str, str]]) -> None:
    """401 with WWW-Authenticate for every key but the one, and the key is not repeated."""
    lines = [f"POST {RESPONSES} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    body = json.dumps(GOOD[RESPONSES]).encode()
    lines.append(f"Content-Length: {len(body)}")
    answer = raw(mock_bridge, "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    error = error_of(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert KEY not in answer.body.decode()
    check_next(mock_bridge)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": KEY},
        {"authorization": f"bearer {KEY}"},
        {"authorization": f"Bearer   {KEY} "},
        {"authorization": f"Bearer {KEY}", "x-api-key": KEY},
    ],
    ids=["x-api-key", "lower", "blanks", "both"],
)
def test_the_key_is_taken_in_every_usual_place(mock_bridge: RunningBridge, headers: dict[str, str]) -> None:
    """Authorization in any case, x-api-key, or both with the same key."""
    answer = send(
        mock_bridge,
        "POST",
        RESPONSES,
        json.dumps(GOOD[RESPONSES]).encode(),
        headers | {"Content-Type": "application/json"},
    )
    assert answer.status == 200


def test_different_keys_are_refused_as_such(mock_bridge: RunningBridge) -> None:
    """The message says that the keys differ, so that nobody looks for a wrong one."""
    headers = {"authorization": f"Bearer {KEY}", "x-api-key": "another"}
    assert "different API keys" in error_of(send(mock_bridge, "GET", "/v1/models", headers=headers), 401)["message"]


def test_a_key_in_the_query_is_none(mock_bridge: RunningBridge) -> None:
    """A key in a URL would end in logs; it does not count."""
    for name in ("key", "api_key", "access_token"):
        answer = send(mock_bridge, "GET", f"/v1/models?{name}={KEY}", headers={})
        assert error_of(answer, 401)["code"] == "invalid_api_key"


def test_every_route_but_the_probes_wants_the_key(mock_bridge: RunningBridge) -> None:
    """Taken from the real routes, so that a new one cannot be forgotten."""
    nothing: Any = None
    service = Service(nothing, nothing, 0, 0, nothing)
    paths = set(build_app(service, fault=lambda: None, started_at=0).patterns)
    assert paths >= {*OPEN_PATHS, RESPONSES, CHAT}
    for path in paths:
        for method in ("GET", "POST", "DELETE"):
            status = 401 if path not in OPEN_PATHS else 200 if method == "GET" else 405
            place = re.sub(r"{.*?}", "mock-echo", path)
            assert send(mock_bridge, method, place, b"{}" if method == "POST" else b"", {}).status == status, place


def test_a_refused_large_body_does_not_hide_the_refusal(mock_bridge: RunningBridge) -> None:
    """A client that sends megabytes before it looks can still read the 401."""
    headers = {"Content-Type": "application/json", "Connection": "close"}
    assert error_of(raw(mock_bridge, raw_request("POST", RESPONSES, b"x" * 3_000_000, headers)), 401)
    check_next(mock_bridge)


# Paths and methods


@pytest.mark.parametrize(
    "path", ["/other", "/v1", "/v1/", "/v1/responses//", "/v1/audio/speech", "/v2/responses", "/v1/%ff%0d%0aX: y"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_path_is_not_found(mock_bridge: RunningBridge, path: str, method: str) -> None:
    """404 in OpenAI's form, with a hint at the usual mistake."""
    answer = send(mock_bridge, method, path.replace(" ", "%20"), b"{}" if method == "POST" else b"")
    error = error_of(answer, 404)
    assert error["code"] == "not_found"
    assert "/v1" in error["message"]
    check_next(mock_bridge)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/completions", "POST /v1/chat/completions"),
        ("/v1/embeddings", "another provider"),
        ("/chat/completions", "POST /v1/chat/completions"),
        ("/responses", "POST /v1/responses"),
        ("/models", "GET /v1/models"),
        ("/v1/v1/chat/completions", "remove /v1 from the base URL"),
        ("/v1/v1/messages", "must not end in /v1"),
        ("/messages", "must not end in /v1"),
        ("/v1/messages/batches", "GET /openapi.json lists all paths"),
    ],
)
def test_a_common_wrong_path_is_answered_with_the_right_one(mock_bridge: RunningBridge, path: str, hint: str) -> None:
    """What editors and half-right base URLs ask for is answered with what to set instead."""
    error = error_of(send(mock_bridge, "POST", path, b'{"model":"mock-echo","prompt":"hi"}'), 404)
    assert error["code"] == "not_found"
    assert hint in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", RESPONSES, "POST"),
        ("PUT", RESPONSES, "POST"),
        ("DELETE", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("BREW", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/v1/models/mock-echo", "GET"),
        ("POST", "/healthz", "GET"),
        ("DELETE", "/readyz", "GET"),
    ],
)
def test_a_wrong_method_is_answered_with_the_right_ones(
    mock_bridge: RunningBridge, method: str, path: str, allowed: str
) -> None:
    """405 in OpenAI's form, with Allow."""
    answer = send(mock_bridge, method, path, b"{}" if method == "POST" else b"")
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert allowed in answer.headers["allow"].split(", ")
    check_next(mock_bridge)


def test_a_slash_at_the_end_of_a_path_is_left_out(mock_bridge: RunningBridge) -> None:
    """Some clients write every path so."""
    for path, body in GOOD.items():
        assert send(mock_bridge, "POST", f"{path}/", json.dumps(body).encode()).status == 200
    assert json.loads(send(mock_bridge, "GET", "/v1/models/").body)["object"] == "list"
    assert send(mock_bridge, "GET", "/v1/models/mock-echo/").status == 200


def test_an_unknown_model_page_is_not_found(mock_bridge: RunningBridge) -> None:
    """GET of a model that does not exist is 404, of one that does its entry."""
    error = error_of(send(mock_bridge, "GET", "/v1/models/gpt-4"), 404)
    assert error["code"] == "model_not_found"
    answer = send(mock_bridge, "GET", "/v1/models/mock-echo")
    assert json.loads(answer.body)["id"] == "mock-echo"


def test_head_of_a_page_has_no_body(mock_bridge: RunningBridge) -> None:
    """HEAD works for probes that use it."""
    answer = send(mock_bridge, "HEAD", "/healthz", headers={})
    assert (answer.status, answer.body) == (200, b"")


# Host and Origin


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost:1",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.8.8.8",
        "[::1]",
        "[::1]:9",
    ],
)
def test_loopback_hosts_are_served(mock_bridge: RunningBridge, host: str) -> None:
    """Every spelling of this machine, with any port."""
    body = json.dumps(GOOD[RESPONSES]).encode()
    assert (
        raw(mock_bridge, raw_request("POST", RESPONSES, body, request_headers(Connection="close"), host)).status == 200
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::]",
        "192.168.1.1",
        "169.254.169.254",
        "localhost@evil.example",
        "[::1].evil.example",
        "localhost evil.example",
        "",
    ],
)
@pytest.mark.parametrize("path", [RESPONSES, "/healthz"])
def test_foreign_hosts_are_refused(mock_bridge: RunningBridge, host: str, path: str) -> None:
    """A name that a web page could bind to this machine is not served, with the right key and on any path."""
    method, body = ("POST", b"{}") if path == RESPONSES else ("GET", b"")
    answer = raw(mock_bridge, raw_request(method, path, body, request_headers(Connection="close"), host))
    assert error_of(answer, 403)["code"] == "host_not_allowed"
    check_next(mock_bridge)


def test_an_absolute_target_gets_nowhere(mock_bridge: RunningBridge) -> None:
    """The host of an absolute-form target is none of ours, whatever the Host header says."""
    body = json.dumps(GOOD[RESPONSES]).encode()
    target = "http://evil.example/v1/responses"
    answer = raw(mock_bridge, raw_request("POST", target, body, request_headers(Connection="close")))
    assert answer.status in (400, 403, 404)
    check_next(mock_bridge)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
    ],
    ids=str,
)
def test_requests_from_web_pages_are_refused(mock_bridge: RunningBridge, headers: dict[str, str]) -> None:
    """403 even with the right key, and no header that would let the page read it."""
    for method, path in (("POST", RESPONSES), ("GET", "/v1/models"), ("OPTIONS", RESPONSES), ("GET", "/healthz")):
        body = b"{}" if method == "POST" else b""
        answer = raw(mock_bridge, raw_request(method, path, body, request_headers(Connection="close", **headers)))
        assert error_of(answer, 403)["code"] == "origin_not_allowed"
        assert not [name for name in answer.headers if name.startswith("access-control")]
    check_next(mock_bridge)


# The HTTP layer

GOOD_BYTES = json.dumps(GOOD[RESPONSES]).encode()
CHUNKED_GOOD = b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD_BYTES), GOOD_BYTES)


def good_request(**headers: str) -> bytes:
    """A request as bytes, to be spoilt."""
    return raw_request("POST", RESPONSES, GOOD_BYTES, request_headers(Connection="close", **headers))


BAD_HTTP = {
    "tls_hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n",
    "no_version": b"GET /\r\n\r\n",
    "two_hosts": good_request().replace(b"\r\n", b"\r\nHost: evil.example\r\n", 1),
    "no_host": good_request().replace(b"Host: 127.0.0.1\r\n", b""),
    "blank_before_colon": good_request().replace(b"Content-Type:", b"Content-Type :"),
    "two_lengths": good_request().replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n", 1),
    "negative_length": good_request().replace(b"Content-Length: ", b"Content-Length: -", 1),
    "nul": good_request(**{"X-Nul": "a\0b"}),
    "raw_path": good_request().replace(b"/v1/", b"/v1\xff/", 1),
    "bad_chunk": raw_request("POST", RESPONSES, b"", request_headers(**{"Transfer-Encoding": "chunked"})) + b"zz\r\n",
    "unknown_coding": raw_request("POST", RESPONSES, b"", request_headers(**{"Transfer-Encoding": "gzip"})),
    "length_and_chunks": raw_request(
        "POST",
        RESPONSES,
        b"",
        request_headers(Connection="close", **{"Transfer-Encoding": "chunked", "Content-Length": "5"}),
    )
    + CHUNKED_GOOD,
    "endless_header": b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000,
}


@pytest.mark.parametrize("data", BAD_HTTP.values(), ids=BAD_HTTP)
def test_bad_http_is_refused_and_the_connection_closed(mock_bridge: RunningBridge, data: bytes) -> None:
    """What two servers could read in two ways is read by neither: 4xx and the end of the connection."""
    answer = raw(mock_bridge, data)
    assert answer.status in (400, 431, 501)
    check_next(mock_bridge)


def test_pipelined_requests_are_answered_in_order(mock_bridge: RunningBridge) -> None:
    """A bad and a good request sent at once get their answers on one connection."""
    bad = raw_request("POST", RESPONSES, b"{}", request_headers())
    good = raw_request("POST", RESPONSES, GOOD_BYTES, request_headers())
    with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=10) as client:
        client.sendall(bad + good)
        received = b""
        while received.count(b"HTTP/1.1 ") < 2:
            received += client.recv(65536)
    statuses = [part.split()[0] for part in received.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"400", b"200"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_connection_that_is_to_be_closed_is_closed(mock_bridge: RunningBridge, version: str, streamed: bool) -> None:
    """With HTTP/1.0 or `Connection: close` the end of the answer is the end of the connection."""
    body = json.dumps(GOOD[RESPONSES] | {"stream": streamed}).encode()
    request = raw_request("POST", RESPONSES, body, request_headers(Connection="close"))
    with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=10) as client:
        client.sendall(request.replace(b"HTTP/1.1", f"HTTP/{version}".encode(), 1))
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    assert b'"status":"completed"' in received


def test_a_client_that_waits_for_permission_gets_it(mock_bridge: RunningBridge) -> None:
    """`Expect: 100-continue` is answered before the body is sent."""
    head, _, body = good_request(Expect="100-continue").partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=10) as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_websocket_without_a_key_is_refused(mock_bridge: RunningBridge) -> None:
    """As any request is, by an HTTP answer in place of the handshake."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    error = error_of(raw(mock_bridge, raw_request("GET", RESPONSES, b"", headers)), 401)
    assert error["code"] == "invalid_api_key"


def test_the_bridge_made_no_mistake(mock_bridge: RunningBridge) -> None:
    """After all this its own log holds no traceback."""
    assert "Traceback" not in mock_bridge.stderr.read_text()


@pytest.mark.parametrize("path", [RESPONSES, "/v1/nothing", "/v1/models"])
def test_a_refusal_before_the_body_never_costs_the_next_request(mock_bridge: RunningBridge, path: str) -> None:
    """The connection goes on, or the answer says that it ends. Many times, no accident."""
    with httpx2.Client(base_url=mock_bridge.root, trust_env=False, headers={"authorization": "Bearer wrong"}) as client:
        for _ in range(40):
            response = client.post(path, json={"model": "mock-echo", "input": "x" * 2000})
            assert response.status_code == 401


@pytest.mark.parametrize(
    "framing", ["Content-Length: 2000", "Transfer-Encoding: chunked", "Content-Length: 2\r\nExpect: 100-continue"]
)
def test_a_refusal_without_the_body_says_that_the_connection_ends(mock_bridge: RunningBridge, framing: str) -> None:
    """Else a client would send its next request into a connection that is being closed."""
    head = f"POST {RESPONSES} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\n{framing}\r\n\r\n"
    answer = raw(mock_bridge, head.encode())
    assert (answer.status, answer.headers["connection"]) == (401, "close")
