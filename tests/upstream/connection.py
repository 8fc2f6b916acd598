"""The HTTP of the scripted backend: h11 and a socket, with every fault that a connection can have."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from time import monotonic
from typing import Any, Protocol

import h11
import trio
from upstream.answers import CUT, RESET, Answer, Fault, Gate, Plain, Stream, Truncated


@dataclass
class Request:
    """One request as it arrived; names of headers in lower case."""

    path: str
    headers: dict[str, str]
    header_list: list[tuple[str, str]] = field(repr=False)
    raw: bytes = field(repr=False)
    body: Any
    connection: int
    """Its connection's number: requests with the same one used it one after the other."""
    arrived_at: float
    left_at: float | None = None
    """When the client was seen to have hung up before the end of the answer (`time.monotonic`)."""
    status: int | None = None
    """What it was answered."""
    written: bool = False
    """Whether all of the answer was written."""


class Backend(Protocol):
    """Who decides what is answered."""

    def reply_to(self, request: Request) -> Answer:
        """Count a request in; what it is answered."""

    def note(self) -> None:
        """Something has changed."""


class _Hangup(Exception):
    """The connection ends here: a scripted fault."""


class Connection:
    """One connection: h11 and a socket."""

    def __init__(self, backend: Backend, stream: trio.SocketStream, number: int) -> None:
        self.backend, self.stream, self.number = backend, stream, number
        self.h11 = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        """Answer one request after the other, until one side closes."""
        try:
            while (request := await self._read()) is not None:
                await self._answer(request, self.backend.reply_to(request))
                if self.h11.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    break
                self.h11.start_next_cycle()
        except (_Hangup, trio.BrokenResourceError, h11.RemoteProtocolError):
            pass  # the client's errors are seen in `gone`, and by the client itself
        finally:
            self.stream.socket.close()  # at once: a graceful close would wait for nothing that matters here

    async def _read(self) -> Request | None:
        """The next request; None when the client has closed."""
        head, body = None, bytearray()
        while True:
            event = self.h11.next_event()
            if event is h11.NEED_DATA:
                self.h11.receive_data(await self.stream.receive_some(1 << 20))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return self._request(head, bytes(body))
            else:
                return None

    def _request(self, head: h11.Request, raw: bytes) -> Request:
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers]
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        path = head.target.decode() if head.method == b"POST" else f"{head.method.decode()} {head.target.decode()}"
        return Request(path, dict(headers), headers, raw, body, self.number, monotonic())

    async def _answer(self, request: Request, reply: Answer) -> None:
        """Send it, and look all the while whether the client is still there."""
        ended: Fault | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    data = b""
                if data:
                    self.h11.receive_data(data)
                elif not request.written:
                    request.left_at = monotonic()
                    self.backend.note()
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await self._send(request, reply)
            except _Hangup as hangup:
                ended = hangup.args[0]
            except trio.BrokenResourceError:
                ended = CUT
                request.left_at = request.left_at or monotonic()
            nursery.cancel_scope.cancel()
        self.backend.note()
        if ended == RESET:
            self.stream.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        if ended or request.left_at is not None:
            raise _Hangup

    async def _send(self, request: Request, reply: Answer) -> None:
        if isinstance(reply, str):
            request.written = True
            raise _Hangup(reply)
        if reply.gate is not None:
            await self._pass(reply.gate)
        request.status = reply.status if isinstance(reply, Plain) else 200
        if isinstance(reply, Stream):
            return await self._stream(request, reply)
        headers = [*reply.headers.items(), ("content-length", str(len(reply.body)))]
        request.written = True
        await self._write(
            h11.Response(status_code=reply.status, headers=headers), h11.Data(data=reply.body), h11.EndOfMessage()
        )
        return None

    async def _stream(self, request: Request, reply: Stream) -> None:
        encoding = {"content-encoding": "gzip"} if reply.gzip else {}
        headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **encoding, **reply.headers}
        await self._write(h11.Response(status_code=200, headers=list(headers.items())))
        pieces = list(reply.pieces())
        for left, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            # Before it is written: a client may hang up the moment it has read the last event.
            request.written = left == 0 and isinstance(piece, bytes)
            if isinstance(piece, bytes):
                await self._write(h11.Data(data=piece))
            elif isinstance(piece, Gate):
                await self._pass(piece)
            elif isinstance(piece, Truncated):
                request.written = True
                chunk = self.h11.send(h11.Data(data=reply.encode(piece.event)))
                assert chunk is not None
                await self.stream.send_all(chunk[: len(chunk) // 2])
                raise _Hangup(CUT)
            else:
                request.written = True
                raise _Hangup(piece)
        request.written = True
        await self._write(h11.EndOfMessage())

    async def _pass(self, gate: Gate) -> None:
        gate.held += 1
        self.backend.note()
        await gate.passed()

    async def _write(self, *events: h11.Event) -> None:
        await self.stream.send_all(b"".join(self.h11.send(event) or b"" for event in events))
