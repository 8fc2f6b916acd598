"""Many streams read by one process on raw sockets: every event's number and its way's time. Prints its numbers as JSON.

The child stamps each event with the time at which it writes it; both processes read the same monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import time
from array import array
from dataclasses import dataclass

EVENT = re.compile(rb'"delta":"(\d+):(\d+\.\d+) "')
END = b"event: response.completed\n"
KEY = "bench-key-0123456789"


@dataclass(slots=True)
class Stream:
    """One turn: how many events it has, the number that comes next, and the piece of an event that is not whole yet."""

    connection: socket.socket
    events: int = 0
    next: int = 0
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
        self.renew_until = 0.0
        """Up to this time a stream whose turn has ended begins the next one."""

    def pace(self, events: int) -> None:
        """Begin a stream of so many events."""
        self.open(f"bench-pace-{events}").events = events

    def open(self, model: str, *, buffer: int | None = None) -> Stream:
        """Begin a stream; one with a `buffer` of its own is never read."""
        body = json.dumps({"model": model, "input": "hi", "stream": True, "store": False}).encode()
        connection = socket.socket()
        if buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.connect(("127.0.0.1", self._port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        stream = Stream(connection)
        if buffer is None:
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, stream)
            self.streams.append(stream)
        return stream

    def read(self, until: float) -> None:
        """Read all that comes, up to this time or until every stream has ended."""
        while self._selector.get_map() and time.monotonic() < until:
            for key, _ in self._selector.select(0.5):
                self._take(key.data)

    def _take(self, stream: Stream) -> None:
        data = stream.connection.recv(1 << 18)
        now = time.monotonic()
        if not data:
            self._selector.unregister(stream.connection)
            return
        data = stream.tail + data
        end = 0
        for found in EVENT.finditer(data):
            number, end = int(found[1]), found.end()
            if number != stream.next:
                self.disorder += 1
            stream.next = number + 1
            self.delays.append(now - float(found[2]))
            self.arrivals.append(now)
        if END in data:
            stream.ended = True
            self._selector.unregister(stream.connection)
            stream.connection.close()
            if now < self.renew_until:
                self.pace(stream.events)
        stream.tail = data[max(end, len(data) - 300) :]

    def delays_between(self, start: float, end: float) -> list[float]:
        """How long events took that came in this time, sorted."""
        return sorted(delay for delay, at in zip(self.delays, self.arrivals, strict=True) if start <= at < end)


def percentile(values: list[float], share: float) -> float:
    """In milliseconds; 0 for no values."""
    return 1000 * values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("events", help="how many events a turn has; several numbers, with commas, are used in turns")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300, help="how long it goes on")
    parser.add_argument("--renew", action="store_true", help="a stream whose turn has ended begins another, until then")
    parser.add_argument("--stuck", default="", help="a model that is asked in the middle by a client that never reads")
    options = parser.parse_args()
    load = Load(options.port)
    lengths = [int(length) for length in options.events.split(",")]
    for number in range(options.streams):
        load.pace(lengths[number % len(lengths)])
    began = time.monotonic()
    # The beginning of so many streams at once is a load of another kind, and so is their end.
    warm, middle, over = began + 2, began + options.seconds / 2, began + options.seconds
    if options.renew:
        load.renew_until = over
    stuck = None
    if options.stuck:
        load.read(middle)
        stuck = load.open(options.stuck, buffer=4096)
    load.read(over + max(lengths) / 50 + 60)  # the last turns come to their end as well
    everything = load.delays_between(warm, over)
    before, after = load.delays_between(warm, middle), load.delays_between(middle, over - 2)
    print(
        json.dumps(
            {
                "events": len(everything),
                "turns": len(load.streams),
                "lost": sum(stream.events - stream.next for stream in load.streams),
                "disorder": load.disorder,
                "unended": sum(not stream.ended for stream in load.streams),
                "p50": percentile(everything, 0.5),
                "p99": percentile(everything, 0.99),
                "max": percentile(everything, 1),
                "p99 before": percentile(before, 0.99),
                "p99 after": percentile(after, 0.99),
                "seconds": time.monotonic() - began,
            }
        )
    )
    if stuck is not None:
        stuck.connection.close()


if __name__ == "__main__":
    main()
