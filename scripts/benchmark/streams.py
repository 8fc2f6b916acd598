"""Streams: deltas per CPU-second when they come as fast as they can, and how late each is when they come one by one."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable

from bridge_process import Bridge, bridges
from side_by_side import Run, Values, percentile
from table import Part, rate_at_least, time_at_most

MARK = b"event: response.output_text.delta\n"
END = b"\r\n0\r\n\r\n"
STAMP = re.compile(rb'"delta":"(\d+\.\d{6}) "')


def read_all(connections: list[socket.socket], take: Callable[[int, bytes], None]) -> None:
    """Read every answer to its end, and close the connections. `take` gets the number of a stream and what has come."""
    poll = select.epoll()
    by_file: dict[int, tuple[int, socket.socket]] = {}
    tails = [b""] * len(connections)
    for number, connection in enumerate(connections):
        by_file[connection.fileno()] = number, connection
        poll.register(connection, select.EPOLLIN)
    try:
        while by_file:
            ready = poll.poll(60)
            if not ready:
                raise TimeoutError("the bridge has sent nothing for a minute")
            for file, _ in ready:
                number, connection = by_file[file]
                data = connection.recv(1 << 20)
                take(number, data)
                tails[number] = (tails[number] + data[-len(END) :])[-len(END) :]
                if not data or tails[number] == END:
                    poll.unregister(file)
                    del by_file[file]
    finally:
        poll.close()
        for connection in connections:
            connection.close()


def flood(bridge: Bridge, streams: int, deltas: int) -> float:
    """Deltas per CPU-second; also proves that none is missing."""
    counts, tails = [0] * streams, [b""] * streams

    def take(number: int, data: bytes) -> None:
        # A mark may lie across two reads; the kept tail is one byte too short to hold a whole one.
        joined = tails[number] + data
        counts[number] += joined.count(MARK)
        tails[number] = joined[-(len(MARK) - 1) :]

    before = bridge.settled_cpu()
    read_all([bridge.ask(f"bench-flood-{streams}-{deltas}") for _ in range(streams)], take)
    used = bridge.settled_cpu() - before
    assert counts == [deltas] * streams, f"of {deltas} deltas each, there came {counts}"
    return streams * deltas / used


def flooded(row: str, streams: int, deltas: int) -> Callable[[Bridge], Values]:
    """Measures one row."""
    return lambda bridge: {row: flood(bridge, streams, deltas)}


def floods(run: Run) -> list[Values]:
    one, many, legacy_one, legacy_many = FLOODS.rows
    columns: list[Values] = [{} for _ in run.versions]
    for legacy, (one_row, many_row) in ((False, (one, many)), (True, (legacy_one, legacy_many))):
        with bridges(run, legacy=legacy) as running:
            for bridge in filter(None, running):
                flood(bridge, 1, 50_000)
            found = run.medians(
                running,
                flooded(one_row, 1, 400_000),
                flooded(many_row, 64, 4_000),
            )
        columns = [column | more for column, more in zip(columns, found, strict=True)]
    return columns


FLOODS = Part(
    "deltas per CPU-second",
    {
        "1 stream, deltas/CPU-s": rate_at_least(450_000),
        "64 streams, deltas/CPU-s": rate_at_least(380_000),
        "legacy, 1 stream, deltas/CPU-s": rate_at_least(180_000),
        "legacy, 64 streams, deltas/CPU-s": rate_at_least(50_000),
    },
    floods,
)


def latency(bridge: Bridge, streams: int, rate: int, count: int) -> tuple[float, float, float]:
    """(p50, p99) in ms between a delta's writing by the child and its reading by the client, and CPU µs per delta."""
    seen: list[tuple[float, float]] = []

    def take(number: int, data: bytes) -> None:
        now = time.monotonic()
        seen.extend((float(sent), now) for sent in STAMP.findall(data))

    before = bridge.settled_cpu()
    connections = [bridge.ask(f"bench-beat-{rate}-{count}") for _ in range(streams)]
    begun = time.monotonic() + 0.25
    read_all(connections, take)
    used = bridge.settled_cpu() - before
    # A stamp that lies across two reads is not seen; that is rare.
    assert len(seen) > 0.9 * streams * count, f"of {streams * count} deltas, there came {len(seen)}"
    # While the last streams are asked for, the first ones are not read yet.
    delays = [1000 * (came - sent) for sent, came in seen if sent > begun]
    return percentile(delays, 0.5), percentile(delays, 0.99), used / (streams * count) * 1e6


def latencies(run: Run) -> list[Values]:
    few = dict.fromkeys(list(LATENCY.rows)[:3])
    many = dict.fromkeys(list(LATENCY.rows)[3:])
    with bridges(run) as running:
        for bridge in filter(None, running):
            latency(bridge, 8, 20, 60)
        return run.medians(
            running,
            lambda bridge: dict(zip(few, latency(bridge, 8, 40, 120), strict=True)),
            lambda bridge: dict(zip(many, latency(bridge, 64, 20, 60), strict=True)),
        )


LATENCY = Part(
    "latency of a delta",
    {
        "latency of a delta p50, 8 streams of 40/s, ms": time_at_most(0.2),
        "latency of a delta p99, 8 streams of 40/s, ms": time_at_most(0.9),
        "8 streams of 40/s, CPU µs per delta": None,
        "latency of a delta p50, 64 streams of 20/s, ms": None,
        "latency of a delta p99, 64 streams of 20/s, ms": None,
        "64 streams of 20/s, CPU µs per delta": None,
    },
    latencies,
)
