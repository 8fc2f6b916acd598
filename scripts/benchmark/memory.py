"""Resident memory: at rest, per waiting stream and connection, after many requests, per stored response."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from bridge_process import Bridge, bridge, bridges, message
from clients import ask_many, is_whole_http
from request_costs import STREAMED, TURN, ask
from side_by_side import Run, Values, Version, progress
from table import Part, at_most

COUNT = 1_000


def asked(running: Bridge) -> list[socket.socket]:
    """Streams that wait for their first word."""
    connections = [running.ask("bench-idle") for _ in range(COUNT)]
    for connection in connections:
        connection.recv(1)
    return connections


def silent(running: Bridge) -> list[socket.socket]:
    """Connections that have never sent anything."""
    connections = [running.connect() for _ in range(COUNT)]
    # Connections are accepted in order: when a later one is answered, the others are there.
    with TURN.connect(running) as last:
        ask(last, TURN)
    return connections


def answered(running: Bridge) -> list[socket.socket]:
    """Connections that are kept after an answer."""
    connections = []
    for _ in range(COUNT):
        connections.append(STREAMED.connect(running))
        ask(connections[-1], STREAMED)
    return connections


def at_rest(version: Version) -> Values:
    """A fresh bridge that has answered one request, and what each kind of connection adds to a fresh one."""
    base, *rows = AT_REST.rows
    opening: tuple[Callable[[Bridge], list[socket.socket]], ...] = (silent, answered)
    values: Values = {}
    for row, open_ in zip(rows, opening, strict=True):
        with bridge(version=version) as running:
            ask_many(running, STREAMED, 1)
            before = running.rss()
            values.setdefault(base, before / 1e6)
            connections = open_(running)
            values[row] = (running.rss() - before) / COUNT / 1000
            for connection in connections:
                connection.close()
    return values


AT_REST = Part(
    "memory at rest",
    {
        "memory, MB": at_most(50),
        "memory per idle connection, never used, KB": None,
        "memory per idle connection, kept after an answer, KB": None,
    },
    lambda run: run.medians(run.versions, at_rest, rounds=min(3, run.rounds)),
)


TIDY_UP = 31.0
"""Seconds within which the bridge collects its garbage and gives free memory back: it does so twice a minute."""


def settled(*running: Bridge) -> list[int]:
    """Resident bytes without garbage, and without what waits for the disk: the least until the next tidy-up is over."""
    until, least = time.monotonic() + TIDY_UP, [one.rss() for one in running]
    while time.monotonic() < until:
        time.sleep(0.25)
        least = [min(before, one.rss()) for before, one in zip(least, running, strict=True)]
    return least


def waiting(version: Version) -> Values:
    """What a stream takes that waits for longer than a moment. The requests themselves leave garbage, for a while."""
    (row,) = STREAMS.rows
    with bridge(version=version) as running:
        ask_many(running, STREAMED, 1)
        (before,) = settled(running)
        connections = asked(running)
        (after,) = settled(running)
        for connection in connections:
            connection.close()
    return {row: (after - before) / COUNT / 1000}


STREAMS = Part(
    "memory of idle streams",
    {"memory per idle stream, KB": at_most(15)},
    lambda run: run.medians(run.versions, waiting, rounds=1),
)


def after_many(run: Run, first: int = 2_000, total: int = 100_000, step: int = 1_000) -> list[Values]:
    """Half of the requests streamed; all responses are stored, in a file."""
    most, growth = MANY.rows
    with bridges(run) as running:
        present = [one for one in running if one is not None]
        peaks = [0 for _ in present]
        before = [0 for _ in present]
        for done in range(0, total, step):
            if done == first:
                before = settled(*present)
            if done % 20_000 == 0:
                progress(f"  {done:,} of {total:,} requests")
            for one in present:
                ask_many(one, TURN, step // 2)
                ask_many(one, STREAMED, step // 2)
            peaks = [max(peak, one.rss()) for peak, one in zip(peaks, present, strict=True)]
        after = settled(*present)
    columns = iter(zip(peaks, before, after, strict=True))
    found: list[Values] = []
    for version in running:
        if version is None:
            found.append({})
        else:
            peak, least, last = next(columns)
            found.append({most: peak / 1e6, growth: (last - least) / 1e6})
    return found


MANY = Part(
    "memory after 100,000 requests",
    {
        "memory while 100,000 short turns are answered, the most, MB": None,
        "memory growth from 2,000 to 100,000 short turns, MB": at_most(25),
    },
    after_many,
)


def get(running: Bridge, path: str) -> bytes:
    """The body of a page."""
    with running.connect() as connection:
        connection.sendall(message("GET", path))
        data = connection.recv(1 << 16)
        while not is_whole_http(data):
            data += connection.recv(1 << 16)
    return data.partition(b"\r\n\r\n")[2]


def counted(running: Bridge) -> int:
    """Bytes that the store counts for one response: the response and its input."""
    with TURN.connect(running) as connection:
        connection.sendall(TURN.request)
        data = connection.recv(1 << 16)
        while not TURN.is_whole(data):
            data += connection.recv(1 << 16)
    id_ = json.loads(data.partition(b"\r\n\r\n")[2])["id"]
    items = json.loads(get(running, f"/v1/responses/{id_}/input_items"))["data"]
    return len(get(running, f"/v1/responses/{id_}")) + len(json.dumps(items, separators=(",", ":")))


def stored(version: Version, first: int = 8_000, count: int = 12_000) -> Values:
    """Requests before the first measurement: from then on cyclic garbage takes no more memory than before."""
    each, times = STORED.rows
    with bridge(version=version, PROXY_STORE="memory") as running:
        ask_many(running, TURN, first)
        before = running.rss()
        ask_many(running, TURN, count)
        grown = (running.rss() - before) / count
        return {each: grown / 1000, times: grown / counted(running)}


STORED = Part(
    "memory per stored response",
    {"PROXY_STORE=memory, KB per response": None, "PROXY_STORE=memory, times what the store counts": None},
    lambda run: run.medians(run.versions, stored, rounds=1),
)
