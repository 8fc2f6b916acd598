"""Many streams read by one process on raw sockets: every event's number and its way's time. Prints its numbers as JSON.

The child stamps each event with its number and the time at which it writes it; both processes read the same monotonic
clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import selectors
import socket
import time
from array import array
from dataclasses import dataclass

from bridge_process import message
from stamps import NUMBERS, ROUND, TICK, TIMES

EVENT = re.compile(rb'"delta":"(\w{3})(\w{2})"')
NUMBER_OF = {code: number for number, code in enumerate(NUMBERS)}
TIME_OF = {code: number * TICK for number, code in enumerate(TIMES)}
END = b"event: response.completed\n"
APART = 0.05
"""Seconds between the beginnings of two streams, at most."""


@dataclass(slots=True)
class Stream:
    """One answer: the number that comes next, when the last event came, and the piece of one that is not whole yet."""

    connection: socket.socket
    next: int = 0
    heard: float = 0.0
    tail: bytes = b""
    ended: bool = False


class Load:
    """All streams, and what they show."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self.streams: list[Stream] = []
        self.delays = array("d")
        self.arrivals = array("d")
        self.disorder = 0

    def open(self, model: str, *, buffer: int | None = None) -> Stream:
        """Begin a stream; one with a `buffer` of its own is never read."""
        connection = socket.socket()
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.connect(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = {"model": model, "input": "hi", "stream": True, "store": False}
        connection.sendall(message("POST", "/v1/responses", body))
        stream = Stream(connection)
        if buffer is None:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, stream)
            self.streams.append(stream)
        return stream

    def read(self, until: float) -> None:
        """Read all that comes, up to this time or until every stream has ended."""
        while self._selector.get_map() and time.monotonic() < until:
            for key, _ in self._selector.select(min(0.5, max(0.0, until - time.monotonic()))):
                self._take(key.data)

    def _take(self, stream: Stream) -> None:
        data = stream.connection.recv(1 << 18)
        now = time.monotonic()
        if not data:
            self._selector.unregister(stream.connection)
            return
        data = stream.tail + data
        end = 0
        # After a silence of a round or more the age of the events is unknown: assume the length of the silence.
        silence = now - stream.heard if stream.heard else 0.0
        for found in EVENT.finditer(data):
            number, end = NUMBER_OF[found[1]], found.end()
            if number != stream.next:
                self.disorder += 1
            stream.next = number + 1
            self.delays.append(silence if silence >= ROUND else (now - TIME_OF[found[2]]) % ROUND)
            self.arrivals.append(now)
            stream.heard = now
        if END in data:
            stream.ended = True
            self._selector.unregister(stream.connection)
            stream.connection.close()
        stream.tail = data[max(end, len(data) - 300) :]

    def delays_between(self, start: float, end: float) -> list[float]:
        """How long events took that came in this time, sorted."""
        return sorted(delay for delay, at in zip(self.delays, self.arrivals, strict=True) if start <= at < end)


def milliseconds(delays: list[float], share: float) -> float:
    """A percentile of what `delays_between` gives; 0 for no values."""
    return 1000 * delays[min(len(delays) - 1, int(len(delays) * share))] if delays else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("events", type=int, help="how many events a stream has, 50 a second")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--stuck", default="", help="a model that is asked in the middle by a client that never reads")
    parser.add_argument("--core", type=int, help="the core to run on, and no other")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    gc.disable()  # what would look like a late event; little garbage is in circles
    load = Load(options.port)
    began, seconds = time.monotonic(), options.events / 50
    apart = min(APART, seconds / 4 / options.streams)  # of a short run, too, most is with all streams
    for _ in range(options.streams):
        # One after the other, as clients come: two hundred ends at once are a load of another kind.
        load.open(f"bench-pace-{options.events}")
        load.read(time.monotonic() + apart)
    warm, middle, over = time.monotonic(), began + seconds / 2, began + seconds
    stuck = None
    if options.stuck:
        load.read(middle)
        stuck = load.open(options.stuck, buffer=4096)
    load.read(over + 60)
    everything = load.delays_between(began, over + 60)
    before, after = load.delays_between(warm, middle), load.delays_between(middle, over)
    print(
        json.dumps(
            {
                "events": len(load.delays),
                "lost": sum(options.events - stream.next for stream in load.streams),
                "disorder": load.disorder,
                "unended": sum(not stream.ended for stream in load.streams),
                "p50": milliseconds(everything, 0.5),
                "p99": milliseconds(everything, 0.99),
                "max": milliseconds(everything, 1),
                "p99 before": milliseconds(before, 0.99),
                "p99 after": milliseconds(after, 0.99),
                "all begun": warm,
                "first end": over,
            }
        )
    )
    if stuck is not None:
        stuck.connection.close()


if __name__ == "__main__":
    main()
