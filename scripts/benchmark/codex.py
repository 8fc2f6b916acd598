"""Turns through the bridge and a real Codex, the pinned version, with a provider on this machine that answers at once.

The bridge gives Codex a small file of certificate authorities; one that leaves it the system's (PROXY_CHILD_CA) is
measured in turns with it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bridge_process import Bridge, bridges
from clients import ask_many, http, is_whole_http
from request_costs import ask, provider
from side_by_side import ROOT, Run, Unsupported, Values
from table import Part, rate_at_least, time_at_most

sys.path.insert(0, str(ROOT / "tests"))
from real import codex_binaries

ALONE, TOGETHER = 40, 160
"""Turns of a round: one at a time, and 16 at once."""
DELTAS = 10


def is_whole_turn(data: bytes) -> bool:
    if not is_whole_http(data):
        return False
    if data.count(b"event: response.output_text.delta\n") != DELTAS or b"event: response.completed\n" not in data:
        raise Unsupported(f"not the provider's answer: {data!r}")
    return True


TURN = http("POST", "/v1/responses", {"model": "bench-responses", "input": "hi", "stream": True}, is_whole_turn)


class Codex:
    """The bridge's child."""

    def __init__(self, bridge: Bridge) -> None:
        children = Path(f"/proc/{bridge.process.pid}/task/{bridge.process.pid}/children").read_text()
        (self._pid,) = map(int, children.split())

    def cpu(self) -> float:
        """Seconds, by all threads, also those that have ended."""
        return time.clock_gettime((~self._pid << 3) | 2)  # as clock_getcpuclockid(3) makes it on Linux

    def rss(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def turns(bridge: Bridge, names: list[str]) -> Values:
    """A round: the rows of these names."""
    codex = Codex(bridge)
    first, last = [], []
    used = codex.cpu()
    with TURN.connect(bridge) as connection:
        for _ in range(ALONE):
            began = time.perf_counter()
            first.append(1000 * ask(connection, TURN))
            last.append(1000 * (time.perf_counter() - began))
    alone = 1000 * (codex.cpu() - used) / ALONE
    used, began = codex.cpu(), time.perf_counter()
    ask_many(bridge, TURN, TOGETHER)
    rate = TOGETHER / (time.perf_counter() - began)
    together = 1000 * (codex.cpu() - used) / TOGETHER
    numbers = (statistics.median(first), statistics.median(last), alone, rate, together, codex.rss() / 1e6)
    return dict(zip(names, numbers, strict=True))


def measure(run: Run) -> list[Values]:
    binary = codex_binaries.find(codex_binaries.CURRENT)
    if isinstance(binary, str):
        sys.exit(binary)
    names = list(CODEX.rows)
    with provider() as port, tempfile.TemporaryDirectory() as home:
        Path(home, "config.toml").write_text(
            'model = "bench-responses"\nmodel_provider = "bench"\n[model_providers.bench]\nname = "bench"\n'
            f'base_url = "http://127.0.0.1:{port}/v1"\nwire_api = "responses"\n'
        )
        settings = {"CODEX_BIN": str(binary), "CODEX_HOME": home, "models": ("bench-responses",)}
        with bridges(run, **settings) as ours, bridges(run, PROXY_CHILD_CA="system", **settings) as with_all:
            for bridge in (*ours, *with_all):
                if bridge is not None:
                    ask_many(bridge, TURN, 10, 1)
            half, count = len(names) // 2, len(run.versions)
            subjects = [
                (bridge, rows) if bridge else None
                for running, rows in ((ours, names[:half]), (with_all, names[half:]))
                for bridge in running
            ]
            columns = run.medians(subjects, lambda subject: turns(*subject))
    return [columns[number] | columns[count + number] for number in range(count)]


_ROWS = {
    "first byte of a short turn, ms": None,
    "last byte of a short turn, ms": time_at_most(13),
    "CPU of Codex for a short turn, one at a time, ms": None,
    "short turns per second on one child": rate_at_least(100),
    "CPU of Codex for a short turn, 16 at once, ms": None,
    "memory of the child, MB": None,
}
CODEX = Part(
    "a real Codex",
    {f"Codex: {name}": goal for name, goal in _ROWS.items()}
    | {f"Codex, PROXY_CHILD_CA=system: {name}": None for name in _ROWS},
    measure,
)
