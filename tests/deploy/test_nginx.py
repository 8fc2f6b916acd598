"""deploy/nginx/turnbridge.conf in a real nginx: TLS, streams as they come, WebSockets, and the client's address."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from edge.test_tls import Pair, ask_by_websocket, make_pair, trusting
from harness import KEY, ROOT, read_sse, running_bridge, scripted_codex, turns

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
NAME = "bridge.example.com"


@dataclass(frozen=True)
class Proxy:
    """A running nginx with the shipped file."""

    port: int
    pair: Pair

    def client(self) -> httpx2.Client:
        """One that finds the proxy under its public name."""
        return httpx2.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {KEY}", "host": NAME},
            verify=trusting(self.pair),
            trust_env=False,
            timeout=30,
        )


@contextmanager
def proxying(directory: Path, upstream: int) -> Iterator[Proxy]:
    """nginx in front of a port, with the shipped file: only ports and certificates differ."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    pair = make_pair(directory)
    text = (ROOT / "deploy/nginx/turnbridge.conf").read_text(encoding="utf-8")
    for shipped, here in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/turnbridge/fullchain.pem": str(pair.certificate),
        "/etc/ssl/turnbridge/privkey.pem": str(pair.key),
        "127.0.0.1:11435": f"127.0.0.1:{upstream}",
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    (directory / "turnbridge.conf").write_text(text)
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = directory / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary} include {directory}/turnbridge.conf; }}\n"
    )
    assert NGINX is not None
    command: list[str | Path] = [NGINX, "-p", directory, "-e", directory / "error.log", "-c", main]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False, timeout=30)
    assert "test is successful" in checked.stderr, checked.stderr
    assert "[warn]" not in checked.stderr
    process = subprocess.Popen(command)
    try:
        wait_for(port, process)
        yield Proxy(port, pair)
    finally:
        process.terminate()
        process.wait(30)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the port accepts connections; nginx reports its start nowhere."""
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, "nginx ended"
        assert time.monotonic() < deadline, "nginx does not listen"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """In front of a bridge on a Codex that says one word and then nothing more."""
    directory = tmp_path_factory.mktemp("nginx")
    codex = scripted_codex(directory, turns([{"deltas": ["first"]}, {"hang": True}]))
    variables = {"PROXY_ALLOWED_HOSTS": NAME, "PROXY_MODELS": "scripted"}
    with (
        running_bridge(directory, "--codex-bin", str(codex), **variables) as bridge,
        proxying(directory, bridge.port) as found,
    ):
        yield found


def test_an_answer_over_https(proxy: Proxy) -> None:
    with proxy.client() as client:
        answer = client.post("/v1/responses", json={"model": "mock-echo", "input": "hello"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][-1]["content"][0]["text"] == "hello"


def test_a_stream_arrives_while_it_is_written(proxy: Proxy) -> None:
    """The first delta, though the model never ends its answer."""
    body = {"model": "scripted", "input": "hello", "stream": True}
    with proxy.client() as client, client.stream("POST", "/v1/responses", json=body) as response:
        assert response.status_code == 200
        for event in read_sse(response.iter_lines()):
            if event["type"] == "response.output_text.delta":
                assert event["delta"] == "first"
                return
    pytest.fail("the stream ended without a delta")


def test_a_websocket(proxy: Proxy) -> None:
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as connection,
        trusting(proxy.pair).wrap_socket(connection, server_hostname="127.0.0.1") as client,
    ):
        assert ask_by_websocket(client, NAME).startswith(b"HTTP/1.1 101 ")


def test_a_large_body_reaches_the_bridge_which_refuses_a_larger_one(proxy: Proxy) -> None:
    """With the bridge's own error, not a page of nginx."""
    mebibyte = "x" * 1024 * 1024
    with proxy.client() as client:
        accepted = client.post("/v1/responses", json={"model": "mock-text", "input": mebibyte * 8})
        refused = client.post("/v1/responses", json={"model": "mock-text", "input": mebibyte * 20})
    assert accepted.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")


def test_metrics_are_not_for_clients(proxy: Proxy) -> None:
    with proxy.client() as client:
        assert client.get("/metrics").status_code == 404
        assert client.get("/livez").status_code == 200


def test_the_address_of_the_client_cannot_be_forged(tmp_path: Path) -> None:
    """What the bridge gets is the address that connected."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as upstream,
        proxying(tmp_path, int(upstream.getsockname()[1])) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as connection,
        trusting(proxy.pair).wrap_socket(connection, server_hostname="127.0.0.1") as client,
    ):
        forged = "X-Forwarded-For: 203.0.113.9\r\nX-Real-IP: 203.0.113.9"
        client.sendall(f"GET /livez HTTP/1.1\r\nHost: {NAME}\r\n{forged}\r\n\r\n".encode())
        upstream.settimeout(20)
        received = b""
        with upstream.accept()[0] as accepted:
            accepted.settimeout(20)
            while b"\r\n\r\n" not in received:
                received += accepted.recv(4096)
    head = dict(re.findall(r"^([\w-]+): (.*?)\r$", received.decode(), re.M))
    assert (head["X-Forwarded-For"], head["X-Real-IP"]) == ("127.0.0.1", "127.0.0.1")
    assert (head["X-Forwarded-Proto"], head["Host"]) == ("https", NAME)
