"""Clients with keys of their own, at a bridge that runs: what they may use, how much of it, and until when."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from harness import KEY, RunningBridge, read_sse, running_bridge
from server.answers import create, ok, refusal, text_of
from server.conftest import LoggedBridge
from server.prompted import MODEL, EventLog, ask, ask_chat, prompted_codex, raw_request, request_headers, wait_for
from server.talk import talking
from warm import run_warm
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from bridge.http.listener import MAX_TURNED_AWAY
from bridge.store.key_store import KeyFile


def store_of(bridge: RunningBridge) -> Path:
    return bridge.state / "turnbridge" / "keys.json"


def keys_command(bridge: RunningBridge, *words: str) -> str:
    """What `turnbridge keys` prints, run beside the bridge."""
    env = {"PATH": os.environ["PATH"], "HOME": str(bridge.state.parent), "XDG_STATE_HOME": str(bridge.state)}
    done = run_warm("keys", *words, env=env, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).strip()


class Client(NamedTuple):
    """Somebody with a key of its own."""

    bridge: RunningBridge
    name: str
    key: str

    def http(self) -> httpx2.Client:
        return self.bridge.client(key=self.key)

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        with self.http() as http:
            return http.post(path, json=body)

    def get(self, path: str) -> httpx2.Response:
        with self.http() as http:
            return http.get(path)

    def revoke(self) -> None:
        keys_command(self.bridge, "revoke", self.name)


def newcomer(bridge: RunningBridge, name: str, *options: str) -> Client:
    """A client with a new key, made while the bridge runs."""
    return Client(bridge, name, keys_command(bridge, "add", name, *options))


@contextmanager
def held(logged: LoggedBridge, key: str, mark: str, **more: Any) -> Iterator[HTTPResponse]:
    """A stream of a turn that does not end by itself; its first piece has come."""
    connection = HTTPConnection("127.0.0.1", logged.bridge.port, timeout=20)
    body = ask({"text": "one"}, {"hang": mark}, stream=True, **more)
    headers = request_headers(Authorization=f"Bearer {key}")
    connection.request("POST", "/v1/responses", json.dumps(body), headers)
    try:
        response = connection.getresponse()
        assert response.status == 200, response.read()
        logged.log.running(mark)
        yield response
    finally:
        connection.close()


@contextmanager
def limited(directory: Path, **settings: str) -> Iterator[LoggedBridge]:
    log = directory / "events.ndjson"
    with running_bridge(
        directory,
        f"--log-events={log}",
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_MODELS=MODEL,
        PROXY_GRACE="0",
        **settings,
    ) as bridge:
        yield LoggedBridge(bridge, EventLog(log))
        assert "Traceback" not in bridge.stderr.read_text()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge with room for three turns, where nobody waits for long."""
    directory = tmp_path_factory.mktemp("hasty")
    with limited(directory, PROXY_MAX_TURNS="3", PROXY_QUEUE_TIMEOUT="0.2") as logged:
        yield logged


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge with room for one turn, and a queue in which one can wait; and for a few connections."""
    directory = tmp_path_factory.mktemp("patient")
    with limited(
        directory, PROXY_MAX_TURNS="1", PROXY_MAX_QUEUE="1", PROXY_QUEUE_TIMEOUT="60", PROXY_MAX_CONNECTIONS="6"
    ) as logged:
        yield logged


# Keys


def test_a_key_works_from_when_it_is_made_until_it_is_revoked(hasty: LoggedBridge) -> None:
    """At once, in a bridge that runs; beside the operator's own. What it stored stays its own."""
    client = newcomer(hasty.bridge, "comes-and-goes")
    with client.http() as http:
        stored = create(http, "hello")
        assert text_of(ok(http.get(f"/responses/{stored['id']}"))) == "hello"
        with hasty.bridge.client() as operator:
            assert refusal(operator.get(f"/responses/{stored['id']}"), 404)[0] == "response_not_found"
        usage = ok(http.get("/usage"))["data"]
        assert [row["requests"] for row in usage] == [1]
        client.revoke()
        for path in ("/models", "/usage", f"/responses/{stored['id']}"):
            assert refusal(http.get(path), 401)[0] == "invalid_api_key"
    with hasty.bridge.client() as operator:
        assert create(operator, "hello")["status"] == "completed"
    assert client.key not in (hasty.bridge.stderr.read_text() + hasty.log.path.read_text())


# Models


def test_a_key_for_some_models_knows_no_others(hasty: LoggedBridge) -> None:
    """They are neither listed nor found, under no endpoint and no spelling; no error tells of them."""
    client = newcomer(hasty.bridge, "echo-only", "--models", "mock-echo", "--models", "mock-te*")
    with client.http() as http:
        assert [model["id"] for model in ok(http.get("/models"))["data"]] == ["mock-echo", "mock-text"]
        assert ok(http.get("/models/mock-text"))["id"] == "mock-text"
        assert create(http, "hello")["status"] == "completed"
        assert ok(http.post("/responses/input_tokens", json={"model": "mock-echo", "input": "x"}))["input_tokens"]
        for name in ("mock-tool-call", MODEL, "MOCK-tool-call", "gpt-5", "no-such-model", "mock-"):
            body = {"model": name, "input": "hello", "messages": [{"role": "user", "content": "hello"}]}
            answers = [http.post(path, json=body) for path in ("/responses", "/responses/input_tokens")]
            answers.append(http.post("/chat/completions", json=body))
            for answer in answers:
                assert refusal(answer, 400) == ("model_not_found", "model")
                others = answer.text.replace(name, "")
                assert not any(each in others for each in ("mock-tool", MODEL, "match:"))
            assert refusal(http.get(f"/models/{name}"), 404)[0] == "model_not_found"
    with talking(hasty.bridge, key=client.key) as talk:
        assert talk.refused({"model": MODEL, "input": "hello"})["error"]["code"] == "model_not_found"
    with hasty.bridge.client() as operator:
        assert MODEL in [model["id"] for model in ok(operator.get("/models"))["data"]]


# Turns


def test_a_key_has_as_many_turns_as_it_may(hasty: LoggedBridge) -> None:
    """One more is 429 with when to come again, in every protocol; others are served meanwhile."""
    client = newcomer(hasty.bridge, "one-turn", "--max-turns", "1")
    with held(hasty, client.key, "own-turn"):
        for path, body in (("/responses", ask({"text": "hi"})), ("/chat/completions", ask_chat({"text": "hi"}))):
            for stream in (False, True):
                answer = client.post(path, body | {"stream": stream})
                assert refusal(answer, 429) == ("key_limit_exceeded", None)
                assert answer.json()["error"]["type"] == "rate_limit_error"
                assert int(answer.headers["retry-after"]) >= 1
        assert refusal(client.post("/chat/completions", ask_chat({"text": "hi"}, n=2)), 400)[1] == "n"
        assert hasty.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        with talking(hasty.bridge, key=client.key) as talk:
            refused = talk.refused(ask({"text": "hi"}))
            assert (refused["status"], refused["error"]["code"]) == (429, "key_limit_exceeded")
    wait_for(lambda: client.post("/responses", ask({"text": "hi"})).status_code == 200, "the turn is free again")


def test_a_full_bridge_says_so_to_everybody(hasty: LoggedBridge) -> None:
    """503, with when to come again; other backends go on."""
    with ExitStack() as turns:
        for number in range(3):
            turns.enter_context(held(hasty, KEY, f"crowd-{number}"))
        answer = hasty.bridge.post("/responses", ask({"text": "hi"}))
        assert refusal(answer, 503)[0] == "overloaded"
        assert int(answer.headers["retry-after"]) >= 1
        with hasty.bridge.client() as operator:
            assert create(operator, "hello")["status"] == "completed"
    wait_for(lambda: hasty.bridge.post("/responses", ask({"text": "hi"})).status_code == 200, "there is room again")


def test_who_waits_is_served_when_there_is_room(patient: LoggedBridge) -> None:
    """In the queue nobody notices but by the time; whoever finds it full is told at once."""
    with ThreadPoolExecutor(1) as pool:
        with held(patient, KEY, "first-in-line"):
            waiting = pool.submit(patient.bridge.post, "/responses", ask({"text": "waited"}))
            wait_for(lambda: patient.log.request_of("waited"), "the request is there")
            wait_for(
                lambda: patient.bridge.post("/responses", ask({"text": "hi"})).status_code == 503, "the queue is full"
            )
            assert not waiting.done()
        assert text_of(ok(waiting.result(20))) == "waited"


def test_a_client_that_leaves_the_queue_takes_no_turn(patient: LoggedBridge) -> None:
    """Its place in it is the next one's, and the child never hears of it."""
    with held(patient, KEY, "second-in-line"):
        body = json.dumps(ask({"text": "left-the-queue"})).encode()
        with socket.create_connection(("127.0.0.1", patient.bridge.port), timeout=20) as leaving:
            leaving.sendall(raw_request("POST", "/v1/responses", body, request_headers()))
            request = wait_for(lambda: patient.log.request_of("left-the-queue"), "the request is there")
        wait_for(lambda: patient.log.turn_end(request), "it is over")
    assert patient.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
    assert patient.log.calls(request) == []


def test_who_waits_when_the_bridge_stops_is_told(tmp_path: Path) -> None:
    """Nobody is left without an answer."""
    with (
        limited(tmp_path, PROXY_MAX_TURNS="1", PROXY_QUEUE_TIMEOUT="60") as logged,
        ThreadPoolExecutor(1) as pool,
        held(logged, KEY, "last") as stream,
    ):
        waiting = pool.submit(logged.bridge.post, "/responses", ask({"text": "waited"}))
        wait_for(lambda: logged.log.request_of("waited"), "the request is there")
        assert logged.bridge.stop() == 0
        assert refusal(waiting.result(20), 503)[0] == "shutdown_initiated"
        assert events_of(stream)[-1]["type"] == "response.failed"


def test_a_key_begins_as_many_requests_as_it_may(hasty: LoggedBridge) -> None:
    """The next ones are told how long to wait. Nothing else counts: lists, wrong requests."""
    client = newcomer(hasty.bridge, "two-a-minute", "--max-requests", "2")
    with client.http() as http:
        for _ in range(2):
            assert create(http, "hello")["status"] == "completed"
            assert http.get("/models").status_code == 200
            assert http.post("/responses", json={"model": "none"}).status_code == 400
        answer = http.post("/responses", json={"model": "mock-echo", "input": "hello"})
        assert refusal(answer, 429)[0] == "key_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 30
    with talking(hasty.bridge, key=client.key) as talk:
        assert talk.refused({"model": "mock-echo", "input": "hello"})["status"] == 429
        assert talk.refused({"model": "mock-echo", "input": "hello", "generate": False})["status"] == 429


# Connections and bodies


def test_a_key_has_as_many_requests_open_as_it_may(hasty: LoggedBridge) -> None:
    """Streams and WebSockets count as long as they are open, whatever they do."""
    client = newcomer(hasty.bridge, "one-open", "--max-connections", "1")
    with held(hasty, client.key, "own-connection"):
        for path in ("/models", "/usage"):
            answer = client.get(path)
            assert refusal(answer, 429)[0] == "key_limit_exceeded"
            assert int(answer.headers["retry-after"]) >= 1
        with hasty.bridge.client() as operator:
            assert operator.get("/models").status_code == 200
    wait_for(lambda: client.get("/models").status_code == 200, "it is free again")
    with talking(hasty.bridge, key=client.key):
        assert client.get("/models").status_code == 429
    wait_for(lambda: client.get("/models").status_code == 200, "it is free again")


def test_the_bodies_of_a_key(hasty: LoggedBridge) -> None:
    """Larger ones are refused as soon as it is clear, whichever way they come."""
    client = newcomer(hasty.bridge, "small", "--max-body", "2000")
    body = {"model": "mock-echo", "input": "x" * 3000}
    with client.http() as http:
        assert create(http, "x" * 1000)["status"] == "completed"
        for path in ("/responses", "/responses/input_tokens", "/chat/completions", "/conversations"):
            assert refusal(http.post(path, json=body), 413)[0] == "request_too_large"
        chunks = (json.dumps(body).encode()[at : at + 500] for at in range(0, 4000, 500))
        answer = http.post("/responses", content=chunks, headers={"content-type": "application/json"})
        assert refusal(answer, 413)[0] == "request_too_large"
    with talking(hasty.bridge, key=client.key) as talk:
        assert "2,000 bytes" in talk.refused(body)["error"]["message"]
        assert talk.ask({"model": "mock-echo", "input": "hello"})["status"] == "completed"
    with hasty.bridge.client() as operator:
        assert create(operator, "x" * 3000)["status"] == "completed"


def test_what_waits_on_a_socket_is_bounded(hasty: LoggedBridge) -> None:
    """By the largest message and one MiB more; what is refused takes no room, and what is answered gives it back."""
    client = newcomer(hasty.bridge, "much-on-a-socket", "--max-body=1000000")
    large = ask({"text": "hi"}, metadata={"filler": "x" * 400_000})
    with talking(hasty.bridge, key=client.key) as talk:
        talk.send(ask({"hang": "holding-the-lane"}))
        hasty.log.running("holding-the-lane")
        for _ in range(8):
            talk.send(large)
        refusals = 0
        while refusals < 3:
            message = talk.receive()
            if message["type"] == "error":
                refusals += 1
                assert (message["status"], message["error"]["code"]) == (429, "rate_limit_exceeded")
        # Five of them are 2,000,000 bytes and more: there is no room for a sixth, but for a small one.
        talk.send(ask({"text": "small"}), stream_id="other")
        while message.get("stream_id") != "other" or message["type"] != "response.completed":
            message = talk.receive()
            assert message["type"] != "error"


def test_connections_beyond_the_limit_are_told(patient: LoggedBridge) -> None:
    """503 in OpenAI's form, before anything of theirs is looked at; then there is room again for whoever comes."""
    port = patient.bridge.port
    with ExitStack() as sockets:
        for _ in range(6):
            sockets.enter_context(talking(patient.bridge))
        wait_for(lambda: crowded_out(port) is not None, "all are taken")
        answer = crowded_out(port)
        assert answer is not None
        assert answer["error"]["code"] == "overloaded"
        silent = [sockets.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_TURNED_AWAY)]
        assert all(not each.recv(1) for each in silent[:3])  # they are closed before long, whatever they do
    wait_for(lambda: is_served(port), "there is room again")
    assert patient.bridge.post("/responses", ask({"text": "hi"})).status_code == 200


def test_idle_connections_give_way(patient: LoggedBridge) -> None:
    """Whoever asks for nothing keeps nobody out, also where he has asked before, or sends half of a head."""
    port = patient.bridge.port
    with ExitStack() as sockets:
        idle = [sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))]
        # Answered before the others come: if connections of an earlier test still count, the longest idle gives way.
        idle[0].sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while not (piece := idle[0].recv(4096)).endswith(b"}"):
            assert piece, "the connection was closed before its request was answered"
        idle += [sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(5)]
        idle[1].sendall(b"GET /livez HTTP/1.1\r\n")
        kept = [sockets.enter_context(closing(HTTPConnection("127.0.0.1", port, timeout=20))) for _ in range(6)]
        for connection in kept:
            connection.request("GET", "/livez")
            assert connection.getresponse().read()
        for each in idle:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""


def is_served(port: int) -> bool:
    """Whether a new connection is; one of very many is not even told that it is not."""
    try:
        return crowded_out(port) is None
    except ConnectionError:
        return False


def crowded_out(port: int) -> Any:
    """The error that a new connection gets; None when it is served."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        if answer.status == 200:
            return None
        assert (answer.status, answer.getheader("retry-after"), answer.getheader("connection")) == (503, "2", "close")
        return json.loads(answer.read())
    finally:
        connection.close()


# CAP


def assist(*steps: dict[str, Any], **meta: Any) -> dict[str, Any]:
    """A request in CAP whose answer is these steps."""
    who = {"id": "u", "name": "U"}
    payload = {"query": json.dumps(list(steps)), "meta": {"model": MODEL, **meta}}
    return {"request_id": str(uuid4()), "context": {"session_id": "s", "user": who}, "payload": payload}


def stream_error(response: httpx2.Response, status: int) -> tuple[str, str]:
    """Code and severity of an answer that must be a StreamError."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"code", "message", "severity", "details"}
    return body["code"], body["severity"]


def test_the_same_limits_in_cap(hasty: LoggedBridge) -> None:
    """Told in its own words."""
    client = newcomer(hasty.bridge, "cap", f"--models={MODEL}", "--max-turns=1", "--max-requests=9", "--max-body=4000")
    assert client.post("/assist", assist({"text": "hi"})).status_code == 200
    assert stream_error(client.post("/assist", assist(model="mock-echo")), 404) == ("model_not_found", "fatal")
    assert stream_error(client.post("/assist", assist({"text": "x" * 4000})), 413)[0] == "payload_too_large"
    with held(hasty, client.key, "cap-turn"):
        answer = client.post("/assist", assist({"text": "hi"}))
        assert stream_error(answer, 429) == ("key_limit_exceeded", "transient")
        assert int(answer.headers["retry-after"]) == answer.json()["details"]["retry_after"] >= 1


def test_a_revoked_key_has_its_cap_streams_ended(hasty: LoggedBridge) -> None:
    """By an error packet, and the end of the stream."""
    client = newcomer(hasty.bridge, "cap-revoked")
    body, accept = assist({"text": "one"}, {"hang": "cap-revoked"}), {"accept": "application/x-ndjson"}
    with client.http() as http, http.stream("POST", "/assist", json=body, headers=accept) as response:
        hasty.log.running("cap-revoked")
        client.revoke()
        packets = [json.loads(line) for line in response.iter_lines() if line]
    assert [packet["op"] for packet in packets][-2:] == ["error", "close"]
    assert packets[-2]["p"]["code"] == "unauthorized"
    assert stream_error(client.get(f"/assist/{body['request_id']}"), 401)[0] == "unauthorized"


# The end of a key


def events_of(response: HTTPResponse) -> list[dict[str, Any]]:
    """The rest of a stream."""
    return list(read_sse(iter(response.read().decode().splitlines())))


def test_a_revoked_key_has_its_answers_ended(hasty: LoggedBridge) -> None:
    """Streams by their last event, others by a status; the turns are interrupted, and nobody else notices."""
    client = newcomer(hasty.bridge, "revoked")
    with (
        held(hasty, client.key, "revoked-stream") as stream,
        held(hasty, KEY, "another-stream") as other,
        ThreadPoolExecutor(1) as pool,
        talking(hasty.bridge, key=client.key) as talk,
    ):
        whole = pool.submit(client.post, "/responses", ask({"hang": "revoked-whole"}))
        requests = [hasty.log.running("revoked-stream"), hasty.log.running("revoked-whole")]
        client.revoke()
        *_, end = events_of(stream)
        assert end["type"] == "response.failed"
        assert end["response"]["error"]["bridge_code"] == "invalid_api_key"
        assert "revoked" in end["response"]["error"]["message"]
        assert refusal(whole.result(20), 401)[0] == "invalid_api_key"
        for request in requests:
            wait_for(partial(hasty.log.is_interrupted, request), "the turn is interrupted")
        with pytest.raises(ConnectionClosedError) as closed:
            talk.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert hasty.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        other.close()


def test_a_revoked_key_gets_nothing_more_on_a_socket(hasty: LoggedBridge) -> None:
    """Not what it said before either: each message is looked at; then the connection is closed."""
    client = newcomer(hasty.bridge, "revoked-socket")
    with talking(hasty.bridge, key=client.key) as talk, talking(hasty.bridge) as other:
        first = talk.ask({"model": "mock-echo", "input": "hello"})
        body = {"model": "mock-echo", "input": "more", "previous_response_id": first["id"]}
        # A response that is not there would be told of, were anything looked up for this key.
        messages = [body, body | {"generate": False}, body | {"previous_response_id": "resp_none"}]
        # At once, and all of them: there is a second before the connection is closed.
        KeyFile(store_of(hasty.bridge)).revoke(client.name)
        for message in messages:
            talk.send(message)
        for refused in [talk.receive() for _ in messages]:
            assert (refused["type"], refused["status"]) == ("error", 401)
            assert refused["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosedError) as closed:
            talk.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert text_of(other.ask({"model": "mock-echo", "input": "hi"})) == "hi"


def test_a_socket_tells_how_its_answers_end_when_its_key_is_revoked(hasty: LoggedBridge) -> None:
    """Before it is closed."""
    client = newcomer(hasty.bridge, "revoked-talking")
    with talking(hasty.bridge, key=client.key) as talk:
        talk.send(ask({"text": "one"}, {"hang": "revoked-talking"}))
        request = hasty.log.running("revoked-talking")
        client.revoke()
        end = talk.rest()[-1]
        assert end["response"]["error"]["bridge_code"] == "invalid_api_key"
        wait_for(lambda: "turn/interrupt" in hasty.log.calls(request), "the turn is interrupted")
        with pytest.raises(ConnectionClosedError):
            talk.receive()


def test_a_revoked_key_has_its_cap_socket_closed(hasty: LoggedBridge) -> None:
    """Whoever serves it."""
    client = newcomer(hasty.bridge, "revoked-cap-socket")
    url = f"ws://127.0.0.1:{hasty.bridge.port}/v1/assist/ws"
    headers = {"Authorization": f"Bearer {client.key}"}
    with connect(url, additional_headers=headers, proxy=None) as silent:
        client.revoke()
        with pytest.raises(ConnectionClosedError) as closed:
            silent.recv(timeout=20)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_revoked_key_has_its_background_ended(hasty: LoggedBridge) -> None:
    """Nothing of it goes on where nobody sees it."""
    client = newcomer(hasty.bridge, "revoked-background")
    ok(client.post("/responses", ask({"hang": "behind"}, background=True)))
    request = hasty.log.running("behind")
    client.revoke()
    assert wait_for(lambda: hasty.log.turn_end(request), "it is over")["outcome"] == "failed"


@pytest.mark.deep
def test_a_key_that_expires_is_like_a_revoked_one(hasty: LoggedBridge) -> None:
    """At its time its streams end, and then it is told to be over."""
    now = datetime.now(UTC)
    key, _ = KeyFile(store_of(hasty.bridge)).add("short", now=now, expires=now + timedelta(seconds=10))
    client = Client(hasty.bridge, "short", key)
    with held(hasty, key, "expiring") as stream:
        assert events_of(stream)[-1]["type"] == "response.failed"
    answer = client.get("/models")
    assert refusal(answer, 401)[0] == "invalid_api_key"
    assert "has expired" in answer.json()["error"]["message"]


def test_a_broken_store_is_told_and_lets_nobody_out(hasty: LoggedBridge) -> None:
    """Those that were let in still are; probes say what is wrong, and the log says more."""
    client = newcomer(hasty.bridge, "careful")
    assert client.get("/models").status_code == 200
    store = store_of(hasty.bridge)
    good = store.read_bytes()

    def reason() -> str:
        return str(httpx2.get(f"{hasty.bridge.root}/healthz", trust_env=False).json()["reason"])

    store.write_bytes(b"{")
    try:
        wait_for(lambda: reason() == "key_store_failing", "it is told")
        assert client.get("/models").status_code == 200
        assert httpx2.get(f"{hasty.bridge.root}/readyz", trust_env=False).status_code == 200
        assert str(store) in hasty.bridge.stderr.read_text()
    finally:
        store.write_bytes(good)
    wait_for(lambda: reason() != "key_store_failing", "it is mended")
    assert client.get("/models").status_code == 200


def test_keys_change_under_load(hasty: LoggedBridge) -> None:
    """While others ask without a pause, none of them is refused by a store that is being replaced."""
    stop, statuses = threading.Event(), set[int]()

    def hammer() -> None:
        with hasty.bridge.client() as http:
            while not stop.is_set():
                statuses.add(http.get("/models").status_code)

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for number in range(5):
            client = newcomer(hasty.bridge, f"under-load-{number}")
            assert client.get("/models").status_code == 200
            client.revoke()
            assert client.get("/models").status_code == 401
    finally:
        stop.set()
        thread.join()
    assert statuses == {200}
