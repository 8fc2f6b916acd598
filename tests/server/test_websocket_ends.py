"""How WebSockets end: clients that leave, do not read or break the protocol, and a bridge that stops."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from harness import RunningBridge, running_bridge
from real.rig import Rig, said
from server.answers import text_of
from server.conftest import LoggedBridge
from server.prompted import (
    MODEL,
    EventLog,
    ask,
    children_of,
    is_alive,
    prompted_codex,
    raw_request,
    request_headers,
    resident_mib,
    wait_for,
)
from server.talk import Json, Talk, talking
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

SLOW = {"do": "slow", "n": 600, "seconds": 60}


# The client leaves


@pytest.mark.parametrize("orderly", [True, False], ids=["closing", "vanishing"])
def test_a_client_that_leaves_mid_stream_stops_the_provider(rig: Rig, orderly: bool) -> None:
    """With a farewell or without, the model's work ends."""
    gone = len(rig.provider.gone)
    with talking(rig.bridge) as talk:
        talk.send({"model": "gpt-5.2", "input": said(SLOW)})
        talk.until("word0 ")
        if not orderly:
            talk.socket.socket.shutdown(socket.SHUT_RDWR)
        else:
            talk.socket.close()
        rig.provider.wait_gone(gone + 1, timeout=10)


def test_a_client_that_leaves_takes_its_queue_along(prompted: LoggedBridge) -> None:
    """What runs is interrupted in every lane, and what waits never begins."""
    with talking(prompted.bridge) as talk:
        for lane in ("a", "b", "c"):
            talk.send(ask({"text": "one"}, {"hang": f"leaving-{lane}"}), stream_id=lane)
            talk.send(ask({"text": f"waiting-{lane}"}), stream_id=lane)
        requests = [prompted.log.running(f"leaving-{lane}") for lane in ("a", "b", "c")]
    for request in requests:
        wait_for(partial(prompted.log.is_interrupted, request), "turn/interrupt", 10)
        end = wait_for(partial(prompted.log.turn_end, request), "turn_end")
        assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")
    with talking(prompted.bridge) as talk:
        assert text_of(talk.ask(ask({"text": "hi"}))) == "hi"
    assert [prompted.log.request_of(f"waiting-{lane}") for lane in ("a", "b", "c")] == [None] * 3


def test_a_response_is_cancelled_from_elsewhere(prompted: LoggedBridge) -> None:
    """Its stream ends with the status, and the connection goes on."""
    with talking(prompted.bridge) as talk, prompted.bridge.client() as client:
        talk.send(ask({"text": "one"}, {"hang": True}))
        name = talk.receive()["response"]["id"]
        talk.until("one")
        cancelled = client.post(f"/responses/{name}/cancel").json()
        assert cancelled["status"] == "cancelled"
        assert talk.rest()[-1]["response"] == cancelled
        assert text_of(talk.ask(ask({"text": "next"}))) == "next"


# The client does not read


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoggedBridge]:
    """A bridge that waits half a second for a client's socket."""
    directory = tmp_path_factory.mktemp("hasty")
    log = directory / "events.ndjson"
    with running_bridge(
        directory,
        f"--log-events={log}",
        CODEX_BIN=str(prompted_codex(directory)),
        PROXY_MODELS=MODEL,
        PROXY_WRITE_TIMEOUT="0.5",
        PROXY_KEPT_THREADS="0",
    ) as bridge:
        yield LoggedBridge(bridge, EventLog(log))


def test_a_client_that_never_reads_is_dropped(hasty: LoggedBridge) -> None:
    """After PROXY_WRITE_TIMEOUT its connection is cut and its turn over; others are served meanwhile."""
    flood = ask({"text": "never-reads".ljust(64 * 1024, ".")}, repeat=300)
    with raw_socket(hasty.bridge, buffer=4096) as client:
        client.sendall(frame(json.dumps({"type": "response.create", **flood}).encode()))
        request = wait_for(lambda: hasty.log.request_of("never-reads"), "the request")
        with talking(hasty.bridge) as talk:
            assert text_of(talk.ask(ask({"text": "hi"}))) == "hi"
        wait_for(lambda: hasty.log.turn_end(request), "turn_end", 20)
        wait_for(lambda: hasty.log.calls(request)[-1:] == ["thread/unsubscribe"], "thread/unsubscribe", 10)
    assert resident_mib(hasty.bridge.process.pid, "VmHWM") < 350
    assert "Traceback" not in hasty.bridge.stderr.read_text()


def test_a_client_that_sends_and_never_reads(hasty: LoggedBridge) -> None:
    """Errors are answers too: whoever fills the line with nonsense is cut off as well."""
    with raw_socket(hasty.bridge, buffer=4096) as client:
        client.settimeout(5)
        with pytest.raises(OSError):
            while True:
                client.sendall(frame(b"nonsense") * 1000)
    with talking(hasty.bridge) as talk:
        assert text_of(talk.ask(ask({"text": "hi"}))) == "hi"
    assert "Traceback" not in hasty.bridge.stderr.read_text()


def test_a_slow_reader_gets_everything(prompted: LoggedBridge) -> None:
    """Within the buffer nothing is lost, however slowly it is read."""
    with talking(prompted.bridge, max_queue=1) as talk:
        talk.send(ask({"text": "0123456789" * 10_000, "chunk": 100}))
        pieces = []
        while (message := talk.receive())["type"] != "response.completed":
            if message["type"] == "response.output_text.delta":
                pieces.append(message["delta"])
                if len(pieces) % 100 == 0:
                    time.sleep(0.02)
    assert "".join(pieces) == "0123456789" * 10_000


# Pings


def test_pings_are_answered_while_a_turn_runs(prompted: LoggedBridge) -> None:
    """A client's ping gets its pong, also when nothing else is said."""
    with talking(prompted.bridge) as talk:
        talk.send(ask({"text": "one"}, {"hang": True}))
        talk.until("one")
        for _ in range(3):
            assert talk.socket.ping().wait(20)


def test_the_bridge_pings_a_silent_connection(prompted: LoggedBridge) -> None:
    """So that nobody in between takes it for dead."""
    with raw_socket(prompted.bridge) as client:
        assert client.recv(2) == b"\x89\x00"


# The protocol

BROKEN = {
    "text that is no utf-8": b"\x81\x83\x00\x00\x00\x00\xff\xfe\xfd",
    "not masked": b"\x81\x03abc",
    "reserved bits": b"\xf1\x83\x00\x00\x00\x00abc",
    "unknown opcode": b"\x83\x80\x00\x00\x00\x00",
    "a continuation of nothing": b"\x80\x80\x00\x00\x00\x00",
    "a long ping": b"\x89\xfe\x00\x80\x00\x00\x00\x00" + b"x" * 128,
    "a ping in pieces": b"\x09\x80\x00\x00\x00\x00",
    "a close with half a code": b"\x88\x81\x00\x00\x00\x00\x03",
    "an absurd length": b"\x81\xff" + b"\xff" * 8 + b"\x00\x00\x00\x00",
    "plain http": b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_who_breaks_the_protocol_is_cut_off(prompted: LoggedBridge, data: bytes) -> None:
    """The connection ends, its turn too, nobody else's, and without a traceback."""
    with raw_socket(prompted.bridge) as client:
        client.sendall(data)
        try:
            while client.recv(65536):
                pass
        except ConnectionResetError:
            pass
    with talking(prompted.bridge) as talk:
        assert text_of(talk.ask(ask({"text": "hi"}))) == "hi"
    assert "Traceback" not in prompted.bridge.stderr.read_text()


def test_a_message_may_come_in_pieces(prompted: LoggedBridge) -> None:
    """Fragments, with a ping between them."""
    message = json.dumps({"type": "response.create", "model": "mock-echo", "input": "é"}, ensure_ascii=False).encode()
    cut = message.index("é".encode()) + 1
    with raw_socket(prompted.bridge) as client:
        client.sendall(frame(message[:cut], opcode=1, final=False) + frame(b"", opcode=9))
        client.sendall(frame(message[cut:], opcode=0))
        received = b""
        while b"response.completed" not in received:
            piece = client.recv(65536)
            assert piece
            received += piece
    assert '"text":"é"'.encode() in received


@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/chat/completions", "/v1/responses/x", "/", "/healthz"])
def test_a_socket_elsewhere_is_refused(prompted: LoggedBridge, path: str) -> None:
    """By a status."""
    url = f"ws://127.0.0.1:{prompted.bridge.port}{path}"
    headers = {"Authorization": request_headers()["Authorization"]}
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers, proxy=None):
        pass
    assert refused.value.response.status_code in (403, 404, 405)
    assert "Traceback" not in prompted.bridge.stderr.read_text()


# The bridge stops


def start(directory: Path, **environment: str) -> Any:
    """A bridge of one's own, to be stopped."""
    return running_bridge(
        directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL, PROXY_KEEPALIVE="0.2", **environment
    )


def closing_code(talk: Talk) -> int:
    """The code with which the bridge closes; nothing may come before that."""
    with pytest.raises(ConnectionClosed) as closed:
        talk.receive()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_a_stop_closes_idle_sockets(tmp_path: Path) -> None:
    """With the code for going away, at once, whether they have ever asked something or not."""
    with start(tmp_path, PROXY_GRACE="30") as bridge, talking(bridge) as silent, talking(bridge) as talk:
        assert text_of(talk.ask(ask({"text": "hi"}))) == "hi"
        stopped = time.monotonic()
        bridge.process.send_signal(signal.SIGTERM)
        assert [closing_code(talk), closing_code(silent)] == [1001, 1001]
        assert bridge.process.wait(25) == 0
        assert time.monotonic() - stopped < 20


def test_a_stop_lets_answers_finish(tmp_path: Path) -> None:
    """What runs ends as it should, then the connection is closed."""
    with start(tmp_path, PROXY_GRACE="15") as bridge, talking(bridge) as talk:
        talk.send(ask({"text": "one"}, {"sleep": 0.6}, {"text": "two"}))
        talk.until("one")
        bridge.process.send_signal(signal.SIGTERM)
        assert text_of(talk.rest()[-1]["response"]) == "onetwo"
        assert closing_code(talk) == 1001
        assert bridge.process.wait(20) == 0


def test_a_stop_fails_what_does_not_finish_in_time(tmp_path: Path) -> None:
    """With the last event of its stream, in every lane; then the connection is closed, and no process is left."""
    with start(tmp_path, PROXY_GRACE="0.3") as bridge, talking(bridge) as talk:
        talk.send(ask({"text": "one"}, {"hang": True}), stream_id="a")
        talk.until("one")
        talk.send(ask({"text": "two"}, {"hang": True}), stream_id="b")
        talk.until("two")
        children = children_of(bridge.process.pid)
        bridge.process.send_signal(signal.SIGTERM)
        ends: list[Json] = [talk.rest()[-1], talk.rest()[-1]]
        assert {end["stream_id"] for end in ends} == {"a", "b"}
        assert {end["response"]["error"]["bridge_code"] for end in ends} == {"shutdown_initiated"}
        assert closing_code(talk) == 1001
        assert bridge.process.wait(20) == 0
        assert not [pid for pid in children if is_alive(pid)]


def test_a_request_during_a_stop(tmp_path: Path) -> None:
    """It is answered or refused, never forgotten; and the program ends in time."""
    with start(tmp_path, PROXY_GRACE="4") as bridge, talking(bridge) as talk:
        talk.send(ask({"text": "one"}, {"hang": True}), stream_id="a")
        talk.until("one")
        bridge.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopping" in bridge.stderr.read_text(), "the stop")
        talk.send(ask({"text": "two"}), stream_id="b")
        talk.send(ask({"text": "three"}), stream_id="a")
        ended = set()
        with pytest.raises(ConnectionClosed):
            while True:
                ended.add(talk.rest()[-1]["stream_id"])
        assert ended == {"a", "b"}
        assert bridge.process.wait(20) == 0
        assert "Traceback" not in bridge.stderr.read_text()


def test_a_client_that_does_not_say_farewell_cannot_hold_up_a_stop(tmp_path: Path) -> None:
    """Nor one that goes on sending."""
    with start(tmp_path, PROXY_GRACE="0.3") as bridge, closing(raw_socket(bridge)) as client:
        client.settimeout(10)
        client.sendall(frame(json.dumps({"type": "response.create", **ask({"hang": True})}).encode()))
        wait_for(lambda: bridge.post("/responses", ask({"text": "hi"})).status_code == 200, "an answer")
        bridge.process.send_signal(signal.SIGTERM)
        more = frame(json.dumps({"type": "response.create", **ask({"text": "more"})}).encode())
        try:
            while bridge.process.poll() is None:
                client.sendall(more)
                time.sleep(0.01)
        except OSError:
            pass
        assert bridge.process.wait(20) == 0
        assert "Traceback" not in bridge.stderr.read_text()


# A client without manners


def raw_socket(bridge: RunningBridge, *, buffer: int | None = None) -> socket.socket:
    """A WebSocket whose bytes are the test's own; the handshake is done."""
    client = socket.socket()
    if buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.settimeout(20)
    client.connect(("127.0.0.1", bridge.port))
    headers = {
        "Authorization": request_headers()["Authorization"],
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    client.sendall(raw_request("GET", "/v1/responses", b"", headers))
    response = HTTPResponse(client)
    response.begin()
    assert response.status == 101
    return client


def frame(payload: bytes, *, opcode: int = 1, final: bool = True) -> bytes:
    """One frame, masked with zeros."""
    head = bytes([(0x80 if final else 0) | opcode])
    if len(payload) < 126:
        length = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        length = b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        length = b"\xff" + len(payload).to_bytes(8, "big")
    return head + length + b"\x00" * 4 + payload
