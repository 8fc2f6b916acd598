"""The Open Responses specification on a running bridge: the requests of its compliance suite, and every kind of answer.

Whatever comes back is held against the specification's shapes where it is read (`ok`, `read_sse`, `Talk`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from harness import RunningBridge
from real.rig import LOOK, Rig, said
from server.answers import Json, create, create_streamed, ok, refusal
from server.talk import Talk, talking

HEART = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJg"
    "gg=="
)
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CALL_WEATHER = said({"do": "calls", "calls": [{"name": "get_weather", "arguments": '{"location":"Bern"}'}]})


@dataclass
class Served:
    """A bridge, and a model of it that calls the tools that it is offered."""

    bridge: RunningBridge
    model: str

    def body(self, given: Any, **more: Any) -> Json:
        return {"model": self.model, "input": given, **more}

    @property
    def unstored(self) -> Json:
        """What a request has in common with all others of a chain that is not stored."""
        return {"model": self.model, "store": False}


@pytest.fixture(params=["mock", "codex"])
def served(request: pytest.FixtureRequest) -> Served:
    if request.param == "mock":
        return Served(request.getfixturevalue("two_keys"), "mock-tool-call")
    return Served(request.getfixturevalue("rig").bridge, "gpt-5.2")


@pytest.fixture
def talk(served: Served) -> Iterator[Talk]:
    with talking(served.bridge) as talk:
        yield talk


def message(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


# The requests of the compliance suite


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        [message("user", "Say hello in exactly 3 words.")],
        [
            message("assistant", "I should answer with the saved number.", phase="commentary"),
            message("assistant", "The number is four.", phase="final_answer"),
            message("user", "Repeat only the number."),
        ],
        [message("system", "You are a pirate."), message("user", "Say hello.")],
        [
            message(
                "user",
                [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": HEART}],
            )
        ],
        [message("user", "My name is Alice."), message("assistant", "Hello Alice!"), message("user", "My name?")],
    ],
    ids=["text", "phases", "system", "image", "turns"],
)
def test_an_input_is_answered(served: Served, given: list[Json], streamed: bool) -> None:
    """With a completed response that has an output."""
    ask = create_streamed if streamed else create
    with served.bridge.client() as client:
        response = ask(client, given, model=served.model)
    assert response["status"] == "completed"
    assert response["output"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called(served: Served, streamed: bool) -> None:
    """A function of the client's."""
    ask = create_streamed if streamed else create
    with served.bridge.client() as client:
        response = ask(client, [message("user", CALL_WEATHER)], model=served.model, tools=[WEATHER])
    assert [item["name"] for item in response["output"] if item["type"] == "function_call"] == ["get_weather"]


def test_compaction(served: Served) -> None:
    """The output of it begins a new chain on a socket; a model must be named."""
    given = [message("user", "We launch on Tuesday."), message("assistant", "Understood.")]
    with served.bridge.client() as client:
        body = served.body(given, prompt_cache_key="compact-test")
        compacted = ok(client.post("/responses/compact", json=body))
        assert refusal(client.post("/responses/compact", json={"input": given}), 400)[1] == "model"
    assert compacted["object"] == "response.compaction"
    assert compacted["output"][-1]["type"] == "compaction"
    with talking(served.bridge) as talk:
        more = [*compacted["output"], message("user", "Continue.")]
        assert talk.ask(served.unstored, input=more, tools=[])["status"] == "completed"


def test_a_socket(talk: Talk, served: Served) -> None:
    """Two requests one after the other, then one that continues the second; nothing is stored."""
    for text in ("first", "second"):
        response = talk.ask(served.unstored, input=[message("user", f"Reply with exactly: {text}")])
        assert response["status"] == "completed"
    more = {"previous_response_id": response["id"], "input": "What did you reply?"}
    assert talk.ask(served.unstored, **more)["previous_response_id"] == response["id"]


def test_a_new_socket(talk: Talk, served: Served) -> None:
    """It does not know what another one did not store, but a new chain can begin."""
    first = talk.ask(served.unstored, input="Reply with OK.")
    with talking(served.bridge) as other:
        for name in (first["id"], "resp_missing"):
            error = other.refused(served.unstored, previous_response_id=name, input="Continue.")
            assert error["error"]["code"] == "previous_response_not_found"
        assert other.ask(served.unstored, input="Start again.")["status"] == "completed"


def test_a_failed_continuation(talk: Talk, served: Served) -> None:
    """The response that it continued cannot be continued any more."""
    first = talk.ask(served.unstored, input="Reply with OK.")
    output = {"type": "function_call_output", "call_id": "call_missing", "output": "There was no call."}
    error = talk.refused(served.unstored, previous_response_id=first["id"], input=[output])
    assert error["error"]["code"] == "missing_function_call"
    error = talk.refused(served.unstored, previous_response_id=first["id"], input="Try again.")
    assert error["error"]["code"] == "previous_response_not_found"


# Every kind of answer


@pytest.mark.parametrize(
    ("action", "status", "kinds"),
    [
        ({"do": "text"}, "completed", ["message"]),
        ({"do": "reasoning", "summary": ["One.", "Two."]}, "completed", ["reasoning", "message"]),
        ({"do": "calls", "pieces": ["Let me see. "], "calls": [{"name": "look"}]}, "completed", ["function_call"]),
        (
            {"do": "calls", "calls": [{"name": "write", "arguments": '{"input":"x"}'}]},
            "completed",
            ["custom_tool_call"],
        ),
        ({"do": "search", "query": "tea"}, "completed", ["web_search_call", "message"]),
        ({"do": "incomplete", "pieces": ["cut"]}, "incomplete", ["message"]),
        ({"do": "drop", "n": 3}, "failed", ["message"]),
    ],
    ids=lambda value: value["do"] if isinstance(value, dict) else "",
)
def test_every_kind_of_answer(rig: Rig, action: Json, status: str, kinds: list[str]) -> None:
    """Over a stream and over a socket, each stored as it was sent; and whole, where it does not fail."""
    tools = [{"type": "function", **LOOK}, {"type": "custom", "name": "write", "description": "Writes"}]
    body = {
        "tools": tools,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "temperature": 0.5,
        "service_tier": "flex",
        "include": ["reasoning.encrypted_content"],
    }
    streamed = create_streamed(rig.client, said(action), model="gpt-5.2", **body)
    with talking(rig.bridge) as talk:
        sent = talk.ask({"model": "gpt-5.2", "input": said(action), **body})
    for response in (streamed, sent):
        assert response["status"] == status
        assert [item["type"] for item in response["output"]][-len(kinds) :] == kinds
        assert (response["temperature"], response["service_tier"]) == (0.5, "flex")
        assert ok(rig.client.get(f"/responses/{response['id']}")) == response
    if status != "failed":
        assert create(rig.client, said(action), model="gpt-5.2", **body)["status"] == status
