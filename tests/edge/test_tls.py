"""https: the same server behind TLS, with real certificates and clients."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import openai
import pytest
from edge.test_websocket import HANDSHAKE, TEXT, Frame
from harness import KEY, RunningBridge, running_bridge
from warm import run_warm


class Pair(NamedTuple):
    """A certificate for this machine, and its key."""

    certificate: Path
    key: Path


def make_pair(directory: Path, *options: str) -> Pair:
    """A self-signed one; with `options` of openssl in place of an open key."""
    pair = Pair(directory / "certificate.pem", directory / "key.pem")
    made = f"req -x509 -newkey rsa:2048 -days 2 -subj /CN=127.0.0.1 -keyout {pair.key} -out {pair.certificate}".split()
    subprocess.run(
        ["openssl", *made, *(options or ("-nodes",)), "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )
    return pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that serves https."""
    flags = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
    with running_bridge(tmp_path_factory.mktemp("secure"), "--mock-only", *flags) as bridge:
        yield bridge
        assert "Traceback" not in bridge.stderr.read_text()


def trusting(pair: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair.certificate))


@contextmanager
def connected(bridge: RunningBridge, pair: Pair) -> Iterator[ssl.SSLSocket]:
    """A connection that trusts the certificate."""
    with (
        socket.create_connection(("127.0.0.1", bridge.port), timeout=20) as connection,
        trusting(pair).wrap_socket(connection, server_hostname="127.0.0.1") as client,
    ):
        yield client


def test_the_openai_client_speaks_https(secure: RunningBridge, pair: Pair) -> None:
    """Whole and streamed, on one connection, which verifies the certificate."""
    assert secure.url.startswith("https://127.0.0.1:")
    with httpx2.Client(verify=trusting(pair), trust_env=False) as http:
        client = openai.OpenAI(base_url=secure.url, api_key=KEY, http_client=http)
        assert client.responses.create(model="mock-echo", input="hello").output_text == "hello"
        long = "word " * 40_000
        with client.responses.stream(model="mock-echo", input=long) as stream:
            assert stream.get_final_response().output_text == long


def ask_by_websocket(client: ssl.SSLSocket, host: str) -> bytes:
    """All that a connection receives until its request over a WebSocket is answered.

    By hand: the websockets client uses a TLS socket in two threads, and now and then loses what it sends.
    """
    request = json.dumps({"type": "response.create", "model": "mock-echo", "input": "hello"}).encode()
    head = HANDSHAKE.replace(b"/echo", b"/v1/responses").replace(
        b"Host: a", f"Host: {host}\r\nX-Api-Key: {KEY}".encode()
    )
    client.sendall(head + Frame(TEXT, request).masked())
    received = b""
    while b'"type":"response.completed"' not in received:
        data = client.recv(65536)
        assert data, received
        received += data
    return received


def test_a_websocket_over_tls(secure: RunningBridge, pair: Pair) -> None:
    with connected(secure, pair) as client:
        assert ask_by_websocket(client, "127.0.0.1").startswith(b"HTTP/1.1 101 ")


def test_a_client_without_tls_is_closed_and_others_are_served(secure: RunningBridge, pair: Pair) -> None:
    """Plain HTTP and a silent handshake end; neither holds up the next client."""
    with socket.create_connection(("127.0.0.1", secure.port), timeout=10) as silent:
        with socket.create_connection(("127.0.0.1", secure.port), timeout=10) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = b""
            try:
                while data := plain.recv(4096):
                    received += data
            except ConnectionError:
                pass
            assert not received.startswith(b"HTTP/")
        with httpx2.Client(verify=trusting(pair), trust_env=False) as http:
            assert http.get(f"{secure.url.removesuffix('/v1')}/livez").status_code == 200
        silent.close()


def test_a_request_cut_into_tls_records(secure: RunningBridge, pair: Pair) -> None:
    """Each byte of a head in a record of its own."""
    with connected(secure, pair) as client:
        for byte in b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n":
            client.send(bytes([byte]))
        received = b""
        while data := client.recv(4096):
            received += data
    assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tls-cert={certificate}"], "--tls-key is missing"),
        (["--tls-key={key}"], "--tls-cert is missing"),
        (["--tls-cert=/no/such.pem", "--tls-key={key}"], "--tls-cert /no/such.pem: this file cannot be read"),
        (["--tls-cert={key}", "--tls-key={key}"], "cannot be used"),
        (["--tls-cert={other}", "--tls-key={key}"], "cannot be used"),
        (["--tls-cert={locked_certificate}", "--tls-key={locked}"], "must have no passphrase"),
    ],
)
def test_an_invalid_certificate_or_key_is_reported_at_start(
    pair: Pair, tmp_path: Path, flags: list[str], said: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "locked").mkdir()
    names = {"certificate": pair.certificate, "key": pair.key, "other": make_pair(tmp_path / "other").certificate}
    locked = make_pair(tmp_path / "locked", "-passout", "pass:secret")
    given = [flag.format(**names, locked=locked.key, locked_certificate=locked.certificate) for flag in flags]
    done = run_warm(
        "serve", "--mock-only", *given, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PORT": "0"}, text=True
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr
