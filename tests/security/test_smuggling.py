"""Bytes that two servers could read in two ways, on real sockets: refused, and the connection ends.

And what follows a request while it is answered: it waits, within limits, and nobody who leaves is overlooked.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Literal

import pytest
from harness import KEY, RunningBridge, running_bridge
from hypothesis import given
from hypothesis import strategies as st
from server.prompted import MODEL, EventLog, ask, prompted_codex, raw_request, request_headers, wait_for

from bridge.http.head import HEAD_LIMIT, fault_of_head

RESPONSES = "/v1/responses"
BODY = json.dumps({"model": "mock-echo", "input": "hi"}).encode()
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n"
"""A second request; it must never be answered where the first one is refused."""


def good(body: bytes = BODY, **headers: str) -> bytes:
    return raw_request("POST", RESPONSES, body, request_headers(**headers))


def chunked(body: bytes = BODY, **headers: str) -> bytes:
    head = raw_request("POST", RESPONSES, b"", request_headers(**{"Transfer-Encoding": "chunked"}, **headers))
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def spoil(found: bytes, by: bytes, request: bytes | None = None) -> bytes:
    """A good request with one place changed."""
    request = good() if request is None else request
    assert found in request
    return request.replace(found, by, 1)


def everything(port: int, data: bytes) -> bytes:
    """All that a connection gives for these bytes, to its end; it must end by itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        received = b""
        try:
            client.sendall(data)
            while chunk := client.recv(65536):
                received += chunk
        except ConnectionError:
            pass  # it was closed while we still had something to say
    return received


def statuses(received: bytes) -> list[bytes]:
    """Of every answer that there is."""
    return re.findall(rb"HTTP/1\.1 (\d\d\d)", received)


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKS = b"Transfer-Encoding: chunked"

REFUSED = {
    # Two lengths
    "length_and_chunks": spoil(CHUNKS, CHUNKS + b"\r\nContent-Length: 5", chunked()),
    "chunks_and_length": spoil(CHUNKS, b"Content-Length: 5\r\n" + CHUNKS, chunked()),
    "length_and_chunks_in_capitals": spoil(CHUNKS, b"TRANSFER-ENCODING: Chunked\r\nCONTENT-LENGTH: 5", chunked()),
    "length_twice": spoil(LENGTH, LENGTH + b"\r\nContent-Length: 0"),
    "length_list": spoil(LENGTH, LENGTH + b", 0"),
    "length_plus": spoil(b"Content-Length: ", b"Content-Length: +"),
    "length_hex": spoil(LENGTH, b"Content-Length: 0x%x" % len(BODY)),
    "length_negative": spoil(b"Content-Length: ", b"Content-Length: -"),
    "length_blank": spoil(LENGTH, b"Content-Length: 1 0"),
    "length_empty": spoil(LENGTH, b"Content-Length:"),
    # Codings
    "chunks_and_more": spoil(CHUNKS, b"Transfer-Encoding: gzip, chunked", chunked()),
    "chunks_twice": spoil(CHUNKS, CHUNKS + b", chunked", chunked()),
    "chunks_in_two_headers": spoil(CHUNKS, CHUNKS + b"\r\n" + CHUNKS, chunked()),
    "chunks_with_control": spoil(CHUNKS, b"Transfer-Encoding: \x0bchunked", chunked()),
    "identity": spoil(CHUNKS, b"Transfer-Encoding: identity", chunked()),
    "chunk_size_plus": spoil(b"\r\n\r\n", b"\r\n\r\n+", chunked()),
    "chunk_size_0x": spoil(b"\r\n\r\n", b"\r\n\r\n0x", chunked()),
    "chunk_size_underscore": spoil(b"\r\n\r\n", b"\r\n\r\n1_", chunked()),
    "chunk_size_huge": spoil(b"\r\n\r\n", b"\r\n\r\n" + b"f" * 30, chunked()),
    "chunk_too_long": spoil(BODY + b"\r\n", BODY + b"xx", chunked()),
    "length_in_trailers": spoil(b"0\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", chunked()),
    "coding_in_trailers": spoil(b"0\r\n\r\n", b"0\r\nTransfer-Encoding: identity\r\n\r\n", chunked()),
    "chunk_ends_bare": spoil(BODY + b"\r\n", BODY + b"\n", chunked()),
    # Lines
    "bare_lf_everywhere": good().replace(b"\r\n", b"\n"),
    "bare_lf_once": spoil(b"\r\nContent-Type", b"\nContent-Type"),
    "bare_lf_after_request_line": spoil(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    "bare_lf_ends_head": spoil(b"\r\n\r\n", b"\r\n\n"),
    "bare_lf_begins_end": spoil(b"\r\n\r\n", b"\n\r\n"),
    "bare_cr": spoil(b"\r\nContent-Type", b"\rContent-Type"),
    "cr_cr_lf": spoil(b"\r\nContent-Type", b"\r\r\nContent-Type"),
    "folded_by_blank": spoil(b"Content-Type: ", b"Content-Type:\r\n "),
    "folded_by_tab": spoil(b"Content-Type: ", b"Content-Type:\r\n\t"),
    "folded_length": spoil(b"Content-Length: ", b"Content-Length:\r\n "),
    "folded_chunks": spoil(b"Transfer-Encoding: ", b"Transfer-Encoding:\r\n ", chunked()),
    "folded_first_header": spoil(b"HTTP/1.1\r\n", b"HTTP/1.1\r\n "),
    "header_without_colon": spoil(b"Content-Type: application/json", b"Content-Type"),
    "header_without_name": spoil(b"Content-Type:", b":"),
    "blank_before_colon": spoil(b"Content-Type:", b"Content-Type :"),
    "tab_before_colon": spoil(b"Content-Length:", b"Content-Length\t:"),
    "nul_in_value": spoil(b"application/json", b"application/json\0"),
    "nul_in_name": spoil(b"Content-Type:", b"Content\0Type:"),
    # Hosts
    "no_host": spoil(b"Host: 127.0.0.1\r\n", b""),
    "two_hosts": spoil(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: evil.example"),
    "same_host_twice": spoil(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: 127.0.0.1"),
    # Request lines
    "no_version": b"GET /\r\n\r\n",
    "version_2": spoil(b"HTTP/1.1", b"HTTP/2.0"),
    "version_0": spoil(b"HTTP/1.1", b"HTTP/0.9"),
    "version_in_small_letters": spoil(b"HTTP/1.1", b"http/1.1"),
    "two_blanks": spoil(b"POST ", b"POST  "),
    "four_words": spoil(b"HTTP/1.1", b"HTTP/1.1 x"),
    "tab_in_request_line": spoil(b"POST ", b"POST\t"),
    "raw_bytes_in_path": spoil(b"/v1/", b"/v1\xff/"),
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    # Sizes
    "endless_header": b"GET / HTTP/1.1\r\nX: " + b"x" * 3 * HEAD_LIMIT,
    "endless_headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_LIMIT,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(mock_bridge: RunningBridge, data: bytes) -> None:
    """One answer that says why, then the end of the connection: what follows is no request."""
    received = everything(mock_bridge.port, data + HIDDEN)
    if len(data) > HEAD_LIMIT and not received:
        return  # a connection that is closed while bytes come in is reset, and the answer with it
    status = int(received.split()[1])
    assert status in (400, 431, 501, 505), received
    assert len(statuses(received)) == 1
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "bad_http"
    assert KEY not in body.decode()


@given(st.lists(st.sampled_from([b"GET / HTTP/1.1", b"\r\n", b"\n", b"\r", b" ", b"X: y", b"\r\n\r\n"]), max_size=12))
def test_a_head_is_refused_however_it_is_cut(pieces: list[bytes]) -> None:
    """What is wrong with a head stays wrong when more of it comes, and is found at the latest when all is there."""
    data = b"".join(pieces)
    found = [fault_of_head(data[:end]) for end in range(len(data) + 1)]
    first = next((place for place, fault in enumerate(found) if fault), None)
    if first is not None:
        assert all(found[first:])
    head = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    strict = b"\n" not in head.replace(b"\r\n", b"") and b"\r" not in head.replace(b"\r\n", b"")
    if b"\r\n\r\n" in data:
        assert (found[-1] is None) == (strict and b"\r\n " not in head)


# Targets that are whole URLs

TARGETS = {
    "http://evil.example/v1/models": 403,
    "https://evil.example/v1/models": 403,
    "HTTP://EVIL.EXAMPLE/v1/models": 403,
    "http://127.0.0.1@evil.example/v1/models": 403,
    "http://evil.example@127.0.0.1/v1/models": 403,
    "http:///v1/models": 403,
    "http://127.0.0.1.evil.example?x=/v1/models": 403,
    "http://127.0.0.1:1/v1/models": 200,
    "http://localhost/v1/models?x=y": 200,
    "http://[::1]:9/v1/models": 200,
    "http://127.0.0.1": 200,  # the live page, which holds no data
    "file:///v1/models": 404,
    "//evil.example/v1/models": 404,
    "*": 404,
    "evil.example:443": 404,
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_a_url_is_checked_as_a_host_is(mock_bridge: RunningBridge, target: str) -> None:
    """Its own host counts, and not what stands in the header (RFC 9112 §3.2.2)."""
    received = everything(
        mock_bridge.port, raw_request("GET", target, b"", request_headers(Connection="close"), "127.0.0.1")
    )
    assert int(received.split()[1]) == TARGETS[target], received
    if TARGETS[target] == 403:
        assert b'"host_not_allowed"' in received


def test_a_foreign_host_header_does_not_matter_where_the_target_has_ours(mock_bridge: RunningBridge) -> None:
    request = raw_request("GET", "http://127.0.0.1/v1/models", b"", request_headers(Connection="close"), "evil.example")
    assert everything(mock_bridge.port, request).startswith(b"HTTP/1.1 200 ")


def test_a_tunnel_is_not_dug(mock_bridge: RunningBridge) -> None:
    request = raw_request("CONNECT", "evil.example:443", b"", request_headers(Connection="close"))
    assert int(everything(mock_bridge.port, request).split()[1]) in (400, 403, 404, 405)


# What follows a request


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBridge, EventLog]]:
    """A bridge whose child does what the message says, with an event log."""
    directory = tmp_path_factory.mktemp("following")
    log = directory / "events.ndjson"
    with running_bridge(
        Path(directory), f"--log-events={log}", CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL
    ) as bridge:
        yield bridge, EventLog(log)
        assert "Traceback" not in bridge.stderr.read_text()


def asked(*steps: dict[str, Any], **members: Any) -> bytes:
    return good(json.dumps(ask(*steps, **members)).encode())


STRAY = {
    "line_end": b"\r\n",
    "nonsense": b"x",
    "half_a_request": HIDDEN[:20],
    "a_request": HIDDEN,
    "many_requests": HIDDEN * 10,
    "a_flood": b"x" * 4 * HEAD_LIMIT,
}


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
@pytest.mark.parametrize("close", ["close", "keep-alive"])
def test_who_leaves_is_noticed_whatever_he_said_last(
    logged: tuple[RunningBridge, EventLog], stray: bytes, at_once: bool, close: str
) -> None:
    """Bytes that follow a request do not hide that its client has gone: the turn is interrupted."""
    bridge, log = logged
    label = f"stray-{len(stray)}-{stray[:1].hex()}-{at_once}-{close}-"
    request = good(json.dumps(ask({"hang": label})).encode(), Connection=close)
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(request + stray if at_once else request)
        req_id = log.running(label)
        if not at_once:
            client.sendall(stray)
    end = wait_for(lambda: log.turn_end(req_id), "turn_end", 10)
    assert (end["outcome"], end["reason"]) == ("cancelled", "client_gone")


def test_one_request_may_wait(logged: tuple[RunningBridge, EventLog]) -> None:
    """It is answered after the one before, on the same connection, and so is what comes later."""
    bridge, _ = logged
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(asked({"text": "one"}) + b"\r\n" + asked({"text": "two"}))
        answers = read_answers(client, 2)
        client.sendall(asked({"text": "three"}))
        answers += read_answers(client, 1)
    assert [text_of(answer) for answer in answers] == ["one", "two", "three"]


def test_a_waiting_request_may_come_in_pieces(logged: tuple[RunningBridge, EventLog]) -> None:
    """Some of it with the first, some while that is answered, some later."""
    bridge, log = logged
    second = asked({"text": "two"})
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(asked({"sleep": 0.3}, {"text": "in pieces"}) + second[:30])
        log.running("in pieces")
        client.sendall(second[30:-9])
        answers = read_answers(client, 1)
        client.sendall(second[-9:])
        answers += read_answers(client, 1)
    assert [text_of(answer) for answer in answers] == ["in pieces", "two"]


def test_more_requests_do_not_wait(logged: tuple[RunningBridge, EventLog]) -> None:
    """The one that waits is answered and says that the connection ends; the others were never begun."""
    bridge, log = logged
    request = b"".join(asked({"text": f"queued-{number}-"}) for number in range(5))
    received = everything(bridge.port, request)
    assert statuses(received) == [b"200", b"200"]
    assert received.lower().count(b"connection: close") == 1
    log.ended("queued-1-")
    assert log.request_of("queued-2-") is None


@pytest.mark.parametrize("streamed", [False, True])
def test_too_much_behind_a_request_ends_the_connection_after_its_answer(
    logged: tuple[RunningBridge, EventLog], streamed: bool
) -> None:
    """The answer is whole, and nothing of the rest is taken for a request."""
    bridge, log = logged
    label = f"flooded-{streamed}-"
    behind = HIDDEN + b"x" * HEAD_LIMIT
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(asked({"text": "begin "}, {"sleep": 2}, {"text": label}, stream=streamed))
        log.running(label)
        client.sendall(behind)
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    assert len(statuses(received)) == 1
    assert label.encode() in received
    assert b"completed" in received


def test_nothing_follows_a_request_that_closes(logged: tuple[RunningBridge, EventLog]) -> None:
    """`Connection: close` is the last request, and what comes after it is not read as another."""
    bridge, _ = logged
    request = good(json.dumps(ask({"text": "the last"})).encode(), Connection="close")
    received = everything(bridge.port, request + HIDDEN)
    assert len(statuses(received)) == 1
    assert b"the last" in received


def read_answers(client: socket.socket, count: int) -> list[dict[str, Any]]:
    """So many whole answers from a connection that stays open."""
    found = []
    for _ in range(count):
        response = HTTPResponse(_OneByOne(client))  # type: ignore[arg-type]
        response.begin()
        assert response.status == 200
        found.append(json.loads(response.read()))
    return found


class _OneByOne:
    """A socket that gives out no byte of the next answer with this one."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client

    def makefile(self, mode: Literal["rb"]) -> Any:
        return self._client.makefile(mode, buffering=0)


def text_of(answer: dict[str, Any]) -> str:
    return "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
