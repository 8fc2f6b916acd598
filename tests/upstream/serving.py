"""A scripted server for as long as a block: in the same event loop, or in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, TypeVar

import trio
from upstream.answers import Gate


class Server(Protocol):
    """Whatever serves."""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""


S = TypeVar("S", bound=Server)


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
