"""Two keys: what one has made does not exist for the other, on every route that names anything.

The routes are the bridge's own list. What goes on behind them, with providers, is in test_isolation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from harness import KEY, OTHER_KEY, TWO_KEYS, RunningBridge, running_bridge
from protocols.cap.samples import request_body
from security.doors import Door, doors
from server.prompted import MODEL, EventLog, ask, prompted_codex, wait_for
from server.talk import talking

Json = dict[str, Any]
SHARED = "{model:path}"
"""A name that is everybody's."""
NAMED = [door for door in doors(Path("/nonexistent")) if "{" in door.path and SHARED not in door.path]
CANARY = "canary-of-the-owner"


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    directory = tmp_path_factory.mktemp("cross-key")
    codex = str(prompted_codex(directory))
    log = f"--log-events={directory / 'events.ndjson'}"
    # What was asked in CAP is kept for as long as all of these tests may take.
    settings = {"CODEX_BIN": codex, "PROXY_MODELS": MODEL, "PROXY_API_KEY": TWO_KEYS, "PROXY_CAP_GRACE": "600"}
    settings["PROXY_WARM_THREADS"] = "0"  # so that a turn without thread/start is one in a kept thread
    with running_bridge(directory, log, **settings) as ready:
        yield ready


@pytest.fixture(scope="module")
def owner(bridge: RunningBridge) -> Iterator[httpx2.Client]:
    with bridge.client() as client:
        yield client


@pytest.fixture(scope="module")
def thief(bridge: RunningBridge) -> Iterator[httpx2.Client]:
    with bridge.client(key=OTHER_KEY) as client:
        yield client


@pytest.fixture(scope="module")
def owned(owner: httpx2.Client) -> dict[str, str]:
    """What the owner has, by the beginning of its place."""
    response = owner.post("/responses", json=ask({"text": CANARY})).json()
    items = [{"role": "user", "content": CANARY}]
    conversation = owner.post("/conversations", json={"items": items, "metadata": {"a": CANARY}}).json()["id"]
    item = owner.get(f"/conversations/{conversation}/items").json()["data"][0]["id"]
    asked = request_body(query=json.dumps([{"text": CANARY}]), meta={"model": MODEL}) | {"request_id": str(uuid4())}
    assert owner.post("/assist", json=asked).status_code == 200
    return {
        "/v1/responses/{id}": response["id"],
        "/v1/conversations/{id}": conversation,
        "{item}": item,
        "/v1/assist/{request_id}": asked["request_id"],
    }


def place_of(door: Door, owned: dict[str, str]) -> str:
    """The door to what the owner has. A route that this does not know needs a thing of its own above."""
    url = door.path.replace("{item}", owned["{item}"])
    for place, name in owned.items():
        if url.startswith(place):
            url = url.replace(place, place[: place.index("{")] + name, 1)
    assert "{" not in url, f"what does a client have at {door.path}?"
    return url


@pytest.mark.parametrize("door", NAMED, ids=lambda door: door.path)
def test_what_one_key_has_made_does_not_exist_for_the_other(
    bridge: RunningBridge, owner: httpx2.Client, thief: httpx2.Client, owned: dict[str, str], door: Door
) -> None:
    """By every method: told as what was never there, and it is still there afterwards."""
    url = bridge.root + place_of(door, owned)
    for method in door.methods:
        body = {"items": [{"role": "user", "content": "x"}], "metadata": {}} if method == "POST" else None
        stolen = thief.request(method, url, json=body)
        assert stolen.status_code in (404, 410), (method, stolen.text)
        assert CANARY not in stolen.text
    if "GET" in door.methods:
        answer = owner.get(url)
        assert answer.status_code == 200
        assert CANARY in answer.text or "input_items" in url


def test_nothing_is_continued_or_referred_to_with_another_key(
    bridge: RunningBridge, thief: httpx2.Client, owner: httpx2.Client, owned: dict[str, str]
) -> None:
    """Neither in a body nor over a WebSocket, in the background, to count or to compact."""
    response, conversation = owned["/v1/responses/{id}"], owned["/v1/conversations/{id}"]
    message = owner.get(f"/responses/{response}").json()["output"][0]["id"]
    bodies: list[Json] = [
        ask({"text": "x"}, previous_response_id=response),
        ask({"text": "x"}, conversation=conversation),
        ask({"text": "x"}, conversation={"id": conversation}),
        ask({"text": "x"}, previous_response_id=response, background=True),
        {"model": MODEL, "input": [{"type": "item_reference", "id": message}]},
    ]
    for body in bodies:
        for path in ("/responses", "/responses/input_tokens", "/responses/compact"):
            answer = thief.post(path, json=body)
            assert answer.status_code in (400, 404), (path, answer.text)
            assert CANARY not in answer.text
        with talking(bridge, key=OTHER_KEY) as talk:
            refused = talk.refused({name: value for name, value in body.items() if name != "background"})
            assert refused["status"] in (400, 404)
            assert CANARY not in json.dumps(refused)


def test_a_name_that_the_other_has_taken_is_free(thief: httpx2.Client, owned: dict[str, str]) -> None:
    """A request of CAP is the client's own by its id: another client's of the same id is another request."""
    asked = request_body(query=json.dumps([{"text": "mine"}]), meta={"model": MODEL})
    answer = thief.post("/assist", json=asked | {"request_id": owned["/v1/assist/{request_id}"]})
    assert answer.status_code == 200
    assert CANARY not in answer.text


def test_usage_is_counted_by_key(owner: httpx2.Client, thief: httpx2.Client, owned: dict[str, str]) -> None:
    """Nobody sees who else is there."""
    keys = [{row["key"] for row in each.get("/usage").json()["data"]} for each in (owner, thief)]
    assert len(keys[0]) == 1
    assert not keys[0] & keys[1]


def test_a_running_response_cannot_be_touched_by_the_other(
    bridge: RunningBridge, owner: httpx2.Client, thief: httpx2.Client
) -> None:
    """Not looked at, cancelled or deleted while it runs."""
    made = owner.post("/responses", json=ask({"hang": "running"}, background=True)).json()["id"]
    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/input_items")):
        assert thief.request(method, f"/responses/{made}{path}").status_code == 404
    assert owner.get(f"/responses/{made}").json()["status"] in ("queued", "in_progress")
    assert owner.post(f"/responses/{made}/cancel").json()["status"] == "cancelled"


def test_the_thread_of_a_conversation_is_not_continued_by_another_key(
    bridge: RunningBridge, owner: httpx2.Client, thief: httpx2.Client
) -> None:
    """A thread is kept for whoever goes on with exactly what was said in it; the same words of another are others."""
    log = EventLog(bridge.stderr.parent / "events.ndjson")
    first = [{"role": "user", "content": json.dumps([{"text": "first words"}])}]
    said = owner.post("/responses", json={"model": MODEL, "input": first}).json()["output"][0]
    again = [*first, {"role": "assistant", "content": said["content"][0]["text"]}]
    again.append({"role": "user", "content": json.dumps([{"text": "second words"}])})

    def continues(client: httpx2.Client) -> bool:
        req_id = client.post("/responses", json={"model": MODEL, "input": again}).headers["x-request-id"]
        wait_for(lambda: log.turn_end(req_id), "turn_end")
        return "thread/start" not in log.calls(req_id)

    # The thread is put aside a moment after its answer.
    assert not any(continues(thief) for _ in range(5))
    wait_for(lambda: continues(owner), "its own thread goes on")


def test_ids_cannot_be_guessed(owner: httpx2.Client) -> None:
    """128 bits of chance in each, and no two are alike in their beginnings."""
    made = [owner.post("/responses", json=ask({"text": "x"})).json()["id"] for _ in range(20)]
    digits = [name.partition("_")[2] for name in made]
    assert {len(each) for each in digits} == {32}
    assert len({each[:6] for each in digits}) == 20
    assert KEY not in str(made)
