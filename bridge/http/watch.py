"""Clients that leave, or send more, during an answer: one task watches all their sockets.

A task per answer would cost a nursery, a spawn and a cancelled wait per request, about 45 µs. Here a socket is added to
our own poller, and trio waits for the poller's file descriptor.
"""

from __future__ import annotations

import select
import selectors
from collections.abc import Callable

import trio

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
