"""Responses that the bridge keeps: retrieved, deleted, listed and continued, by the key that made them alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import RunningBridge, running_bridge
from real.rig import CURRENT, LOOK, Rig, said, start_rig
from server.answers import RECALL, Json, create, create_streamed, ok, recalled, refusal, text_of, texts_of
from server.conftest import LoggedBridge
from server.prompted import ask, wait_for

Create = Callable[..., Json]
BOTH_WAYS = pytest.mark.parametrize("make", [create, create_streamed], ids=["whole", "streamed"])
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
UNKNOWN = "resp_" + "0" * 32
NOT_FOUND = ("previous_response_not_found", "previous_response_id")


def continue_after(client: httpx2.Client, response_id: Any, **more: Any) -> httpx2.Response:
    """A request that continues a response, whole."""
    return client.post(
        "/responses", json={"model": "mock-echo", "input": "and then?", "previous_response_id": response_id, **more}
    )


# Retrieval and deletion


@BOTH_WAYS
def test_a_response_can_be_retrieved(client: httpx2.Client, make: Create) -> None:
    """As it was answered, however it was answered."""
    response = make(client, "keep this 🌍", metadata={"a": "b"}, instructions="Be kind.")
    assert response["store"] is True
    assert ok(client.get(f"/responses/{response['id']}")) == response


@BOTH_WAYS
def test_a_response_that_is_not_stored_cannot_be_retrieved(client: httpx2.Client, make: Create) -> None:
    """`store: false` leaves nothing behind, and the response says so."""
    response = make(client, "forget this", store=False)
    assert response["store"] is False
    assert refusal(client.get(f"/responses/{response['id']}"), 404) == ("response_not_found", "response_id")
    assert refusal(client.get(f"/responses/{response['id']}/input_items"), 404)[0] == "response_not_found"
    assert refusal(continue_after(client, response["id"]), 400) == NOT_FOUND


def test_a_deleted_response_is_gone(client: httpx2.Client) -> None:
    """For retrieval, for its items and for what would continue it, also from further on; deleting twice is an error."""
    first = create(client, "one")
    second = create(client, "two", previous_response_id=first["id"])
    url = f"/responses/{first['id']}"
    assert ok(client.delete(url)) == {"id": first["id"], "object": "response", "deleted": True}
    for response in (
        client.get(url),
        client.delete(url),
        client.get(f"{url}/input_items"),
        client.post(f"{url}/cancel"),
    ):
        assert refusal(response, 404) == ("response_not_found", "response_id")
    for link in (first, second):
        assert refusal(continue_after(client, link["id"]), 400) == NOT_FOUND
    assert ok(client.get(f"/responses/{second['id']}")) == second


def test_a_stored_response_is_not_streamed_again(client: httpx2.Client) -> None:
    """What cannot be done is said."""
    url = f"/responses/{create(client, 'hi')['id']}?stream=true"
    assert refusal(client.get(url), 400) == ("unsupported_parameter", "stream")


def test_what_another_key_made_is_not_there(client: httpx2.Client, stranger: httpx2.Client) -> None:
    """A key sees its own responses and items only, and can do nothing to others."""
    response = create(client, "mine")
    url = f"/responses/{response['id']}"
    for answer in (
        stranger.get(url),
        stranger.delete(url),
        stranger.get(f"{url}/input_items"),
        stranger.post(f"{url}/cancel"),
    ):
        assert refusal(answer, 404) == ("response_not_found", "response_id")
    assert refusal(continue_after(stranger, response["id"]), 400) == NOT_FOUND
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    answer = stranger.post("/responses", json={"model": "mock-echo", "input": [reference]})
    assert refusal(answer, 400) == ("item_not_found", "input[0]")
    assert ok(client.get(url)) == response


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("response_id", [UNKNOWN, "", "no such id", "../../etc", "%", "é\u0000" * 50, "x" * 100_000])
def test_an_unknown_response_cannot_be_continued(client: httpx2.Client, response_id: str, streamed: bool) -> None:
    """A status that clients know, before any stream begins."""
    assert refusal(continue_after(client, response_id, stream=streamed), 400) == NOT_FOUND


@pytest.mark.parametrize("response_id", [5, ["resp_1"], {"id": "resp_1"}, True])
def test_an_id_that_is_no_text_is_refused(client: httpx2.Client, response_id: Any) -> None:
    """As a wrong field, or as an id that does not exist."""
    assert refusal(continue_after(client, response_id), 400)[1] == "previous_response_id"


@pytest.mark.parametrize(
    "response_id",
    ["%00", "..%2f..%2fapi-key", "%ff%fe", "resp_%0d%0aX-Evil:%20yes", "'%20OR%201=1--", "%25s", "a" * 4000, "💥"],
)
def test_odd_ids_in_paths_are_not_found(client: httpx2.Client, response_id: str) -> None:
    """Whatever a path holds: no accident, no file, no header."""
    for method, url in (
        ("GET", f"/responses/{response_id}"),
        ("DELETE", f"/responses/{response_id}"),
        ("POST", f"/responses/{response_id}/cancel"),
        ("GET", f"/responses/{response_id}/input_items?limit=5&after={response_id}"),
    ):
        response = client.request(method, url)
        assert response.status_code in (404, 405), response.text
        assert response.json()["error"]["code"] in ("response_not_found", "not_found", "method_not_allowed")
        assert "x-evil" not in response.headers


def test_a_failed_response_is_kept_as_failed(prompted: LoggedBridge) -> None:
    """It can be looked at, but not be continued."""
    events = prompted.bridge.events("/responses", ask({"text": "half"}, {"error": {"message": "boom"}}))
    failed = events[-1]["response"]
    with prompted.bridge.client() as client:
        kept = ok(client.get(f"/responses/{failed['id']}"))
        assert kept == failed
        assert (kept["status"], text_of(kept)) == ("failed", "half")
        answer = client.post("/responses", json=ask({"text": "x"}, previous_response_id=failed["id"]))
        assert refusal(answer, 400) == ("previous_response_not_completed", "previous_response_id")


# Input items


def texts(page: Json) -> list[str]:
    """The texts of a page of message items."""
    assert page["object"] == "list"
    data = page["data"]
    assert page["first_id"] == (data[0]["id"] if data else None)
    assert page["last_id"] == (data[-1]["id"] if data else None)
    return texts_of(data)


@pytest.fixture(scope="module")
def chain(client: httpx2.Client) -> list[Json]:
    """Three responses, each of which continues the one before; the last has three items of its own."""
    first = create(client, "one")
    second = create_streamed(client, "two", previous_response_id=first["id"])
    items = [{"role": "user", "content": text} for text in ("three", "four", "five")]
    return [first, second, create(client, items, previous_response_id=second["id"])]


ALL = ["one", "one", "two", "two", "three", "four", "five"]
"""What the last response of the chain was given: each echo is the answer before it."""


def test_input_items_are_all_that_the_model_was_given(client: httpx2.Client, chain: list[Json]) -> None:
    """Also what earlier responses said; newest first unless asked otherwise; every item with an id of its own."""
    url = f"/responses/{chain[-1]['id']}/input_items"
    ascending = ok(client.get(url, params={"order": "asc"}))
    assert texts(ascending) == ALL
    assert ascending["has_more"] is False
    assert texts(ok(client.get(url))) == ALL[::-1]
    items = ascending["data"]
    assert len({item["id"] for item in items}) == len(items)
    assert [item["role"] for item in items] == ["user", "assistant"] * 2 + ["user"] * 3
    assert items[1] == chain[0]["output"][0]
    assert texts(ok(client.get(f"/responses/{chain[0]['id']}/input_items"))) == ["one"]


def test_input_items_come_in_pages(client: httpx2.Client, chain: list[Json]) -> None:
    """Pages of any size put together are the whole list, and `has_more` says when to stop."""
    url = f"/responses/{chain[-1]['id']}/input_items"
    for limit in (1, 2, 3, 7, 100):
        for order, expected in (("asc", ALL), ("desc", ALL[::-1])):
            collected: list[str] = []
            after: Json = {}
            more = True
            while more:
                page = ok(client.get(url, params={"limit": limit, "order": order, **after}))
                assert len(page["data"]) <= limit
                collected += texts(page)
                after, more = {"after": page["last_id"]}, page["has_more"]
            assert collected == expected


def test_a_page_can_end_before_an_item(client: httpx2.Client, chain: list[Json]) -> None:
    """`before` names the first item that is not wanted any more."""
    url = f"/responses/{chain[-1]['id']}/input_items"
    second_answer = chain[1]["output"][0]["id"]
    assert texts(ok(client.get(url, params={"order": "asc", "before": second_answer}))) == ALL[:3]
    first_answer = chain[0]["output"][0]["id"]
    page = ok(client.get(url, params={"order": "asc", "after": first_answer, "before": second_answer}))
    assert texts(page) == ["two"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=ten", "limit"),
        ("limit=%D9%A3", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("order=up", "order"),
        ("after=msg_unknown", "after"),
        ("before=msg_unknown", "before"),
        ("after=%00", "after"),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(
    client: httpx2.Client, chain: list[Json], query: str, param: str
) -> None:
    """400, with the name of what is wrong."""
    assert refusal(client.get(f"/responses/{chain[-1]['id']}/input_items?{query}"), 400)[1] == param


def test_items_of_every_kind_are_listed(client: httpx2.Client) -> None:
    """Each in the API's form, with an id, whether it had a good one or not."""
    given: list[dict[str, Any]] = [
        {"type": "additional_tools", "id": 5, "role": "developer", "tools": [{"type": "function", **LOOK}]},
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": PIXEL}],
        },
        {"type": "reasoning", "id": None, "summary": [], "encrypted_content": "c2VjcmV0"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"type": "web_search_call", "id": 5, "status": "completed", "action": {"type": "search", "query": "q"}},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "and?"},
    ]
    response = create(client, given)
    listed = ok(client.get(f"/responses/{response['id']}/input_items", params={"order": "asc"}))["data"]
    assert [item["type"] for item in listed] == [item.get("type", "message") for item in given]
    assert all(isinstance(item["id"], str) and item["id"] for item in listed)
    assert listed[2]["content"][1] == {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    assert (listed[5]["call_id"], listed[5]["output"]) == ("c1", "sunny")
    assert create(client, "go on", previous_response_id=response["id"])["status"] == "completed"


# What the model is sent


def recall(rig: Rig, *, stream: bool = False, **more: Any) -> tuple[Json, list[list[str]]]:
    """A response that tells what the model was sent, and that."""
    make = create_streamed if stream else create
    response = make(rig.client, more.pop("input", RECALL), model="gpt-5.2", **more)
    return response, recalled(response)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_chain_is_sent_to_the_model(rig: Rig, stream: bool) -> None:
    """Three links: each sends everything before it, in order; instructions are of one request alone."""
    say = "one " + said({"do": "text", "pieces": ["Grüße"]})
    make = create_streamed if stream else create
    first = make(rig.client, say, model="gpt-5.2", instructions="Only now.")
    second, seen = recall(rig, stream=stream, previous_response_id=first["id"])
    expected = [["user", say], ["assistant", "Grüße"], ["user", RECALL]]
    assert seen[-3:] == expected
    assert not [text for _, text in seen if "Only now." in text]
    third, seen = recall(rig, stream=stream, previous_response_id=second["id"])
    assert seen[-5:] == [*expected, ["assistant", text_of(second)], ["user", RECALL]]
    assert third["previous_response_id"] == second["id"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_loop_by_continuation(rig: Rig, stream: bool) -> None:
    """The output of a call is enough: the call is known."""
    make = create_streamed if stream else create
    calls = [{"name": "look", "arguments": '{"q":"Bern"}'}, {"name": "look", "arguments": '{"q":"Genève"}'}]
    tools = [{"type": "function", **LOOK}]
    first = make(rig.client, said({"do": "calls", "calls": calls}), model="gpt-5.2", tools=tools)
    made = [item for item in first["output"] if item["type"] == "function_call"]
    assert [call["arguments"] for call in made] == ['{"q":"Bern"}', '{"q":"Genève"}']
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": text}
        for call, text in zip(made, ["sunny", "rain"], strict=True)
    ]
    second = make(rig.client, outputs, model="gpt-5.2", tools=tools, previous_response_id=first["id"])
    assert text_of(second) == "result: sunny; rain"
    listed = ok(rig.client.get(f"/responses/{second['id']}/input_items", params={"order": "asc"}))["data"]
    assert [item["type"] for item in listed if item["type"] != "message"] == ["function_call"] * 2 + [
        "function_call_output"
    ] * 2


def test_tools_in_the_input_are_offered_to_what_continues_it(rig: Rig) -> None:
    """They are sent once, and called twice; a conversation keeps them as a chain of responses does."""
    offer = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", **LOOK}]}
    look = [{"name": "look", "arguments": '{"q":"Bern"}'}]
    action = said({"do": "calls", "calls": look, "then": {"do": "calls", "calls": look}})
    conversation = ok(rig.client.post("/conversations", json={}))["id"]
    for link in ({"conversation": conversation}, {}):
        items: list[Json] = [offer, {"role": "user", "content": action}]
        for _ in range(2):
            response = create(rig.client, items, model="gpt-5.2", **link)
            (call,) = [item for item in response["output"] if item["type"] == "function_call"]
            items = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
            if "conversation" not in link:
                link = {"previous_response_id": response["id"]}


def test_two_continuations_at_once(rig: Rig) -> None:
    """A response can be continued twice, side by side; each branch has its own words only."""
    first = create(rig.client, "root " + said({"do": "text", "pieces": ["seed"]}), model="gpt-5.2")
    rig.provider.crowd = len(rig.provider.requests) + 2

    def branch(name: str) -> list[list[str]]:
        return recall(rig, input=f"{name} {RECALL}", previous_response_id=first["id"])[1]

    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(branch, ["left", "right"])
    for seen, name in ((left, "left"), (right, "right")):
        assert [role for role, _ in seen[-3:]] == ["user", "assistant", "user"]
        assert seen[-2] == ["assistant", "seed"]
        assert seen[-1] == ["user", f"{name} {RECALL}"]


def test_a_reference_stands_for_its_item(rig: Rig) -> None:
    """An item of an earlier response, input or output, is sent as itself; the order is the request's."""
    first = create(rig.client, "one " + said({"do": "text", "pieces": ["the answer"]}), model="gpt-5.2")
    (question,) = ok(rig.client.get(f"/responses/{first['id']}/input_items"))["data"]
    (answer,) = first["output"]
    given = [
        {"type": "item_reference", "id": question["id"]},
        {"type": "item_reference", "id": answer["id"]},
        {"role": "user", "content": RECALL},
    ]
    response, seen = recall(rig, input=given)
    assert seen[-3:] == [["user", texts_of([question])[0]], ["assistant", "the answer"], ["user", RECALL]]
    listed = ok(rig.client.get(f"/responses/{response['id']}/input_items", params={"order": "asc"}))["data"]
    assert texts_of(listed)[1:] == ["the answer", RECALL]


@pytest.mark.parametrize("reference", ["msg_unknown", "", None, 5, "x" * 10_000])
def test_a_reference_to_nothing_is_refused(client: httpx2.Client, reference: Any) -> None:
    """400, and which one it is."""
    given = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": reference}]
    response = client.post("/responses", json={"model": "mock-echo", "input": given})
    assert refusal(response, 400) == ("item_not_found", "input[1]")


def test_a_reference_to_a_deleted_item_is_refused(client: httpx2.Client) -> None:
    """Items go with their response."""
    response = create(client, "hi")
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    assert create(client, [reference, {"role": "user", "content": "more"}])["status"] == "completed"
    client.delete(f"/responses/{response['id']}")
    # The response that referred to it has a copy of its own, under another id.
    answer = client.post("/responses", json={"model": "mock-echo", "input": [reference]})
    assert refusal(answer, 400)[0] == "item_not_found"


# Settings, and other lives of the bridge


def test_responses_outlive_the_bridge(tmp_path: Path) -> None:
    """After a restart they are there: retrieved, listed, continued, and sent to the model."""
    say = "one " + said({"do": "text", "pieces": ["before the restart"]})
    with start_rig(tmp_path, CURRENT) as rig:
        first = create(rig.client, say, model="gpt-5.2")
    with start_rig(tmp_path, CURRENT) as rig:
        assert ok(rig.client.get(f"/responses/{first['id']}")) == first
        second, seen = recall(rig, previous_response_id=first["id"])
        assert seen[-3:] == [["user", say], ["assistant", "before the restart"], ["user", RECALL]]
        listed = ok(rig.client.get(f"/responses/{second['id']}/input_items", params={"order": "asc"}))
        assert texts(listed) == [say, "before the restart", RECALL]


def test_a_killed_bridge_loses_no_response_that_was_answered_a_moment_ago(tmp_path: Path) -> None:
    """What the disk has is whole: SIGKILL costs the last moments at most, and the next start works."""
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        kept = create(client, "kept")
        file = bridge.state / "turnbridge" / "bridge.sqlite3-wal"
        wait_for(lambda: kept["id"].encode() in file.read_bytes(), "the response on disk")
        bridge.process.kill()
        bridge.process.wait()
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        assert ok(client.get(f"/responses/{kept['id']}")) == kept
        assert text_of(create(client, "more", previous_response_id=kept["id"])) == "more"


def test_a_store_in_memory(tmp_path: Path) -> None:
    """PROXY_STORE=memory keeps responses while the bridge runs, and writes no file."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="memory") as bridge, bridge.client() as client:
        first = create(client, "one")
        assert ok(client.get(f"/responses/{first['id']}")) == first
        assert create(client, "two", previous_response_id=first["id"])["status"] == "completed"
        assert not list(bridge.state.rglob("*sqlite*"))
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="memory") as bridge, bridge.client() as client:
        assert refusal(client.get(f"/responses/{first['id']}"), 404)[0] == "response_not_found"
        assert refusal(continue_after(client, first["id"]), 400) == NOT_FOUND


def test_no_store(tmp_path: Path) -> None:
    """PROXY_STORE=off keeps nothing of what was said, says so, and names the setting to whoever relies on it."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="off") as bridge, bridge.client() as client:
        secret = "nobody may find this"
        first = create(client, secret)
        assert first["store"] is False
        assert create(client, secret, store=True)["store"] is False
        assert refusal(client.get(f"/responses/{first['id']}"), 404)[0] == "response_not_found"
        answer = continue_after(client, first["id"])
        assert refusal(answer, 400) == ("unsupported_parameter", "previous_response_id")
        assert "PROXY_STORE" in answer.json()["error"]["message"]
        answer = client.post("/responses", json={"model": "mock-echo", "input": "hi", "background": True})
        assert refusal(answer, 400)[1] == "background"
        assert ok(client.get("/usage"))["total"]["requests"] == 2
    for path in bridge.state.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_no_store_keeps_no_conversations_either(tmp_path: Path) -> None:
    """What would be said in them could not be used."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="off") as bridge, bridge.client() as client:
        answer = client.post("/conversations", json={"items": [{"role": "user", "content": "hi"}]})
        assert refusal(answer, 400)[0] == "unsupported_parameter"
        assert "PROXY_STORE" in answer.json()["error"]["message"]
        answer = client.post("/responses", json={"model": "mock-echo", "input": "hi", "conversation": "conv_1"})
        assert refusal(answer, 400) == ("unsupported_parameter", "conversation")


def test_responses_expire(tmp_path: Path) -> None:
    """After PROXY_STORE_TTL seconds without use a response is gone; using it renews the whole chain."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE_TTL="3") as bridge, bridge.client() as client:
        first, other = create(client, "one"), create(client, "other")
        last = first
        while client.get(f"/responses/{other['id']}").status_code == 200:
            last = create(client, "more", previous_response_id=last["id"])
        assert ok(client.get(f"/responses/{first['id']}")) == first
        wait_for(lambda: client.get(f"/responses/{last['id']}").status_code == 404, "the end of the chain")
        assert refusal(continue_after(client, last["id"]), 400) == NOT_FOUND
        assert refusal(client.get(f"/responses/{last['id']}/input_items"), 404)[0] == "response_not_found"


def test_the_store_is_bounded(tmp_path: Path) -> None:
    """Beyond PROXY_STORE_MAX_BYTES the responses that were not used for the longest time go."""
    with (
        running_bridge(tmp_path, "--mock-only", PROXY_STORE_MAX_BYTES=str(1 << 20)) as bridge,
        bridge.client() as client,
    ):
        padding = [{"role": "user", "content": "x" * 200_000}, {"role": "user", "content": "hi"}]
        made = [create(client, padding)["id"] for _ in range(12)]

        def oldest_have_gone() -> bool:
            there = [client.get(f"/responses/{name}").status_code == 200 for name in made]
            # Some may go while we look: then one that is gone stands behind one that was still there.
            return there[-1] and not all(there) and there == sorted(there)

        wait_for(oldest_have_gone, "the oldest responses have gone, and no other")
        assert text_of(create(client, "hi", previous_response_id=made[-1])) == "hi"


def test_a_large_history_is_continued(client: httpx2.Client) -> None:
    """Megabytes of items and many links are no accident."""
    items = [{"role": "user", "content": f"{number} " + "ü" * 1000} for number in range(1000)]
    response = create(client, [*items, {"role": "user", "content": "0"}])
    for number in range(1, 31):
        response = create(client, str(number), previous_response_id=response["id"])
    assert text_of(response) == "30"
    listed = ok(client.get(f"/responses/{response['id']}/input_items", params={"limit": 3}))
    assert listed["has_more"] is True
    assert texts(listed) == ["30", "29", "29"]


def test_the_bridge_made_no_mistake(two_keys: RunningBridge) -> None:
    """After all this its own log holds no traceback."""
    assert "Traceback" not in two_keys.stderr.read_text()
