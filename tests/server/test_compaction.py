"""POST /v1/responses/compact and /v1/responses/input_tokens: a long conversation made short, and how long it is."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import httpx2
import pytest
from real.rig import HEADERS, LOOK, Rig, said
from server.answers import RECALL, Json, create, ok, recalled, refusal
from server.conftest import LoggedBridge
from server.prompted import ask, send_request, wait_for

SUMMARY = "They want 17 bears; é 🐻 </tool_call>."


def compact(client: httpx2.Client, given: Any, **more: Any) -> Json:
    """A compacted conversation."""
    return ok(client.post("/responses/compact", json={"model": "mock-echo", "input": given, **more}))


# Compaction


def test_a_conversation_is_compacted_and_goes_on(rig: Rig) -> None:
    """The user's words stay, everything else is the model's summary; the next request takes the output as it is."""
    question = "please " + said({"do": "text", "pieces": [SUMMARY]})
    given = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "a long answer"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "a long output"},
        {"role": "user", "content": question},
    ]
    compacted = compact(rig.client, given, model="gpt-5.2", instructions="Speak Latin.")
    assert (compacted["object"], compacted["usage"]["output_tokens"]) == ("response.compaction", 7)
    *kept, summary = compacted["output"]
    assert [(item["role"], item["content"][0]["text"]) for item in kept] == [("user", "first"), ("user", question)]
    assert (summary["type"], list(summary)) == ("compaction", ["type", "id", "encrypted_content"])
    asked = json.dumps(rig.posts[0].body, ensure_ascii=False)
    assert "a long output" in asked
    assert "Speak Latin." in asked
    assert "Summarise" in asked

    response = create(rig.client, [*compacted["output"], {"role": "user", "content": RECALL}], model="gpt-5.2")
    seen = recalled(response)[-4:]
    assert seen[:2] == [["user", "first"], ["user", question]]
    assert (seen[2][0], seen[3]) == ("user", ["user", RECALL])
    assert SUMMARY.partition("<")[0] in seen[2][1]
    assert "a long" not in json.dumps(seen)
    follower = create(rig.client, RECALL, model="gpt-5.2", previous_response_id=response["id"])
    assert SUMMARY.partition("<")[0] in json.dumps(recalled(follower), ensure_ascii=False)


def test_a_stored_conversation_is_compacted(rig: Rig) -> None:
    """By the id of its last response; nothing of it needs to be sent again. The result is not stored."""
    first = create(rig.client, "one " + said({"do": "text", "pieces": ["SUMMARY"]}), model="gpt-5.2")
    body = {"model": "gpt-5.2", "previous_response_id": first["id"]}
    compacted = ok(rig.client.post("/responses/compact", json=body))
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]
    assert rig.client.get(f"/responses/{compacted['id']}").status_code == 404


def test_compacting_again(client: httpx2.Client) -> None:
    """A compaction is part of what the next one is made of."""
    first = compact(client, "hello")
    second = compact(client, [*first["output"], {"role": "user", "content": "more"}])
    assert [item["type"] for item in second["output"]] == ["message", "message", "message", "compaction"]


def test_a_chat_of_text_is_compacted(client: httpx2.Client) -> None:
    """A plain text is one message."""
    compacted = compact(client, "hello")
    assert compacted["output"][0]["content"][0]["text"] == "hello"
    assert compacted["output"][1]["type"] == "compaction"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": True}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": "hi", "model": None}, "model"),
        ({"input": "hi", "model": "none"}, "model"),
        ({"input": "hi", "instructions": 5}, "instructions"),
        ({"input": "hi", "previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"input": [{"type": "compaction", "encrypted_content": "c2VjcmV0"}]}, "input[0]"),
        ({"input": [{"type": "compaction", "encrypted_content": "cbc1.!!!"}]}, "input[0]"),
        ({"input": [{"type": "compaction"}]}, "input[0]"),
    ],
)
def test_a_wrong_compaction_is_refused(client: httpx2.Client, body: Json, param: str) -> None:
    """400, with the name of what is wrong."""
    assert refusal(client.post("/responses/compact", json={"model": "mock-echo", **body}), 400)[1] == param


def test_nothing_is_not_compacted(client: httpx2.Client) -> None:
    """There would be nothing to sum up."""
    for body in ({"model": "mock-echo"}, {"model": "mock-echo", "input": []}, {"model": "mock-echo", "input": ""}):
        assert refusal(client.post("/responses/compact", json=body), 400)[1] == "input"


def test_a_compaction_that_fails(prompted: LoggedBridge) -> None:
    """The status says why, as with a response."""
    failing = ask({"error": {"message": "slow down", "info": "rateLimitExceeded"}})
    with prompted.bridge.client() as client:
        assert refusal(client.post("/responses/compact", json=failing), 429)[0] == "rate_limit_exceeded"


def test_a_client_that_leaves_a_compaction(prompted: LoggedBridge) -> None:
    """Its turn is interrupted, as with a response."""
    with send_request(prompted.bridge, "/v1/responses/compact", ask({"hang": "left-compaction"})):
        request = prompted.log.running("left-compaction")
    wait_for(lambda: "turn/interrupt" in prompted.log.calls(request), "turn/interrupt", 10)
    end = wait_for(lambda: prompted.log.turn_end(request), "turn_end")
    assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")


def test_a_compaction_whose_client_leaves_stops_the_provider(rig: Rig) -> None:
    """The real Codex hangs up on its provider."""
    gone = len(rig.provider.gone)
    connection = HTTPConnection("127.0.0.1", rig.bridge.port, timeout=20)
    try:
        action = said({"do": "slow", "n": 300, "seconds": 30})
        body = json.dumps({"model": "gpt-5.2", "input": action})
        connection.request("POST", "/v1/responses/compact", body, HEADERS)
        rig.provider.wait_requests(rig.since + 1)
    finally:
        connection.close()
    rig.provider.wait_gone(gone + 1, timeout=10)


# Token counts


def count(client: httpx2.Client, given: Any, **more: Any) -> int:
    """The estimate for an input."""
    body = {"model": "mock-echo", "input": given, **more}
    answer = ok(client.post("/responses/input_tokens", json=body))
    assert answer == {
        "object": "response.input_tokens",
        "input_tokens": answer["input_tokens"],
        "estimated": True,
    }
    assert isinstance(answer["input_tokens"], int)
    return int(answer["input_tokens"])


def test_tokens_are_estimated(client: httpx2.Client) -> None:
    """Near four bytes each; instructions, tools, images and what came before are counted."""
    small, large = count(client, "hello"), count(client, "hello " * 1000)
    assert 1 <= small <= 10
    assert 1000 <= large <= 2000
    assert count(client, "hello", instructions="Be kind. " * 100) > small + 100
    tool = {"type": "function", **LOOK}
    assert count(client, "hello", tools=[tool]) > small + 10
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/gif;base64,R0lGOD"}]}]
    assert count(client, picture) > 100
    response = create(client, "a long history " * 100)
    assert count(client, "hello", previous_response_id=response["id"]) > small + 600


def test_counting_costs_no_model_call(rig: Rig) -> None:
    """It is only an estimate."""
    assert count(rig.client, "hello", model="gpt-5.2") > 0
    assert rig.posts == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": "hi", "model": "none"}, "model"),
        ({"input": "hi", "tools": [5]}, "tools[0]"),
        ({"input": "hi", "previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input[0]"),
    ],
)
def test_a_wrong_count_is_refused(client: httpx2.Client, body: Json, param: str) -> None:
    """As a response would be."""
    assert refusal(client.post("/responses/input_tokens", json={"model": "mock-echo", **body}), 400)[1] == param


def test_what_another_key_said_is_not_counted(client: httpx2.Client, stranger: httpx2.Client) -> None:
    """Nor compacted."""
    body = {"model": "mock-echo", "input": "hi", "previous_response_id": create(client, "mine")["id"]}
    for path in ("/responses/input_tokens", "/responses/compact"):
        assert refusal(stranger.post(path, json=body), 400)[0] == "previous_response_not_found"
