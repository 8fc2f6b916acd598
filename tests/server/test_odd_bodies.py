"""Every member of every body replaced by all that it should not be: an answer or a refusal, never an accident."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from harness import RunningBridge
from real.rig import LOOK
from server.answers import Json, create, ok, refusal
from server.talk import ENDS, talking

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    "\u0000",
    "é" * 300,
    [],
    [None],
    [5],
    ["x"],
    [[]],
    [{}],
    {},
    {"a": 1},
    {"type": "x"},
    {"type": None, "id": []},
]

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
ITEMS: list[Json] = [
    {"role": "developer", "content": "Be kind."},
    {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "look"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "low"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}", "namespace": "ns"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sunny"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "additional_tools", "tools": [{"type": "function", "name": "more"}]},
    {"role": "user", "content": "and?"},
]
MESSAGES: list[Json] = [
    {"role": "system", "content": "Be kind.", "name": "x"},
    {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "x"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "done"}]},
    {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
    {"role": "function", "name": "old", "content": "old result"},
    {"role": "user", "content": "and?"},
]
FUNCTION = {**LOOK, "strict": False}
NAMESPACE = {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "inner"}]}
SHARED: Json = {
    "model": "mock-echo",
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "function", "function": {**FUNCTION, "name": "nested"}},
        {
            "type": "custom",
            "name": "patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
        },
        {"type": "web_search", "external_web_access": True},
        NAMESPACE,
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "parallel_tool_calls": True,
    "stream_options": {"include_usage": True},
    "temperature": 1,
    "top_p": 1,
    "store": True,
    "metadata": {"a": "b"},
    "user": "u",
    "include": ["reasoning.encrypted_content"],
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "background": False,
    "previous_response_id": "PREVIOUS",
    "conversation": None,
    "truncation": "disabled",
    "modalities": ["text"],
    "generate": True,
}
BODIES: dict[str, tuple[str, Json]] = {
    "responses": (
        "/responses",
        SHARED
        | {
            "input": ITEMS,
            "instructions": "Be kind.",
            "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}, "verbosity": "low"},
            "max_output_tokens": 5,
            "max_tool_calls": 5,
            "context_management": [],
            "prompt": None,
        },
    ),
    "chat": (
        "/chat/completions",
        SHARED
        | {
            "messages": MESSAGES,
            "n": 1,
            "stop": ["never"],
            "reasoning_effort": "low",
            "verbosity": "low",
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
            "web_search_options": {},
            "max_tokens": 5,
            "max_completion_tokens": 5,
            "functions": [],
            "function_call": "auto",
            "logit_bias": {},
        },
    ),
    "functions": (
        "/chat/completions",
        {
            "model": "mock-echo",
            "messages": MESSAGES[:2],
            "functions": [FUNCTION],
            "function_call": {"name": "look"},
        },
    ),
    "compact": ("/responses/compact", {"model": "mock-echo", "input": ITEMS, "instructions": "x", "text": {}}),
    "input_tokens": ("/responses/input_tokens", SHARED | {"input": ITEMS, "instructions": "x", "reasoning": {}}),
    "conversation": ("/conversations", {"items": ITEMS, "metadata": {"a": "b"}}),
    "update": ("/conversations/CONVERSATION", {"metadata": {"a": "b"}}),
    "items": ("/conversations/CONVERSATION/items", {"items": ITEMS}),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member and element."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield (*path, name)
        yield from places(inner, (*path, name))


def replaced(body: Json, path: tuple[Any, ...], value: Any) -> Json:
    """The body with another value in that place."""
    changed = copy.deepcopy(body)
    inner: Any = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return changed


def filled(text: str, client: httpx2.Client) -> str:
    """A path or a body with real ids in it."""
    if "CONVERSATION" in text:
        text = text.replace("CONVERSATION", ok(client.post("/conversations"))["id"])
    return text.replace("PREVIOUS", create(client, "before")["id"]) if "PREVIOUS" in text else text


@pytest.mark.parametrize("kind", BODIES)
def test_the_bodies_are_good(client: httpx2.Client, kind: str) -> None:
    """As they are, all of them are served: what follows shows something."""
    path, body = BODIES[kind]
    answer = client.post(filled(path, client), json=json.loads(filled(json.dumps(body), client)))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("kind", BODIES)
def test_an_odd_value_anywhere_is_no_accident(two_keys: RunningBridge, client: httpx2.Client, kind: str) -> None:
    """It is ignored, or refused with a 4xx in OpenAI's form."""
    path, body = BODIES[kind]
    path, body = filled(path, client), json.loads(filled(json.dumps(body), client))
    accidents = []
    for number, place in enumerate(places(body)):
        # Every value at every place would take minutes; this way each place meets a few of them.
        for value in ODD[number % 7 :: 7]:
            answer = client.post(path, json=replaced(body, place, value))
            good = answer.status_code == 200 or (
                400 <= answer.status_code < 500
                and list(answer.json()) == ["error"]
                and answer.json()["error"]["message"]
            )
            if not good:
                accidents.append((place, value, answer.status_code, answer.text[:100]))
    assert accidents == []
    assert "Traceback" not in two_keys.stderr.read_text()


def test_an_odd_message_on_a_websocket_is_no_accident(two_keys: RunningBridge, client: httpx2.Client) -> None:
    """It is answered, and the connection lives on."""
    body = json.loads(filled(json.dumps(BODIES["responses"][1]), client)) | {
        "stream_id": "a",
        "type": "response.create",
    }
    accidents = []
    with talking(two_keys) as talk:
        for number, place in enumerate(places(body)):
            value = ODD[number % len(ODD)]
            if place == ("generate",):
                continue
            talk.socket.send(json.dumps(replaced(body, place, value)))
            while (message := talk.receive())["type"] not in ENDS:
                pass
            if message["type"] == "error" and message["status"] >= 500:
                accidents.append((place, value, message))
    assert accidents == []


# Much of it


def slowest_health(
    bridge: RunningBridge, client: httpx2.Client, path: str, body: Json
) -> tuple[float, httpx2.Response]:
    """How long others had to wait at most while a request was answered, and its answer."""
    waits: list[float] = []
    over = threading.Event()

    def probe() -> None:
        with httpx2.Client(trust_env=False, timeout=60) as prober:
            while not over.is_set():
                started = time.monotonic()
                prober.get(f"{bridge.root}/livez")
                waits.append(time.monotonic() - started)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        answer = client.post(path, json=body)
    finally:
        over.set()
        thread.join()
    return max(waits), answer


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MANY: dict[str, list[Json]] = {
    "messages": [{"role": "user", "content": "hi"}] * 12_000,
    "tool outputs": [
        {"role": "assistant", "tool_calls": [CALL]},
        *[{"role": "tool", "tool_call_id": "c1", "content": "x"}] * 12_000,
    ],
    "old function outputs": [
        {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
        *[{"role": "function", "name": "look", "content": "x"}] * 12_000,
    ],
    "calls": [{"role": "assistant", "tool_calls": [CALL] * 12_000}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 12_000}],
}


@pytest.mark.parametrize("kind", MANY)
def test_many_items_hold_nobody_up(two_keys: RunningBridge, client: httpx2.Client, kind: str) -> None:
    """Twelve thousand of anything are read in no time; others are served meanwhile."""
    messages = [*MANY[kind], {"role": "user", "content": "hi"}]
    waited, answer = slowest_health(two_keys, client, "/chat/completions", {"model": "mock-text", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert waited < 3


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/responses/compact", "/responses/input_tokens"])
def test_too_many_items_hold_nobody_up(two_keys: RunningBridge, client: httpx2.Client, path: str) -> None:
    """Whoever sends hundreds of thousands is told to send fewer, before anything is done with them."""
    items = [{"type": "item_reference", "id": "msg_0"}, *[{"role": "user", "content": "hi"}] * 300_000]
    member = "messages" if "chat" in path else "input"
    waited, answer = slowest_health(
        two_keys, client, path, {"model": "mock-text", member: items[member == "messages" :]}
    )
    assert refusal(answer, 400)[0] == "too_many_items"
    assert waited < 2
