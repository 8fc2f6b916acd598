"""Many streams at once, as clients see them: `scripts/load`. Client, bridge and child are processes of their own.

200 streams of 50 events a second for `--seconds`; then 500 streams that wait; then 100 streams, half of the time beside
a client that asks for much and never reads. Measured on a machine that does other things, the numbers are worse.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from load_client import Load
from run import HERE, Bridge, machine, write_table

STREAMS = 200
RATE = 50
IDLE = 500
GOALS = {
    "added latency p99, ms": 50.0,
    "events lost or out of order": 0.0,
    "memory growth after the first minute, MB": 20.0,
    "idle streams, share of a core": 0.10,
    "p99 of others beside a stuck client, times": 2.0,
}
"""At most."""


class Samples(threading.Thread):
    """The bridge's memory and CPU time, twice a second."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(daemon=True)
        self._bridge = bridge
        self._samples: list[tuple[float, float, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self._samples.append((time.monotonic(), self._bridge.rss() / 1e6, self._bridge.cpu()))

    def growth(self, first: float) -> float:
        """MB from what it had after `first` seconds to the most afterwards."""
        later = [memory for at, memory, _ in self._samples if at >= self._samples[0][0] + first]
        return max(later) - later[0] if later else 0.0

    def share(self, seconds: float) -> float:
        """Of a core, in the first `seconds`."""
        began, _, before = self._samples[0]
        until, _, used = [sample for sample in self._samples if sample[0] <= began + seconds][-1]
        return (used - before) / (until - began)


def client(bridge: Bridge, seconds: int, *more: str) -> dict[str, float]:
    """Run the client to its end."""
    command = [sys.executable, str(HERE / "load_client.py"), str(bridge.port), str(RATE * seconds), *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def many(bridge: Bridge, seconds: int) -> dict[str, float]:
    """Two hundred streams."""
    samples = Samples(bridge)
    samples.start()
    seen = client(bridge, seconds, f"--streams={STREAMS}")
    samples.over.set()
    return {
        "events": seen["events"],
        "added latency p50, ms": seen["p50"],
        "added latency p99, ms": seen["p99"],
        "added latency, the worst, ms": seen["max"],
        "events lost or out of order": seen["lost"] + seen["disorder"] + seen["unended"],
        "share of a core": samples.share(seconds),
        "memory growth after the first minute, MB": samples.growth(min(60, seconds / 3)),
    }


def idle(bridge: Bridge, seconds: int) -> float:
    """The share of a core that streams cost which wait."""
    load = Load(bridge.port)
    for _ in range(IDLE):
        load.open("bench-idle")
    load.read(time.monotonic() + 5)
    used = bridge.cpu()
    load.read(time.monotonic() + seconds)
    share = max(0.0, (bridge.cpu() - used) / seconds)  # what has ended takes its part of the sum along
    for stream in load.streams:
        stream.connection.close()
    return share


def stuck(bridge: Bridge, seconds: int) -> tuple[float, float]:
    """(p99 of a hundred streams without, with) a client that never reads, in ms."""
    seen = client(bridge, seconds, "--streams=100", "--stuck=bench-heavy")
    return seen["p99 before"], seen["p99 after"]


def measure(seconds: int) -> dict[str, float]:
    """Everything."""
    rest = min(60, seconds)
    models = ["bench-idle", "bench-heavy", *{f"bench-pace-{RATE * each}" for each in (seconds, rest)}]
    with tempfile.TemporaryDirectory() as directory:
        bridge = Bridge(Path(directory), models=models)
        try:
            print(f"{STREAMS} streams of {RATE} events a second for {seconds} s", file=sys.stderr, flush=True)
            results = many(bridge, seconds)
            print(f"{IDLE} streams that wait, {rest} s", file=sys.stderr, flush=True)
            results["idle streams, share of a core"] = idle(bridge, rest)
            print(f"100 streams beside a client that does not read, {rest} s", file=sys.stderr, flush=True)
            without, beside = stuck(bridge, rest)
            results["p99 of 100 streams, ms"] = without
            results["p99 of 100 streams beside a stuck client, ms"] = beside
            results["p99 of others beside a stuck client, times"] = beside / without
        finally:
            bridge.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="how long the 200 streams last (default 300)")
    parser.add_argument("--docs", action="store_true", help="put the numbers into docs/performance.md")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    if not 4 <= options.seconds <= 3600:
        parser.error("--seconds is from 4 to 3600.")
    results = measure(options.seconds)
    missed = [name for name, goal in GOALS.items() if results[name] > goal]
    for name, value in results.items():
        goal = GOALS.get(name)
        verdict = "" if goal is None else f"{'MISSED' if name in missed else 'ok    '} (goal <= {goal:g})"
        print(f"{name:50} {value:>12,.2f}  {verdict}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.docs:
        goals = {name: ("<=", goal) for name, goal in GOALS.items()}
        write_table("load", results, goals, f"{options.seconds} s. {machine()}")
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
