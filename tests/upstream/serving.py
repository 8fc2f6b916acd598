"""A scripted server for as long as a block: in the same event loop, or in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any, Protocol, TypeVar

import trio
from upstream.answers import Answer, Gate
from upstream.connection import Connection, Request


class Server(Protocol):
    """Whatever serves."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""


S = TypeVar("S", bound=Server)
Reply = Answer | Callable[[Request], Answer]
"""An answer, or what makes one of the request."""


class ScriptedProvider(ABC):
    """A provider's state. In a thread, read it after `wait_for`; in trio, after `until`."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        """Requests for a response, in order of arrival; those that got 400 or 401 too."""
        self.token_requests: list[Request] = []
        self.faults: list[str] = []
        self.script: deque[Reply] = deque()
        self.token_script: deque[Answer] = deque()
        """Answers of the token endpoint that come before its own."""
        self.token_gate: Gate | None = None
        """Holds the token endpoint's own answers back, after the refresh token was used."""
        self._connections = count(1)
        self._changed = threading.Condition()
        self._waiting: list[trio.Event] = []

    @abstractmethod
    def reply_to(self, request: Request) -> Answer:
        """Count a request in; what it is answered."""

    def will(self, *replies: Reply) -> None:
        """Put answers at the end of the script."""
        self.script.extend(replies)

    @property
    def statuses(self) -> list[int | None]:
        """What each request was answered; None for a connection that just ended."""
        return [request.status for request in self.requests]

    @property
    def gone(self) -> list[Request]:
        """The requests whose client hung up before the end of the answer."""
        return [each for each in self.requests + self.token_requests if each.left_at is not None]

    def wait_for(self, predicate: Callable[[], Any], timeout: float = 10) -> None:
        """Block until the predicate holds. Raises AssertionError with the state if it never does. Not for trio."""
        with self._changed:
            assert self._changed.wait_for(predicate, timeout), f"not within {timeout} s: {self!r}"

    async def until(self, predicate: Callable[[], Any], timeout: float = 10) -> None:
        """The same in trio, in the server's own event loop."""
        with trio.move_on_after(timeout) as patience:
            while not predicate():
                self._waiting.append(event := trio.Event())
                await event.wait()
        assert not patience.cancelled_caught, f"not within {timeout} s: {self!r}"

    def note(self) -> None:
        """Wake those who wait: something has changed."""
        with self._changed:
            self._changed.notify_all()
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=128)
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connected, [listener])
            task_status.started()

    async def _connected(self, stream: trio.SocketStream) -> None:
        await Connection(self, stream, next(self._connections)).run()


@asynccontextmanager
async def served(server: S) -> AsyncIterator[S]:
    """In this event loop; leaving the block cuts whatever streams."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


@contextmanager
def served_in_thread(server: S, name: str) -> Iterator[S]:
    """In a thread of this name; leaving the block cuts whatever streams and joins the thread.

    What goes wrong in the thread is raised at the end of the block.
    """
    ready, stop = threading.Event(), Gate()
    trouble: list[BaseException] = []

    async def main() -> None:
        async with served(server):
            ready.set()
            await stop.passed()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            trouble.append(error)
            ready.set()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        stop.open()
        thread.join()
    if trouble:
        raise trouble[0]
