"""One client connection: requests one after the other, each answered by the handler in this task.

Neither side can make the other wait forever: head, body and writes have time limits. One request may wait behind the
one that is being answered; a connection on which more waits ends after the current answer.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson
import trio

from bridge.errors import InvalidRequest, PayloadTooLarge
from bridge.http.head import END, HEAD_LIMIT, TOO_LONG, BadRequest, Chunks, Head, check_part_of_head, parse_head
from bridge.http.request import ClientGone, Headers, Request
from bridge.http.wire import HEAD_SECONDS, READ, WOULD_BLOCK, Wire

log = logging.getLogger("bridge.server")

CHUNKED_AT_ONCE = 16 * 1024
"""Bytes of a chunked body that are decoded before other tasks run: 3 ms of work if each chunk is one byte."""
KEEP_ALIVE = 75.0
"""Seconds that a connection may stay open between two requests."""


BODY_PATIENCE, BODY_RATE, BODY_SECONDS = 10.0, 16 * 1024, 300.0
"""A body must arrive at this many bytes per second after an initial delay, and within a total time."""
DRAIN_SECONDS, DRAIN_BYTES = 5.0, 256 * 1024 * 1024
"""How much of a request is read and discarded after it has been answered."""

_PHRASES = {
    101: "Switching Protocols", 200: "OK", 202: "Accepted", 204: "No Content", 304: "Not Modified", 400: "Bad Request",
    401: "Unauthorized", 402: "Payment Required", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    406: "Not Acceptable", 408: "Request Timeout", 409: "Conflict", 410: "Gone", 413: "Content Too Large",
    415: "Unsupported Media Type", 422: "Unprocessable Content", 426: "Upgrade Required", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout", 505: "HTTP Version Not Supported",
}  # fmt: skip
"""Those of `http.HTTPStatus` that are sent; importing all of them would take 130 kB. Others go without a phrase."""
_STATUS = {status: b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode()) for status, phrase in _PHRASES.items()}


@dataclass(slots=True, eq=False, repr=False)
class Connection(Wire):
    """`run` serves the connection to its end; `close` ends it at any time."""

    is_idle: bool = True
    """Whether it may be closed to make room for another. One with only part of a head is idle, too."""
    idle_since: float = field(default_factory=trio.current_time)
    _limit: trio.CancelScope | None = None
    """The time limit of the next request's head; None while a request is answered."""
    _waited: bool = False
    """Whether the whole request was in the buffer while another was answered."""
    _is_last: bool = False
    """No request follows the present one."""
    _version: bytes = b""
    _body_left: int = 0
    _chunks: Chunks | None = None
    _must_continue: bool = False
    _response: tuple[int, Headers] | None = None
    _sends_body: bool = True
    _is_chunked: bool = False
    _is_answered: bool = False

    def close_if_idle(self) -> None:
        """Called when the listener stops."""
        if self._limit is not None:
            self._limit.cancel()

    # Requests

    async def run(self, ended: Callable[[Connection], None] = lambda connection: None) -> None:
        """Serve requests until either side ends the connection, then call `ended`."""
        try:
            while not self._is_last and not self._edge.is_stopping:
                request = await self._next_request()
                if request is None:
                    break
                try:
                    await self._edge.handler(request)
                except Exception:
                    log.exception("a request ended with an error")
                finally:
                    self._unwatch()
                    self._on_gone = None
                await self._finish(request)
                self.is_idle, self.idle_since = True, trio.current_time()
            await self._end_our_side()
        except (OSError, trio.ClosedResourceError):
            pass  # the client has left, or the listener has closed the connection
        except Exception:
            # A bug that one connection meets must not end the listener.
            log.exception("a connection ended with an error")
        finally:
            self.close()
            ended(self)

    async def _next_request(self) -> Request | None:
        """The next request; None at the end of the connection, or after a refusal."""
        head: Head | None = None
        try:
            # The scope ends before the handler runs: an open one would cost each waiting stream 700 bytes.
            with trio.CancelScope(deadline=trio.current_time() + KEEP_ALIVE) as limit:
                self._limit = limit
                if self._edge.tls is not None and not isinstance(self._socket, ssl.SSLSocket):
                    limit.deadline = trio.current_time() + HEAD_SECONDS
                    await self._shake_hands(self._edge.tls)
                    limit.deadline = trio.current_time() + KEEP_ALIVE
                head = await self._read_head(limit)
        except BadRequest as fault:
            await self._refuse(fault.status, fault.message)
        finally:
            self._limit = None
        if head is not None:
            return self._begin(head)
        if limit.cancelled_caught and self._buffer.strip() and not self._edge.is_stopping:
            await self._refuse(408, "The head of the request did not arrive in time.")
        return None

    async def _read_head(self, limit: trio.CancelScope) -> Head | None:
        """The next request's head; None at the end of the connection."""
        seen, may_skip = 0, True
        self._waited = bool(self._buffer)
        if self._waited:
            # Other connections get their turn, however quickly this client sends.
            await trio.lowlevel.checkpoint()
        while True:
            if may_skip and self._buffer.startswith(b"\r\n"):
                # Some clients send a line end after a body. One is skipped, however the bytes arrive: how a stream is
                # framed must not depend on its packets.
                self._buffer, may_skip = self._buffer[2:], False
            end = self._buffer.find(END, max(0, seen - 3))
            if end >= 0 or len(self._buffer) > HEAD_LIMIT:
                break
            if self._buffer and self._buffer != b"\r":
                check_part_of_head(self._buffer, seen)
                if not seen:
                    limit.deadline = trio.current_time() + self._edge.head_timeout
                seen = len(self._buffer)
            more = await self._receive()
            if not more:
                return None
            self._buffer += more
            self._waited = False
        end += len(END)
        if not len(END) <= end <= HEAD_LIMIT:
            raise BadRequest(TOO_LONG, 431)
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        return parse_head(raw)

    def _begin(self, head: Head) -> Request:
        self.is_idle = False
        self._version = head.version
        self._response = None
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
            request.socket = WebSocket(self, self._edge, request)
        return request

    async def _finish(self, request: Request) -> None:
        """What is left to do after the handler has returned."""
        if request.socket is not None and request.socket.is_open:
            await request.socket.close(1011)
        elif request.status is None and not self.is_gone:
            # The handler answers whatever happens, so this is a bug in the bridge.
            self._is_last = True
            self.start(500, [(b"content-length", b"0")])
            await self.send(b"", last=True)
        if not self._is_answered or not self._is_body_read or self.is_gone:
            self._is_last = True

    # The body

    @property
    def _is_body_read(self) -> bool:
        return self._body_left == 0 if self._chunks is None else self._chunks.done

    async def read_body(self, limit: int) -> bytes:
        if self._body_left > limit:
            raise _too_large(limit)
        if self._chunks is None and len(self._buffer) >= self._body_left:
            body, self._buffer = self._buffer[: self._body_left], self._buffer[self._body_left :]
            self._body_left = 0
        else:
            if self._must_continue and not self._buffer:
                await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await self._collect_body(limit)
        self._limit_what_follows()
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
                f"The request body arrived too slowly. At least {BODY_RATE // 1024} KiB per second are required, "
                f"and all of it within {BODY_SECONDS:g} s.",
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

    def _limit_what_follows(self) -> None:
        """The request is complete. One may wait behind it, unless it has waited itself."""
        if self._buffer and (self._waited or self._is_last):
            self._buffer = b""
            self._is_last = True

    async def _end_our_side(self) -> None:
        """Send the end, and read what the client still sends.

        A connection that is closed with unread bytes is reset, and the client may lose its answer.
        """
        if self.is_gone:
            return
        with suppress(OSError, ValueError):
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.unwrap()
            self._socket.shutdown(socket.SHUT_WR)
        drained = 0
        with trio.move_on_after(0 if self._is_body_read else DRAIN_SECONDS):
            while drained < DRAIN_BYTES and (data := await self._receive()):
                drained += len(data)

    # What happens during an answer

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        is_watching = self._on_gone is not None
        self._on_gone = callback
        if callback is None:
            self._unwatch()
        elif self.is_gone:
            callback()
        elif not is_watching and not self._is_answered:
            self._edge.watch.add(self._socket.fileno(), self._readable)

    def _readable(self) -> None:
        """Something arrives during an answer: the next request, or the end."""
        try:
            data = self._socket.recv(READ)
        except WOULD_BLOCK:
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

    # The answer

    def start(self, status: int, headers: Headers) -> None:
        self._response = status, headers

    async def send(self, data: bytes, *, last: bool = False) -> None:
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
        if out and not self.is_gone:
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
        """The answer does not depend on the body. If all of it has arrived, the connection can continue after it."""
        if self._chunks is None and len(self._buffer) >= self._body_left and not self._must_continue:
            self._buffer = self._buffer[self._body_left :]
            self._body_left = 0
            self._limit_what_follows()

    async def _refuse(self, status: int, message: str) -> None:
        """Answer what cannot be read as a request, and end the connection."""
        self._edge.refused("bad_http")
        body = orjson.dumps(InvalidRequest(message, code="bad_http", http_status=status).body())
        head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
        await self.write(head % (_STATUS[status], len(body), self._edge.date()) + body)
        # More of it may be on its way.
        self._chunks, self._body_left = None, 1


def _chunk(data: bytes, last: bool) -> bytes:
    out = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return out + b"0\r\n\r\n" if last else out


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body is larger than {limit:,} bytes (PROXY_MAX_BODY, or the limit of this key)."
    )
