"""What a bridge has recorded is played again by the code of today, byte for byte: every fault, every way to ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx2
import pytest
from harness import RunningBridge
from log.replayed import compared, recordings_in, told
from server.prompted import LOOK, ask, ask_chat, open_response, wait_for
from server.recorded import ended, recording
from server.talk import talking

from bridge.replay.compare import Comparison

Json = dict[str, Any]
Cases = dict[str, list[Comparison]]
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"tea\\"}"}</tool_call>'
SECRET = "sk-" + "a1b2c3d4" * 4
STEPS: dict[str, list[Json]] = {
    "deltas": [{"deltas": ["Good ", "morning ☕", "\n"]}, {"usage": {"input": 7, "output": 3, "cached": 2}}],
    "chunks": [{"text": "one letter at a time", "chunk": 1}],
    "whole": [{"no_delta": "all at once"}],
    "flood": [{"flood": 300}],
    "thoughts": [{"reasoning": ["First.", "Then."], "raw_reasoning": ["hm", "well"]}, {"text": "so"}],
    "again": [{"text": "begun"}, {"retry": "upstream broke"}, {"text": "anew"}],
    "failing": [{"text": "half"}, {"error": {"message": "it broke"}}],
    "limited": [{"error": {"message": "too many", "info": "rateLimitExceeded"}}],
    "too long": [{"error": {"message": "too long", "info": "contextWindowExceeded"}}],
    "interrupted": [{"text": "half"}, {"interrupted": True}],
    "asking": [{"request": {"method": "item/commandExecution/requestApproval", "params": {}}}, {"text": "declined"}],
    "garbage": [{"garbage": "no message"}, {"text": "still here"}],
    "silent": [],
    "call": [{"text": f"Let me look. {CALL} and so on", "chunk": 3}],
    "calls": [{"text": CALL + CALL}],
    "broken call": [{"text": '<tool_call>{"name":"look","arguments":{"q":"tea"},}</tool_call>', "chunk": 7}],
    "no call": [{"text": "a <tool_call> is a tag"}],
    "slow": [{"text": "a"}, {"sleep": 0.05}, {"text": "b"}, {"sleep": 0.05}, {"text": "c"}],
    "secret": [{"text": f"your key is {SECRET}."}],
    "secret in pieces": [{"text": f"your key is {SECRET}.", "chunk": 5}],
    "secret call in pieces": [{"text": CALL.replace("tea", SECRET), "chunk": 5}],
    "secret call": [{"text": CALL.replace("tea", SECRET)}],
}
DYING: list[dict[str, Any]] = [{"text": "last words"}, {"exit": 3}]
WITH_TOOLS = ("call", "calls", "broken call", "no call", "secret call", "secret call in pieces")


def case(name: str, **members: Any) -> Json:
    """Members of a request; `user` names the case in the log."""
    return {"user": name, **members}


def ask_all_ways(bridge: RunningBridge, name: str, steps: list[Json]) -> None:
    """Both endpoints, streamed and not."""
    tools: Json = {"tools": [LOOK]} if name in WITH_TOOLS else {}
    chat_tools: Json = {"tools": [{"type": "function", "function": LOOK}]} if name in WITH_TOOLS else {}
    with bridge.client() as client:
        for stream in (True, False):
            client.post("/responses", json=ask(*steps, stream=stream, **case(name), **tools))
            client.post("/chat/completions", json=ask_chat(*steps, stream=stream, **case(name), **chat_tools))


def ask_for_choices(bridge: RunningBridge) -> None:
    for stream in (True, False):
        steps = [{"text": "a choice", "chunk": 2}]
        bridge.post("/chat/completions", ask_chat(*steps, n=3, stream=stream, **case("choices")))
        bridge.post("/chat/completions", ask_chat({"error": {"message": "no"}}, n=2, stream=stream, **case("choices")))


def ask_with_a_stop(bridge: RunningBridge) -> None:
    for stream in (True, False):
        steps = [{"text": "one two "}, {"sleep": 0.1}, {"text": "STOP three"}]
        bridge.post("/chat/completions", ask_chat(*steps, stop=["STOP"], stream=stream, **case("stop")))


def ask_wrongly(bridge: RunningBridge) -> None:
    wrong: list[dict[str, Any]] = [
        {"model": "no-such-model"},
        {"input": []},
        {"tools": [LOOK | {"name": "bad name!"}]},
        {"input": 5},
    ]
    for more in wrong:
        bridge.post("/responses", ask({"text": "x"}, **case("wrong")) | more)
    bridge.post("/chat/completions", {"model": "no-such-model", "messages": [], **case("wrong")})
    bridge.post("/responses", ask(**case("wrong"), previous_response_id="resp_none"))


def ask_and_leave(bridge: RunningBridge) -> None:
    for path, make in (("/v1/responses", ask), ("/v1/chat/completions", ask_chat)):
        connection, response = open_response(
            bridge, path, make({"text": "begun"}, {"hang": True}, stream=True, **case("leaving"))
        )
        response.read(40)
        response.close()
        connection.close()


def ask_and_cancel(bridge: RunningBridge) -> None:
    body = ask({"text": "begun"}, {"hang": True}, stream=True, **case("cancelled"))
    with bridge.client() as client, client.stream("POST", "/responses", json=body) as response:
        for line in response.iter_lines():
            if '"response.created"' in line:
                name = line.partition('"id":"')[2].partition('"')[0]
            if "output_text.delta" in line:
                bridge.post(f"/responses/{name}/cancel", {})


def has_ended(client: httpx2.Client, name: str) -> bool:
    return client.get(f"/responses/{name}").json()["status"] not in ("queued", "in_progress")


def ask_in_the_background(bridge: RunningBridge) -> None:
    for steps in ([{"text": "later"}], [{"error": {"message": "it broke"}}]):
        made = bridge.post("/responses", ask(*steps, background=True, **case("background"))).json()
        with bridge.client() as client:
            wait_for(partial(has_ended, client, made["id"]), "it has ended")


def ask_over_a_websocket(bridge: RunningBridge) -> None:
    with talking(bridge) as talk:
        first = talk.ask(ask({"text": "first"}, store=False, **case("websocket")))
        talk.ask(ask({"text": "second"}, previous_response_id=first["id"], **case("websocket")))
        talk.ask(ask({"text": "in a lane"}, stream_id="a", **case("websocket")))
        talk.ask(ask({"text": CALL}, tools=[LOOK], **case("websocket")))
        talk.ask({"response": ask({"text": "within"}, **case("websocket"))})
        warm = talk.ask(ask({"text": "only taken in"}, generate=False, **case("websocket")))
        talk.ask(ask({"text": "then"}, previous_response_id=warm["id"], **case("websocket")))
        talk.refused(ask({"text": "x"}, **case("refused websocket")) | {"model": "no-such-model"})
        talk.refused(ask({"text": "x"}, previous_response_id="resp_none", **case("refused websocket")))
        talk.send(ask({"text": "half"}, {"error": {"message": "broke"}}, **case("websocket")))
        talk.rest()
        talk.send(ask({"error": {"message": "broke at once"}}, **case("refused websocket")))
        talk.rest()


def continue_by_id(bridge: RunningBridge) -> None:
    called = bridge.post("/responses", ask({"text": CALL}, tools=[LOOK], **case("continued"))).json()
    call = next(item for item in called["output"] if item["type"] == "function_call")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
    prompt = {"role": "user", "content": '[{"text": "so it is"}]'}
    more = {"input": [output, prompt], "previous_response_id": called["id"], "tools": [LOOK]}
    bridge.events("/responses", ask(**case("continued")) | more)


WAYS: dict[str, Callable[[RunningBridge], None]] = {
    "choices": ask_for_choices,
    "stop": ask_with_a_stop,
    "wrong": ask_wrongly,
    "leaving": ask_and_leave,
    "cancelled": ask_and_cancel,
    "background": ask_in_the_background,
    "websocket": ask_over_a_websocket,
    "refused websocket": lambda bridge: None,
    "continued": continue_by_id,
}


@pytest.fixture(scope="module", params=["current", "legacy"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Every case, recorded by a bridge and played again from its log."""
    with recording(tmp_path_factory.mktemp(request.param), dialect=request.param) as bridge:
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask_all_ways, bridge, name, steps) for name, steps in STEPS.items()]
            asked += [pool.submit(way, bridge) for way in WAYS.values()]
            for each in asked:
                each.result()
        ask_all_ways(bridge, "dying", DYING)
        log = ended(bridge)
    cases: Cases = defaultdict(list)
    for found in compared(recordings_in(log)):  # a bridge that has stopped has written everything
        body = found.recording.body or {}
        cases[body.get("user") or body.get("response", {}).get("user")].append(found)
    return cases


@pytest.mark.parametrize("name", [*STEPS, "dying"])
def test_every_answer_verifies(played: Cases, name: str) -> None:
    """Both endpoints, streamed or not, both dialects: also what fails, and a child that dies."""
    assert [found.outcome for found in played[name]] == ["same"] * 4, told(played[name])


@pytest.mark.parametrize("name", WAYS)
def test_every_kind_of_request_verifies(played: Cases, name: str) -> None:
    """Several choices, stop sequences, refusals, clients that leave or cancel, background, WebSocket, continuations."""
    assert {found.outcome for found in played[name]} == {"same"}, told(played[name])


def test_no_request_is_left_out(played: Cases) -> None:
    everything = [found for cases in played.values() for found in cases]
    assert {found.outcome for found in everything} == {"same"}, told(everything)


def test_bytes_after_a_disconnect_are_not_compared(played: Cases) -> None:
    assert all("beginning" in found.lines[0] for found in played["leaving"])


def test_a_secret_is_compared_by_its_mark(played: Cases) -> None:
    """It stands neither in what was recorded nor in what is made of it, and both are equal."""
    for found in (*played["secret"], *played["secret call"]):
        assert found.now is not None
        assert SECRET.encode() not in found.recording.sent + found.now.sent
        assert b"[redacted:" in found.now.sent
    # What a model spells out piece by piece is not known in the pieces; it is in the whole text.
    for found in (*played["secret in pieces"], *played["secret call in pieces"]):
        assert found.recording.path != "/v1/responses" or b"[redacted:" in found.recording.sent
