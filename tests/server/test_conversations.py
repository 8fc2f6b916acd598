"""/v1/conversations: lists of items, and the responses that are made in them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import RunningBridge, running_bridge
from real.rig import LOOK, Rig, said
from server.answers import RECALL, Json, create, create_streamed, ok, recalled, refusal, text_of, texts_of
from server.conftest import LoggedBridge
from server.prompted import MODEL, ask, open_response, prompted_codex, wait_for

NOT_FOUND = ("conversation_not_found", "conversation")
BOTH_WAYS = pytest.mark.parametrize("make", [create, create_streamed], ids=["whole", "streamed"])


def begin(client: httpx2.Client, *texts: str, **members: Any) -> str:
    """The id of a new conversation that begins with these user messages."""
    items = {"items": [{"role": "user", "content": text} for text in texts]} if texts else {}
    return str(ok(client.post("/conversations", json={**items, **members}))["id"])


def said_in(client: httpx2.Client, conversation: str) -> list[str]:
    """The texts of a conversation, oldest first."""
    listed = ok(client.get(f"/conversations/{conversation}/items", params={"order": "asc", "limit": 100}))
    return texts_of(listed["data"])


# The conversation


def test_the_life_of_a_conversation(client: httpx2.Client) -> None:
    """It is made, found, changed and deleted; then it is gone."""
    made = ok(client.post("/conversations", json={"metadata": {"topic": "é"}}))
    assert made == {
        "id": made["id"],
        "object": "conversation",
        "created_at": made["created_at"],
        "metadata": {"topic": "é"},
    }
    url = f"/conversations/{made['id']}"
    assert ok(client.get(url)) == made
    assert ok(client.post(url, json={"metadata": {"topic": "new"}})) == made | {"metadata": {"topic": "new"}}
    assert ok(client.get(url))["metadata"] == {"topic": "new"}
    assert ok(client.delete(url)) == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for method, place in (
        ("GET", url),
        ("DELETE", url),
        ("POST", url),
        ("GET", f"{url}/items"),
        ("POST", f"{url}/items"),
        ("GET", f"{url}/items/msg_1"),
        ("DELETE", f"{url}/items/msg_1"),
    ):
        body = {"items": [{"role": "user", "content": "hi"}]} if method == "POST" else None
        assert refusal(client.request(method, place, json=body), 404)[0] == "conversation_not_found", (method, place)


def test_a_conversation_needs_nothing(client: httpx2.Client) -> None:
    """No body, or an empty one."""
    for made in (client.post("/conversations"), client.post("/conversations", json={})):
        assert said_in(client, ok(made)["id"]) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": []}, "metadata"),
        ({"items": {}}, "items"),
        ({"items": [5]}, "items[0]"),
        ({"items": [{"role": "robot", "content": "hi"}]}, "items[0].role"),
        ({"items": [{"type": "function_call_output", "call_id": "c1", "output": "x"}]}, "items"),
        ({"items": [{"role": "user", "content": "hi"}] * 21}, "items"),
    ],
)
def test_a_wrong_conversation_is_refused(client: httpx2.Client, body: Json, param: str) -> None:
    """When it is made, and when items are added."""
    assert refusal(client.post("/conversations", json=body), 400)[1] == param
    if "items" in body:
        name = begin(client)
        assert refusal(client.post(f"/conversations/{name}/items", json=body), 400)[1] == param
        assert said_in(client, name) == []


def test_what_is_no_json_is_refused(client: httpx2.Client) -> None:
    """Also here."""
    for content in (b"{", b"[]", b'"x"', b"\xff"):
        headers = {"content-type": "application/json"}
        assert refusal(client.post("/conversations", content=content, headers=headers), 400)[0] == "invalid_json"


# Items


def test_items_are_added_found_and_taken_out(client: httpx2.Client) -> None:
    """Each has an id; a list comes back newest first unless asked otherwise."""
    name = begin(client, "one")
    url = f"/conversations/{name}/items"
    added = ok(client.post(url, json={"items": [{"role": "user", "content": text} for text in ("two", "three")]}))
    assert texts_of(added["data"]) == ["two", "three"]
    assert added["object"] == "list"
    assert said_in(client, name) == ["one", "two", "three"]
    assert texts_of(ok(client.get(url))["data"]) == ["three", "two", "one"]
    page = ok(client.get(url, params={"order": "asc", "limit": 1, "after": added["data"][0]["id"]}))
    assert texts_of(page["data"]) == ["three"]
    assert page["has_more"] is False
    two = f"{url}/{added['data'][0]['id']}"
    assert ok(client.get(two)) == added["data"][0]
    assert ok(client.delete(two))["id"] == name
    assert refusal(client.get(two), 404)[0] == "item_not_found"
    assert refusal(client.delete(two), 404)[0] == "item_not_found"
    assert said_in(client, name) == ["one", "three"]


def test_an_output_needs_its_call_in_the_conversation(client: httpx2.Client) -> None:
    """A call that was added before is enough."""
    name = begin(client)
    url = f"/conversations/{name}/items"
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
    assert refusal(client.post(url, json={"items": [output]}), 400)[1] == "items"
    ok(client.post(url, json={"items": [call]}))
    ok(client.post(url, json={"items": [output]}))
    listed = ok(client.get(url, params={"order": "asc"}))["data"]
    assert [item["type"] for item in listed] == ["function_call", "function_call_output"]


@pytest.mark.parametrize("given", [None, 5, "", ["x"]])
def test_an_item_with_an_odd_id_gets_a_good_one(client: httpx2.Client, given: Any) -> None:
    """Items that are passed on as they are may have anything for an id."""
    item = {"type": "web_search_call", "id": given, "status": "completed", "action": {"type": "search", "query": "q"}}
    made = ok(client.post("/conversations", json={"items": [item]}))
    (kept,) = ok(client.get(f"/conversations/{made['id']}/items"))["data"]
    assert isinstance(kept["id"], str)
    assert kept["id"]
    response = create(client, [item, {"role": "user", "content": "hi"}], conversation=made["id"])
    assert text_of(response) == "hi"


@pytest.mark.parametrize("name", ["%00", "..%2f..", "%ff", "conv_" + "x" * 3000, "💥", "'--"])
def test_odd_ids_are_not_found(client: httpx2.Client, name: str) -> None:
    """Whatever the path holds."""
    for url in (
        f"/conversations/{name}",
        f"/conversations/{name}/items",
        f"/conversations/{begin(client)}/items/{name}",
    ):
        answer = client.get(url)
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["code"] in ("conversation_not_found", "item_not_found", "not_found")


def test_a_conversation_belongs_to_its_key(client: httpx2.Client, stranger: httpx2.Client) -> None:
    """For another key it does not exist."""
    name = begin(client, "mine")
    url = f"/conversations/{name}"
    item = ok(client.get(f"{url}/items"))["data"][0]["id"]
    for answer in (
        stranger.get(url),
        stranger.delete(url),
        stranger.post(url, json={"metadata": {}}),
        stranger.get(f"{url}/items"),
        stranger.post(f"{url}/items", json={"items": [{"role": "user", "content": "x"}]}),
        stranger.get(f"{url}/items/{item}"),
        stranger.delete(f"{url}/items/{item}"),
        stranger.post("/responses", json={"model": "mock-echo", "input": "x", "conversation": name}),
    ):
        assert refusal(answer, 404)[0] == "conversation_not_found"
    assert said_in(client, name) == ["mine"]


# Responses in a conversation


@BOTH_WAYS
def test_a_response_extends_its_conversation(client: httpx2.Client, make: Callable[..., Json]) -> None:
    """By its input and its output, in order; the object form of the id is as good."""
    name = begin(client, "zero")
    response = make(client, "one", conversation=name)
    assert response["conversation"] == {"id": name}
    assert said_in(client, name) == ["zero", "one", "one"]
    make(client, "two", conversation={"id": name})
    assert said_in(client, name) == ["zero", "one", "one", "two", "two"]
    ids = [item["id"] for item in ok(client.get(f"/conversations/{name}/items"))["data"]]
    assert response["output"][0]["id"] in ids
    assert len(set(ids)) == 5


def test_responses_of_one_conversation_at_once(client: httpx2.Client, two_keys: RunningBridge) -> None:
    """Each adds its own question and answer, side by side, and none is lost."""
    name = begin(client)

    def add(number: int) -> None:
        with two_keys.client() as mine:
            create(mine, f"number {number}", conversation=name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    texts = said_in(client, name)
    assert texts[::2] == texts[1::2]
    assert sorted(texts[::2]) == sorted(f"number {number}" for number in range(24))


def test_the_model_is_sent_the_conversation(rig: Rig) -> None:
    """All of it, in order, whoever added it."""
    name = begin(rig.client, "zero")
    one = "one " + said({"do": "text", "pieces": ["first answer"]})
    create(rig.client, one, model="gpt-5.2", conversation=name)
    ok(rig.client.post(f"/conversations/{name}/items", json={"items": [{"role": "user", "content": "between"}]}))
    response = create_streamed(rig.client, RECALL, model="gpt-5.2", conversation=name)
    expected = [["user", "zero"], ["user", one], ["assistant", "first answer"], ["user", "between"], ["user", RECALL]]
    assert recalled(response)[-5:] == expected


def test_a_tool_loop_in_a_conversation(rig: Rig) -> None:
    """The call is in the conversation; its output is enough to go on."""
    name = begin(rig.client)
    tools = [{"type": "function", **LOOK}]
    action = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"Bern"}'}]}
    first = create(rig.client, said(action), model="gpt-5.2", tools=tools, conversation=name)
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    second = create(rig.client, [output], model="gpt-5.2", tools=tools, conversation=name)
    assert text_of(second) == "result: sunny"


@pytest.mark.parametrize("name", ["conv_unknown", "", "x" * 5000])
def test_an_unknown_conversation_is_refused(client: httpx2.Client, name: str) -> None:
    """404, in whichever form it is named, streamed or not."""
    for given in (name, {"id": name}):
        for streamed in (False, True):
            body = {"model": "mock-echo", "input": "hi", "conversation": given, "stream": streamed}
            assert refusal(client.post("/responses", json=body), 404) == NOT_FOUND


@pytest.mark.parametrize("given", [5, [], {}, {"id": 5}, True])
def test_a_conversation_without_an_id_is_refused(client: httpx2.Client, given: Any) -> None:
    """It is never taken for none."""
    answer = client.post("/responses", json={"model": "mock-echo", "input": "hi", "conversation": given})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == "conversation"


def test_a_response_continues_one_thing(client: httpx2.Client) -> None:
    """A response or a conversation, not both."""
    response = create(client, "hi")
    body = {
        "model": "mock-echo",
        "input": "hi",
        "conversation": begin(client),
        "previous_response_id": response["id"],
    }
    assert refusal(client.post("/responses", json=body), 400)[1] == "previous_response_id"


def test_what_fails_leaves_the_conversation_as_it_was(prompted: LoggedBridge) -> None:
    """A failed answer is no part of it, streamed or not; nor is what its client did not wait for."""
    with prompted.bridge.client() as client:
        name = begin(client, "zero")
        failing = ask({"text": "half"}, {"error": {"message": "boom"}}, conversation=name)
        assert client.post("/responses", json=failing).status_code == 502
        assert prompted.bridge.events("/responses", failing)[-1]["type"] == "response.failed"
        connection, response = open_response(
            prompted.bridge,
            "/v1/responses",
            ask({"text": "one"}, {"hang": "left-in-conversation"}, stream=True, conversation=name),
        )
        request = prompted.log.running("left-in-conversation")
        connection.close()
        response.close()
        wait_for(lambda: prompted.log.turn_end(request), "the end of the turn")
        assert said_in(client, name) == ["zero"]


def test_a_conversation_that_is_deleted_meanwhile(prompted: LoggedBridge) -> None:
    """The response is answered all the same, and the conversation stays deleted."""
    with prompted.bridge.client() as client:
        name = begin(client, "zero")
        body = ask({"text": "one"}, {"sleep": 0.3}, {"text": "two"}, stream=True, conversation=name)
        with client.stream("POST", "/responses", json=body) as response:
            lines = response.iter_lines()
            assert any('"one"' in line for line in lines)
            with prompted.bridge.client() as other:
                ok(other.delete(f"/conversations/{name}"))
            assert any("response.completed" in line for line in lines)
        assert client.get(f"/conversations/{name}").status_code == 404


def test_a_conversation_whose_store_fails_meanwhile(tmp_path: Path) -> None:
    """The stream has its end; what could not be kept is said in the log, once."""
    with (
        running_bridge(tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL) as bridge,
        bridge.client() as client,
    ):
        name = begin(client, "zero")
        create(client, "settled", conversation=name)
        file = bridge.state / "turnbridge" / "bridge.sqlite3"
        wait_for(lambda: b"settled" in file.with_name("bridge.sqlite3-wal").read_bytes(), "the conversation on disk")
        body = ask({"text": "one"}, {"sleep": 2}, {"text": "two"}, stream=True, conversation=name)
        with client.stream("POST", "/responses", json=body) as response:
            lines = response.iter_lines()
            assert any('"one"' in line for line in lines)
            for part in file.parent.glob("bridge.sqlite3*"):
                part.unlink()
            file.mkdir()
            assert any("response.completed" in line for line in lines)
        assert "was not extended" in bridge.stderr.read_text()
        assert "Traceback" not in bridge.stderr.read_text()
        assert refusal(client.get(f"/conversations/{name}"), 503)[0] == "store_unavailable"
        file.rmdir()


def test_conversations_outlive_the_bridge(tmp_path: Path) -> None:
    """With their items and metadata."""
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        name = begin(client, "zero", metadata={"a": "b"})
        create(client, "one", conversation=name)
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        assert ok(client.get(f"/conversations/{name}"))["metadata"] == {"a": "b"}
        assert said_in(client, name) == ["zero", "one", "one"]
        assert text_of(create(client, "two", conversation=name)) == "two"


def test_the_bridge_made_no_mistake(two_keys: RunningBridge) -> None:
    """After all this its own log holds no traceback."""
    assert "Traceback" not in two_keys.stderr.read_text()
