"""WebSockets frame by frame: what RFC 6455 demands of a server, after the cases of the Autobahn test suite."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest
import trio
import trio.testing

from bridge.http.listener import Listener
from bridge.http.request import ClientGone, Request
from bridge.http.sockets import open_sockets
from bridge.http.websocket import FAREWELL
from bridge.http.wire import Edge

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LIMIT = 70_000
HANDSHAKE = (
    b"GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Frame(NamedTuple):
    """A frame, of either side."""

    opcode: int
    data: bytes = b""
    is_last: bool = True
    reserved: int = 0

    def masked(self, mask: bytes = b"\x12\x34\x56\x78") -> bytes:
        """As a client sends it."""
        body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.data))
        return self._head(0x80) + mask + body

    def plain(self) -> bytes:
        """As a client must not send it."""
        return self._head(0) + self.data

    def _head(self, mask: int) -> bytes:
        first = bytes([self.is_last << 7 | self.reserved << 4 | self.opcode])
        size = len(self.data)
        if size < 126:
            return first + bytes([mask | size])
        return first + (struct.pack("!BH", mask | 126, size) if size < 65536 else struct.pack("!BQ", mask | 127, size))


def close(code: int, reason: bytes = b"") -> Frame:
    return Frame(CLOSE, struct.pack("!H", code) + reason)


async def echo(request: Request) -> None:
    assert request.socket is not None
    await request.socket.accept()
    with suppress(ClientGone):
        while True:
            await request.socket.send((await request.socket.receive()).decode())


class Talk:
    """A client that says any bytes, and reads frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._read = b""

    async def frame(self) -> Frame | None:
        """The next one; None at the end."""
        while (found := self._cut()) is None:
            try:
                data = await self.stream.receive_some()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                return None
            self._read += data
        return found

    async def rest(self) -> list[Frame]:
        """All frames to the end of the connection."""
        found = []
        while (frame := await self.frame()) is not None:
            found.append(frame)
        return found

    def _cut(self) -> Frame | None:
        data = self._read
        if len(data) < 2:
            return None
        first, size, start = data[0], data[1], 2
        assert size < 128, "a server's frame is not masked"
        if size >= 126:
            form, start = ("!H", 4) if size == 126 else ("!Q", 10)
            if len(data) < start:
                return None
            (size,) = struct.unpack(form, data[2:start])
        if len(data) < start + size:
            return None
        self._read = data[start + size :]
        return Frame(first & 15, data[start : start + size], bool(first & 128), first >> 4 & 7)


@asynccontextmanager
async def talking(**options: float) -> AsyncIterator[Talk]:
    """A WebSocket that has been accepted by an echo."""
    sockets = open_sockets("127.0.0.1", 0)
    listener = Listener(Edge(echo, write_timeout=5, max_message=LIMIT, **options), sockets)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, nursery)
        async with await trio.open_tcp_stream(*sockets[0].getsockname()) as stream:
            await stream.send_all(HANDSHAKE)
            received = await stream.receive_some()
            assert received.startswith(b"HTTP/1.1 101 ")
            assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in received
            assert b"extensions" not in received
            yield Talk(stream)
        listener.stop_accepting()
        listener.abort()
        nursery.cancel_scope.cancel()


WORDS = "Hello-µ@ßöäüàá-UTF-8!!𐍈".encode()
GOODBYE = close(1000)
FINE: dict[str, tuple[list[Frame], list[Frame]]] = {
    "empty": ([Frame(TEXT)], [Frame(TEXT)]),
    "text": ([Frame(TEXT, WORDS)], [Frame(TEXT, WORDS)]),
    "binary": ([Frame(BINARY, b"abc")], [Frame(TEXT, b"abc")]),
    **{f"{size}_bytes": ([Frame(TEXT, b"*" * size)], [Frame(TEXT, b"*" * size)]) for size in (125, 126, 65535, 65536)},
    "fragments": (
        [Frame(TEXT, b"one ", False), Frame(CONTINUATION, b"two ", False), Frame(CONTINUATION, b"three")],
        [Frame(TEXT, b"one two three")],
    ),
    "empty_fragments": (
        [Frame(TEXT, b"", False), Frame(CONTINUATION, b"", False), Frame(CONTINUATION, b"x")],
        [Frame(TEXT, b"x")],
    ),
    "ping": ([Frame(PING, b"data")], [Frame(PONG, b"data")]),
    "empty_ping": ([Frame(PING)], [Frame(PONG)]),
    "largest_ping": ([Frame(PING, b"\xff" * 125)], [Frame(PONG, b"\xff" * 125)]),
    "ten_pings": ([Frame(PING, b"%d" % n) for n in range(10)], [Frame(PONG, b"%d" % n) for n in range(10)]),
    "unasked_pong": ([Frame(PONG, b"x"), Frame(PING, b"y")], [Frame(PONG, b"y")]),
    "ping_between_fragments": (
        [Frame(TEXT, b"one", False), Frame(PING, b"now"), Frame(CONTINUATION, b"two")],
        [Frame(PONG, b"now"), Frame(TEXT, b"onetwo")],
    ),
    "largest_message": ([Frame(TEXT, b"*" * LIMIT)], [Frame(TEXT, b"*" * LIMIT)]),
}


@pytest.mark.parametrize("case", FINE)
@pytest.mark.parametrize("chop", [0, 1, 7], ids=["whole", "bytes", "sevens"])
async def test_valid_frames_are_answered(case: str, chop: int) -> None:
    """In one piece, byte by byte, and in pieces that cut across frames; then a close frame on both sides."""
    sent, wanted = FINE[case]
    data = b"".join(frame.masked() for frame in (*sent, GOODBYE))
    if chop and len(data) > 20_000:
        chop *= 4_000
    with trio.fail_after(20):
        async with talking() as talk:
            for at in range(0, len(data), chop or len(data)):
                await talk.stream.send_all(data[at : at + (chop or len(data))])
            assert await talk.rest() == [*wanted, GOODBYE]


async def test_text_may_be_cut_within_a_character() -> None:
    """At any byte of it, in frames."""
    with trio.fail_after(20):
        async with talking() as talk:
            for at in range(len(WORDS) + 1):
                frames = (Frame(TEXT, WORDS[:at], False), Frame(CONTINUATION, WORDS[at:]))
                await talk.stream.send_all(b"".join(frame.masked() for frame in frames))
                assert await talk.frame() == Frame(TEXT, WORDS)


PROTOCOL_ERROR, INVALID_DATA, TOO_BIG = 1002, 1007, 1009
BROKEN: dict[str, tuple[bytes, int]] = {
    "not_masked": (Frame(TEXT, b"x").plain(), PROTOCOL_ERROR),
    **{f"reserved_bit_{bits}": (Frame(TEXT, b"x", reserved=bits).masked(), PROTOCOL_ERROR) for bits in (1, 2, 4)},
    **{f"reserved_opcode_{opcode}": (Frame(opcode, b"x").masked(), PROTOCOL_ERROR) for opcode in (3, 7, 11, 15)},
    "long_ping": (Frame(PING, b"x" * 126).masked(), PROTOCOL_ERROR),
    "fragmented_ping": (Frame(PING, b"x", False).masked(), PROTOCOL_ERROR),
    "nothing_to_continue": (Frame(CONTINUATION, b"x").masked(), PROTOCOL_ERROR),
    "continued_after_its_end": (
        Frame(TEXT, b"x", False).masked() + Frame(CONTINUATION, b"y").masked() + Frame(CONTINUATION, b"z").masked(),
        PROTOCOL_ERROR,
    ),
    "text_within_text": (Frame(TEXT, b"x", False).masked() + Frame(TEXT, b"y").masked(), PROTOCOL_ERROR),
    "not_utf_8": (Frame(TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80edited").masked(), INVALID_DATA),
    "cut_utf_8": (Frame(TEXT, WORDS[:-1]).masked(), INVALID_DATA),
    "too_long_utf_8": (Frame(TEXT, b"\xc0\xaf").masked(), INVALID_DATA),
    "not_utf_8_in_fragments": (
        Frame(TEXT, b"fine", False).masked() + Frame(CONTINUATION, b"\xf4\x90\x80\x80").masked(),
        INVALID_DATA,
    ),
    **{
        f"close_{code}": (close(code).masked(), PROTOCOL_ERROR)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)
    },
    "half_a_close_code": (Frame(CLOSE, b"x").masked(), PROTOCOL_ERROR),
    "close_reason_is_not_utf_8": (close(1000, b"\xff\xfe").masked(), INVALID_DATA),
    "close_reason_is_too_long": (Frame(CLOSE, b"\x03\xe8" + b"x" * 124).masked(), PROTOCOL_ERROR),
    "too_large": (Frame(TEXT, b"*" * (LIMIT + 1)).masked(), TOO_BIG),
    "too_large_in_fragments": (
        Frame(TEXT, b"*" * 40_000, False).masked() + Frame(CONTINUATION, b"*" * 40_000, False).masked(),
        TOO_BIG,
    ),
    "huge_is_told_at_once": (b"\x81\xff" + struct.pack("!Q", 1 << 40) + b"\0\0\0\0" + b"*" * (LIMIT + 1), TOO_BIG),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_invalid_frames_close_the_connection_with_a_code(case: str) -> None:
    """With the code for it."""
    data, code = BROKEN[case]
    with trio.fail_after(15):
        async with talking() as talk:
            await talk.stream.send_all(Frame(PING, b"first").masked() + data)
            assert await talk.frame() == Frame(PONG, b"first")
            while (goodbye := await talk.frame()) is not None and goodbye.opcode != CLOSE:
                assert goodbye.opcode == TEXT
    assert goodbye is not None
    assert (goodbye.opcode, struct.unpack("!H", goodbye.data[:2])[0]) == (CLOSE, code)


async def test_a_client_that_does_not_answer_a_close_frame_is_closed(mock_clock: trio.testing.MockClock) -> None:
    """After some seconds, whatever else it sends."""
    async with talking() as talk:
        await talk.stream.send_all(BROKEN["too_large"][0])
        goodbye = await talk.frame()
        assert goodbye is not None
        assert goodbye.opcode == CLOSE
        await talk.stream.send_all(Frame(TEXT, b"late").masked())
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(FAREWELL + 1)
        mock_clock.rate = 1
        with trio.fail_after(10):
            assert await talk.rest() == []


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999])
async def test_a_close_frame_is_echoed(code: int) -> None:
    with trio.fail_after(10):
        async with talking() as talk:
            await talk.stream.send_all(close(code, "für heute".encode()).masked() + Frame(TEXT, b"late").masked())
            frames = await talk.rest()
    assert [frame.opcode for frame in frames] == [CLOSE]
    assert frames[0].data[:2] == struct.pack("!H", code)


async def test_a_close_frame_without_a_code() -> None:
    with trio.fail_after(10):
        async with talking() as talk:
            await talk.stream.send_all(Frame(CLOSE).masked())
            assert [frame.opcode for frame in await talk.rest()] == [CLOSE]


async def test_a_silent_client_is_pinged() -> None:
    """Even if it sends messages in between."""
    with trio.fail_after(10):
        async with talking(ping_interval=0.05) as talk:
            for _ in range(3):
                assert (await talk.frame()) == Frame(PING)
                await talk.stream.send_all(Frame(PONG).masked())


async def test_frames_sent_with_the_handshake_are_read() -> None:
    """A client may send its first frames before it has our answer."""
    sockets = open_sockets("127.0.0.1", 0)
    listener = Listener(Edge(echo, write_timeout=5), sockets)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run, nursery)
            async with await trio.open_tcp_stream(*sockets[0].getsockname()) as stream:
                await stream.send_all(HANDSHAKE + Frame(TEXT, b"early").masked() + GOODBYE.masked())
                received = b"".join([data async for data in stream])
            nursery.cancel_scope.cancel()
    assert received.endswith(Frame(TEXT, b"early").plain() + GOODBYE.plain())
