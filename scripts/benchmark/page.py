"""What the live page costs clients: a bridge with it and one without, measured in turns, and one that is watched."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager
from collections.abc import Iterator

from bridge_process import Bridge, bridge, message
from side_by_side import Run, Unsupported, Values
from streams import flood, latency
from table import Part

WATCHERS = 10
Pair = tuple[Bridge, Bridge]
"""Without the page, and with it."""


def one_stream(pair: Pair) -> Values:
    plain, paged = (flood(running, 1, 400_000) for running in pair)
    return {list(PAGE.rows)[0]: paged / plain}


def many_streams(pair: Pair) -> Values:
    plain, paged = (flood(running, 64, 4_000) for running in pair)
    return {list(PAGE.rows)[1]: paged / plain}


def watched(pair: Pair) -> Values:
    """The same bridge, watched and not."""
    _, running = pair
    _, alone, _ = latency(running, 64, 20, 60)
    with watching(running):
        _, seen, _ = latency(running, 64, 20, 60)
    return {list(PAGE.rows)[2]: seen / alone}


@contextmanager
def watching(running: Bridge) -> Iterator[None]:
    """Ten windows show the list of turns, and read what they get."""
    connections = [running.connect() for _ in range(WATCHERS)]
    readers = [threading.Thread(target=_read, args=(connection,)) for connection in connections]
    for connection, reader in zip(connections, readers, strict=True):
        connection.sendall(message("GET", "/page/api/events"))
        reader.start()
    try:
        yield
    finally:
        for connection, reader in zip(connections, readers, strict=True):
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()
            connection.close()


def _read(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def measure(run: Run) -> list[Values]:
    with ExitStack() as stack:
        pairs: list[Pair | None] = []
        for number, version in enumerate(run.versions):
            try:
                plain = stack.enter_context(bridge(version=version, PROXY_PAGE="off"))
                pairs.append((plain, stack.enter_context(bridge(version=version, PROXY_PAGE="on"))))
            except Unsupported as reason:
                run.lacks(number, reason)
                pairs.append(None)
        for pair in filter(None, pairs):
            for running in pair:
                flood(running, 1, 50_000)
        columns: list[Values] = [{} for _ in pairs]
        for measure_pair in (one_stream, many_streams, watched):
            found = run.medians(pairs, measure_pair, rounds=2 * run.rounds - 1)
            columns = [column | more for column, more in zip(columns, found, strict=True)]
        return columns


PAGE = Part(
    "live page",
    {
        "page without watchers, rate of deltas to that without the page, 1 stream": None,
        "page without watchers, rate of deltas to that without the page, 64 streams": None,
        "ten watchers, p99 of a delta to that without watchers, 64 streams of 20/s": None,
    },
    measure,
)
