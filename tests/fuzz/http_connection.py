"""Bytes of a client on a real connection, in whatever pieces: which requests its handler gets, and how it ends."""

from __future__ import annotations

import logging
import re
import socket
from contextlib import suppress
from typing import NamedTuple

import trio
import trio.testing
from fuzz.cutting import choice, cut

from bridge.http.connection import Connection
from bridge.http.head import END, HEAD_LIMIT, BadRequest, Chunks, parse_head
from bridge.http.request import ClientGone, Request
from bridge.http.wire import Edge

MAX_BODY = 1 << 20
EARLY = "/early"
"""Where the handler answers without a look at the body."""


class Framed(NamedTuple):
    """One request as it is cut out of a stream of bytes."""

    method: str
    path: str
    body: bytes


def frame(data: bytes) -> tuple[list[Framed], str]:
    """(whole requests in these bytes, and why there are no more: refused, unfinished, last or end)."""
    found: list[Framed] = []
    while data:
        data = data.removeprefix(b"\r\n")
        if not data:
            break
        end = data.find(END, 0, HEAD_LIMIT) + len(END)
        if end < len(END):
            return found, "unfinished"
        try:
            head = parse_head(data[:end])
            data = data[end:]
            if head.is_chunked:
                chunks = Chunks()
                pieces, data = chunks.feed(data)
                if not chunks.done:
                    return found, "unfinished"
                body = b"".join(pieces)
            else:
                if len(data) < head.length:
                    return found, "unfinished"
                body, data = data[: head.length], data[head.length :]
        except BadRequest:
            return found, "refused"
        found.append(Framed(head.method, head.path, body))
        if not head.keeps_alive or head.is_websocket:
            return found, "last"
    return found, "end"


def serve_connection(data: bytes) -> None:
    """The handler gets the requests that are framed in the whole, in order and none else; the connection ends, and
    all that it sends are answers."""
    body, number = data[1:], choice(data)
    trio.run(_serve, body, cut(body, number, 1 + number // 16 * 3))


async def _serve(whole: bytes, pieces: list[bytes]) -> None:
    asked: list[Framed] = []
    faults: list[logging.LogRecord] = []
    watcher = logging.Handler()
    watcher.emit = faults.append  # type: ignore[assignment]
    log = logging.getLogger("bridge.server")
    log.addHandler(watcher)
    log.propagate = False

    async def handler(request: Request) -> None:
        if request.socket is not None:
            asked.append(Framed(request.method, request.path, b""))
            await request.socket.accept()
            with trio.move_on_after(1):
                while True:
                    await request.socket.send((await request.socket.receive()).decode(errors="replace"))
            return
        body = b""
        if request.path != EARLY:
            body = await request.read_body(MAX_BODY)
        asked.append(Framed(request.method, request.path, body))
        request.on_gone(lambda: None)
        request.start(200, [] if request.path == "/stream" else [(b"content-length", b"2")])
        await request.send(b"o")
        await request.send(b"k", last=True)

    async def handle(request: Request) -> None:
        with suppress(ClientGone):
            await handler(request)

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    received = bytearray()
    edge = Edge(handle, write_timeout=5, max_message=1000)
    client = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(edge.watch.run)
                over = trio.Event()
                nursery.start_soon(_run, Connection(edge, ours), over)
                nursery.start_soon(_read, client, received)
                try:
                    for piece in pieces:
                        await client.send_all(piece)
                        await trio.testing.wait_all_tasks_blocked()
                    await client.send_eof()
                except trio.BrokenResourceError:
                    pass  # it has been closed
                await over.wait()
                nursery.cancel_scope.cancel()
    finally:
        log.removeHandler(watcher)
        log.propagate = True
        theirs.close()
    assert not faults, faults[0].getMessage()
    wanted, _ = frame(whole)
    plain = [each._replace(body=b"") if each.path == EARLY else each for each in wanted]
    # What is answered before its body has come needs no whole body.
    seen = asked if not asked or asked[-1].path != EARLY or len(asked) <= len(plain) else asked[:-1]
    assert seen == plain[: len(seen)], (asked, wanted)
    assert _is_answers(bytes(received)), bytes(received)


async def _run(connection: Connection, over: trio.Event) -> None:
    await connection.run()
    over.set()


async def _read(client: trio.SocketStream, received: bytearray) -> None:
    try:
        async for data in client:
            received.extend(data)
    except trio.BrokenResourceError:
        pass


_ANSWER = re.compile(rb"HTTP/1\.1 (\d\d\d) [A-Za-z ]+\r\n((?:[a-z-]+: [^\r\n]*\r\n)*)\r\n")


def _is_answers(data: bytes) -> bool:
    """Whether this is nothing but answers, the last of them maybe cut."""
    while data:
        found = _ANSWER.match(data)
        if found is None:
            return False
        data = data[found.end() :]
        if found[1] == b"101":
            return True
        length = re.search(rb"content-length: (\d+)\r\n", found[2])
        if found[1] == b"100":
            continue
        if length is not None:
            # An answer to HEAD has none of it.
            data = data[int(length[1]) :] if not data.startswith(b"HTTP/1.1 ") else data
        elif b"transfer-encoding: chunked" in found[2] and not data.startswith(b"HTTP/1.1 "):
            chunks = Chunks()
            _, data = chunks.feed(data)
            if not chunks.done:
                return True
        elif b"connection: close" in found[2]:
            return True
    return True
