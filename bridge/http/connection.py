"""One client connection: requests one after the other, each answered by the handler in this task.

Neither side can make the other wait for ever: head, body and writes have limits of time. What the kernel takes at once
is written without a lock, a scope or a checkpoint, because two hundred slow streams are ten thousand small writes a
second. One request may wait behind the one that is being answered; a connection on which more waits ends after the
answer that is then under way.
"""

from __future__ import annotations

import fcntl
import logging
import math
import socket
import ssl
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus

import orjson
import trio

from bridge.errors import InvalidRequest, PayloadTooLarge
from bridge.http.head import (
    END,
    HEAD_LIMIT,
    TOO_LONG,
    BadRequest,
    Chunks,
    Head,
    begins_a_request,
    fault_of_head,
    parse_head,
)
from bridge.http.request import ClientGone, Handler, Headers, Request
from bridge.http.watch import Watch

log = logging.getLogger("bridge.server")

READ = 64 * 1024
CHUNKED_AT_ONCE = 16 * 1024
"""Bytes of a chunked body that are decoded before others have their turn: of chunks of one byte, 3 ms of work."""
KEEP_ALIVE = 75.0
"""Seconds that a connection may stay open between two requests."""
HEAD_SECONDS = 10.0
"""How long the head of a request may take, from its first byte on; also the handshake of TLS."""
BODY_PATIENCE, BODY_RATE, BODY_SECONDS = 10.0, 16 * 1024, 300.0
"""A body must come at this many bytes a second, after so many seconds for its beginning, and in so many at most."""
DRAIN_SECONDS, DRAIN_BYTES = 5.0, 256 * 1024 * 1024
"""How much of a request is read and thrown away, after it has been answered."""

_STATUS = {each.value: b"HTTP/1.1 %d %b\r\n" % (each.value, each.phrase.encode()) for each in HTTPStatus}
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_DAYS = "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"
_MONTHS = "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"


@dataclass(slots=True)
class Edge:
    """What all connections of a listener share."""

    handler: Handler
    write_timeout: float
    max_message: int = 16 * 1024 * 1024
    """Bytes of one message on a WebSocket."""
    ping_interval: float = 15.0
    head_timeout: float = HEAD_SECONDS
    refused: Callable[[str], None] = lambda code: None
    """Hears of what is refused here, before any handler could count it."""
    tls: ssl.SSLContext | None = None
    watch: Watch = field(default_factory=Watch)
    is_stopping: bool = False
    _date: tuple[int, bytes] = (0, b"")

    def date(self) -> bytes:
        """The Date header, made once a second. Not by strftime, which speaks the language of the system."""
        now = int(time.time())
        if self._date[0] != now:
            at = time.gmtime(now)
            day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
            clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
            self._date = now, f"date: {day}, {at.tm_mday:02} {month} {at.tm_year} {clock} GMT\r\n".encode()
        return self._date[1]


class State(Enum):
    """What a connection is doing."""

    IDLE = 1
    """Waiting for a request."""
    HEAD = 2
    """Reading a request's head."""
    ANSWERING = 3
    """Running the handler: of a request, or of a WebSocket to its end."""
    OVER = 4


class Connection:
    """`run` serves it to its end; `close` ends it at any time."""

    __slots__ = (
        "_body_left",
        "_buffer",
        "_chunks",
        "_edge",
        "_fd",
        "_is_answered",
        "_is_chunked",
        "_is_gone",
        "_is_last",
        "_limit",
        "_must_continue",
        "_on_gone",
        "_response",
        "_sends_body",
        "_socket",
        "_version",
        "_waited",
        "_writing",
        "idle_since",
        "state",
    )

    def __init__(self, edge: Edge, connected: socket.socket) -> None:
        self._edge = edge
        self._socket = connected
        self._fd = connected.fileno()
        self._buffer = b""
        """What has been received and belongs to no request yet."""
        self._waited = False
        """Whether the whole request was in the buffer while another was answered."""
        self._is_last = False
        """No request follows the present one."""
        self._is_gone = False
        self._on_gone: Callable[[], None] | None = None
        self._writing: trio.Event | None = None
        """Set when the writer that waits for the kernel is done."""
        self._body_left = 0
        self._chunks: Chunks | None = None
        self.state = State.IDLE
        self.idle_since = trio.current_time()
        """Since when nothing is being answered, while that is so."""

    @property
    def is_idle(self) -> bool:
        """Whether it may be closed to make room for another. One with only part of a head is idle, too."""
        return self.state in (State.IDLE, State.HEAD)

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self._is_gone

    async def run(self) -> None:
        """Serve requests until either side ends it."""
        try:
            with trio.CancelScope(deadline=trio.current_time() + KEEP_ALIVE) as self._limit:
                if self._edge.tls is not None:
                    await self._shake_hands(self._edge.tls)
                await self._serve()
            if self._limit.cancelled_caught and self.state is State.HEAD and not self._edge.is_stopping:
                await self._refuse(408, "The head of the request did not come in time.")
            await self._end_our_side()
        except (OSError, trio.ClosedResourceError):
            pass  # the client has gone, or the listener has closed it
        finally:
            self.close()

    def close_if_idle(self) -> None:
        """The listener stops."""
        if self.is_idle:
            self._limit.cancel()

    def close(self) -> None:
        """End it now, whatever is under way."""
        if self.state is State.OVER:
            return
        self.state = State.OVER
        self._unwatch()
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._left()

    # Requests

    async def _serve(self) -> None:
        while not self._is_last and not self._edge.is_stopping:
            try:
                head = await self._read_head()
            except BadRequest as fault:
                await self._refuse(fault.status, fault.message)
                return
            if head is None:
                return
            self.state = State.ANSWERING
            self._limit.deadline = math.inf
            await self._answer(head)
            if self.state is State.OVER:
                return
            self.state = State.IDLE
            self.idle_since = trio.current_time()
            self._limit.deadline = self.idle_since + KEEP_ALIVE

    async def _read_head(self) -> Head | None:
        """The next request's head; None at the end of the connection."""
        received, seen = self._buffer, 0
        self._waited = bool(received)
        if received:
            # The other connections have their turn, however quickly this client asks.
            await trio.lowlevel.checkpoint()
        while True:
            if not seen and received.startswith(b"\r\n"):
                received = received[2:]  # some clients send a line end after a body
            end = received.find(END, max(0, seen - 3))
            if end >= 0 or len(received) > HEAD_LIMIT:
                break
            if received and received != b"\r":
                if (fault := fault_of_head(received, seen)) is not None:
                    raise BadRequest(fault)
                if not seen:
                    if not begins_a_request(received):
                        raise BadRequest
                    self.state = State.HEAD
                    self._limit.deadline = trio.current_time() + self._edge.head_timeout
                seen = len(received)
            more = await self._receive()
            if not more:
                return None
            received += more
            self._waited = False
        end += len(END)
        if not len(END) <= end <= HEAD_LIMIT:
            raise BadRequest(TOO_LONG, 431)
        self._buffer = received[end:]
        return parse_head(received[:end])

    async def _answer(self, head: Head) -> None:
        self._version = head.version
        self._response: tuple[int, Headers] | None = None
        self._is_answered = self._is_chunked = False
        self._sends_body = head.method != "HEAD"
        self._must_continue = head.expects_continue
        self._chunks = Chunks() if head.is_chunked else None
        self._body_left = head.length
        self._is_last = not head.keeps_alive
        request = Request(head, self, "http" if self._edge.tls is None else "https")
        if head.is_websocket:
            from bridge.http.websocket import WebSocket

            self._is_last = True
            request.socket = WebSocket(self, self._edge, request, head)
        try:
            await self._edge.handler(request)
        except Exception:
            log.exception("a request ended with an error")
        finally:
            self._unwatch()
            self._on_gone = None
        if request.socket is not None and request.socket.is_open:
            await request.socket.close(1011)
        elif request.status is None and not self._is_gone:
            # The handler answers whatever happens, so this is a mistake in the bridge.
            self._is_last = True
            self.start(500, [(b"content-length", b"0")])
            await self.send(b"", last=True)
        if not self._is_answered or not self._is_body_read or self._is_gone:
            self._is_last = True

    # The body

    @property
    def _is_body_read(self) -> bool:
        return self._body_left == 0 if self._chunks is None else self._chunks.done

    async def read_body(self, limit: int) -> bytes:
        """The whole body; see Channel."""
        if self._body_left > limit:
            raise _too_large(limit)
        if self._chunks is None and len(self._buffer) >= self._body_left:
            body, self._buffer = self._buffer[: self._body_left], self._buffer[self._body_left :]
            self._body_left = 0
        else:
            if self._must_continue and not self._buffer:
                await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await self._collect_body(limit)
        self._note_what_follows()
        return body

    async def _collect_body(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size, began = 0, trio.current_time()
        with trio.CancelScope() as too_slow:
            while not self._is_body_read:
                too_slow.deadline = began + min(BODY_PATIENCE + size / BODY_RATE, BODY_SECONDS)
                piece = await self._next_piece()
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                pieces.append(piece)
        if too_slow.cancelled_caught:
            raise InvalidRequest(
                f"The request's body came too slowly: at least {BODY_RATE // 1024} KiB a second are expected, "
                f"and the whole of it within {BODY_SECONDS:g} s.",
                code="timeout",
                http_status=408,
            )
        return b"".join(pieces)

    async def _next_piece(self) -> bytes:
        """Some more of the body. Raises ClientGone when there is no more to come."""
        if not self._buffer:
            self._waited = False
            self._buffer = await self._receive()
            if not self._buffer:
                self._left()
                raise ClientGone
        if self._chunks is None:
            piece, self._buffer = self._buffer[: self._body_left], self._buffer[self._body_left :]
            self._body_left -= len(piece)
            return piece
        data, later = self._buffer[:CHUNKED_AT_ONCE], self._buffer[CHUNKED_AT_ONCE:]
        try:
            pieces, behind = self._chunks.feed(data)
        except BadRequest as fault:
            self._is_last = True
            await self._refuse(fault.status, fault.message)
            self._left()
            raise ClientGone from None
        self._buffer = behind + later
        if later:
            await trio.lowlevel.checkpoint()
        return b"".join(pieces)

    def _note_what_follows(self) -> None:
        """The request is whole. One may wait behind it, unless it has waited itself."""
        if self._buffer and (self._waited or self._is_last):
            self._buffer = b""
            self._is_last = True

    async def _end_our_side(self) -> None:
        """Say that no more comes, and read what the client still sends.

        A connection that is closed with unread bytes is reset, and the client may lose its answer.
        """
        if self.state is State.OVER or self._is_gone:
            return
        with suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.unwrap()
            self._socket.shutdown(socket.SHUT_WR)
        drained = 0
        with trio.move_on_after(0 if self._is_body_read else DRAIN_SECONDS):
            while drained < DRAIN_BYTES and (data := await self._receive()):
                drained += len(data)

    # What happens while an answer is made

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """See Channel."""
        is_watching = self._on_gone is not None
        self._on_gone = callback
        if callback is None:
            self._unwatch()
        elif self._is_gone:
            callback()
        elif not is_watching and not self._is_answered:
            self._edge.watch.add(self._fd, self._readable)

    def _unwatch(self) -> None:
        self._edge.watch.remove(self._fd)

    def _readable(self) -> None:
        """Something comes while an answer is made: the next request, or the end."""
        try:
            data = self._socket.recv(READ)
        except _WOULD_BLOCK:
            return
        except OSError:
            data = b""
        if not data:
            self._left()
        elif not self._is_last:
            self._buffer += data
            if len(self._buffer) > HEAD_LIMIT:
                self._buffer = b""
                self._is_last = True

    def _left(self) -> None:
        """The client has gone."""
        self._is_gone = True
        self._unwatch()
        if self._on_gone is not None:
            self._on_gone()

    # The answer

    def start(self, status: int, headers: Headers) -> None:
        """See Channel."""
        self._response = status, headers

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """See Channel."""
        if self._response is not None:
            out = self._first(*self._response, data, last)
            self._response = None
        elif not self._sends_body:
            out = b""
        else:
            out = _chunk(data, last) if self._is_chunked else data
        if last:
            # From here on the client may send its next request, of any size.
            self._is_answered = True
            self._unwatch()
        if out and not self._is_gone:
            await self.write(out)

    def _first(self, status: int, headers: Headers, data: bytes, last: bool) -> bytes:
        """The head of the answer, and the first bytes of its body."""
        lines = [_STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status]
        has_length = False
        for name, value in headers:
            has_length = has_length or name == b"content-length"
            lines.append(b"%b: %b\r\n" % (name, value))
        if status in (204, 304):
            self._sends_body = False
        elif not has_length:
            self._is_chunked = self._version == b"1.1"
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self._is_body_read:
            self._skip_body()
        # A body without a length and chunks ends where the connection does.
        self._is_last = self._is_last or self._edge.is_stopping or not self._is_body_read or self._version == b"1.0"
        lines.append(self._edge.date())
        lines.append(b"connection: close\r\n\r\n" if self._is_last else b"\r\n")
        if self._sends_body:
            lines.append(_chunk(data, last) if self._is_chunked else data)
        return b"".join(lines)

    def _skip_body(self) -> None:
        """The answer does not depend on the body. If all of it is here, the connection can go on after it."""
        if self._chunks is None and len(self._buffer) >= self._body_left and not self._must_continue:
            self._buffer = self._buffer[self._body_left :]
            self._body_left = 0
            self._note_what_follows()

    async def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be read as a request, and end the connection."""
        self._edge.refused("bad_http")
        body = orjson.dumps(InvalidRequest(message, code="bad_http", http_status=status).body())
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
        await self.write(head % (_STATUS[status], len(body), self._edge.date()) + body)
        # The rest of it, whatever it is, may be on its way.
        self._chunks, self._body_left = None, 1

    # Bytes

    async def receive(self, until: float) -> bytes | None:
        """For a WebSocket: what comes next; empty at the end, None when nothing has come by then."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        with trio.move_on_at(until):
            return await self._receive()
        return None

    async def _receive(self) -> bytes:
        """What comes next; empty when nothing will."""
        has_waited = False
        while True:
            try:
                data = self._socket.recv(READ)
            except ssl.SSLWantWriteError:
                wait = trio.lowlevel.wait_writable
            except _WOULD_BLOCK:
                wait = trio.lowlevel.wait_readable
            except OSError:
                return b""
            else:
                if not has_waited:
                    # A client that is always ready must not hold up the others. What has been read is not to be lost.
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            has_waited = True
            try:
                await wait(self._socket)
            except trio.ClosedResourceError:
                return b""

    async def write(self, data: bytes) -> None:
        """Send it whole, or notice that the client has gone."""
        sent = 0
        if self._writing is None:
            try:
                sent = self._socket.send(data)
            except _WOULD_BLOCK:
                # TLS may have sent some of it, and must be given the same bytes again.
                sent = 0 if self._edge.tls is None else -1
            except OSError:
                self._left()
                return
            if sent == len(data):
                return
        if sent == 0:
            await trio.lowlevel.checkpoint_if_cancelled()
        while self._writing is not None:
            await self._writing.wait()
        if self._is_gone:
            return
        self._writing = trio.Event()
        try:
            # Part of it may be out: no other write comes between, and it cannot be cancelled.
            with trio.CancelScope(shield=True):
                await self._write_rest(memoryview(data)[max(0, sent) :])
        except (OSError, trio.ClosedResourceError):
            self._left()
        finally:
            self._writing.set()
            self._writing = None

    async def _write_rest(self, data: memoryview) -> None:
        while data:
            unread = _unread_by(self._socket)
            with trio.move_on_after(self._edge.write_timeout) as limit:
                await trio.lowlevel.wait_writable(self._socket)
            if limit.cancelled_caught:
                # The kernel has room again only when much has been read; a client that reads slowly is not cut off.
                if _unread_by(self._socket) >= unread:
                    self.close()
                    return
                continue
            try:
                data = data[self._socket.send(data) :]
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._socket)
            except _WOULD_BLOCK:
                pass

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        """Begin TLS."""
        self._limit.deadline = trio.current_time() + HEAD_SECONDS
        self._socket = wrapped = tls.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        while True:
            try:
                wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(wrapped)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(wrapped)
            else:
                self._limit.deadline = trio.current_time() + KEEP_ALIVE
                return


def _chunk(data: bytes, last: bool) -> bytes:
    out = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return out + b"0\r\n\r\n" if last else out


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {limit:,} bytes (PROXY_MAX_BODY, or the limit of this key)."
    )


def _unread_by(connection: socket.socket) -> int:
    """How many bytes of what was sent the peer's system has not taken yet; 0 where that cannot be known."""
    try:
        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # the latter for one that is closed
        return 0
