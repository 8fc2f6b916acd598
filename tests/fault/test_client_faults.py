"""What a client can do to the bridge: the rows of docs/promises.md that are proven nowhere else, by their numbers."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trio.testing
from harness import ROOT, RunningBridge

from bridge.errors import InvalidRequest
from bridge.http.connection import BODY_PATIENCE, BODY_RATE, BODY_SECONDS, KEEP_ALIVE
from bridge.http.listener import Listener
from bridge.http.pages import error_page, send_page
from bridge.http.request import Request
from bridge.http.sockets import open_sockets
from bridge.http.wire import HEAD_SECONDS, Edge

IN_A_NETWORK_OF_ITS_OWN = ("unshare", "--user", "--map-root-user", "--net")


def test_fault_23_a_peer_that_vanishes_is_noticed(tmp_path: Path) -> None:
    """Its machine is gone, and no packet tells of it: the turn is interrupted soon after PROXY_WRITE_TIMEOUT, with a
    stream that is kept alive by comments, and without a stream, when nothing is to be written."""
    if shutil.which("ip") is None or subprocess.run([*IN_A_NETWORK_OF_ITS_OWN, "ip", "link"], check=False).returncode:
        pytest.skip("no network of one's own can be had here")
    program = [sys.executable, str(Path(__file__).with_name("vanished_peer.py")), str(tmp_path)]
    ran = subprocess.run(
        [*IN_A_NETWORK_OF_ITS_OWN, *program], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["reasons"] == ["client_gone", "client_gone"]
    assert told["interrupts"] == [1, 1]
    assert told["status"] == 200
    assert "Traceback" not in told["told"]


# Requests that do not come to their end


async def answer(request: Request) -> None:
    """A handler that reads the body, and has little to say."""
    try:
        await request.read_body(1 << 40)
    except InvalidRequest as error:
        await send_page(request, error_page(error))
        return
    request.start(200, [(b"content-length", b"2")])
    await request.send(b"ok", last=True)


@asynccontextmanager
async def listening(head_timeout: float) -> AsyncIterator[int]:
    """A listener on some port."""
    sockets = open_sockets("127.0.0.1", 0)
    listener = Listener(Edge(answer, write_timeout=5, head_timeout=head_timeout), sockets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, nursery)
        yield sockets[0].getsockname()[1]
        listener.stop_accepting()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def limit(seconds: float) -> AsyncIterator[None]:
    """`trio.fail_after`, to stand beside what is closed at the end."""
    with trio.fail_after(seconds):
        yield


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: "


@pytest.mark.parametrize("before", [0, 2], ids=["first", "third"])
async def test_fault_24_a_head_that_comes_byte_by_byte(before: int) -> None:
    """However lively the client is, it is told 408 and the connection ends; also on one that was of use before."""
    async with listening(head_timeout=0.3) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, limit(20):
            for _ in range(before):
                await client.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while not (await client.receive_some()).endswith(b"ok"):
                    pass
            received = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trickle, client)
                # What it still sends is not read any more, which resets the connection.
                with suppress(trio.BrokenResourceError):
                    async for data in client:
                        received += data
                nursery.cancel_scope.cancel()
        assert received.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in received.lower()


async def trickle(client: trio.SocketStream) -> None:
    """A head without an end."""
    try:
        await client.send_all(HEAD)
        while True:
            await client.send_all(b"x")
            await trio.sleep(0.01)
    except trio.BrokenResourceError:
        pass


async def test_fault_24_who_is_silent_or_quick_is_not_hurried(mock_clock: trio.testing.MockClock) -> None:
    """A connection on which nothing is asked may stay for a minute, and a head in two pieces is a head."""
    mock_clock.rate = 1
    async with listening(head_timeout=60) as port:
        silent, slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        async with silent, slow, limit(1000):
            await slow.send_all(HEAD)
            mock_clock.jump(30)
            await slow.send_all(b"y\r\n\r\n")
            assert (await slow.receive_some()).startswith(b"HTTP/1.1 200")
            mock_clock.jump(KEEP_ALIVE - 45)
            await silent.send_all(HEAD + b"y\r\n\r\n")
            assert (await silent.receive_some()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("rate", "seconds"), [(1, BODY_PATIENCE), (BODY_RATE * 2, BODY_SECONDS)], ids=["a byte a second", "for ever"]
)
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_fault_24_a_body_that_never_ends(
    mock_clock: trio.testing.MockClock, rate: int, seconds: float, framing: str
) -> None:
    """One that comes too slowly is refused with 408 soon, and one that comes quickly enough after some minutes."""
    length = "Content-Length: 1000000000" if framing == "length" else "Transfer-Encoding: chunked"
    piece = b"x" * rate if framing == "length" else b"%x\r\n%b\r\n" % (rate, b"x" * rate)
    async with listening(head_timeout=60) as port:
        client = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, limit(10 * BODY_SECONDS):
            await client.send_all(f"POST / HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
            received = bytearray()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive_into, received, client, nursery.cancel_scope)
                while not nursery.cancel_scope.cancel_called:
                    await client.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked(0.005)
                    mock_clock.jump(1)
            taken = trio.current_time()
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in received
    assert seconds <= taken < seconds + 5


async def receive_into(received: bytearray, client: trio.SocketStream, then: trio.CancelScope) -> None:
    """An answer, and then the end of all sending."""
    received += await client.receive_some()
    then.cancel()


@pytest.mark.deep
def test_fault_24_a_crowd_of_slow_clients_holds_nobody_up(mock_bridge: RunningBridge) -> None:
    """A hundred connections with half a head each: others are served, and all hundred are told to go in time."""
    with ExitStack() as stack:
        started = time.monotonic()
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", mock_bridge.port), timeout=HEAD_SECONDS + 20))
            for _ in range(100)
        ]
        for client in crowd:
            client.sendall(HEAD)
        for _ in range(5):
            assert mock_bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        assert time.monotonic() - started < HEAD_SECONDS
        for client in crowd:
            assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
