"""A client's socket, with or without TLS: reads, whole writes, and a client that may leave at any time.

What the kernel accepts immediately is written without a lock, a scope or a checkpoint, because two hundred slow streams
are ten thousand small writes a second.

One task watches all sockets for clients that leave, or send more, during an answer. A task per answer would cost a
nursery, a spawn and a cancelled wait per request, about 45 µs. Here a socket is added to our own poller, and trio waits
for the poller's file descriptor.
"""

from __future__ import annotations

import fcntl
import select
import selectors
import socket
import ssl
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate

import trio

from bridge.http.request import Handler

READ = 64 * 1024
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

HEAD_SECONDS = 10.0
"""The time limit for the head of a request, from its first byte, and for a TLS handshake."""
MOST = 256
"""Sockets whose callbacks run before other tasks get their turn."""


class Watch:
    """Calls back whenever a socket has something to read or has ended, from `add` to `remove`."""

    def __init__(self, poller: EpollPoller | SelectorPoller | None = None) -> None:
        self._poller = poller or (EpollPoller() if hasattr(select, "epoll") else SelectorPoller())
        self._callbacks: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        self._callbacks[fd] = callback
        self._poller.add(fd)

    def remove(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._poller.remove(fd)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poller.fileno())
                for fd in self._poller.ready():
                    if (callback := self._callbacks.get(fd)) is not None:
                        callback()
        finally:
            self._poller.close()


class EpollPoller:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fileno, self.close, self.remove = self._epoll.fileno, self._epoll.close, self._epoll.unregister

    def add(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def ready(self) -> list[int]:
        return [fd for fd, _ in self._epoll.poll(0, MOST)]


class SelectorPoller:
    """The same on systems without epoll: macOS and the BSDs. It needs more time per socket."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.fileno: Callable[[], int] = self._selector.fileno
        self.close, self.remove = self._selector.close, self._selector.unregister

    def add(self, fd: int) -> None:
        self._selector.register(fd, selectors.EVENT_READ)

    def ready(self) -> list[int]:
        return [key.fd for key, _ in self._selector.select(0)[:MOST]]


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
    """Called with the code of an error that is sent before any handler could count it."""
    tls: ssl.SSLContext | None = None
    watch: Watch = field(default_factory=Watch)
    is_stopping: bool = False
    _date: tuple[int, bytes] = (0, b"")

    def date(self) -> bytes:
        """The Date header, built once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date[1]


@dataclass(slots=True, eq=False, repr=False)
class Wire:
    """The socket of a connection."""

    _edge: Edge
    _socket: socket.socket
    _buffer: bytes = b""
    """What was received and belongs to no request yet."""
    _is_closed: bool = False
    is_gone: bool = False
    """Whether the client has left."""
    _on_gone: Callable[[], None] | None = None
    _writing: trio.Event | None = None
    """Set when the writer that waits for the kernel is done."""

    def close(self) -> None:
        """End the connection now, even during a write that cannot be cancelled."""
        if not self._is_closed:
            self._is_closed = True
            self._unwatch()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
            self._left()

    def _left(self) -> None:
        """The client has left."""
        self.is_gone = True
        self._unwatch()
        if self._on_gone is not None:
            self._on_gone()

    def _unwatch(self) -> None:
        self._edge.watch.remove(self._socket.fileno())

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        self._socket = wrapped = tls.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        while True:
            try:
                return wrapped.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(wrapped)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(wrapped)

    async def receive(self, until: float) -> bytes | None:
        """For a WebSocket: what comes next; empty at the end, None if nothing has come by then."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        with trio.move_on_at(until):
            return await self._receive()
        return None

    async def _receive(self) -> bytes:
        """What comes next; empty at the end."""
        has_waited = False
        while True:
            try:
                data = self._socket.recv(READ)
            except ssl.SSLWantWriteError:
                wait = trio.lowlevel.wait_writable
            except WOULD_BLOCK:
                wait = trio.lowlevel.wait_readable
            except OSError:
                return b""
            else:
                if not has_waited:
                    # A client that always sends must not hold up the others. What has been read must not be lost.
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            has_waited = True
            try:
                await wait(self._socket)
            except trio.ClosedResourceError:
                return b""

    async def write(self, data: bytes) -> None:
        """Send all of it, or notice that the client has left."""
        sent = 0
        if self._writing is None:
            try:
                sent = self._socket.send(data)
            except WOULD_BLOCK:
                # TLS may have sent some of it, and must be given the same bytes again.
                sent = -1 if isinstance(self._socket, ssl.SSLSocket) else 0
            except OSError:
                self._left()
                return
            if sent == len(data):
                return
        if sent == 0:
            await trio.lowlevel.checkpoint_if_cancelled()
        while self._writing is not None:
            await self._writing.wait()
        if self.is_gone:
            return
        self._writing = trio.Event()
        try:
            # Part of it may be out: no other write may come between, so it cannot be cancelled.
            with trio.CancelScope(shield=True):
                await self._write_rest(memoryview(data)[max(0, sent) :])
        except (OSError, trio.ClosedResourceError):
            self._left()
        finally:
            self._writing.set()
            self._writing = None

    async def _write_rest(self, data: memoryview) -> None:
        while data:
            unread = self._unread()
            with trio.move_on_after(self._edge.write_timeout) as limit:
                await trio.lowlevel.wait_writable(self._socket)
            if limit.cancelled_caught:
                # The kernel reports room only after much has been read. A client that reads slowly is not cut off.
                if self._unread() >= unread:
                    self.close()
                    return
                continue
            try:
                data = data[self._socket.send(data) :]
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._socket)
            except WOULD_BLOCK:
                pass

    def _unread(self) -> int:
        """Bytes that were sent and that the client's system has not acknowledged; 0 where that cannot be known."""
        try:
            return int.from_bytes(fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except (OSError, ValueError):  # ValueError: the socket is closed
            return 0
