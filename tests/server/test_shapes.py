"""Either body on either path: what is sent decides how it is read, where it is sent how it is answered."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from harness import read_sse
from real.rig import CHAT, LOOK, RESPONSES, Api, Rig, said
from server.answers import RECALL, Json, create, ok, refusal, text_of, texts_of

PATHS = pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=["to-responses", "to-chat"])
SHAPES = pytest.mark.parametrize("shape", [RESPONSES, CHAT], ids=["responses-body", "chat-body"])
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def body_of(shape: Api, prompt: str, **more: Any) -> Json:
    """A body in that shape for a mock model."""
    return shape.body(prompt, **{"model": "mock-echo", **more})


def answered(client: httpx2.Client, api: Api, body: Json, stream: bool) -> Json:
    """The members of an answer, read in the form of the path that it was sent to."""
    response = client.post(f"/{api.path}", json=body | {"stream": stream})
    assert response.status_code == 200, response.text
    return api.read_stream(response.text) if stream else api.read(response.json())


@PATHS
@SHAPES
@STREAMED
def test_text(client: httpx2.Client, api: Api, shape: Api, stream: bool) -> None:
    """The answer is in the path's own form."""
    answer = answered(client, api, body_of(shape, "Grüße 🌍"), stream)
    assert (answer["text"], answer["end"]) == ("Grüße 🌍", api.done)


@PATHS
@SHAPES
@STREAMED
def test_calls(client: httpx2.Client, api: Api, shape: Api, stream: bool) -> None:
    """Tools in either spelling; calls in the path's own form."""
    answer = answered(client, api, body_of(shape, "look", model="mock-tool-call", tools=[LOOK]), stream)
    assert [name for name, _ in answer["calls"]] == ["look"]
    assert answer["end"] == api.called


@PATHS
@STREAMED
def test_a_tool_loop_in_a_mixture_of_spellings(client: httpx2.Client, api: Api, stream: bool) -> None:
    """Calls and outputs of one format among the messages of the other."""
    chat_call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    as_chat = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call]},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    as_responses = [
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    tools = [{"type": "function", "function": LOOK}]
    for body in ({"messages": as_chat}, {"input": as_responses}):
        answer = answered(client, api, {"model": "mock-tool-loop", "tools": tools, **body}, stream)
        assert answer["text"] == "mock tool result: sunny"


@PATHS
def test_a_body_with_both_is_its_paths_own(client: httpx2.Client, api: Api) -> None:
    """Nobody has to guess."""
    both = {"model": "mock-echo", "input": "responses", "messages": [{"role": "user", "content": "chat/completions"}]}
    assert answered(client, api, both, stream=False)["text"] == api.path


@PATHS
def test_a_body_with_neither_names_the_paths_own(client: httpx2.Client, api: Api) -> None:
    """The error speaks of what the path's documentation speaks of."""
    param = "input" if api is RESPONSES else "messages"
    assert refusal(client.post(f"/{api.path}", json={"model": "mock-echo"}), 400)[1] == param


@PATHS
@SHAPES
@STREAMED
def test_the_model_is_sent_the_same(rig: Rig, api: Api, shape: Api, stream: bool) -> None:
    """System messages, instructions and history reach the model whichever way they come."""
    history = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "I said"},
        {"role": "user", "content": RECALL},
    ]
    body = {"model": "gpt-5.2", "input" if shape is RESPONSES else "messages": history}
    answer = answered(rig.client, api, body, stream)
    seen = json.loads(answer["text"])
    assert [message for message in seen if message[0] != "developer"][-3:] == [
        ["user", "one"],
        ["assistant", "I said"],
        ["user", RECALL],
    ]
    assert [text for role, text in seen if role == "developer" and "Be kind." in text]


@PATHS
@SHAPES
@STREAMED
def test_a_real_tool_loop(rig: Rig, api: Api, shape: Api, stream: bool) -> None:
    """With the outputs sent in the body's spelling, after calls that came in the path's."""
    prompt = said({"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"é"}'}]})
    first = answered(rig.client, api, shape.body(prompt, tools=[LOOK]), stream)
    assert first["calls"] == (("look", '{"q":"é"}'),)
    (call_id,) = first["call_ids"]
    if shape is RESPONSES:
        rest: list[Json] = [
            {"type": "function_call", "call_id": call_id, "name": "look", "arguments": '{"q":"é"}'},
            {"type": "function_call_output", "call_id": call_id, "output": "sunny"},
        ]
    else:
        call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": '{"q":"é"}'}}
        rest = [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "sunny"},
        ]
    body = shape.body(prompt, tools=[LOOK])
    body["input" if shape is RESPONSES else "messages"] = [{"role": "user", "content": prompt}, *rest]
    assert answered(rig.client, api, body, stream)["text"] == "result: sunny"


@SHAPES
def test_what_a_shape_says_about_the_answer_counts(rig: Rig, shape: Api) -> None:
    """Effort and the form of the answer are read from the body's own members, on either path."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted: Json
    if shape is RESPONSES:
        form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
        wanted = {"reasoning": {"effort": "high"}, "text": {"format": form}}
    else:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
        wanted = {"reasoning_effort": "high", "response_format": form}
    for api in (RESPONSES, CHAT):
        prompt = rig.prompt_of(api, shape.body(said({"do": "text", "pieces": ['{"a":"b"}']}), **wanted))
        assert prompt["reasoning"]["effort"] == "high"
        assert prompt["text"]["format"]["schema"] == schema


# A chat body as a response


def test_a_chat_body_is_kept_as_a_response(client: httpx2.Client) -> None:
    """It can be retrieved, listed and continued, by either shape."""
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"}]
    first = ok(client.post("/responses", json={"model": "mock-echo", "messages": messages}))
    assert ok(client.get(f"/responses/{first['id']}")) == first
    listed = ok(client.get(f"/responses/{first['id']}/input_items", params={"order": "asc"}))["data"]
    assert texts_of(listed) == ["Be kind.", "one"]
    assert text_of(create(client, "two", previous_response_id=first["id"])) == "two"


@PATHS
def test_a_chat_body_continues_a_response(rig: Rig, api: Api) -> None:
    """`previous_response_id` counts in whatever body it stands."""
    first = create(rig.client, "one " + said({"do": "text", "pieces": ["before"]}), model="gpt-5.2")
    body = CHAT.body(RECALL, previous_response_id=first["id"])
    answer = answered(rig.client, api, body, stream=False)
    assert json.loads(answer["text"])[-2:] == [["assistant", "before"], ["user", RECALL]]
    if api is RESPONSES:
        listed = ok(rig.client.get(f"/responses/{answer['raw']['id']}/input_items", params={"order": "asc"}))["data"]
        assert texts_of(listed)[-2:] == ["before", RECALL]


def test_a_chat_body_in_a_conversation(rig: Rig) -> None:
    """The conversation is sent to the model, and extended."""
    name = ok(rig.client.post("/conversations", json={"items": [{"role": "user", "content": "zero"}]}))["id"]
    answer = answered(rig.client, RESPONSES, CHAT.body(RECALL, conversation=name), stream=False)
    assert json.loads(answer["text"])[-2:] == [["user", "zero"], ["user", RECALL]]
    listed = ok(rig.client.get(f"/conversations/{name}/items", params={"order": "asc"}))["data"]
    assert texts_of(listed) == ["zero", RECALL, answer["text"]]


@STREAMED
def test_a_response_is_one_answer(client: httpx2.Client, stream: bool) -> None:
    """`n` has no place in a response; it is named, and the answer is there."""
    body = {"model": "mock-echo", "messages": [{"role": "user", "content": "hi"}], "n": 3, "stream": stream}
    response = client.post("/responses", json=body)
    assert response.headers["x-bridge-dropped"] == "n"
    members = RESPONSES.read_stream(response.text) if stream else RESPONSES.read(response.json())
    assert (members["text"], members["end"]) == ("hi", "completed")


def test_stop_sequences_of_a_chat_body_end_a_response(client: httpx2.Client) -> None:
    """They are the bridge's own work, so they count on both paths."""
    body = {"model": "mock-echo", "messages": [{"role": "user", "content": "one STOP two"}], "stop": "STOP"}
    assert text_of(ok(client.post("/responses", json=body))) == "one "


@pytest.mark.parametrize(
    "odd",
    [{"text": "x"}, {"text": 5}, {"include": 5}, {"include": "x"}, {"metadata": 5}, {"reasoning": 5}, {"user": 5}],
    ids=str,
)
@PATHS
@SHAPES
def test_odd_members_of_the_other_shape_are_no_accident(client: httpx2.Client, api: Api, shape: Api, odd: Json) -> None:
    """What the body's shape does not know is ignored or refused, never stumbled over."""
    response = client.post(f"/{api.path}", json=body_of(shape, "hi") | odd)
    assert response.status_code in (200, 400), response.text


def test_a_chat_stream_of_a_responses_body_has_its_end(client: httpx2.Client) -> None:
    """[DONE] and the usage, when it is asked for in the responses' way."""
    body = {"model": "mock-echo", "input": "hi", "stream": True, "stream_options": {"include_usage": True}}
    response = client.post("/chat/completions", json=body)
    assert response.text.endswith("data: [DONE]\n\n")
    assert list(read_sse(iter(response.text.splitlines())))[-1]["usage"]["total_tokens"] > 0
