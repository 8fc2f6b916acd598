"""WebSocket on /v1/responses: many requests on one connection, and everything that may be wrong with them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from harness import KEY, OTHER_KEY, RunningBridge, resident, running_bridge
from openai import OpenAI
from real.rig import LOOK, Rig, said
from server.answers import RECALL, create, ok, recalled, text_of
from server.conftest import LoggedBridge
from server.prompted import ask, wait_for
from server.talk import ENDS, Json, Talk, talking
from websockets.exceptions import ConnectionClosedError, InvalidStatus


def echo(text: str) -> Json:
    """A request that is answered with its text."""
    return {"model": "mock-echo", "input": text}


@pytest.fixture
def talk(two_keys: RunningBridge) -> Iterator[Talk]:
    """A connection to a bridge with the mock models; at its end it must still be good."""
    with talking(two_keys) as talk:
        yield talk
        assert text_of(talk.ask(echo("still there"))) == "still there"


@pytest.fixture
def prompted_talk(prompted: LoggedBridge) -> Iterator[Talk]:
    """A connection to the prompted bridge; at its end it must still be good."""
    with talking(prompted.bridge) as talk:
        yield talk
        assert text_of(talk.ask(ask({"text": "still there"}))) == "still there"


# Requests


def test_several_requests_on_one_connection(talk: Talk) -> None:
    """Each is answered by its own stream, one after the other."""
    for number in range(20):
        text = f'number {number} é 🌍 \u2028\n\ndata: {{"type":"error"}}\n\n'
        response = talk.ask(echo(text))
        assert (text_of(response), response["status"]) == (text, "completed")


def test_a_large_piece_is_one_message(prompted_talk: Talk) -> None:
    """However much is said at once."""
    assert text_of(prompted_talk.ask(ask({"text": "0123456789"}, {"text": "é" * 1_000_000}))).count("é") == 1_000_000


def test_the_event_log_has_what_a_socket_is_answered(prompted: LoggedBridge) -> None:
    """Requests, pieces and ends, as over HTTP."""
    with talking(prompted.bridge) as talk:
        talk.ask(ask({"text": "logged-on-a-socket"}))
        talk.refused(ask({"text": "refused-on-a-socket"}, previous_response_id="resp_unknown"))
    request = wait_for(lambda: prompted.log.request_of("logged-on-a-socket"), "the request")
    wait_for(lambda: prompted.log.of(request, "client_sse_done"), "its end")
    assert "logged-on-a-socket" in json.dumps(prompted.log.of(request, "client_sse"))
    refused = wait_for(lambda: prompted.log.request_of("refused-on-a-socket"), "the refused request")
    end = wait_for(lambda: prompted.log.turn_end(refused), "its end")
    assert end["error"]["code"] == "previous_response_not_found"


def test_a_response_of_a_socket_is_like_any_other(talk: Talk, two_keys: RunningBridge) -> None:
    """It is stored, and can be retrieved and continued over HTTP; and the other way round."""
    response = talk.ask(echo("one"), metadata={"a": "b"})
    with two_keys.client() as client:
        assert ok(client.get(f"/responses/{response['id']}")) == response
        second = create(client, "two", previous_response_id=response["id"])
    third = talk.ask(echo("three"), previous_response_id=second["id"])
    with two_keys.client() as client:
        assert len(ok(client.get(f"/responses/{third['id']}/input_items"))["data"]) == 5


def test_bytes_are_as_good_as_text(talk: Talk) -> None:
    """For clients that send binary messages."""
    talk.socket.send(json.dumps({"type": "response.create", **echo("bytes")}).encode())
    assert text_of(talk.rest()[-1]["response"]) == "bytes"


def test_a_request_in_a_member_of_its_own(talk: Talk) -> None:
    """Some clients nest it."""
    assert text_of(talk.ask({"response": echo("nested")})) == "nested"


def test_members_that_mean_nothing_here(talk: Talk) -> None:
    """A connection is always streamed, and nothing on it goes on in the background."""
    response = talk.ask(echo("hi"), stream=False, background=True)
    assert (text_of(response), response["background"]) == ("hi", False)


def test_calls(talk: Talk) -> None:
    """Tools too."""
    response = talk.ask({"model": "mock-tool-call", "input": "look", "tools": [{"type": "function", **LOOK}]})
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    body = {"model": "mock-tool-loop", "input": [output], "previous_response_id": response["id"]}
    assert text_of(talk.ask(body, tools=[{"type": "function", **LOOK}])) == "mock tool result: sunny"


def test_a_failure_is_the_answer_of_its_request_alone(prompted_talk: Talk) -> None:
    """Before the first word it is an error message, which has a status; afterwards the end of the stream."""
    error = prompted_talk.refused(ask({"error": {"message": "slow down", "info": "rateLimitExceeded"}}))
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    prompted_talk.send(ask({"text": "half"}, {"error": {"message": "boom"}}))
    last = prompted_talk.rest()[-1]
    assert last["type"] == "response.failed"
    assert (text_of(last["response"]), last["response"]["error"]["message"]) == ("half", "boom")


# Continuation


def test_a_connection_continues_what_is_not_stored(rig: Rig) -> None:
    """Over three links with `store: false`; nobody else can."""
    say = "one " + said({"do": "text", "pieces": ["first"]})
    with talking(rig.bridge) as talk:
        first = talk.ask({"model": "gpt-5.2", "input": say, "store": False})
        second = talk.ask({"model": "gpt-5.2", "input": RECALL, "store": False, "previous_response_id": first["id"]})
        expected = [["user", say], ["assistant", "first"], ["user", RECALL]]
        assert recalled(second)[-3:] == expected
        third = talk.ask({"model": "gpt-5.2", "input": RECALL, "previous_response_id": second["id"]}, store=False)
        assert recalled(third)[-5:] == [*expected, ["assistant", text_of(second)], ["user", RECALL]]
        with talking(rig.bridge) as other:
            error = other.refused({"model": "gpt-5.2", "input": "x", "previous_response_id": third["id"]})
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    assert rig.client.get(f"/responses/{third['id']}").status_code == 404


def test_a_tool_loop_that_is_not_stored(rig: Rig) -> None:
    """The call is remembered by the connection."""
    tools = [{"type": "function", **LOOK}]
    action = said({"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"Bern"}'}]})
    with talking(rig.bridge) as talk:
        first = talk.ask({"model": "gpt-5.2", "input": action, "store": False, "tools": tools})
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        body = {"model": "gpt-5.2", "input": [output], "store": False, "tools": tools}
        assert text_of(talk.ask(body, previous_response_id=first["id"])) == "result: sunny"


def test_tools_in_the_input_are_remembered(rig: Rig) -> None:
    """A client that sends only what is new offers them once; the model can call them in every round."""
    offer = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", **LOOK}]}
    look = [{"name": "look", "arguments": '{"q":"Bern"}'}]
    action = said({"do": "calls", "calls": look, "then": {"do": "calls", "calls": look}})
    with talking(rig.bridge) as talk:
        items: list[Json] = [offer, {"role": "user", "content": action}]
        previous: Json = {}
        for _ in range(2):
            response = talk.ask({"model": "gpt-5.2", "input": items, "store": False}, **previous)
            (call,) = [item for item in response["output"] if item["type"] == "function_call"]
            items = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]
            previous = {"previous_response_id": response["id"]}


@pytest.mark.parametrize("name", ["resp_unknown", "", "x" * 10_000, "é"])
def test_an_unknown_response_is_an_error_message(talk: Talk, name: str) -> None:
    """The connection lives on."""
    error = talk.refused(echo("hi"), previous_response_id=name)
    assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    assert error["error"]["param"] == "previous_response_id"


@pytest.mark.parametrize("visible", [True, False])
def test_a_failure_forgets_what_it_continued(prompted_talk: Talk, visible: bool) -> None:
    """Before the first word or after it; a client then sends the whole conversation. What is stored is still there."""
    failing = [*([{"text": "half"}] if visible else []), {"error": {"message": "boom"}}]
    for store in (False, True):
        first = prompted_talk.ask(ask({"text": "one"}, store=store))
        link = {"store": store, "previous_response_id": first["id"]}
        prompted_talk.send(ask(*failing, **link))
        assert prompted_talk.rest()[-1]["type"] == ("response.failed" if visible else "error")
        if store:
            assert text_of(prompted_talk.ask(ask({"text": "two"}, **link))) == "two"
        else:
            error = prompted_talk.refused(ask({"text": "two"}, **link))
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


def test_a_refused_request_forgets_what_it_continued(talk: Talk) -> None:
    """That one alone: the connection still has the others."""
    first, second = (talk.ask(echo(text), store=False)["id"] for text in ("one", "two"))
    assert talk.refused(echo(""), store=False, previous_response_id=first, tools=5)["status"] == 400
    error = talk.refused(echo("again"), store=False, previous_response_id=first)
    assert error["error"]["code"] == "previous_response_not_found"
    assert text_of(talk.ask(echo("again"), store=False, previous_response_id=second)) == "again"


def test_a_forgotten_response_without_a_store(tmp_path: Path) -> None:
    """The code is the one that clients recover from, not that of a setting."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="off") as bridge, talking(bridge) as talk:
        first = talk.ask(echo("one"))
        assert text_of(talk.ask(echo("two"), previous_response_id=first["id"])) == "two"
        error = talk.refused(echo("three"), previous_response_id="resp_unknown")
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")


def test_a_connection_remembers_its_last_responses(talk: Talk) -> None:
    """As many as a client can reasonably fork from; those before are gone, unless they are stored."""
    made = [talk.ask(echo(str(number)), store=False)["id"] for number in range(12)]
    assert text_of(talk.ask(echo("again"), store=False, previous_response_id=made[-1])) == "again"
    error = talk.refused(echo("again"), store=False, previous_response_id=made[0])
    assert error["error"]["code"] == "previous_response_not_found"


def test_a_reference_beside_a_remembered_response(talk: Talk) -> None:
    """Items of stored responses can be referred to, also by what continues one; a conversation cannot be added."""
    first = talk.ask(echo("one"))
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    given = [reference, {"role": "user", "content": "two"}]
    assert text_of(talk.ask({"model": "mock-echo", "input": given, "previous_response_id": first["id"]})) == "two"
    error = talk.refused(echo("two"), previous_response_id=first["id"], conversation="conv_1")
    assert error["error"]["param"] == "previous_response_id"


def test_input_without_an_answer(rig: Rig) -> None:
    """`generate: false` takes the input in, costs no model call, and is continued like any other."""
    with talking(rig.bridge) as talk:
        silent = talk.ask({"model": "gpt-5.2", "input": "remember this", "generate": False, "store": False})
        assert (silent["status"], silent["output"]) == ("completed", [])
        assert rig.posts == []
        body = {"model": "gpt-5.2", "input": RECALL, "store": False, "previous_response_id": silent["id"]}
        assert recalled(talk.ask(body))[-2:] == [["user", "remember this"], ["user", RECALL]]


def test_a_conversation_on_a_connection(talk: Talk, two_keys: RunningBridge) -> None:
    """It is extended as over HTTP."""
    with two_keys.client() as client:
        name = ok(client.post("/conversations"))["id"]
        talk.ask(echo("one"), conversation=name)
        assert len(ok(client.get(f"/conversations/{name}/items"))["data"]) == 2


# Lanes


def test_lanes_run_side_by_side(prompted: LoggedBridge) -> None:
    """A lane that waits holds up no other; every event says whose it is."""
    with talking(prompted.bridge) as talk:
        talk.send(ask({"text": "one"}, {"hang": "held-lane"}), stream_id="a")
        prompted.log.running("held-lane")
        talk.send(ask({"text": "two"}), stream_id="b")
        events: list[Json] = []
        while not events or events[-1]["type"] != "response.completed":
            events.append(talk.receive())
        assert events[-1]["stream_id"] == "b"
        assert {event["stream_id"] for event in events} == {"a", "b"}
        for lane in "ab":
            mine = [event["sequence_number"] for event in events if event["stream_id"] == lane]
            assert mine == list(range(len(mine)))


def test_a_lane_is_answered_in_order(prompted_talk: Talk) -> None:
    """Requests of one lane wait for each other; so do those without one."""
    for number in range(10):
        lane = {"stream_id": "a"} if number % 2 else {}
        prompted_talk.send(ask({"sleep": 0.02}, {"text": f"answer {number}"}), **lane)
    ends: list[Json] = []
    while len(ends) < 10:
        message = prompted_talk.receive()
        if message["type"] in ENDS:
            ends.append(message)
    for name, expected in (("a", [1, 3, 5, 7, 9]), (None, [0, 2, 4, 6, 8])):
        mine = [text_of(end["response"]) for end in ends if end.get("stream_id") == name]
        assert mine == [f"answer {number}" for number in expected]


def test_a_lane_forks_from_another(talk: Talk) -> None:
    """What is continued does not depend on the lane."""
    first = talk.ask(echo("one"), stream_id="a", store=False)
    assert text_of(talk.ask(echo("two"), stream_id="b", store=False, previous_response_id=first["id"])) == "two"


def test_lanes_are_free_again_when_they_are_idle(talk: Talk) -> None:
    """A client may name each request's lane anew."""
    for number in range(40):
        assert text_of(talk.ask(echo("hi"), stream_id=f"lane {number}")) == "hi"


def test_too_many_lanes_at_once(prompted: LoggedBridge) -> None:
    """Seventeen are refused, sixteen go on."""
    with talking(prompted.bridge) as talk:
        for number in range(16):
            talk.send(ask({"hang": f"lane-{number}-"}), stream_id=str(number))
        for number in range(16):
            prompted.log.running(f"lane-{number}-")
        talk.send(ask({"text": "x"}), stream_id="one more")
        while (message := talk.receive())["type"] != "error":
            pass
        assert (message["error"]["param"], message["stream_id"]) == ("stream_id", "one more")


@pytest.mark.parametrize("lane", [5, ["a"], {"a": 1}, "x" * 257, True])
def test_a_lane_has_a_name(talk: Talk, lane: Any) -> None:
    """Anything but a short text is refused."""
    assert talk.refused(echo("hi"), stream_id=lane)["error"]["param"] == "stream_id"


def test_an_error_names_its_lane(talk: Talk) -> None:
    """As every event does."""
    assert talk.refused({"model": "none", "input": "hi"}, stream_id="a")["stream_id"] == "a"
    assert "stream_id" not in talk.refused({"model": "none", "input": "hi"})


def test_many_messages_are_queued(talk: Talk) -> None:
    """More than any buffer between: all are answered, in order, and none is lost."""
    for number in range(60):
        talk.send(echo(f"queued {number}"))
    answers = [text_of(talk.rest()[-1]["response"]) for _ in range(60)]
    assert answers == [f"queued {number}" for number in range(60)]


def test_too_many_messages_wait(prompted: LoggedBridge) -> None:
    """Beyond the limit a request is refused as one too many; the others keep their place."""
    with talking(prompted.bridge) as talk:
        talk.send(ask({"hang": "blocking-the-queue"}))
        prompted.log.running("blocking-the-queue")
        for _ in range(70):
            talk.send(ask({"text": "x"}))
        refusals = 0
        while refusals < 7:
            message = talk.receive()
            if message["type"] == "error":
                refusals += 1
                assert (message["status"], message["error"]["code"]) == (429, "rate_limit_exceeded")


# What is wrong


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ("null", "invalid_json", None),
        ('"response.create"', "invalid_json", None),
        (b"\x00\xff", "invalid_json", None),
        (b"", "invalid_json", None),
        ('{"type":"response.create","a":' + "[" * 100 + "]" * 100 + "}", "nesting_too_deep", None),
        ("{}", "invalid_request", "type"),
        ('{"type":"session.update"}', "invalid_request", "type"),
        ('{"type":5}', "invalid_request", "type"),
        ('{"type":["response.create"]}', "invalid_request", "type"),
        ('{"type":"response.create"}', "invalid_request", "model"),
        ('{"type":"response.create","model":"none","input":"hi"}', "model_not_found", "model"),
        ('{"type":"response.create","model":"mock-echo"}', "invalid_request", "input"),
        ('{"type":"response.create","model":"mock-echo","input":5}', "invalid_request", "input"),
        ('{"type":"response.create","response":{"model":"mock-echo"}}', "invalid_request", "input"),
        (
            '{"type":"response.create","model":"mock-echo","input":"x","conversation":"c"}',
            "conversation_not_found",
            "conversation",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) > 60 else str(value),
)
def test_a_wrong_message_is_answered(talk: Talk, message: str | bytes, code: str, param: str | None) -> None:
    """With an error message; the connection lives on."""
    error = talk.refused(message)
    assert error["status"] in (400, 404)
    assert (error["error"]["code"], error["error"]["param"]) == (code, param)
    assert "sequence_number" not in error


def test_a_very_long_type_is_not_repeated(talk: Talk) -> None:
    """An error message is a message for people."""
    assert len(json.dumps(talk.refused(json.dumps({"type": "x" * 100_000})))) < 2000


def test_a_large_message(two_keys: RunningBridge) -> None:
    """Up to the limit of a body it is a request; beyond it the connection is closed as too big, and only that one."""
    with talking(two_keys, compression=None) as talk:
        assert text_of(talk.ask(echo("hi"), padding="x" * 19_000_000)) == "hi"
        with pytest.raises(ConnectionClosedError) as closed:
            talk.send(echo("hi"), padding="x" * 21_000_000)
            talk.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    with talking(two_keys) as talk:
        assert text_of(talk.ask(echo("hi"))) == "hi"


def test_a_message_that_is_too_large_is_not_kept(two_keys: RunningBridge) -> None:
    """Neither what is over the limit nor what follows it."""
    before = resident(two_keys)
    with talking(two_keys) as talk, pytest.raises(ConnectionClosedError):  # perhaps while we still send
        talk.send(echo("hi"), padding="x" * 150_000_000)
        talk.receive(20)
    assert resident(two_keys) - before < 100


def test_a_message_that_unpacks_to_much_more(two_keys: RunningBridge) -> None:
    """Nothing is packed, whatever a client offers; who packs all the same is sent away."""
    with talking(two_keys) as talk:
        assert talk.socket.protocol.extensions == []
        packed = zlib.compress(b" " * 50_000_000)[2:-4]
        mask = bytes(4)
        talk.socket.socket.sendall(bytes([0xC1, 0xFF]) + len(packed).to_bytes(8, "big") + mask + packed)
        with pytest.raises(ConnectionClosedError):
            talk.receive(20)


@pytest.mark.parametrize("key", ["wrong", "", None, OTHER_KEY[:-1]])
def test_a_wrong_key_is_refused(two_keys: RunningBridge, key: str | None) -> None:
    """By the status of the handshake."""
    with pytest.raises(InvalidStatus) as refused, talking(two_keys, key=key):
        pass
    assert refused.value.response.status_code == 401
    assert refused.value.response.body is not None
    assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"


def test_a_key_as_a_subprotocol(two_keys: RunningBridge) -> None:
    """As pages send it, which cannot set headers."""
    offered: Any = ["realtime", f"openai-insecure-api-key.{OTHER_KEY}"]
    with talking(two_keys, key=None, subprotocols=offered) as talk:
        assert talk.socket.subprotocol == "realtime"
        response = talk.ask(echo("hi"))
    with two_keys.client() as client:
        assert client.get(f"/responses/{response['id']}").status_code == 404
    with two_keys.client(key=OTHER_KEY) as client:
        assert ok(client.get(f"/responses/{response['id']}")) == response


def test_what_another_key_made_is_not_there(talk: Talk, two_keys: RunningBridge) -> None:
    """A connection is its key's."""
    with talking(two_keys, key=OTHER_KEY) as other:
        theirs = other.ask(echo("mine"))
    error = talk.refused(echo("hi"), previous_response_id=theirs["id"])
    assert error["error"]["code"] == "previous_response_not_found"


# The official client


def test_the_official_client(two_keys: RunningBridge) -> None:
    """`responses.connect()`: its events are those of a stream."""
    options: Any = {"proxy": None}  # websockets knows this one, the client's types do not
    with (
        OpenAI(
            api_key=KEY,
            base_url=two_keys.url,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(trust_env=False),
        ) as client,
        client.responses.connect(websocket_connection_options=options) as connection,
    ):
        previous: Json = {}
        for number in range(3):
            connection.response.create(model="mock-echo", input=f"number {number}", store=False, **previous)
            response = next(event.response for event in connection if event.type == "response.completed")
            assert response.output_text == f"number {number}"
            previous = {"previous_response_id": response.id}
        connection.response.create(model="mock-echo", input="hi", previous_response_id="resp_unknown")
        error = connection.recv()
        assert error.type == "error"
        assert (error.status, error.error.code) == (400, "previous_response_not_found")


def test_many_connections_at_once(two_keys: RunningBridge) -> None:
    """Each has its own answers."""

    def speak(number: int) -> list[str]:
        with talking(two_keys) as talk:
            return [text_of(talk.ask(echo(f"{number}-{turn}"))) for turn in range(5)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(speak, range(24)))
    assert answers == [[f"{number}-{turn}" for turn in range(5)] for number in range(24)]


def test_the_bridge_made_no_mistake(two_keys: RunningBridge, prompted: LoggedBridge) -> None:
    """After all this its own log holds no traceback."""
    assert "Traceback" not in two_keys.stderr.read_text()
    assert "Traceback" not in prompted.bridge.stderr.read_text()
