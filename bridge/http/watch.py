"""Clients that leave, or say more, while they are answered: one task watches all their sockets.

A task per answer would cost a nursery, a spawn and a cancelled wait per request, about 45 µs. Here a socket is added to
a poller of our own, whose file trio waits for.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

MOST = 256
"""Sockets whose callbacks run before other tasks have their turn."""


class Watch:
    """`add` a socket's file, and its callback runs whenever there is something to read or an end, until `remove`."""

    def __init__(self) -> None:
        self._poller = _Epoll() if hasattr(select, "epoll") else _Kqueue()
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


class _Epoll:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fileno, self.close, self.remove = self._epoll.fileno, self._epoll.close, self._epoll.unregister

    def add(self, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP)

    def ready(self) -> list[int]:
        return [fd for fd, _ in self._epoll.poll(0, MOST)]


class _Kqueue:
    """The same on macOS and the BSDs."""

    def __init__(self) -> None:
        self._kqueue = select.kqueue()  # type: ignore[attr-defined]
        self.fileno, self.close = self._kqueue.fileno, self._kqueue.close

    def add(self, fd: int) -> None:
        self._change(fd, select.KQ_EV_ADD)  # type: ignore[attr-defined]

    def remove(self, fd: int) -> None:
        self._change(fd, select.KQ_EV_DELETE)  # type: ignore[attr-defined]

    def ready(self) -> list[int]:
        return [event.ident for event in self._kqueue.control(None, MOST, 0)]

    def _change(self, fd: int, flags: int) -> None:
        self._kqueue.control([select.kevent(fd, select.KQ_FILTER_READ, flags)], 0)  # type: ignore[attr-defined]
