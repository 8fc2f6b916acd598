"""One connection for many requests, by a client that is as quick as can be, or that sends crumbs."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from harness import KEY, RunningBridge
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from bridge.server.http11 import AT_ONCE, Http11

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
    """However large it is: whoever has read an answer can be quicker than the bridge is with its end."""
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


class Elsewhere:
    """A request whose answer is over; what still comes of it goes nowhere."""

    async def handle(self, event: object) -> None:
        pass


async def test_crumbs_of_a_body_hold_nobody_up() -> None:
    """A read may hold thousands of chunks of one byte, and nobody may want them any more."""
    said: list[object] = []

    async def send(event: object) -> None:
        said.append(event)

    config = Config()
    protocol = Http11(None, config, WorkerContext(None), None, ConnectionState({}), False, None, None, send)
    protocol.connection.receive_data(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    protocol.connection.next_event()
    protocol.stream = Elsewhere()  # type: ignore[assignment]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await protocol.handle(RawData(b"1\r\na\r\n" * 10_000))
        nursery.cancel_scope.cancel()
    assert turns >= 10_000 / AT_ONCE - 2


Told = Callable[[object], Awaitable[None]]


def connected(app: Any, tasks: TaskGroup, send: Told) -> Http11:
    """A connection without a socket."""
    application: Any = ASGIWrapper(app)
    return Http11(application, Config(), WorkerContext(None), tasks, ConnectionState({}), False, None, None, send)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode()


async def test_what_comes_while_a_connection_is_made_ready_again() -> None:
    """Some of the next request came with the one before, the rest in the moment after its answer: it is read once."""
    asked: list[bytes] = []
    said = b""
    recycling = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["raw_path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(event: object) -> None:
        nonlocal said
        await trio.lowlevel.checkpoint()
        if isinstance(event, RawData):
            said += event.data
        elif isinstance(event, Updated) and event.idle:
            recycling.set()
            await trio.testing.wait_all_tasks_blocked()

    async with TaskGroup() as tasks:
        protocol = connected(app, tasks, send)
        await protocol.handle(RawData(get("/first") + get("/second")[:10]))
        await recycling.wait()
        await protocol.handle(RawData(get("/second")[10:]))
    assert asked == [b"/first", b"/second"]
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.count(b"HTTP/1.1") == 2


@pytest.mark.parametrize("ends", [True, False])
async def test_nothing_is_asked_on_a_connection_that_is_over(ends: bool) -> None:
    """The next request has come, but its client has left before the last answer was out, or its end was told."""
    asked: list[bytes] = []
    writing, left = trio.Event(), trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["raw_path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"body", "more_body": not ends})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def send(event: object) -> None:
        if isinstance(event, RawData) and event.data == b"body":
            writing.set()
            await left.wait()

    with trio.fail_after(20):
        async with TaskGroup() as tasks:
            protocol = connected(app, tasks, send)
            await protocol.handle(RawData(get("/first")))
            await writing.wait()
            async with trio.open_nursery() as reader:
                reader.start_soon(protocol.handle, RawData(get("/second")))
                await trio.testing.wait_all_tasks_blocked()
                await protocol.handle(Closed())
                left.set()
    assert asked == [b"/first"]
