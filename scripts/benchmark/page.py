"""What the live page costs clients: a bridge with it and one without, measured in turns, and one that is watched."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bridge_process import Bridge, bridge, message
from side_by_side import Run, Unsupported, Values
from streams import flood, latency
from table import Part, at_most

WATCHERS = 10
Pair = tuple[Bridge, Bridge]
"""Without the page, and with it."""
ONE, MANY, WATCHED = (
    "page that no one watches, CPU per delta to that without the page, 1 stream",
    "page that no one watches, CPU per delta to that without the page, 64 streams",
    "page with ten watchers, p99 of a delta to that with none, 64 streams of 20/s",
)


def one_stream(pair: Pair) -> Values:
    return {ONE: unwatched(pair, 1, 400_000)}


def many_streams(pair: Pair) -> Values:
    return {MANY: unwatched(pair, 64, 4_000)}


def unwatched(pair: Pair, streams: int, deltas: int) -> float:
    """The one without the page is measured before and after: a machine that gets busier is not the page's cost."""
    plain, paged = pair
    before, found, after = (flood(running, streams, deltas) for running in (plain, paged, plain))
    return (before + after) / 2 / found


def watched(pair: Pair) -> Values:
    """The same bridge, watched, and not before and after that."""
    _, running = pair
    before = latency(running, 64, 20, 60)[1]
    with watching(running):
        seen = latency(running, 64, 20, 60)[1]
    return {WATCHED: seen / ((before + latency(running, 64, 20, 60)[1]) / 2)}


# A process of its own: a thread here would make this client late, and not the bridge.
WINDOWS = """
import select, socket, sys
poll, windows = select.poll(), {}
for _ in range(int(sys.argv[2])):
    window = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    window.sendall(bytes.fromhex(sys.argv[3]))
    windows[window.fileno()] = window
    poll.register(window, select.POLLIN)
print("watching", flush=True)
while True:
    for file, _ in poll.poll():
        if not windows[file].recv(1 << 16):
            sys.exit()
"""


@contextmanager
def watching(running: Bridge) -> Iterator[None]:
    """Ten windows show the list of turns, and read what they get."""
    request = message("GET", "/page/api/events").hex()
    command = [sys.executable, "-S", "-c", WINDOWS, str(running.port), str(WATCHERS), request]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as windows:
        try:
            assert windows.stdout is not None
            windows.stdout.readline()
            yield
        finally:
            windows.kill()


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
            with watching(running):  # the first one loads the page's code
                latency(running, 8, 20, 60)
        columns: list[Values] = [{} for _ in pairs]
        for measure_pair, rounds in ((one_stream, 4), (many_streams, 4), (watched, 2)):
            spread = Spread(measure_pair)
            found = run.medians(pairs, spread, rounds=rounds * run.rounds + 1)
            run.notes += spread.notes()
            columns = [column | more for column, more in zip(columns, found, strict=True)]
        return columns


class Spread:
    """Measures, and remembers each round: a median within 2 % of another one means nothing if they are far apart."""

    def __init__(self, measure_pair: Callable[[Pair], Values]) -> None:
        self._measure = measure_pair
        self._first: Pair | None = None
        """Of this version, if two are compared."""
        self._seen: dict[str, list[float]] = {}

    def __call__(self, pair: Pair) -> Values:
        values = self._measure(pair)
        self._first = self._first or pair
        for name, value in values.items() if pair is self._first else ():
            self._seen.setdefault(name, []).append(value)
        return values

    def notes(self) -> list[str]:
        """The spread of each row: the middle half of its rounds, and the error of its median."""
        found = []
        for name, values in self._seen.items():
            low, _, high = statistics.quantiles(values, n=4)
            # Of a normal distribution: the quartiles are 1.35 deviations apart, the median's is 1.25 of the mean's.
            error = 1.25 * (high - low) / 1.35 / len(values) ** 0.5
            found.append(f"{name}: half of {len(values)} rounds in {low:.3f}-{high:.3f}, median ± {error:.3f}.")
        return found


PAGE = Part("live page", {ONE: at_most(1.02), MANY: at_most(1.02), WATCHED: at_most(1.2)}, measure)
