"""A client's socket, with or without TLS: reads, whole writes, and a client that may leave at any time.

What the kernel accepts immediately is written without a lock, a scope or a checkpoint, because two hundred slow streams
are ten thousand small writes a second.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from bridge.http.connection import Edge

READ = 64 * 1024
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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
