"""Measure a running bridge from outside: a raw-socket client, a child that costs nothing, the bridge's own CPU time.

Numbers are per CPU-second of the bridge's process (all its threads), so that a busy machine changes them little.
`--json FILE` keeps them, `--check` fails when one misses its goal, `--against REF` measures another version, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from requests import KEY, KINDS, cost

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROUNDS = 5
"""Of what is measured in turns; the median counts."""
GOALS = {
    "current 1 stream, deltas/CPU-s": (">=", 250_000),
    "legacy 1 stream, deltas/CPU-s": (">=", 180_000),
    "current 64 streams, deltas/CPU-s": (">=", 90_000),
    "legacy 64 streams, deltas/CPU-s": (">=", 50_000),
    "event log, CPU µs per delta on one stream": ("<=", 1.5),
    "added latency p99, ms": ("<=", 1.5),
    "base memory, MB": ("<=", 60),
    "memory per idle stream, KB": ("<=", 25),
    "GET /v1/models, CPU µs": ("<=", 250),
    "short turn, CPU µs": ("<=", 750),
    "short turn, streamed, CPU µs": ("<=", 750),
    "short turn, chat, CPU µs": ("<=", 650),
    "exec --mock --json, start to end, against importing its libraries": ("<=", 2.5),
    "lab: cells per second on the stand-in": (">=", 300),
    "CAP: reading a delta packet, µs": ("<=", 3),
    "CAP: writing a delta packet, µs": ("<=", 1),
}


class Bridge:
    """A bridge in a process of its own, with the benchmark's child."""

    def __init__(
        self,
        directory: Path,
        *,
        legacy: bool = False,
        log: bool = False,
        models: list[str] | None = None,
        checkout: Path = ROOT,
        python: str = sys.executable,
    ) -> None:
        program = directory / "child"
        flag = "--legacy" if legacy else ""
        program.write_text(f"#!/bin/sh\nexec {sys.executable} {HERE}/child.py {flag}\n")
        program.chmod(0o755)
        if models is None:
            models = ["bench-short", "bench-idle", "bench-tick-2000"]
            models += [f"bench-flood-{n}-{count}" for n, count in FLOODS]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "XDG_STATE_HOME": str(directory / "state"),
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_API_KEY": KEY,
            "PORT": "0",
            "CODEX_BIN": str(program),
            "PROXY_MODELS": ",".join(models),
            "PROXY_DIALECT": "legacy" if legacy else "current",
            "PROXY_LEGACY_CALLS": "turn",
            "PROXY_MAX_TURNS": "4096",
        }
        if log:
            env["PROXY_LOG_EVENTS"] = str(directory / "events.ndjson")
        self.process = subprocess.Popen(
            [python, "-m", "bridge", "serve"], stdout=subprocess.PIPE, env=env, text=True, cwd=checkout
        )
        assert self.process.stdout is not None
        self.port = int(re.search(r":(\d+)/v1", self.process.stdout.readline()).group(1))  # type: ignore[union-attr]

    def cpu(self) -> float:
        """Seconds of CPU used so far, by all threads."""
        total = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def rss(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def request(self, model: str) -> socket.socket:
        """A socket on which a streamed request has been sent."""
        body = json.dumps({"model": model, "input": "hi", "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self.head(len(body)) + body)
        return connection

    def head(self, length: int) -> bytes:
        return (
            f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


FLOODS = [(1, 1000), (1, 100_000), (1, 400_000), (64, 4_000)]


@contextmanager
def bridge(**options: Any):
    with tempfile.TemporaryDirectory() as directory:
        running = Bridge(Path(directory), **options)
        try:
            yield running
        finally:
            running.stop()


MARK = b"event: response.output_text.delta\n"


def read_all(connections: list[socket.socket]) -> list[int]:
    """Read every response to its end: the number of text deltas in each."""
    selector = selectors.DefaultSelector()
    tails: dict[socket.socket, bytes] = {}
    counts: dict[socket.socket, int] = {}
    for connection in connections:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
        tails[connection], counts[connection] = b"", 0
    while selector.get_map():
        for key, _ in selector.select():
            connection: socket.socket = key.fileobj  # type: ignore[assignment]
            data = connection.recv(1 << 20)
            # A mark may lie across two reads; the kept tail is one byte too short to hold a whole one.
            joined = tails[connection] + data
            counts[connection] += joined.count(MARK)
            tails[connection] = joined[-(len(MARK) - 1) :]
            if not data or data.endswith(b"0\r\n\r\n"):
                selector.unregister(connection)
    for connection in connections:
        connection.close()
    return list(counts.values())


def flood(running: Bridge, streams: int, deltas: int) -> float:
    """Deltas per CPU-second; also proves that none is missing."""
    before = running.cpu()
    connections = [running.request(f"bench-flood-{streams}-{deltas}") for _ in range(streams)]
    counts = read_all(connections)
    used = running.cpu() - before
    assert counts == [deltas] * streams, counts
    return streams * deltas / used


def latency(running: Bridge) -> tuple[float, float]:
    """(p50, p99) in ms between a delta's writing by the child and its reading by the client."""
    connection = running.request("bench-tick-2000")
    delays: list[float] = []
    while True:
        data = connection.recv(1 << 16)
        now = time.monotonic()
        delays += [1000 * (now - float(sent)) for sent in re.findall(rb'"delta":"(\d+\.\d+) "', data)]
        if not data or data.endswith(b"0\r\n\r\n"):
            break
    connection.close()
    delays = sorted(delays[100:])
    return statistics.median(delays), delays[int(len(delays) * 0.99)]


def first_byte(running: Bridge, count: int = 200) -> float:
    """Median ms from the request to the first byte of the answer."""
    times = []
    for _ in range(count):
        began = time.monotonic()
        connection = running.request("bench-short")
        connection.recv(1)
        times.append(1000 * (time.monotonic() - began))
        read_all([connection])
    return statistics.median(times)


def idle(running: Bridge, count: int = 400) -> float:
    """KB of memory per stream that waits."""
    held = [running.request("bench-idle") for _ in range(50)]
    for connection in held:
        connection.recv(1)
    before = running.rss()
    more = [running.request("bench-idle") for _ in range(count)]
    for connection in more:
        connection.recv(1)
    grown = running.rss() - before
    for connection in held + more:
        connection.close()
    return grown / count / 1000


def exec_start(pairs: int = 15) -> tuple[float, float]:
    """(ms of a whole `exec --mock --json`, how many times as long as importing its libraries): medians of pairs."""
    run = [sys.executable, "-m", "bridge", "exec", "--mock", "--json", "--prompt", "hi"]
    imports = [sys.executable, "-c", "import trio, orjson, typer"]
    times: list[float] = []
    ratios: list[float] = []
    for _ in range(pairs):
        taken = []
        for command in (imports, run):
            began = time.monotonic()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            taken.append(time.monotonic() - began)
        times.append(1000 * taken[1])
        ratios.append(taken[1] / taken[0])
    return statistics.median(times), statistics.median(ratios)


def lab_cells(least: int = 1000, concurrency: int = 16) -> float:
    """Cells per second of a run of all shipped cases on the stand-in, without its start and its report."""
    suite = HERE.parent.parent / "fixtures" / "cases"
    run = [sys.executable, "-m", "bridge", "lab", "run", str(suite), "--mock-only", "-m", "mock-tool-call"]
    with tempfile.TemporaryDirectory() as directory:

        def timed(repeat: int) -> tuple[float, int]:
            results = Path(directory) / f"{repeat}.jsonl"
            options = ["-n", str(repeat), "-c", str(concurrency), "--results", str(results)]
            began = time.monotonic()
            subprocess.run([*run, *options], check=True, stdout=subprocess.DEVNULL)
            return time.monotonic() - began, len(results.read_bytes().splitlines()) - 1

        seconds, cells = timed(1)
        more_seconds, more_cells = timed(1 + -(-least // cells))
    return (more_cells - cells) / (more_seconds - seconds)


def cap_packets(count: int = 20_000) -> tuple[float, float]:
    """(µs to read one delta packet, µs to make one and write it as an event): CPU time, the best of several rounds."""
    from bridge.api.cap.events import CapEncoder
    from bridge.api.cap.stream import read_packet
    from bridge.turn.events import TextDelta

    packet = b'{"op":"delta","p":"Hello, wor"}'
    encoder = CapEncoder(UUID(int=1), now=time.time, started_at=0)
    batch: list[Any] = [TextDelta("msg", ["Hello, wor"] * 100)]

    def read() -> None:
        for _ in range(count):
            read_packet(packet)

    def write() -> None:
        for _ in range(count // 100):
            encoder.feed(batch)

    taken = []
    for task in (read, write):
        task()
        rounds = []
        for _ in range(7):
            began = time.process_time()
            task()
            rounds.append(time.process_time() - began)
        taken.append(min(rounds) / count * 1e6)
    return taken[0], taken[1]


def request_costs(*bridges: Bridge) -> dict[str, float]:
    """CPU µs of each kind of request, measured in turns; the second bridge is the one from before."""
    found: dict[str, list[list[float]]] = {kind: [[] for _ in bridges] for kind in KINDS}
    for running in bridges:
        for kind in KINDS:
            cost(running, kind, 200)
    for _ in range(ROUNDS):
        for kind, columns in found.items():
            for running, column in zip(bridges, columns, strict=True):
                column.append(cost(running, kind))
    names = ("", " before")
    return {
        f"{kind}, CPU µs{names[number]}": statistics.median(column)
        for kind, columns in found.items()
        for number, column in enumerate(columns)
    }


def compare(ref: str) -> dict[str, float]:
    """This version and another one side by side: what requests cost, the first byte, memory."""
    with tempfile.TemporaryDirectory(prefix="codex-bridge-against-") as directory:
        checkout = Path(directory) / "checkout"
        subprocess.run(["git", "worktree", "add", "--detach", checkout, ref], cwd=ROOT, check=True, capture_output=True)
        try:
            print(f"installing {ref} (a minute)", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", checkout / ".venv"], check=True)
            python = str(checkout / ".venv" / "bin" / "python")
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", checkout], check=True)
            with bridge() as ours, bridge(checkout=checkout, python=python) as theirs:
                results = request_costs(ours, theirs)
                for name, running in (("", ours), (" before", theirs)):
                    results[f"time to first byte, ms{name}"] = first_byte(running)
                    results[f"memory, MB{name}"] = running.rss() / 1e6
                    results[f"memory per idle stream, KB{name}"] = idle(running)
                    results[f"64 streams, deltas/CPU-s{name}"] = max(flood(running, 64, 4_000) for _ in range(3))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)
    return results


def measure() -> dict[str, float]:
    results: dict[str, float] = {}
    sizes = []
    for _ in range(5):
        with bridge() as running:
            flood(running, 1, 1000)
            sizes.append((running.rss() / 1e6, idle(running)))
    base, per_stream = zip(*sizes, strict=True)
    results["base memory, MB"] = statistics.median(base)
    results["memory per idle stream, KB"] = statistics.median(per_stream)
    for dialect in ("current", "legacy"):
        with bridge(legacy=dialect == "legacy") as running:
            flood(running, 1, 1000)
            results[f"{dialect} 1 stream, deltas/CPU-s"] = max(flood(running, 1, 400_000) for _ in range(3))
            results[f"{dialect} 64 streams, deltas/CPU-s"] = max(flood(running, 64, 4_000) for _ in range(3))
            if dialect == "current":
                results |= request_costs(running)
                results["time to first byte, ms"] = first_byte(running)
                results["added latency p50, ms"], results["added latency p99, ms"] = latency(running)
    with bridge() as plain, bridge(log=True) as logging:
        rates: dict[Bridge, list[float]] = {plain: [], logging: []}
        for running in rates:
            flood(running, 1, 1000)
        for _ in range(9):
            # In turns, so that a busy machine is unfair to both alike; and not so much at once that it is the disk
            # which is measured.
            for running, found in rates.items():
                found.append(flood(running, 1, 100_000))
        results["current 1 stream with the event log, deltas/CPU-s"] = statistics.median(rates[logging])
        results["event log, CPU µs per delta on one stream"] = statistics.median(
            1e6 / logged - 1e6 / without for without, logged in zip(rates[plain], rates[logging], strict=True)
        )
    results["exec --mock --json, start to end, ms"], ratio = exec_start()
    results["exec --mock --json, start to end, against importing its libraries"] = ratio
    results["lab: cells per second on the stand-in"] = max(lab_cells() for _ in range(3))
    results["CAP: reading a delta packet, µs"], results["CAP: writing a delta packet, µs"] = cap_packets()
    return results


def machine() -> str:
    """What the numbers were measured on, and when."""
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    model = names[0] if names else "unknown"
    return f"{os.cpu_count()} cores ({model}), Python {sys.version.split()[0]}, {time.strftime('%Y-%m-%d')}."


def write_table(mark: str, results: dict[str, float], goals: Mapping[str, tuple[str, float]], last_line: str) -> None:
    """Replace the table between the marks of this name in docs/performance.md."""
    page = HERE.parent.parent / "docs" / "performance.md"
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    assert found, f"{begin!r} is missing in docs/performance.md"
    assert found_end, f"{end!r} is missing in docs/performance.md"
    rows = ["| what | measured | goal |", "|---|---:|---:|"]
    for name, value in results.items():
        goal = goals.get(name)
        sign = {">=": "≥", "<=": "≤"}[goal[0]] if goal else ""
        shown = f"{value:,.0f}" if value >= 1000 or value == 0 else f"{value:,.2f}"
        rows.append(f"| {name} | {shown} | {f'{sign} {goal[1]:,g}' if goal else ''} |")
    page.write_text(before + begin + "\n" + "\n".join(rows) + f"\n\n{last_line}\n\n" + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--docs", action="store_true", help="put the numbers into docs/performance.md")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--against", metavar="REF", help="measure this version and that one side by side, and no more")
    options = parser.parse_args()
    results = measure() if options.against is None else compare(options.against)
    missed = 0
    for name, value in results.items():
        goal = GOALS.get(name)
        verdict = ""
        if goal is not None:
            met = value >= goal[1] if goal[0] == ">=" else value <= goal[1]
            missed += not met
            verdict = f"{'ok    ' if met else 'MISSED'} (goal {goal[0]} {goal[1]:,})"
        print(f"{name:66} {value:>12,.2f}  {verdict}")
    if options.docs:
        write_table("results", results, GOALS, machine())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(1 if missed and options.check else 0)


if __name__ == "__main__":
    main()
