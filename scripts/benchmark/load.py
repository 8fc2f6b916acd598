"""Many streams at once, as clients see them. Client, bridge and child are processes of their own.

200 streams of 50 events a second for `--seconds`; 400 such streams with the bridge on one core, and client and child
on another; 500 streams that wait; 100 streams, half of the time beside a client that asks for much and never reads.
Measured on a machine that does other things, the numbers are worse. Goals for times are scaled by the machine's speed.
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
from contextlib import suppress
from pathlib import Path

from bridge_process import DIRECTORY, Bridge
from calibration import Calibration
from load_client import Load
from side_by_side import Values, progress
from table import Rows, at_most, machine, missed, page_table, put_into_page, scaled, text_table, time_at_most

STREAMS = 200
MORE_STREAMS = 400
RATE = 50
IDLE = 500
ROWS: Rows = {
    "events": None,
    "added latency p50, ms": None,
    "added latency p99, ms": time_at_most(12),
    "added latency, the worst, ms": None,
    "events lost or out of order": at_most(0),
    "share of a core": time_at_most(0.5),
    "memory growth after the first minute, MB": at_most(20),
    "400 streams on one core: events": None,
    "400 streams on one core: events lost or out of order": at_most(0),
    "400 streams on one core: added latency p50, ms": None,
    "400 streams on one core: added latency p99, ms": None,
    "400 streams on one core: share of it": None,
    "idle streams, share of a core": time_at_most(0.1),
    "p99 of 100 streams, ms": None,
    "p99 of 100 streams beside a stuck client, ms": None,
    "p99 of others beside a stuck client, times": at_most(2),
}


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

    def share(self, start: float, end: float) -> float:
        """Of a core, between these times."""
        within = [(at, used) for at, _, used in self._samples if start <= at <= end]
        if len(within) < 2:
            return float("nan")
        return (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])


def client(bridge: Bridge, seconds: int, *more: str) -> Values:
    """Run the client to its end."""
    command: list[str | Path] = [
        sys.executable,
        DIRECTORY / "load_client.py",
        str(bridge.port),
        str(RATE * seconds),
        *more,
    ]
    found: Values = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def sampled(bridge: Bridge, seconds: int, *more: str) -> tuple[Values, Samples]:
    """The same, with the bridge's memory and CPU."""
    samples = Samples(bridge)
    samples.start()
    try:
        seen = client(bridge, seconds, *more)
    finally:
        samples.over.set()
        samples.join()
    return seen, samples


def faults(seen: Values) -> float:
    return seen["lost"] + seen["disorder"] + seen["unended"]


def many(bridge: Bridge, seconds: int) -> Values:
    """Two hundred streams."""
    seen, samples = sampled(bridge, seconds, f"--streams={STREAMS}")
    return {
        "events": seen["events"],
        "added latency p50, ms": seen["p50"],
        "added latency p99, ms": seen["p99"],
        "added latency, the worst, ms": seen["max"],
        "events lost or out of order": faults(seen),
        "share of a core": samples.share(seen["all begun"], seen["first end"]),
        "memory growth after the first minute, MB": samples.growth(min(60, seconds / 3)),
    }


def threads_of(pid: int) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def children_of(pid: int) -> list[int]:
    """Whichever thread has started them."""
    found: list[str] = []
    for thread in threads_of(pid):
        with suppress(OSError):  # it has ended meanwhile
            found += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    return [int(child) for child in found]


def pin(pid: int, cores: set[int]) -> None:
    """Let a process run on these cores only, with all its threads and those that they start."""
    for thread in threads_of(pid):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, cores)


def on_one_core(bridge: Bridge, seconds: int) -> Values:
    """Four hundred streams; the bridge has a core to itself, and no more."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        progress("  left out: this needs two cores")
        return {}
    own, other, *_ = cores
    children = children_of(bridge.process.pid)
    assert children, "the bridge has no child"
    pin(bridge.process.pid, {own})
    for child in children:
        pin(child, {other})
    seen, samples = sampled(bridge, seconds, f"--streams={MORE_STREAMS}", f"--core={other}")
    for process in (bridge.process.pid, *children):
        pin(process, set(cores))
    prefix = "400 streams on one core"
    return {
        f"{prefix}: events": seen["events"],
        f"{prefix}: events lost or out of order": faults(seen),
        f"{prefix}: added latency p50, ms": seen["p50"],
        f"{prefix}: added latency p99, ms": seen["p99"],
        f"{prefix}: share of it": samples.share(seen["all begun"], seen["first end"]),
    }


def idle(bridge: Bridge, seconds: int) -> Values:
    """The share of a core that streams cost which wait."""
    load = Load(bridge.port)
    for _ in range(IDLE):
        load.open("bench-idle")
    load.read(time.monotonic() + 5)
    used = bridge.cpu()
    load.read(time.monotonic() + seconds)
    share = (bridge.cpu() - used) / seconds
    for stream in load.streams:
        stream.connection.close()
    return {"idle streams, share of a core": share}


def stuck(bridge: Bridge, seconds: int) -> Values:
    """A hundred streams without and with a client that never reads."""
    seen = client(bridge, seconds, "--streams=100", "--stuck=bench-heavy")
    without, beside = seen["p99 before"], seen["p99 after"]
    return {
        "p99 of 100 streams, ms": without,
        "p99 of 100 streams beside a stuck client, ms": beside,
        "p99 of others beside a stuck client, times": beside / without,
    }


def measure(seconds: int, calibration: Calibration) -> Values:
    """Everything."""
    rest = min(60, seconds)
    models = ("bench-idle", "bench-heavy", *{f"bench-pace-{RATE * each}" for each in (seconds, rest)})
    parts = (
        (f"{STREAMS} streams of {RATE} events a second for {seconds} s", many, seconds),
        (f"{MORE_STREAMS} streams of {RATE} events a second on one core, {rest} s", on_one_core, rest),
        (f"{IDLE} streams that wait, {rest} s", idle, rest),
        (f"100 streams beside a client that does not read, {rest} s", stuck, rest),
    )
    results: Values = {}
    with tempfile.TemporaryDirectory(prefix="turnbridge-load-") as directory:
        bridge = Bridge(Path(directory), models=models)
        try:
            calibration.sample()
            for number, (what, part, long) in enumerate(parts, 1):
                progress(f"{number} of {len(parts)}: {what}")
                results |= part(bridge, long)
                calibration.sample()
        finally:
            bridge.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=300,
        metavar="N",
        help="how long the 200 streams last, 4 to 3600 (default 300); the other parts last as long, but at most 60 s",
    )
    parser.add_argument("--docs", action="store_true", help="put the numbers into docs/performance.md")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed (on a quiet machine)")
    options = parser.parse_args()
    if not 4 <= options.seconds <= 3600:
        parser.error("--seconds must be from 4 to 3600.")
    calibration = Calibration()
    results = measure(options.seconds, calibration)
    rows = scaled(ROWS, calibration.ratio)
    print(text_table(rows, ["measured"], [results]))
    print(calibration, f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.", sep="\n")
    if options.docs:
        put_into_page("load", page_table(rows, results), str(calibration), f"{options.seconds} s. {machine()}")
    sys.exit(1 if options.check and missed(rows, results) else 0)


if __name__ == "__main__":
    main()
