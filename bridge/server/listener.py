"""Connections as they are served: hypercorn's trio connection with four changes.

It speaks HTTP/1.1 alone (see `http11`), the head of a request has a time limit, and so has a write:
hypercorn shields its writes from cancellation, so without the limit a client that stops reading would keep its turn,
its slot and its memory for ever. What the kernel takes at once is written without all that.
"""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from bridge.errors import ConfigError, Overloaded
from bridge.server.accepting import REMIND, accept_from, notice_vanished_peers, unread_by
from bridge.server.bind_fault import bind_fault
from bridge.server.crowd import MAX_TURNED_AWAY, turn_away
from bridge.server.http11 import HEADER_LIMIT, Http11

log = logging.getLogger("bridge.server")

HEAD_SECONDS = 10.0
"""How long the head of a request may take, from its first byte on."""
KEEP_ALIVE = 75.0
BACKLOG = 512


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a host and port (0 picks a free one). Raises ConfigError with what to do."""
    try:
        # As bytes where that is the same: for a text Python loads the tables of all the world's letters.
        name = host.encode() if host.isascii() else host
        places = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"The host {host!r} is not known: {error}. Set --host to an address.") from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in places[:1]:
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            raise bind_fault(host, port, error) from error
        listener.listen(BACKLOG)
        listener.setblocking(False)
        sockets.append(listener)
    return sockets


class Connection(TCPServer):
    """One client connection on which neither side can let the other wait for ever."""

    protocol: Http11  # type: ignore[assignment]  # what it is there only wraps this

    def __init__(
        self,
        *arguments: Any,
        write_timeout: float,
        head_timeout: float,
        refused: Callable[[str], None],
    ) -> None:
        super().__init__(*arguments)
        self._write_timeout = write_timeout
        self._head_timeout = head_timeout
        self._refused = refused
        self._is_over = False
        self.idle_since: float | None = trio.current_time()
        """Since when nothing is being answered; None while something is."""

    async def run(self) -> None:
        try:
            client = parse_socket_addr(self.stream.socket.family, self.stream.socket.getpeername())
            server = parse_socket_addr(self.stream.socket.family, self.stream.socket.getsockname())
            async with TaskGroup() as tasks:
                self._task_group = tasks
                state = ConnectionState(self.state)
                self.protocol = Http11(
                    self.app, self.config, self.context, tasks, state, False, client, server, self.protocol_send
                )
                self.protocol.refused, self.protocol.answered = self._refused, self._answered
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
                # Nothing more will be asked here: hypercorn would wait for it all the same.
                self._is_over = True
                await self.idle_task.stop()
        except OSError:  # the client has gone before it said anything
            pass
        finally:
            await self._close()

    def _answered(self) -> None:
        # What is still to come of its request is not worth another client's place.
        self.idle_since = trio.current_time()

    async def _idle_timeout(self) -> None:
        """Close a connection on which nothing is asked, and one whose request does not come to its point."""
        with trio.move_on_after(self.config.keep_alive_timeout):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, self.context.terminated.wait, nursery.cancel_scope)
                await self.protocol.head_begun.wait()
                nursery.cancel_scope.cancel()
        too_slow = False
        if self.protocol.head_begun.is_set():
            with trio.move_on_after(self._head_timeout) as limit:
                await self.context.terminated.wait()
            too_slow = limit.cancelled_caught
        with trio.CancelScope(shield=True):
            if too_slow:
                await self.protocol.refuse_slow_head()
            await self._initiate_server_close()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self.idle_since = trio.current_time() if event.idle else None
        if not isinstance(event, RawData):
            if not (self._is_over and isinstance(event, Updated)):
                await super().protocol_send(event)
            return
        if not event.data:  # the end of a body of known length
            return
        await trio.lowlevel.checkpoint_if_cancelled()
        sent = self._send_at_once(event.data)
        if sent == len(event.data):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        try:
            # Whoever has sent the first part sends the rest: nobody comes between, and it cannot be cancelled.
            with trio.CancelScope(shield=True):
                async with self.send_lock:
                    is_out = await self._send_rest(memoryview(event.data)[sent:])
        except (OSError, trio.ClosedResourceError):
            pass  # the client has gone
        else:
            if is_out:
                return
            # Part of a chunk is out: the connection is beyond saving.
            await trio.aclose_forcefully(self.stream)
        await self.protocol.handle(Closed())

    async def _send_rest(self, data: memoryview) -> bool:
        """Send what the kernel did not take at once; False when the client has read nothing for too long."""
        connection = self.stream.socket
        while data:
            unread = unread_by(connection)
            with trio.move_on_after(self._write_timeout) as limit:
                data = data[await connection.send(data) :]
            # The kernel has room again only when much has been read: who reads slowly is not to be cut off.
            if limit.cancelled_caught and unread_by(connection) >= unread:
                return False
        return True

    def _send_at_once(self, data: bytes) -> int:
        """How much of it the kernel has taken without waiting: mostly all, and then no lock and no limit is needed."""
        if self.send_lock.locked():
            return 0
        try:
            return os.write(self.stream.socket.fileno(), data)
        except OSError:
            return 0  # full, or gone: sending it the other way tells


async def _cancel_after(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


class Listener:
    """Serves an ASGI application on sockets. `run` accepts until `stop_accepting`; connections live in `nursery`."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        *,
        write_timeout: float,
        max_connections: int = 900,
        max_message: int = 16 * 1024 * 1024,
        ping_interval: float = 15,
        head_timeout: float = HEAD_SECONDS,
        refused: Callable[[str], None] = lambda code: None,
    ) -> None:
        self._app = ASGIWrapper(app)
        self._sockets = sockets
        for listener in sockets:
            notice_vanished_peers(listener, write_timeout)
        self._write_timeout = write_timeout
        self._max_connections = max_connections
        self._head_timeout = head_timeout
        self._refused = refused
        self._context = WorkerContext(None)
        self._accepting = trio.CancelScope()
        self._open: dict[trio.SocketStream, Connection] = {}
        self._none_open = trio.Event()
        self._turned_away = 0
        self._told_full = -math.inf
        self._config = Config()
        self._config.h11_max_incomplete_size = HEADER_LIMIT
        self._config.keep_alive_timeout = KEEP_ALIVE
        self._config.websocket_max_message_size = max_message
        self._config.websocket_ping_interval = ping_interval
        self._config.accesslog = None
        self._config.errorlog = log
        self._config.include_server_header = False

    async def run(self, nursery: trio.Nursery) -> None:
        """Accept connections; each is handled in `nursery`."""
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener)) for listener in self._sockets]
        with self._accepting:
            async with trio.open_nursery() as loops:
                for listener in listeners:
                    loops.start_soon(accept_from, listener, self._handle, nursery)

    async def stop_accepting(self) -> None:
        """Close the sockets; idle connections are closed too, busy ones after their response."""
        self._accepting.cancel()
        await self._context.terminated.set()

    async def wait_closed(self) -> None:
        """Until no connection is open (after `stop_accepting`)."""
        while self._open:
            self._none_open = trio.Event()
            await self._none_open.wait()

    async def abort(self) -> None:
        """Close what is still open, also under a write that cannot be cancelled."""
        for stream in list(self._open):
            await trio.aclose_forcefully(stream)

    async def _handle(self, stream: trio.SocketStream) -> None:
        if len(self._open) >= self._max_connections and not await self._make_room():
            await self._turn_away(stream)
            return
        self._open[stream] = connection = Connection(
            self._app,
            self._config,
            self._context,
            ConnectionState({}),
            stream,
            write_timeout=self._write_timeout,
            head_timeout=self._head_timeout,
            refused=self._refused,
        )
        try:
            await connection.run()
        except Exception:
            # One connection's accident is never the listener's.
            log.exception("a connection ended with an error")
        finally:
            self._open.pop(stream, None)
            if not self._open:
                self._none_open.set()

    async def _make_room(self) -> bool:
        """Close the connection on which nothing has been answered for longest; False when all are busy.

        So nobody can keep others out by holding connections: who asks for nothing has the weakest claim.
        """
        if trio.current_time() - self._told_full >= REMIND:
            self._told_full = trio.current_time()
            log.warning(
                "all %d connections are taken (PROXY_MAX_CONNECTIONS): idle ones are closed for new ones",
                self._max_connections,
            )
        idle = [
            (connection.idle_since, stream)
            for stream, connection in self._open.items()
            if connection.idle_since is not None
        ]
        if not idle:
            return False
        _, oldest = min(idle, key=lambda each: each[0])
        del self._open[oldest]
        await trio.aclose_forcefully(oldest)
        return True

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        self._refused(Overloaded.code)
        if self._turned_away >= MAX_TURNED_AWAY:
            await trio.aclose_forcefully(stream)
            return
        self._turned_away += 1
        try:
            await turn_away(stream)
        finally:
            self._turned_away -= 1
