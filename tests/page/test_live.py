"""What a browser gets while turns run: over real sockets, and a watcher that is too slow."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from harness import RunningBridge
from page.visiting import Event, client_key, following, opened, prompted_bridge, row_with, until, visitor
from server.prompted import LOOK, ask, ask_chat, wait_for

from bridge.core.events import Finished
from bridge.core.observer import TurnFacts
from bridge.log.recording import Frame, Piece, Recording
from bridge.page.live import MAX_WAITING, MAX_WATCHERS, LiveText, Watcher, Watchers
from bridge.page.ring import Ring
from bridge.page.turns import Turns

SECRET = "sk-abcdefghijklmnopqrstuvwxyz012345"


def test_the_list_hears_of_each_step_of_a_turn(bridge: RunningBridge, client: httpx2.Client) -> None:
    with following(client, "events") as events:
        body = ask({"text": "first "}, {"sleep": 0.5}, {"text": "last"}, instructions="steps-1", stream=True)
        asking = threading.Thread(target=bridge.post, args=("/responses", body))
        asking.start()
        seen: list[Event] = []
        for event in events:
            assert event.name == "turn"
            seen.append(event)
            if not event.data["running"]:
                break
        asking.join(30)
    assert len({event.data["id"] for event in seen}) == 1
    assert seen[0].data["running"]
    assert any(event.data["running"] and event.data["first_event_s"] for event in seen), "its first event"
    assert seen[-1].data["outcome"] == "completed"


def test_the_text_of_a_turn_grows(bridge: RunningBridge, client: httpx2.Client) -> None:
    """The text comes before the turn has ended, whole, and in order; then the end."""
    steps = [step for word in ("one ", "two ", "three ") for step in ({"deltas": [word]}, {"sleep": 0.4})]
    body = ask(*steps, {"text": "four"}, instructions="grow-2", stream=True)
    asking = threading.Thread(target=bridge.post, args=("/responses", body))
    asking.start()
    name = row_with(client, "grow-2")["id"]
    with following(client, f"turns/{name}/events") as events:
        found = until(events, "end")
    asking.join(30)
    assert found[0].name == "start"
    texts = [event.data["text"] for event in found if event.name == "text"]
    assert "".join(texts) == "one two three four"
    assert len(texts) > 1, "in pieces"
    rows_of_wire = [event.data for event in found if event.name == "wire"]
    whole = client.get(f"/page/api/turns/{name}/wire").json()
    for part in ("frames", "client"):
        assert [row[1:] for each in rows_of_wire for row in each[part]] == [row[1:] for row in whole[part]]


def test_the_answer_of_a_client_that_does_not_stream_grows_too(bridge: RunningBridge, client: httpx2.Client) -> None:
    body = ask({"text": "alpha "}, {"sleep": 1}, {"text": "omega"}, instructions="whole-3")
    asking = threading.Thread(target=bridge.post, args=("/responses", body))
    asking.start()
    name = row_with(client, "whole-3")["id"]
    with following(client, f"turns/{name}/events") as events:
        before_the_end = until(events, "text")
        assert before_the_end[-1].data["text"] == "alpha "
        found = until(events, "end")
    asking.join(30)
    assert "".join(event.data["text"] for event in found if event.name == "text") == "omega"


def test_thoughts_calls_and_repairs_are_marked(bridge: RunningBridge, client: httpx2.Client) -> None:
    call = '<tool_call>{"name":"look","arguments":{"q":"x",}}</tool_call>'
    steps = ({"reasoning": ["let me see"]}, {"text": "well "}, {"text": call})
    name = bridge.post("/responses", ask(*steps, tools=[LOOK], stream=True)).headers["x-request-id"]
    with following(client, f"turns/{name}/events") as events:
        texts = [event.data for event in until(events, "end") if event.name == "text"]
    kinds = [each["kind"] for each in texts]
    assert kinds[:3] == ["thought", "text", "call"], texts
    assert [each["name"] for each in texts if each["kind"] == "call"] == ["look"]
    assert json.loads(texts[2]["text"]) == {"q": "x"}
    assert "repair" in kinds
    assert all(each["new"] for each in texts[:3])


def test_a_watcher_sees_its_own_keys_turns_only(bridge: RunningBridge) -> None:
    key = client_key(bridge, "watching")
    with visitor(bridge, key) as client, following(client, "events") as events:
        bridge.post("/responses", ask({"text": "of another key"}))
        with bridge.client(key=key) as asking:
            own = asking.post("/responses", json=ask({"text": "own"})).headers["x-request-id"]
        for event in events:
            assert event.data["id"] == own
            if not event.data["running"]:
                break


def test_watchers_are_sent_off_when_the_bridge_stops(tmp_path: Path) -> None:
    with prompted_bridge(tmp_path) as bridge, visitor(bridge) as client, following(client, "events") as events:
        assert bridge.stop() == 0
        assert [event.name for event in events] == ["bye"]


def test_there_is_a_limit_of_watchers(tmp_path: Path) -> None:
    with prompted_bridge(tmp_path) as bridge, visitor(bridge) as client:
        sockets = [client.build_request("GET", "/page/api/events") for _ in range(MAX_WATCHERS)]
        answers = []
        with httpx2.Client(
            limits=httpx2.Limits(max_connections=None), cookies=client.cookies, trust_env=False, verify=False
        ) as many:
            answers = [many.send(request, stream=True) for request in sockets]
            assert {answer.status_code for answer in answers} == {200}
            refused = client.get("/page/api/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert client.get("/page/api/turns").status_code == 200
            answers.pop().close()
            wait_for(lambda: _accepts(client), "there is room again")
            for answer in answers:
                answer.close()


def _accepts(client: httpx2.Client) -> bool:
    with client.stream("GET", "/page/api/events") as answer:
        return answer.status_code == 200


# Secrets


CANARIES: dict[str, tuple[str, dict[str, Any]]] = {
    "in the prompt": ("/responses", ask({"text": "ok"}, instructions=f"use {SECRET}", stream=True)),
    "in the answer": ("/responses", ask({"text": f"it is {SECRET}, keep it"}, stream=True)),
    "spelled out in pieces": (
        "/responses",
        ask({"text": f"it is {SECRET}, keep it", "chunk": 4}, stream=True),
    ),
    "in slow pieces": (
        "/responses",
        ask({"deltas": ["my key is sk-abcdefghij"]}, {"sleep": 0.5}, {"deltas": [SECRET[13:], " ok"]}, stream=True),
    ),
    "not streamed": ("/chat/completions", ask_chat({"text": f"Bearer {SECRET[3:]} x", "chunk": 3})),
    "in the arguments of a call": (
        "/responses",
        ask(
            {"text": f'<tool_call>{{"name":"look","arguments":{{"q":"{SECRET}"}}}}</tool_call>', "chunk": 5},
            tools=[LOOK],
            stream=True,
        ),
    ),
    "under a name": ("/responses", ask({"text": "ok"}, metadata={"password": SECRET[3:]})),
    "in an error": ("/responses", ask({"error": {"message": f"bad key {SECRET}", "info": "other"}})),
}


@pytest.mark.parametrize("place", CANARIES)
def test_no_answer_of_the_page_has_a_secret(bridge: RunningBridge, client: httpx2.Client, place: str) -> None:
    """Live or afterwards, in the list, in the turn, in its messages and in its exports."""
    path, body = CANARIES[place]
    with following(client, "events") as listed:
        asking = threading.Thread(target=bridge.post, args=(path, body))
        asking.start()
        name = next(listed).data["id"]
        with following(client, f"turns/{name}/events") as events:
            shown = [json.dumps(event.data) for event in until(events, "end") if event.name != "wire"]
        asking.join(30)
        shown += [json.dumps(event.data) for event in until(listed, "turn")]
    shown.append("".join(json.loads(each).get("text") or "" for each in shown))
    for url in (f"turns/{name}", f"turns/{name}/export?format=html", f"turns/{name}/export?format=har", "turns",
                f"turns/{name}/export?format=jsonl", f"turns/{name}/wire"):  # fmt: skip
        shown.append(client.get(f"/page/api/{url}").text)
    shown.append(client.post(f"/page/api/turns/{name}/case", json={}).text)
    for text in shown:
        assert SECRET[3:] not in text, text


def test_a_request_with_a_secret_is_sent_again_as_it_was(bridge: RunningBridge, client: httpx2.Client) -> None:
    """The page does not see the secret, and the model gets it nevertheless."""
    body = {"model": "mock-echo", "input": f"say {SECRET}"}
    name = bridge.post("/responses", body).headers["x-request-id"]
    again = client.post(f"/page/api/turns/{name}/send", json={}).json()["id"]
    wait_for(lambda: not opened(client, again)["row"]["running"], "it ends")
    assert SECRET not in json.dumps(opened(client, again))
    assert opened(client, again)["row"]["input_tokens"] == opened(client, name)["row"]["input_tokens"]


# A watcher that is too slow


def arrive(ring: Ring, name: str) -> TurnFacts:
    """A request, in the ring."""
    facts = TurnFacts(name, "key-a", 0.0)
    ring.arrived(facts, {"path": "/v1/responses", "body": {"model": "m", "input": "hi"}})
    return facts


async def test_a_slow_watcher_loses_updates_and_is_told(autojump_clock: Any) -> None:
    """It never holds more than its share. The ring does not wait, and each turn comes once, in its last state."""
    ring, watchers = Ring(1 << 24), Watchers()
    ring.on_change, ring.on_gone = watchers.note, watchers.note_gone
    turns = Turns(ring, None)
    watcher = Watcher("key-a", None)
    with watchers.having(watcher):
        batches = watcher.batches(turns)
        await anext(batches)
        for number in range(MAX_WAITING + 10):
            ring.ended(arrive(ring, f"req_{number}"), Finished("completed"), None, 1.0)
        batch = (await anext(batches)).decode()
        await batches.aclose()
    events = [event.split("\n")[0] for event in batch.strip().split("\n\n")]
    assert events.count("event: turn") == MAX_WAITING
    assert batch.count('"running":false') == MAX_WAITING
    assert f'event: missed\ndata: {{"count":{watchers.missed}}}' in batch
    assert watchers.missed == 20, "ten turns, each of which began and ended"
    assert not len(watchers)


async def test_a_watcher_gets_at_most_ten_batches_a_second(autojump_clock: Any) -> None:
    ring, watchers = Ring(1 << 24), Watchers()
    ring.on_change = watchers.note
    watcher = Watcher("key-a", None)
    times: list[float] = []

    async def watch() -> None:
        async for _ in watcher.batches(Turns(ring, None)):
            times.append(trio.current_time())

    with watchers.having(watcher):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for number in range(100):
                arrive(ring, f"req_{number}")
                await trio.sleep(0.01)
            watchers.end()
    assert len(times) <= 13, "one second of changes, the greeting and the farewell"


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events)


def said(*deltas: str) -> Recording:
    """A recording of these pieces of text from a child."""
    notes = [
        {"params": {"threadId": "t", "turnId": "u", "itemId": "i", "delta": delta}, "method": "item/agentMessage/delta"}
        for delta in deltas
    ]
    frames = [Frame(0.0, 1, "in", "rpc_notification", "item/agentMessage/delta", None, "t", note) for note in notes]
    return Recording("req_x", Path("x"), attempts={0: frames})


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("before", ["key: ", "Bearer ", "see http://a/?token=", '{"password": "', ""])
def test_live_text_never_shows_the_beginning_of_a_secret(before: str, size: int) -> None:
    """However a text is cut: what has gone out holds no part of the secret that could be put together again."""
    text = f"Here it is, {before}{SECRET} and more text after it."
    live, shown = LiveText(streams=False, keys=()), ""
    for at in range(0, len(text), size):
        shown += text_of(live.take(said(text[at : at + size]), ended=False))
        assert "abcdefgh" not in shown
    shown += text_of(live.take(said(), ended=True))
    assert shown.startswith("Here it is, ")
    assert shown.endswith("and more text after it.")
    assert "abcdefgh" not in shown


def test_live_text_of_a_stream_is_read_by_its_protocol() -> None:
    live = LiveText(streams=True, keys=())
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "hello there"}}]}
    piece = Piece(0.0, "client_sse", f"data: {json.dumps(chunk)}\n\n")
    assert text_of(live.take(Recording("r", Path("x"), client=[piece]), ended=False)) == "hello "
    assert text_of(live.take(Recording("r", Path("x")), ended=True)) == "there"
