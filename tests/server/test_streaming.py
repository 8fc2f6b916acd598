"""Streams and their ends: headers, keepalives, failures before and after the first word, and what a stop does to it."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from harness import RunningBridge, read_sse, running_bridge
from server.conftest import LoggedBridge
from server.prompted import (
    LOOK,
    MODEL,
    ask,
    ask_chat,
    children_of,
    is_alive,
    open_response,
    prompted_codex,
    send_request,
    wait_for,
)

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
Ask = Callable[..., dict[str, Any]]
BOTH = pytest.mark.parametrize(("path", "body"), [(RESPONSES, ask), (CHAT, ask_chat)], ids=["responses", "chat"])


def lines_of(response: HTTPResponse) -> list[str]:
    """The rest of a stream."""
    return response.read().decode().split("\n")


def terminal_error(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The error that a stream of either endpoint ends with; nothing may come after it."""
    last = events[-1]
    if last.get("type") == "response.failed":
        error = dict(last["response"]["error"])
        assert last["response"]["status"] == "failed"
        # `code` is one of the few that the API knows; ours stands beside it.
        error["code"] = error.pop("bridge_code")
    else:
        assert list(last) == ["error"]
        error = dict(last["error"])
    ends = [
        event for event in events if event.get("type") in ("response.failed", "response.completed") or "error" in event
    ]
    assert len(ends) == 1
    return error


def text_of(events: list[dict[str, Any]]) -> str:
    """The visible text of a stream of either endpoint."""
    pieces = []
    for event in events:
        if event.get("type") == "response.output_text.delta":
            pieces.append(event["delta"])
        for choice in event.get("choices", ()):
            pieces.append(choice["delta"].get("content") or "")
    return "".join(pieces)


# Heads


@BOTH
def test_a_stream_is_marked_as_one(prompted: LoggedBridge, path: str, body: Ask) -> None:
    """Content type, no caching, no buffering by a proxy in between, and an id to ask about."""
    connection, response = open_response(prompted.bridge, path, body({"text": "hi"}, stream=True))
    with closing(connection):
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["content-length"] is None
        assert re.fullmatch(r"req_[0-9a-f]{32}", response.headers["x-request-id"])
        lines_of(response)


@BOTH
def test_every_answer_has_a_request_id_of_its_own(prompted: LoggedBridge, path: str, body: Ask) -> None:
    """Good or bad, streamed or not; the client's own header is not taken for it."""
    seen = set()
    for request in (
        body({"text": "hi"}),
        body({"text": "hi"}, stream=True),
        body({"error": {"message": "no"}}),
        body({"text": "hi"}, stream="x"),
        body({"text": "hi"}, model="none"),
    ):
        connection, response = open_response(prompted.bridge, path, request)
        with closing(connection):
            seen.add(response.headers["x-request-id"])
            response.read()
    assert len(seen) == 5
    assert None not in seen


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "dropped"),
    [
        (RESPONSES, {"temperature": 0.5, "max_output_tokens": 9}, "temperature"),
        (RESPONSES, {"max_tokens": 9}, "max_tokens"),
        (RESPONSES, {"temperature": 0}, "temperature"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools:web_search"),
        (CHAT, {"n": 2, "stop": ["x"], "seed": 1}, "seed"),
        (CHAT, {"top_p": 0, "seed": 0}, "top_p,seed"),
        (CHAT, {"temperature": None, "stop": [], "n": 1}, None),
    ],
)
def test_what_has_no_effect_is_named(
    mock_bridge: RunningBridge, path: str, fields: dict[str, Any], dropped: str | None, streamed: bool
) -> None:
    """x-bridge-dropped lists every field that Codex cannot honour, a zero as well as any other value."""
    good = {"model": "mock-echo", "input" if path == RESPONSES else "messages": [{"role": "user", "content": "hi"}]}
    connection, response = open_response(mock_bridge, path, good | fields | {"stream": streamed})
    with closing(connection):
        assert response.status == 200
        assert response.headers["x-bridge-dropped"] == dropped
        response.read()


def test_the_usage_chunk_comes_on_request(prompted: LoggedBridge) -> None:
    """With include_usage the last chunk has no choices and the counts; without it no chunk has the member."""
    steps = [{"text": "hi"}, {"usage": {"input": 7, "output": 3, "cached": 2, "reasoning": 1}}]
    with_usage = prompted.bridge.events(CHAT[3:], ask_chat(*steps, stream_options={"include_usage": True}))
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"]["prompt_tokens"] == 7
    assert with_usage[-1]["usage"]["completion_tokens"] == 3
    assert with_usage[-1]["usage"]["total_tokens"] == 10
    assert [chunk["usage"] for chunk in with_usage[:-1]] == [None] * (len(with_usage) - 1)
    without = prompted.bridge.events(CHAT[3:], ask_chat(*steps))
    assert not [chunk for chunk in without if "usage" in chunk]


# Silence


@dataclass
class Watched:
    """A stream whose head came late."""

    status: int
    seconds: float
    """Until the head."""
    blocks: list[str]


NOTICES = [{"usage": {"input": 1, "output": 1}}, {"sleep": 1.2}] * 15
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "silent-responses": (RESPONSES, ask({"hang": True}, stream=True)),
    "silent-chat": (CHAT, ask_chat({"hang": True}, stream=True)),
    "failing-responses": (RESPONSES, ask({"sleep": 4}, {"error": {"message": "boom"}}, stream=True)),
    "failing-chat": (CHAT, ask_chat({"sleep": 4}, {"error": {"message": "boom"}}, stream=True)),
    "notices": (RESPONSES, ask(*NOTICES, {"hang": True}, stream=True)),
}


@pytest.fixture(scope="module")
def held(prompted: LoggedBridge) -> dict[str, Watched]:
    """Streams that begin with silence, watched side by side to their end or, if they have none, for three comments."""

    def watch(name: str) -> Watched:
        started = time.monotonic()
        connection, response = open_response(prompted.bridge, *HELD[name])
        with closing(connection):
            seconds, text = time.monotonic() - started, ""
            ends = name.startswith("failing")
            while (ends or text.count(": keepalive\n\n") < 3) and (line := response.readline()):
                text += line.decode()
        return Watched(response.status, seconds, text.removesuffix("\n\n").split("\n\n"))

    with ThreadPoolExecutor(len(HELD)) as pool:
        return dict(zip(HELD, pool.map(watch, HELD), strict=True))


def events_of(blocks: list[str]) -> list[dict[str, Any]]:
    """The JSON of a stream's blocks, without comments and `[DONE]`."""
    texts = [block.partition("data: ")[2] for block in blocks if not block.startswith(":")]
    return [json.loads(text) for text in texts if text != "[DONE]"]


@pytest.mark.parametrize("name", ["silent-responses", "silent-chat"])
def test_silence_before_the_first_word_is_broken(held: dict[str, Watched], name: str) -> None:
    """A model that thinks for long costs no connection: the head is out within seconds, then comments follow."""
    assert held[name].status == 200
    assert 1 < held[name].seconds < 12
    assert held[name].blocks[-3:] == [": keepalive"] * 3


@pytest.mark.parametrize("name", ["failing-responses", "failing-chat"])
def test_a_late_failure_in_silence_is_in_the_stream(held: dict[str, Watched], name: str) -> None:
    """Once the head is out to break the silence, even a failure without a word is an event."""
    assert held[name].status == 200
    assert terminal_error(events_of(held[name].blocks))["message"] == "boom"


def test_usage_notices_do_not_hold_the_head_back(held: dict[str, Watched]) -> None:
    """What the client does not see is silence, too: the head comes out in time all the same."""
    assert held["notices"].status == 200
    assert held["notices"].seconds < 12


def test_silence_between_words_is_broken(prompted: LoggedBridge) -> None:
    """Comments stand between events, never inside one, and no client takes them for an event."""
    request = ask({"deltas": ["a"]}, {"sleep": 2}, {"deltas": ["b"]}, stream=True)
    connection, response = open_response(prompted.bridge, RESPONSES, request)
    with closing(connection):
        blocks = response.read().decode().split("\n\n")
    comments = [index for index, block in enumerate(blocks) if block.startswith(":")]
    assert len(comments) >= 2
    assert {blocks[index] for index in comments} == {": keepalive"}
    events = events_of(blocks[:-1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(events) == "ab"


def test_no_end_is_lost_to_a_keepalive(tmp_path: Path) -> None:
    """Storing an answer takes a moment before its last event: a comment that falls due just then swallows nothing."""
    with (
        running_bridge(
            tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL, PROXY_KEEPALIVE="0.001"
        ) as bridge,
        bridge.client() as client,
    ):
        conversation = {"conversation": client.post("/conversations").json()["id"]}
        for number in range(80):
            steps = [{"text": "one"}, {"sleep": 0.01}, {"text": "two"}]
            events = bridge.events("/responses", ask(*steps, **(conversation if number % 2 else {})))
            assert text_of(events) == "onetwo"
            assert events[-1]["type"] == "response.completed"


# Failures

FAILURES: list[tuple[dict[str, Any], int, str]] = [
    ({"message": "slow down, try again in 7s", "info": "rateLimitExceeded"}, 429, "rate_limit_exceeded"),
    ({"message": "too long", "info": "contextWindowExceeded"}, 400, "context_length_exceeded"),
    ({"message": "who are you", "info": "unauthorized"}, 401, "upstream_unauthorized"),
    ({"message": "boom"}, 502, "upstream_error"),
]


@BOTH
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("error", "status", "code"), FAILURES, ids=[code for _, _, code in FAILURES])
def test_a_failure_before_the_first_word_is_a_status(
    prompted: LoggedBridge, path: str, body: Ask, streamed: bool, error: dict[str, Any], status: int, code: str
) -> None:
    """Until something of the answer is out, a failure is an HTTP error with OpenAI's body, streamed or not."""
    connection, response = open_response(prompted.bridge, path, body({"error": error}, stream=streamed))
    with closing(connection):
        assert response.status == status
        shown = json.loads(response.read())
    assert list(shown) == ["error"]
    assert list(shown["error"]) == ["message", "type", "param", "code"]
    assert shown["error"]["code"] == code
    assert error["message"] in shown["error"]["message"]
    if code == "rate_limit_exceeded":
        assert response.headers["retry-after"] == "7"


@BOTH
@pytest.mark.parametrize(("error", "status", "code"), FAILURES, ids=[code for _, _, code in FAILURES])
def test_a_failure_after_the_first_word_ends_the_stream(
    prompted: LoggedBridge, path: str, body: Ask, error: dict[str, Any], status: int, code: str
) -> None:
    """Afterwards it is the stream's one terminal event, and what was said stays said."""
    events = prompted.bridge.events(path[3:], body({"text": "half an ans"}, {"error": error}))
    assert text_of(events) == "half an ans"
    ended = terminal_error(events)
    assert error["message"] in ended["message"]
    assert ended["code"] == code


@BOTH
def test_a_failure_after_words_is_a_status_when_not_streamed(prompted: LoggedBridge, path: str, body: Ask) -> None:
    """A half answer is no answer."""
    connection, response = open_response(prompted.bridge, path, body({"text": "half"}, {"error": {"message": "boom"}}))
    with closing(connection):
        assert response.status == 502
        assert json.loads(response.read())["error"]["code"] == "upstream_error"


@BOTH
def test_an_empty_answer_is_a_failure(prompted: LoggedBridge, path: str, body: Ask) -> None:
    """A turn that says nothing at all is never an empty success."""
    for streamed in (False, True):
        connection, response = open_response(prompted.bridge, path, body(stream=streamed))
        with closing(connection):
            assert response.status == 502
            assert json.loads(response.read())["error"]["code"] == "empty_response"


# Tool blocks

BROKEN_BLOCKS = {
    "bad_json": '<tool_call>{"name":"look","arguments":</tool_call>',
    "no_name": '<tool_call>{"arguments":"{}"}</tool_call>',
    "unknown_tool": '<tool_call>{"name":"rm","arguments":"{}"}</tool_call>',
    "strict_mismatch": '<tool_call>{"name":"look","arguments":"{\\"q\\":5}"}</tool_call>',
    "cut": '<tool_call>{"name":"look","argum',
    "open_tag_alone": "<tool_call>",
    "half_a_tag": "<tool_ca",
    "text": "<tool_call>just words</tool_call>",
}


@BOTH
@pytest.mark.parametrize("block", BROKEN_BLOCKS.values(), ids=BROKEN_BLOCKS)
def test_a_broken_tool_block_is_delivered_as_text(prompted: LoggedBridge, path: str, body: Ask, block: str) -> None:
    """What is no call is shown as it was written, around it nothing is lost, and no call is made of it."""
    said = f"before {block} after" if block.endswith("</tool_call>") else f"before {block}"
    tools = (
        [LOOK | {"strict": True}] if path == RESPONSES else [{"type": "function", "function": LOOK | {"strict": True}}]
    )
    events = prompted.bridge.events(path[3:], body({"text": said, "chunk": 3}, tools=tools))
    assert text_of(events) == said
    assert "function_call" not in json.dumps(events)
    assert not [choice for event in events for choice in event.get("choices", ()) if "tool_calls" in choice["delta"]]
    whole = prompted.bridge.post(path[3:], body({"text": said, "chunk": 3}, tools=tools)).json()
    shown = whole["output"][0]["content"][0]["text"] if path == RESPONSES else whole["choices"][0]["message"]["content"]
    assert shown == said


def test_a_broken_block_beside_a_good_one_costs_neither(prompted: LoggedBridge) -> None:
    """The good call is a call, the broken one text."""
    good = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'
    request = ask({"text": f"a{BROKEN_BLOCKS['unknown_tool']}b{good}c", "chunk": 5}, tools=[LOOK])
    output = prompted.bridge.post("/responses", request).json()["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]
    assert output[0]["content"][0]["text"] == f"a{BROKEN_BLOCKS['unknown_tool']}b"
    assert output[1]["arguments"] == '{"q":"x"}'
    assert output[2]["content"][0]["text"] == "c"


@BOTH
def test_a_failure_inside_a_tool_block_loses_no_text(prompted: LoggedBridge, path: str, body: Ask) -> None:
    """A stream that breaks within a block still shows the piece of it that came."""
    tools = [LOOK] if path == RESPONSES else [{"type": "function", "function": LOOK}]
    steps = [{"text": 'so: <tool_call>{"name":"lo'}, {"error": {"message": "boom"}}]
    events = prompted.bridge.events(path[3:], body(*steps, tools=tools))
    assert text_of(events) == 'so: <tool_call>{"name":"lo'
    assert terminal_error(events)["message"] == "boom"


# The end of the program


def start(directory: Path, **environment: str) -> Any:
    """A bridge of one's own, to be stopped."""
    return running_bridge(
        directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL, PROXY_KEEPALIVE="0.2", **environment
    )


def read_words(response: HTTPResponse, word: bytes) -> None:
    """Read the stream up to the line with `word`."""
    while word not in (line := response.readline()):
        assert line, "the stream ended"


def test_a_stop_lets_streams_finish(tmp_path: Path) -> None:
    """SIGTERM within a stream: nobody new is let in, the stream ends as it should, exit 0, no process is left."""
    with start(tmp_path, PROXY_GRACE="15") as bridge:
        request = ask({"text": "one"}, {"sleep": 0.6}, {"text": "two"}, stream=True)
        connection, response = open_response(bridge, RESPONSES, request)
        with closing(connection):
            read_words(response, b'"one"')
            children = children_of(bridge.process.pid)
            assert children
            bridge.process.send_signal(signal.SIGTERM)
            with pytest.raises((ConnectionRefusedError, ConnectionResetError)):  # the latter in the moment of closing
                wait_for(lambda: send_request(bridge, RESPONSES, ask({"text": "x"})).close(), "a refusal")
            events = list(read_sse(iter(lines_of(response))))
            ended = time.monotonic()
            assert text_of(events) == "two"
            assert events[-1]["type"] == "response.completed"
            assert bridge.process.wait(20) == 0
            assert time.monotonic() - ended < 12
        assert not [pid for pid in children if is_alive(pid)]


def test_a_stop_fails_what_does_not_finish_in_time(tmp_path: Path) -> None:
    """After the grace period every open stream gets its terminal event, and every waiting request its status."""
    with start(tmp_path, PROXY_GRACE="0.3") as bridge:
        opened = [
            open_response(bridge, path, body({"text": "one"}, {"hang": True}, stream=True))
            for path, body in ((RESPONSES, ask), (CHAT, ask_chat))
        ]
        for _, response in opened:
            read_words(response, b'"one"')
        waiting = send_request(bridge, RESPONSES, ask({"text": "one"}, {"hang": True}))
        children = children_of(bridge.process.pid)
        wait_for(lambda: bridge.post("/responses", ask({"text": "hi"})).status_code == 200, "an answer")
        bridge.process.send_signal(signal.SIGTERM)
        for connection, response in opened:
            with closing(connection):
                events = list(read_sse(iter(lines_of(response))))
                assert "shutting down" in terminal_error(events)["message"]
        with waiting:
            answer = HTTPResponse(waiting)
            answer.begin()
            assert answer.status == 503
            assert answer.headers["retry-after"]
            assert json.loads(answer.read())["error"]["code"] == "shutdown_initiated"
        assert bridge.process.wait(10) == 0
        assert not [pid for pid in children if is_alive(pid)]


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """SIGTERM twice does not wait for the grace period, and still leaves no process."""
    with start(tmp_path, PROXY_GRACE="60") as bridge:
        connection, response = open_response(bridge, RESPONSES, ask({"text": "one"}, {"hang": True}, stream=True))
        with closing(connection):
            read_words(response, b'"one"')
            children = children_of(bridge.process.pid)
            bridge.process.send_signal(signal.SIGTERM)
            with pytest.raises((ConnectionRefusedError, ConnectionResetError)):  # the latter in the moment of closing
                wait_for(lambda: send_request(bridge, RESPONSES, ask({"text": "x"})).close(), "a refusal")
            bridge.process.send_signal(signal.SIGTERM)
            assert bridge.process.wait(20) == 0
        assert not [pid for pid in children if is_alive(pid)]


def test_a_client_that_does_not_read_cannot_hold_up_a_stop(tmp_path: Path) -> None:
    """The grace period is the limit for everybody."""
    with start(tmp_path, PROXY_GRACE="0.2") as bridge:
        flood = ask({"text": "x" * 100_000, "chunk": 10_000}, repeat=60, stream=True)
        with send_request(bridge, RESPONSES, flood, buffer=4096):
            wait_for(lambda: bridge.post("/responses", ask({"text": "hi"})).status_code == 200, "an answer")
            children = children_of(bridge.process.pid)
            bridge.process.send_signal(signal.SIGTERM)
            assert bridge.process.wait(20) == 0
        assert not [pid for pid in children if is_alive(pid)]
