"""The watch over sockets whose requests are being answered."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from bridge.http.wire import EpollPoller, SelectorPoller, Watch


@pytest.mark.parametrize("poller", [EpollPoller, SelectorPoller])
async def test_a_socket_is_reported_until_it_is_removed(poller: type[EpollPoller | SelectorPoller]) -> None:
    """When there is something to read, and when the other side has ended; the same on systems without epoll."""
    watch = Watch(poller())
    ours, theirs = socket.socketpair()
    received = []
    arrived = trio.Event()

    def read() -> None:
        received.append(ours.recv(10))
        if not received[-1]:
            watch.remove(ours.fileno())
        arrived.set()

    with ours, theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            watch.add(ours.fileno(), read)
            theirs.send(b"more")
            await arrived.wait()
            watch.remove(ours.fileno())
            watch.remove(ours.fileno())
            theirs.send(b"unseen")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert received == [b"more"]
            arrived = trio.Event()
            watch.add(ours.fileno(), read)
            await arrived.wait()
            arrived = trio.Event()
            theirs.shutdown(socket.SHUT_WR)
            await arrived.wait()
            nursery.cancel_scope.cancel()
    assert received == [b"more", b"unseen", b""]
