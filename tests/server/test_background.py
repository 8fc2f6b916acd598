"""Responses that go on without their client, and responses that somebody else ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import RunningBridge, read_sse, running_bridge
from real.rig import LOOK as REAL_LOOK
from real.rig import Rig, said
from server.answers import Json, create, ok, refusal, text_of
from server.conftest import LoggedBridge
from server.prompted import (
    MODEL,
    EventLog,
    ask,
    ask_chat,
    children_of,
    is_alive,
    open_response,
    prompted_codex,
    wait_for,
)


@pytest.fixture(scope="module")
def client(prompted: LoggedBridge) -> Iterator[httpx2.Client]:
    """A client of the prompted bridge."""
    with prompted.bridge.client() as client:
        yield client


def begin(client: httpx2.Client, *steps: Json, **more: Any) -> Json:
    """A background response that has just begun."""
    response = ok(client.post("/responses", json=ask(*steps, background=True, **more)))
    assert (response["status"], response["background"], response["output"]) == ("in_progress", True, [])
    return response


def settled(client: httpx2.Client, response: Json) -> Json:
    """The response when it has ended, by polling."""

    def ended() -> Json | None:
        now = ok(client.get(f"/responses/{response['id']}"))
        return None if now["status"] in ("queued", "in_progress") else now

    return wait_for(ended, "the end of the response")


# Polling


def test_a_background_response_is_polled(client: httpx2.Client) -> None:
    """It is answered at once, in progress for as long as it takes, and then there as any other."""
    begun = begin(client, {"text": "one"}, {"sleep": 2}, {"text": "two"}, metadata={"a": "b"})
    now = ok(client.get(f"/responses/{begun['id']}"))
    assert (now["status"], now["metadata"]) == ("in_progress", {"a": "b"})
    done = settled(client, begun)
    assert (done["status"], text_of(done), done["id"]) == ("completed", "onetwo", begun["id"])
    assert done["created_at"] == begun["created_at"]
    assert ok(client.get(f"/responses/{begun['id']}")) == done
    assert done["usage"] is None or done["usage"]["total_tokens"] > 0
    follower = ok(client.post("/responses", json=ask({"text": "more"}, previous_response_id=begun["id"])))
    assert text_of(follower) == "more"


def test_a_background_response_needs_no_client(prompted: LoggedBridge) -> None:
    """Its turn goes on when the connection that asked for it is closed."""
    with prompted.bridge.client() as client:
        begun = begin(client, {"sleep": 0.3}, {"text": "nobody listened"})
    with prompted.bridge.client() as client:
        assert text_of(settled(client, begun)) == "nobody listened"


def test_a_background_response_that_fails(client: httpx2.Client) -> None:
    """The failure is in the response, with what was said before it."""
    done = settled(client, begin(client, {"text": "half"}, {"error": {"message": "boom", "info": "rateLimitExceeded"}}))
    assert (done["status"], text_of(done)) == ("failed", "half")
    assert (done["error"]["code"], done["error"]["message"]) == ("rate_limit_exceeded", "boom")
    answer = client.post("/responses", json=ask({"text": "x"}, previous_response_id=done["id"]))
    assert refusal(answer, 400)[0] == "previous_response_not_completed"


def test_a_background_response_whose_child_dies(client: httpx2.Client) -> None:
    """It fails, and the next one is answered by the next child."""
    done = settled(client, begin(client, {"text": "half"}, {"signal": 9}))
    assert (done["status"], done["error"]["bridge_code"]) == ("failed", "backend_crashed")
    assert text_of(settled(client, begin(client, {"text": "again"}))) == "again"


def test_a_background_response_that_runs_is_listed_but_not_continued(client: httpx2.Client) -> None:
    """Its input is known, its output is not."""
    begun = begin(client, {"hang": True})
    listed = ok(client.get(f"/responses/{begun['id']}/input_items"))["data"]
    assert [item["role"] for item in listed] == ["user"]
    answer = client.post("/responses", json=ask({"text": "x"}, previous_response_id=begun["id"]))
    assert refusal(answer, 400)[0] == "previous_response_not_completed"
    ok(client.post(f"/responses/{begun['id']}/cancel"))


def test_a_background_response_with_tools(rig: Rig) -> None:
    """A tool loop, each step of it in the background."""
    tools = [{"type": "function", **REAL_LOOK}]
    action = said({"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"Bern"}'}]})
    first = settled(rig.client, create(rig.client, action, model="gpt-5.2", tools=tools, background=True))
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    output = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
    begun = create(rig.client, output, model="gpt-5.2", tools=tools, previous_response_id=first["id"], background=True)
    assert text_of(settled(rig.client, begun)) == "result: sunny"


def test_a_background_response_in_a_conversation(client: httpx2.Client) -> None:
    """It extends the conversation when it ends."""
    name = ok(client.post("/conversations"))["id"]
    settled(client, begin(client, {"text": "later"}, conversation=name))
    listed = ok(client.get(f"/conversations/{name}/items"))["data"]
    assert [item["role"] for item in listed] == ["assistant", "user"]


def test_many_background_responses_at_once(client: httpx2.Client) -> None:
    """Each gets its own answer."""
    begun = [begin(client, {"sleep": 0.1}, {"text": f"answer {number}"}) for number in range(40)]
    assert [text_of(settled(client, each)) for each in begun] == [f"answer {number}" for number in range(40)]


@pytest.mark.parametrize(
    ("more", "code"), [({"store": False}, "invalid_request"), ({"stream": True}, "unsupported_parameter")]
)
def test_a_background_response_that_nobody_could_get_is_refused(client: httpx2.Client, more: Json, code: str) -> None:
    """It must be stored, and is not streamed."""
    answer = client.post("/responses", json=ask({"text": "x"}, background=True, **more))
    assert refusal(answer, 400) == (code, "background")


def test_a_bad_background_request_is_refused_at_once(client: httpx2.Client) -> None:
    """With a status, as any other."""
    body = ask({"text": "x"}, background=True)
    assert refusal(client.post("/responses", json=body | {"model": "none"}), 400)[0] == "model_not_found"
    assert refusal(client.post("/responses", json=body | {"input": []}), 400)[1] == "input"


def test_chat_knows_no_background(client: httpx2.Client) -> None:
    """There the member means nothing."""
    answer = ok(client.post("/chat/completions", json=ask_chat({"text": "hi"}, background=True)))
    assert answer["choices"][0]["message"]["content"] == "hi"


# Cancelling


def test_a_background_response_is_cancelled(prompted: LoggedBridge, client: httpx2.Client) -> None:
    """The model's work is interrupted, what was said stays, and cancelling again changes nothing."""
    begun = begin(client, {"text": "one"}, {"hang": "cancelled-background"})
    request = prompted.log.running("cancelled-background")
    prompted.log.said(request, "one")
    cancelled = ok(client.post(f"/responses/{begun['id']}/cancel"))
    assert (cancelled["status"], text_of(cancelled)) == ("cancelled", "one")
    wait_for(lambda: "turn/interrupt" in prompted.log.calls(request), "turn/interrupt", 10)
    for again in (client.get(f"/responses/{begun['id']}"), client.post(f"/responses/{begun['id']}/cancel")):
        assert ok(again) == cancelled
    answer = client.post("/responses", json=ask({"text": "x"}, previous_response_id=begun["id"]))
    assert refusal(answer, 400)[0] == "previous_response_not_completed"


def test_a_response_that_has_ended_cannot_be_cancelled(client: httpx2.Client) -> None:
    """It stays as it is."""
    done = ok(client.post("/responses", json=ask({"text": "done"})))
    assert ok(client.post(f"/responses/{done['id']}/cancel")) == done
    assert refusal(client.post("/responses/resp_unknown/cancel"), 404)[0] == "response_not_found"


@pytest.mark.parametrize("stored", [True, False])
def test_a_stream_is_cancelled_from_elsewhere(prompted: LoggedBridge, client: httpx2.Client, stored: bool) -> None:
    """It ends with its one terminal event, which has the status; so does the answer to whoever cancelled it."""
    label = f"cancelled-stream-{stored}"
    body = ask({"text": "one"}, {"hang": label}, stream=True, store=stored)
    with prompted.bridge.client() as other, other.stream("POST", "/responses", json=body) as stream:
        events = read_sse(stream.iter_lines())
        name = next(events)["response"]["id"]
        request = prompted.log.running(label)
        assert next(event for event in events if event.get("delta") == "one")
        assert ok(client.get(f"/responses/{name}"))["status"] == "in_progress"
        cancelled = ok(client.post(f"/responses/{name}/cancel"))
        rest = list(events)
    assert rest[-1]["response"] == cancelled
    assert (cancelled["status"], text_of(cancelled)) == ("cancelled", "one")
    ends = ("response.completed", "response.failed", "response.incomplete")
    assert [event["type"] for event in rest if event["type"] in ends] == ["response.incomplete"]
    wait_for(lambda: "turn/interrupt" in prompted.log.calls(request), "turn/interrupt", 10)
    found = client.get(f"/responses/{name}")
    assert (found.status_code, found.json().get("status")) == ((200, "cancelled") if stored else (404, None))


def test_cancelling_stops_the_provider(rig: Rig) -> None:
    """The real Codex hangs up on its provider."""
    gone = len(rig.provider.gone)
    begun = create(rig.client, said({"do": "slow", "n": 600, "seconds": 60}), model="gpt-5.2", background=True)
    rig.provider.wait_requests(rig.since + 1)
    assert ok(rig.client.post(f"/responses/{begun['id']}/cancel"))["status"] == "cancelled"
    rig.provider.wait_gone(gone + 1, timeout=10)


def test_two_who_cancel_at_once(prompted: LoggedBridge, client: httpx2.Client) -> None:
    """Both are told the same."""
    begun = begin(client, {"hang": True})

    def cancel(_: int) -> Json:
        with prompted.bridge.client() as mine:
            return ok(mine.post(f"/responses/{begun['id']}/cancel"))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(cancel, range(16)))
    assert [answer["status"] for answer in answers] == ["cancelled"] * 16


def test_cancelling_at_the_very_end(prompted: LoggedBridge) -> None:
    """Whoever comes first: the response is completed or cancelled, and stays what it was said to be."""

    def race(number: int) -> set[str]:
        with prompted.bridge.client() as client:
            begun = begin(client, {"sleep": 0.001 * number}, {"text": "done"})
            cancelled = ok(client.post(f"/responses/{begun['id']}/cancel"))
            assert cancelled["status"] in ("completed", "cancelled")
            assert ok(client.get(f"/responses/{begun['id']}")) == cancelled
            return {cancelled["status"]}

    with ThreadPoolExecutor(4) as pool:
        seen = set().union(*pool.map(race, range(60)))
    assert seen


# Deleting what runs


def test_a_deleted_background_response_stays_away(prompted: LoggedBridge, client: httpx2.Client) -> None:
    """Its turn is interrupted, and it does not come back when it ends."""
    begun = begin(client, {"hang": "deleted-background"})
    request = prompted.log.running("deleted-background")
    url = f"/responses/{begun['id']}"
    assert ok(client.delete(url))["deleted"] is True
    assert refusal(client.get(url), 404)[0] == "response_not_found"
    wait_for(lambda: prompted.log.turn_end(request), "the end of the turn", 10)
    wait_for(lambda: "turn/interrupt" in prompted.log.calls(request), "turn/interrupt", 10)
    for answer in (client.get(url), client.delete(url), client.post(f"{url}/cancel")):
        assert refusal(answer, 404)[0] == "response_not_found"


def test_a_stream_that_is_deleted_goes_on_for_its_client(prompted: LoggedBridge, client: httpx2.Client) -> None:
    """But nothing of it is kept."""
    body = ask({"text": "one"}, {"sleep": 0.3}, {"text": "two"}, stream=True)
    with prompted.bridge.client() as other, other.stream("POST", "/responses", json=body) as stream:
        events = read_sse(stream.iter_lines())
        name = next(events)["response"]["id"]
        assert ok(client.delete(f"/responses/{name}"))["deleted"] is True
        last = list(events)[-1]["response"]
    assert (last["status"], text_of(last)) == ("completed", "onetwo")
    assert refusal(client.get(f"/responses/{name}"), 404)[0] == "response_not_found"


# The end of the program


def start(directory: Path, **environment: str) -> Any:
    """A bridge of one's own, whose state a later one finds again."""
    return running_bridge(directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL, **environment)


def on_disk(bridge: RunningBridge, response: Json) -> None:
    """Wait until the disk has the response."""
    file = bridge.state / "turnbridge" / "bridge.sqlite3-wal"
    wait_for(lambda: response["id"].encode() in file.read_bytes(), "the response on disk")


def test_a_killed_bridge_fails_its_background_responses(tmp_path: Path) -> None:
    """After a restart they are reported as failed, for whoever asks and however often."""
    with start(tmp_path) as bridge, bridge.client() as client:
        begun = begin(client, {"text": "one"}, {"hang": True})
        on_disk(bridge, begun)
        bridge.process.kill()
        bridge.process.wait()
    with start(tmp_path) as bridge, bridge.client() as client:
        url = f"/responses/{begun['id']}"
        failed = ok(client.get(url))
        assert (failed["status"], failed["id"], failed["error"]["code"]) == ("failed", begun["id"], "server_error")
        assert "stopped" in failed["error"]["message"]
        assert ok(client.get(url)) == failed
        assert ok(client.post(f"{url}/cancel")) == failed
        answer = client.post("/responses", json=ask({"text": "x"}, previous_response_id=begun["id"]))
        assert refusal(answer, 400)[0] == "previous_response_not_completed"
        assert ok(client.delete(url))["deleted"] is True


def test_a_stop_lets_background_responses_finish(tmp_path: Path) -> None:
    """Within the grace period they end as they should; the next bridge has them."""
    with start(tmp_path, PROXY_GRACE="15") as bridge, bridge.client() as client:
        begun = begin(client, {"sleep": 0.5}, {"text": "just in time"})
        assert bridge.stop() == 0
    with start(tmp_path) as bridge, bridge.client() as client:
        done = ok(client.get(f"/responses/{begun['id']}"))
        assert (done["status"], text_of(done)) == ("completed", "just in time")


def test_a_stop_fails_background_responses_that_take_too_long(tmp_path: Path) -> None:
    """After the grace period they are stored as failed, with the reason; no process is left."""
    log = EventLog(tmp_path / "events.ndjson")
    with start(tmp_path, PROXY_GRACE="0.3", PROXY_LOG_EVENTS=str(log.path)) as bridge, bridge.client() as client:
        begun = begin(client, {"text": "one"}, {"hang": "for too long"})
        log.said(log.running("for too long"), "one")
        children = children_of(bridge.process.pid)
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.wait(20) == 0
        assert not [pid for pid in children if is_alive(pid)]
    with start(tmp_path) as bridge, bridge.client() as client:
        failed = ok(client.get(f"/responses/{begun['id']}"))
        assert (failed["status"], text_of(failed)) == ("failed", "one")
        assert "shutting down" in failed["error"]["message"]


def test_a_second_signal_does_not_wait_for_background_responses(tmp_path: Path) -> None:
    """It ends at once, and the response is failed afterwards."""
    with start(tmp_path, PROXY_GRACE="60") as bridge, bridge.client() as client:
        begun = begin(client, {"hang": True})
        on_disk(bridge, begun)
        bridge.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in bridge.stderr.read_text(), "the stop")
        bridge.process.send_signal(signal.SIGTERM)
        assert bridge.process.wait(20) == 0
    with start(tmp_path) as bridge, bridge.client() as client:
        assert ok(client.get(f"/responses/{begun['id']}"))["status"] == "failed"


def test_a_client_that_leaves_while_it_is_answered(prompted: LoggedBridge) -> None:
    """Whether it saw the id or not: its turn runs to its end, and nothing is left over."""
    labels = [f"left-background-{number}-" for number in range(20)]
    for label in labels:
        connection, response = open_response(
            prompted.bridge, "/v1/responses", ask({"sleep": 0.05}, {"text": label}, background=True)
        )
        connection.close()
        response.close()
    for label in labels:
        request = wait_for(partial(prompted.log.request_of, label), "the request")
        end = wait_for(partial(prompted.log.turn_end, request), "the end of the turn")
        assert end["outcome"] == "completed"
    assert "Traceback" not in prompted.bridge.stderr.read_text()
