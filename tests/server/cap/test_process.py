"""CAP over real sockets, in front of a real child: what reaches it, what does not, and how it is told to stop."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from harness import KEY, running_bridge
from play import JSON, SSE, Json
from server.conftest import LoggedBridge
from server.prompted import MODEL, EventLog, prompted_codex, request_headers, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

GRACE = 3
WORK = "work"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge whose child does what the message says; its operator allows writing, and waits for nobody for long."""
    directory = tmp_path_factory.mktemp("cap")
    log = directory / "events.ndjson"
    (directory / WORK / "inner").mkdir(parents=True, mode=0o700)
    (directory / WORK).chmod(0o700)
    (directory / WORK / "way-out").symlink_to("/")
    with running_bridge(
        directory,
        f"--log-events={log}",
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_WARM_THREADS="0",
        PROXY_MODELS=MODEL,
        PROXY_KEEPALIVE="0.2",
        PROXY_CAP_GRACE=str(GRACE),
        PROXY_SANDBOX_MODE="workspace-write",
        PROXY_APPROVAL_POLICY="on-request",
        PROXY_CODEX_WORKDIR=str(directory / WORK),
    ) as bridge:
        yield LoggedBridge(bridge, EventLog(log))


def body(*steps: Json, **payload: Any) -> Json:
    """A request that the child answers with these steps."""
    return {
        "request_id": str(uuid4()),
        "context": {"session_id": "s", "user": {"id": "u", "name": "U"}},
        "payload": {"query": json.dumps(list(steps)), **payload},
    }


def open_stream(served: LoggedBridge, request: Json, accept: str = SSE) -> tuple[HTTPConnection, HTTPResponse]:
    """A request whose answer has begun."""
    connection = HTTPConnection("127.0.0.1", served.bridge.port, timeout=20)
    connection.request("POST", "/v1/assist", json.dumps(request), request_headers(Accept=accept))
    return connection, connection.getresponse()


def post(served: LoggedBridge, request: Json, accept: str = JSON) -> httpx2.Response:
    with served.bridge.client() as client:
        return client.post("/assist", json=request, headers={"accept": accept})


def read_until(response: HTTPResponse, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        piece = response.read1()
        assert piece, seen
        seen += piece
    return seen


def thread_of(served: LoggedBridge, text: str) -> Json:
    """What the child was told at the beginning of the turn whose request holds a text."""
    req_id = served.log.ended(text)
    starts = [each for each in served.log.of(req_id, "rpc_request") if each["method"] == "thread/start"]
    params: Json = starts[0]["payload"]["params"]
    return params


def test_narrower_values_reach_the_child(served: LoggedBridge) -> None:
    narrow = {"sandbox": "read-only", "approval_policy": "never", "cwd": "inner"}
    for label, meta in [("as-it-is", {}), ("narrowed", narrow), ("by-codex", {"codex": narrow, "sandbox": "x"})]:
        assert post(served, body({"text": label}, meta=meta)).json()["output"]["text"] == label
    work = served.bridge.state.parent / WORK
    wide = thread_of(served, "as-it-is")
    assert (wide["sandbox"], wide["approvalPolicy"], wide["cwd"]) == ("workspace-write", "on-request", str(work))
    for label in ("narrowed", "by-codex"):
        told = thread_of(served, label)
        assert (told["sandbox"], told["approvalPolicy"]) == ("read-only", "never")
        assert told["cwd"] == str(work / "inner")


@pytest.mark.parametrize(
    "meta",
    [
        {"sandbox": "danger-full-access"},
        {"approval_policy": "untrusted"},
        {"cwd": "/"},
        {"cwd": "inner/../.."},
        {"cwd": "way-out"},
        {"cwd": "way-out/tmp"},
        {"cwd": "not-there"},
        {"codex": {"sandbox": "danger-full-access"}, "sandbox": "read-only"},
    ],
    ids=str,
)
def test_wider_values_are_refused(served: LoggedBridge, meta: Json) -> None:
    """Also where only the directories themselves can tell."""
    request = body({"text": "hi"}, meta=meta)
    refused = post(served, request)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    req_id = served.log.ended(request["request_id"])
    assert served.log.calls(req_id) == []


def test_files_are_never_fetched(served: LoggedBridge) -> None:
    """Nobody comes to get them, and Codex takes none from elsewhere; one that comes along is taken."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        for path in ("a.png", "a.txt", ""):
            refused = post(served, body({"text": "hi"}, files=[f"http://127.0.0.1:{port}/{path}"]))
            assert (refused.status_code, refused.json()["code"]) == (422, "unsupported_file")
        pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
        assert post(served, body({"text": "hi"}, files=[pixel])).status_code == 200
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_bad_image_is_refused_by_its_index(served: LoggedBridge) -> None:
    """Whether its base64 is wrong, or what is in it; nothing of it is repeated."""
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    refused = post(served, body({"text": "hi"}, files=[pixel, "data:image/png;base64,AAA"]))
    assert (refused.status_code, refused.json()["code"]) == (422, "unsupported_file")
    assert "index 1" in refused.json()["message"]
    assert refused.json()["details"]["param"] == "payload.files[1]"
    damaged = post(served, body({"text": "hi"}, files=["data:image/png;base64,iVBORw0KGgo="]))
    assert (damaged.status_code, damaged.json()["code"]) == (422, "unsupported_file")


def test_the_child_is_interrupted_if_no_client_returns(served: LoggedBridge) -> None:
    """After the grace, not before."""
    request = body({"text": "begun"}, {"hang": "left"})
    connection, response = open_stream(served, request)
    read_until(response, b"begun")
    req_id = served.log.running("left")
    connection.close()
    with served.bridge.client() as client, client.stream("GET", f"/assist/{request['request_id']}") as resumed:
        assert "begun" in next(resumed.iter_text())
        assert "turn/interrupt" not in served.log.calls(req_id)
    wait_for(lambda: "turn/interrupt" in served.log.calls(req_id), "turn/interrupt")
    end = wait_for(lambda: served.log.turn_end(req_id), "turn_end")
    assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")
    with served.bridge.client() as client:
        assert client.get(f"/assist/{request['request_id']}").status_code == 410


def test_the_child_is_interrupted_at_once(served: LoggedBridge) -> None:
    request = body({"text": "begun"}, {"hang": "deleted"})
    connection, response = open_stream(served, request)
    read_until(response, b"begun")
    req_id = served.log.running("deleted")
    with served.bridge.client() as client:
        ended = client.delete(f"/assist/{request['request_id']}")
    assert (ended.status_code, ended.json()["status"]) == (202, "ending")
    assert response.read().endswith(b'data: {"op":"close","p":null}\n\n')
    wait_for(lambda: "turn/interrupt" in served.log.calls(req_id), "turn/interrupt")
    connection.close()


def test_a_deadline_stops_the_child(served: LoggedBridge) -> None:
    late = post(served, body({"hang": "late"}, meta={"timeout_ms": 2000}))
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    req_id = served.log.ended("late")
    wait_for(lambda: "turn/interrupt" in served.log.calls(req_id), "turn/interrupt")


def test_a_silent_stream_has_comments(served: LoggedBridge) -> None:
    request = body({"text": "begun"}, {"hang": "silent"})
    connection, response = open_stream(served, request)
    read_until(response, b": keepalive\n\n")
    connection.close()


def test_a_child_that_dies_is_an_error(served: LoggedBridge) -> None:
    crashed = post(served, body({"exit": 3}))
    assert (crashed.status_code, crashed.json()["code"]) == (502, "agent_crashed")
    connection, response = open_stream(served, body({"text": "begun"}, {"sleep": 0.05}, {"exit": 3}))
    told = response.read()
    assert b"agent_crashed" in told
    assert told.endswith(b'data: {"op":"close","p":null}\n\n')
    connection.close()
    assert "Traceback" not in served.bridge.stderr.read_text()
    # The others want a child that is there.
    ready = f"{served.bridge.root}/readyz"
    wait_for(lambda: httpx2.get(ready, trust_env=False).status_code == 200, "the next child")


def test_a_socket(served: LoggedBridge) -> None:
    """As it is agreed on, with the key in a header; without it there is no handshake."""
    url = f"ws://127.0.0.1:{served.bridge.port}/v1/assist/ws"
    given = {"Authorization": f"Bearer {KEY}"}
    with connect(url, additional_headers=given, proxy=None) as talk:
        talk.send(json.dumps(body({"deltas": ["a", "b"]})))
        got = [json.loads(message) for message in talk]
        assert got == [{"op": "delta", "p": "a"}, {"op": "delta", "p": "b"}, {"op": "close", "p": None}]
        assert talk.close_code == 1000
    with connect(url, additional_headers=given, proxy=None) as talk:
        talk.send("{}")
        assert [json.loads(talk.recv(timeout=20))["op"] for _ in range(2)] == ["error", "close"]
        with pytest.raises(ConnectionClosed):
            talk.recv(timeout=20)
        assert talk.close_code == 1008


@pytest.mark.deep
def test_a_stopping_bridge_ends_its_streams(tmp_path: Path) -> None:
    """Health tells it on a connection that is open; streams end with an error and their close packet."""
    codex = prompted_codex(tmp_path)
    with running_bridge(tmp_path, CODEX_BIN=str(codex), PROXY_MODELS=MODEL, PROXY_GRACE="1") as bridge:
        served = LoggedBridge(bridge, EventLog(tmp_path / "none"))
        streams = [open_stream(served, body({"text": "begun"}, {"hang": True})) for _ in range(2)]
        for _, response in streams:
            read_until(response, b"begun")
        flood = body({"text": "x" * 1024, "chunk": 64}, {"hang": True})
        full, unread = open_stream(served, flood)
        probe = HTTPConnection("127.0.0.1", bridge.port, timeout=20)
        probe.request("GET", "/health")
        probe.getresponse().read()
        bridge.process.send_signal(signal.SIGTERM)
        for connection, response in [*streams, (full, unread)]:
            told = response.read()
            assert b'"code":"shutting_down"' in told
            assert told.endswith(b'data: {"op":"close","p":null}\n\n')
            connection.close()
        probe.close()
        assert bridge.process.wait(20) == 0
    assert "Traceback" not in bridge.stderr.read_text()
