"""Clients that leave, and clients that do not read: their turns end, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from harness import RunningBridge, read_sse, running_bridge
from server.conftest import LoggedBridge
from server.prompted import (
    MODEL,
    EventLog,
    ask,
    ask_chat,
    prompted_codex,
    raw_request,
    request_headers,
    resident_mib,
    send_request,
    wait_for,
)

RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
Ask = Callable[..., dict[str, Any]]
BOTH = pytest.mark.parametrize(("path", "body"), [(RESPONSES, ask), (CHAT, ask_chat)], ids=["responses", "chat"])


def check_interrupted(prompted: LoggedBridge, req_id: str) -> None:
    """The child is told to stop, the request ends as client_gone, and the next one is served."""
    wait_for(lambda: "turn/interrupt" in prompted.log.calls(req_id), "turn/interrupt", 10)
    wait_for(lambda: "thread/unsubscribe" in prompted.log.calls(req_id), "thread/unsubscribe", 10)
    end = wait_for(lambda: prompted.log.turn_end(req_id), "turn_end")
    assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")
    assert prompted.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
    assert "Traceback" not in prompted.bridge.stderr.read_text()


# Clients that leave


@BOTH
@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_before_the_first_event(
    prompted: LoggedBridge, path: str, body: Ask, streamed: bool
) -> None:
    """Its turn is interrupted at once, streamed or not."""
    label = f"early-{path}-{streamed}"
    with send_request(prompted.bridge, path, body({"hang": label}, stream=streamed)):
        req_id = prompted.log.running(label)
    check_interrupted(prompted, req_id)


@BOTH
@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_in_the_middle(prompted: LoggedBridge, path: str, body: Ask, streamed: bool) -> None:
    """After the first words, and also while a non-streamed answer is being collected."""
    label = f"middle-{path}-{streamed}"
    with send_request(prompted.bridge, path, body({"text": "one"}, {"hang": label}, stream=streamed)) as client:
        req_id = prompted.log.running(label)
        if streamed:
            assert client.recv(1)
    check_interrupted(prompted, req_id)


def test_a_client_that_leaves_while_words_flow(prompted: LoggedBridge) -> None:
    """The child is not left talking to itself."""
    steps = [{"text": "word ", "chunk": 5}, {"sleep": 0.01}] * 3000
    with send_request(prompted.bridge, RESPONSES, ask(*steps, {"text": "flowing"}, stream=True)) as client:
        req_id = prompted.log.running("flowing")
        assert client.recv(1)
    check_interrupted(prompted, req_id)


def test_a_client_that_leaves_during_the_keepalives(prompted: LoggedBridge) -> None:
    """Also when nothing but comments flows."""
    with send_request(
        prompted.bridge, RESPONSES, ask({"text": "one"}, {"hang": "keepalive-leaver"}, stream=True)
    ) as client:
        req_id = prompted.log.running("keepalive-leaver")
        received = b""
        while b": keepalive" not in received:
            received += client.recv(65536)
    check_interrupted(prompted, req_id)


@pytest.mark.parametrize("cut", [10, 100, -1], ids=["in_the_head", "in_the_headers", "in_the_body"])
def test_a_client_that_leaves_before_its_request_is_whole(prompted: LoggedBridge, cut: int) -> None:
    """No turn begins, nothing is said about it on stderr, and the next request is served."""
    assert prompted.bridge.post("/responses", ask({"text": "hi"})).status_code == 200  # the child has said its hello
    before = prompted.bridge.stderr.read_text()
    body = json.dumps(ask({"text": f"never-{cut}"})).encode()
    request = raw_request("POST", RESPONSES, body, request_headers())[:cut]
    with send_request(prompted.bridge, "/healthz", {}) as client:
        client.sendall(request)
    assert prompted.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
    assert prompted.log.request_of(f"never-{cut}") is None
    said = prompted.bridge.stderr.read_text().removeprefix(before).splitlines()
    # That the loop was held up, with where, is about the machine.
    assert not [line for line in said if not line.startswith(("WARNING bridge.watchdog:", "  "))]


def test_many_clients_that_leave_at_once(prompted: LoggedBridge) -> None:
    """Fifty turns are interrupted, each once, and the child is idle again."""
    clients = [send_request(prompted.bridge, RESPONSES, ask({"hang": f"crowd-{number}-"})) for number in range(50)]
    ids = {prompted.log.running(f"crowd-{number}-") for number in range(50)}
    assert len(ids) == 50
    for client in clients:
        client.close()

    last_calls = ["turn/interrupt", "thread/unsubscribe"]
    wait_for(lambda: all(prompted.log.calls(req_id)[-2:] == last_calls for req_id in ids), "50 interrupts", 30)
    assert prompted.bridge.post("/responses", ask({"text": "hi"})).status_code == 200


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"POST /v1/resp"])
def test_a_connection_that_is_closed_costs_nothing(mock_bridge: RunningBridge, said: bytes) -> None:
    """Its file is closed too, at once: probes and port scanners leave nothing open."""
    files = Path(f"/proc/{mock_bridge.process.pid}/fd")

    def open_files() -> int:
        return len(list(files.iterdir()))

    before = open_files()
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=10) as client:
            client.sendall(said)
            if said.endswith(b"\n"):
                assert client.recv(65536)
    wait_for(lambda: open_files() <= before + 5, f"{before} open files, or little more", 10)


# Clients that do not read

FLOOD = 64 * 1024
"""Characters in a delta of a flood."""


def flood(label: str, deltas: int) -> dict[str, Any]:
    """A turn that says much more than any buffer holds."""
    return ask({"text": label.ljust(FLOOD, ".")}, repeat=deltas, stream=True)


def test_a_slow_client_fails_alone(prompted: LoggedBridge) -> None:
    """Beyond its buffer that one turn fails as slow_client; others are served meanwhile, and memory stays bounded."""
    bridge = prompted.bridge
    before = resident_mib(bridge.process.pid, "VmHWM")  # others have used this bridge, too
    with send_request(bridge, RESPONSES, flood("slow-reader", 300), buffer=4096) as client:
        req_id = wait_for(lambda: prompted.log.request_of("slow-reader"), "the request")
        wait_for(lambda: "turn/interrupt" in prompted.log.calls(req_id), "turn/interrupt")
        started = time.monotonic()
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        assert time.monotonic() - started < 10
        response = HTTPResponse(client)
        response.begin()
        events = list(read_sse(iter(response.read().decode().split("\n"))))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["bridge_code"] == "slow_client"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert resident_mib(bridge.process.pid, "VmHWM") - before < 250
    end = wait_for(lambda: prompted.log.turn_end(req_id), "turn_end")
    assert end["error"]["code"] == "slow_client"


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


def test_a_client_that_reads_slowly_is_not_cut_off(hasty: LoggedBridge) -> None:
    """However long it takes for a large piece: it is the one who reads nothing that is waited for in vain."""
    body = json.dumps(ask({"flood": 6000}, stream=True)).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", hasty.bridge.port))
        client.sendall(raw_request("POST", RESPONSES, body, request_headers(Connection="close")))
        started, received = time.monotonic(), b""
        while chunk := client.recv(8192):
            received += chunk
            time.sleep(0.006)
    assert time.monotonic() - started > 2  # four times what it may take to read nothing
    assert received.endswith(b"0\r\n\r\n")
    assert received.count(b"response.output_text.delta") == 2 * 6000


@pytest.mark.parametrize("deltas", [100, 300], ids=["within_the_buffer", "beyond_the_buffer"])
def test_a_client_that_never_reads_is_dropped(hasty: LoggedBridge, deltas: int) -> None:
    """After PROXY_WRITE_TIMEOUT its connection is cut and its turn over; its slot and its memory are free."""
    label = f"never-reads-{deltas}"
    with send_request(hasty.bridge, RESPONSES, flood(label, deltas), buffer=4096) as client:
        req_id = wait_for(lambda: hasty.log.request_of(label), "the request")
        wait_for(lambda: hasty.log.turn_end(req_id), "turn_end", 20)
        with pytest.raises(ConnectionResetError):
            while client.recv(1 << 20):
                pass
            raise ConnectionResetError  # an orderly end in the middle of the stream is as good
    wait_for(lambda: hasty.log.calls(req_id)[-1:] == ["thread/unsubscribe"], "thread/unsubscribe", 10)
    assert hasty.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
    assert resident_mib(hasty.bridge.process.pid, "VmHWM") < 350


def test_a_client_that_speaks_http2_is_bound_by_the_same_limits(hasty: LoggedBridge) -> None:
    """It is refused; or if it is served, a window that it never opens does not hold its turn for ever."""
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    body = json.dumps(ask({"text": "http2-window " * 10}, repeat=100, stream=True)).encode()
    head = {":method": "POST", ":path": RESPONSES, ":authority": "127.0.0.1", ":scheme": "http"}
    with socket.create_connection(("127.0.0.1", hasty.bridge.port), timeout=10) as client:
        client.sendall(peer.data_to_send())
        answer = client.recv(65536)
        if answer and not answer.startswith(b"HTTP/1.1 "):
            peer.receive_data(answer)
            headers = head | {name.lower(): value for name, value in request_headers().items()}
            peer.send_headers(1, list(headers.items()))
            peer.send_data(1, body, end_stream=True)
            client.sendall(peer.data_to_send())
            req_id = wait_for(lambda: hasty.log.request_of("http2-window"), "the request")
            wait_for(lambda: hasty.log.turn_end(req_id), "turn_end", 20)
    assert hasty.bridge.post("/responses", ask({"text": "hi"})).status_code == 200
