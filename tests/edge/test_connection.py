"""One connection for many requests, by a client that is as quick as can be, or that sends crumbs."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from harness import KEY, RunningBridge

from bridge.http.connection import CHUNKED_AT_ONCE
from bridge.http.listener import Listener
from bridge.http.request import Request
from bridge.http.sockets import open_sockets
from bridge.http.wire import Edge

SIZE = 80_000
"""More than is read at once, and than may wait behind an answer."""


def request(text: str, model: str = "mock-text") -> bytes:
    """A request whose answer is short."""
    body = json.dumps({"model": model, "input": text, "store": False}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Answers:
    """What a connection gives, one answer after the other; two may come at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read = b""

    def next(self) -> tuple[bytes, bytes]:
        """The next answer, once it is whole: its status line, its body."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return head.split(b"\r\n")[0], body

    def _more(self) -> None:
        piece = self._connection.recv(65536)
        assert piece, "the connection was closed"
        self._read += piece


def test_the_next_request_may_come_with_the_last_byte_of_an_answer(mock_bridge: RunningBridge) -> None:
    """However large it is: a client that has read an answer may be faster than the end of the handler."""
    data = request("x" * SIZE)
    with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(connection)
        for _ in range(150):
            connection.sendall(data)
            assert answers.next()[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("seed", range(4))
def test_the_next_request_comes_in_pieces_at_any_moment(mock_bridge: RunningBridge, seed: int) -> None:
    """Some of it before the answer, some with it, some after it: each is read once, and in order."""
    chance = random.Random(seed)
    requests = [request(f"number {number}.", "mock-echo") for number in range(100)]
    with socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(connection)
        rest = requests[0]
        for number, following in enumerate([*requests[1:], b""]):
            connection.sendall(rest)
            cuts = sorted(chance.randrange(len(following) + 1) for _ in range(2))
            connection.sendall(following[: cuts[0]])
            # There is nothing to wait for: the moments are what is tried out.
            time.sleep(chance.random() * 0.006)
            connection.sendall(following[cuts[0] : cuts[1]])
            status, body = answers.next()
            assert status.startswith(b"HTTP/1.1 200"), (number, status, body)
            assert f"number {number}.".encode() in body
            rest = following[cuts[1] :]


@asynccontextmanager
async def listening(handler: Callable[[Request], Awaitable[None]], **options: Any) -> AsyncIterator[int]:
    """A listener on some port, in this task's loop."""
    sockets = open_sockets("127.0.0.1", 0)
    listener = Listener(Edge(handler, write_timeout=5, **options), sockets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, nursery)
        yield sockets[0].getsockname()[1]
        listener.stop_accepting()
        listener.abort()
        nursery.cancel_scope.cancel()


async def until_closed(port: int, *pieces: bytes) -> bytes:
    """All that a connection gives for these pieces, each sent when the one before has been taken, to its end."""
    received = b""
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", port) as client:
            for piece in pieces:
                await client.send_all(piece)
                await trio.testing.wait_all_tasks_blocked(0.001)
            with suppress(trio.BrokenResourceError):
                async for data in client:
                    received += data
    return received


async def echo(request: Request) -> None:
    """A handler that gives back path and body."""
    body = await request.read_body(1 << 20)
    out = request.path.encode() + b":" + body
    request.start(200, [(b"content-length", str(len(out)).encode())])
    await request.send(out, last=True)


CLOSE = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
STREAMS = {
    "two_requests": b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" + CLOSE,
    "chunks": b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n" + CLOSE,
    "line_end_between": b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\r\n" + CLOSE,
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
async def test_requests_may_be_cut_at_any_byte(stream: bytes) -> None:
    """Two requests in two pieces give the same two answers wherever the cut is."""
    async with listening(echo) as port:
        for cut in range(1, len(stream)):
            received = await until_closed(port, stream[:cut], stream[cut:])
            assert re.findall(rb"HTTP/1\.1 (\d\d\d)", received) == [b"200", b"200"], (cut, received)
            assert b"/a:hello" in received
            assert received.endswith(b"/last:")


@pytest.mark.parametrize("stream", [b"\r\n\r\n" + CLOSE, b"\r\n\r\n\r\n" + CLOSE])
async def test_one_empty_line_is_skipped_wherever_the_cut_is(stream: bytes) -> None:
    """A second one is refused, also when each arrives by itself."""
    async with listening(echo) as port:
        for cut in range(1, 8):
            received = await until_closed(port, stream[:cut], stream[cut:])
            assert re.findall(rb"HTTP/1\.1 (\d\d\d)", received) == [b"400"], (cut, received)


async def test_head_and_body_may_arrive_byte_by_byte() -> None:
    """Byte by byte."""
    stream = STREAMS["chunks"]
    async with listening(echo) as port:
        received = await until_closed(port, *(stream[at : at + 1] for at in range(len(stream))))
        assert received.count(b"HTTP/1.1 200 ") == 2


async def test_tiny_chunks_do_not_block_other_connections() -> None:
    """A read may hold thousands of chunks of one byte; other tasks run between two reads."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    crumbs = b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        listening(echo) as port,
        trio.open_nursery() as nursery,
        await trio.open_tcp_stream("127.0.0.1", port) as client,
    ):
        nursery.start_soon(count_turns)
        nursery.start_soon(client.send_all, head + crumbs)
        received = b"".join([data async for data in client])
        nursery.cancel_scope.cancel()
    assert received.endswith(b"a" * 50_000)
    assert turns >= len(crumbs) // CHUNKED_AT_ONCE - 1


@pytest.mark.parametrize("ends", [True, False])
async def test_a_waiting_request_is_not_served_after_its_client_has_left(ends: bool) -> None:
    """The next request has arrived, but the client left during the answer before it."""
    asked: list[str] = []
    waiting, gone = trio.Event(), trio.Event()

    async def handler(request: Request) -> None:
        asked.append(request.path)
        request.on_gone(gone.set)
        waiting.set()
        await gone.wait()
        request.start(200, [(b"content-length", b"4")])
        await request.send(b"body", last=ends)

    async with listening(handler) as port:
        with trio.fail_after(10):
            client = await trio.open_tcp_stream("127.0.0.1", port)
            await client.send_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
            await waiting.wait()
            await client.send_all(b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.aclose()
            await gone.wait()
            await trio.testing.wait_all_tasks_blocked()
    assert asked == ["/first"]


async def test_a_handler_that_fails_is_500_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> None:
        raise RuntimeError("a mistake")

    async with listening(handler) as port:
        received = await until_closed(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"connection: close" in received
    assert "a mistake" in caplog.text


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_a_stream_has_chunks_or_ends_with_the_connection(version: bytes) -> None:
    """In chunks for HTTP/1.1; for 1.0 it ends where the connection does."""

    async def handler(request: Request) -> None:
        request.start(200, [])
        await request.send(b"one")
        await request.send(b"two", last=True)

    async with listening(handler) as port:
        ask = b"GET / HTTP/%b\r\nHost: a\r\nConnection: close\r\n\r\n" % version
        head, _, body = (await until_closed(port, ask)).partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in head) == (version == b"1.1")
    assert body == (b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" if version == b"1.1" else b"onetwo")
