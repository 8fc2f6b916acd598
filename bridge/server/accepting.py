"""How connections come in, also while the system has no room for them; peers that vanish or read slowly."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import socket
import sys
import termios
from collections.abc import Awaitable, Callable

import trio

log = logging.getLogger("bridge.server")

PAUSE = 0.1
"""Seconds until the next attempt, after the system had no room for a connection."""
REMIND = 60.0
"""Seconds after which a shortage that lasts is worth another word."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


async def accept_from(
    listener: trio.SocketListener, handle: Callable[[trio.SocketStream], Awaitable[object]], nursery: trio.Nursery
) -> None:
    """Accept connections until cancelled; each is handled in `nursery`.

    Where the system has no room for one (too many open files), clients wait in the queue of the socket and it is
    tried again soon; those who are served notice nothing. trio's own loop would write a traceback each time.
    """
    told = -math.inf
    async with listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                if trio.current_time() - told >= REMIND:
                    told = trio.current_time()
                    log.error(
                        "no connection can be accepted: %s. Clients wait until there is room; "
                        "raise the limit of open files (ulimit -n).",
                        os.strerror(error.errno),
                    )
                await trio.sleep(PAUSE)
            else:
                nursery.start_soon(_run, stream, handle)


async def _run(stream: trio.SocketStream, handle: Callable[[trio.SocketStream], Awaitable[object]]) -> None:
    try:
        await handle(stream)
    finally:
        await trio.aclose_forcefully(stream)


def unread_by(connection: trio.socket.SocketType) -> int:
    """How many bytes of what was sent its peer's system has not taken yet; 0 where that cannot be known."""
    try:
        return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # the latter for one that is closed
        return 0


def notice_vanished_peers(listener: socket.socket, seconds: float) -> None:
    """Let connections of this socket break when their peer has been gone for `seconds` without a farewell.

    A machine that was switched off, or behind a router that forgot it, sends no end. What is written to it fits into
    the socket's buffer for hours, so that no limit on writes helps; by itself the system gives up after a quarter of
    an hour, and without anything to write never. On systems other than Linux the options have other names, or none.
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
