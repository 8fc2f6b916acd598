"""Accepts connections, also when the system or the bridge has no room for them."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import orjson
import trio

from bridge.errors import Overloaded
from bridge.http.connection import Connection
from bridge.http.wire import Edge

log = logging.getLogger("bridge.server")

PAUSE = 0.1
"""Seconds until the next attempt, after the system had no room for a connection."""
REMIND = 60.0
"""Seconds after which a shortage that lasts is logged again."""
MAX_TURNED_AWAY, TURN_AWAY_SECONDS = 64, 2.0
"""Clients that get a 503 at the same time when all connections are in use; more than that are closed silently."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_BODY = orjson.dumps(
    Overloaded("All connections of the bridge are in use (PROXY_MAX_CONNECTIONS). Try again in a moment.").body()
)
TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n" % len(_BODY)
) + _BODY


def notice_vanished_peers(listener: socket.socket, seconds: float) -> None:
    """Break connections of this socket when their peer has been unreachable for `seconds`.

    A machine that was switched off, or is behind a router that forgot it, sends no end. What is written to it fits into
    the socket's buffer for hours, so a limit on writes does not help; by default the system gives up after a quarter of
    an hour, and never if there is nothing to write. On systems other than Linux the options have other names, or none.
    """
    pause = max(1, min(15, math.floor(seconds / 4)))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", pause),
        ("TCP_KEEPINTVL", pause),
        ("TCP_USER_TIMEOUT", math.ceil(1000 * seconds)),
    ):
        if hasattr(socket, name):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # Small writes go out at once.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Listener:
    """Serves connections on sockets. `run` accepts until `stop_accepting`."""

    def __init__(self, edge: Edge, sockets: Sequence[socket.socket], *, max_connections: int = 900) -> None:
        self._edge = edge
        self._sockets = sockets
        for listener in sockets:
            notice_vanished_peers(listener, edge.write_timeout)
        self._max_connections = max_connections
        self._accepting = trio.CancelScope()
        self._open: set[Connection] = set()
        self._none_open = trio.Event()
        self._turned_away = 0
        self._warned = -math.inf

    async def run(self, nursery: trio.Nursery) -> None:
        """Accept connections; each is served in `nursery`."""
        nursery.start_soon(self._edge.watch.run)
        with self._accepting:
            async with trio.open_nursery() as loops:
                for listener in self._sockets:
                    loops.start_soon(self._accept, listener, nursery)

    def stop_accepting(self) -> None:
        """Close the sockets; idle connections are closed too, busy ones after their response."""
        self._accepting.cancel()
        self._edge.is_stopping = True
        for connection in list(self._open):
            connection.close_if_idle()

    async def wait_closed(self) -> None:
        """Wait until no connection is open (after `stop_accepting`)."""
        while self._open:
            self._none_open = trio.Event()
            await self._none_open.wait()

    def abort(self) -> None:
        """Close what is still open, even during a write that cannot be cancelled."""
        for connection in list(self._open):
            connection.close()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled.

        When the system has no room for a connection (too many open files), clients wait in the queue of the socket
        until the next attempt. trio's own loop would log a traceback each time.
        """
        try:
            while True:
                try:
                    connected, _ = listener.accept()
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(listener)
                except OSError as error:
                    if error.errno in _SHORTAGES:
                        self._warn(
                            logging.ERROR,
                            "no connection can be accepted: %s. Clients wait until there is room; "
                            "raise the limit of open files (ulimit -n).",
                            os.strerror(error.errno),
                        )
                        await trio.sleep(PAUSE)
                    else:  # the connection failed before it was accepted; see accept(2)
                        await trio.lowlevel.checkpoint()
                else:
                    connected.setblocking(False)
                    self._start(connected, nursery)
                    await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.notify_closing(listener)
            listener.close()

    def _start(self, connected: socket.socket, nursery: trio.Nursery) -> None:
        if len(self._open) < self._max_connections or self._make_room():
            connection = Connection(self._edge, connected)
            self._open.add(connection)
            nursery.start_soon(connection.run, self._ended)
        else:
            nursery.start_soon(self._turn_away, connected)

    def _ended(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._none_open.set()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False when all are busy.

        So a client cannot lock others out by holding connections without requests.
        """
        self._warn(
            logging.WARNING,
            "all %d connections are in use (PROXY_MAX_CONNECTIONS): closing idle ones for new ones",
            self._max_connections,
        )
        idle = [connection for connection in self._open if connection.is_idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since)
        self._open.discard(oldest)
        oldest.close()
        return True

    def _warn(self, level: int, message: str, about: object) -> None:
        """Log it, but not at every new connection."""
        if trio.current_time() - self._warned >= REMIND:
            self._warned = trio.current_time()
            log.log(level, message, about)

    async def _turn_away(self, connected: socket.socket) -> None:
        """Answer 503 and close the connection, within two seconds, whatever the client does."""
        self._edge.refused(Overloaded.code)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        if self._turned_away < MAX_TURNED_AWAY and self._edge.tls is None:
            self._turned_away += 1
            with trio.move_on_after(TURN_AWAY_SECONDS), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                # A connection that is closed with unread bytes is reset, and the client never sees why.
                await stream.receive_some()
                await stream.send_all(TURNED_AWAY)
                await stream.send_eof()
                while await stream.receive_some():
                    pass
            self._turned_away -= 1
        await trio.aclose_forcefully(stream)
