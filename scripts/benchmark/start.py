"""How long the bridge takes to start, and which packages its imports spend the time in."""

from __future__ import annotations

import re
import time
from collections import Counter

from bridge_process import bridge
from request_costs import TURN, ask
from side_by_side import Run, Unsupported, Values, Version
from table import Part, time_at_most

IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", re.M)


def started(version: Version) -> Values:
    """One start, and one short turn as soon as the bridge listens: its child is started meanwhile."""
    listening, answer, *_ = START.rows
    with bridge(version=version) as running:
        with TURN.connect(running) as connection:
            ask(connection, TURN)
        return {listening: running.listening_after, answer: time.monotonic() - running.began}


def imported(version: Version) -> Counter[str]:
    """Own µs of each top-level package, up to the first answer, as `python -X importtime` reports them."""
    with bridge(version=version, flags=("-X", "importtime")) as running:
        with TURN.connect(running) as connection:
            ask(connection, TURN)
        text = running.stderr.read_text()
    found: Counter[str] = Counter()
    for own, name in IMPORT.findall(text):
        found[name.split(".")[0]] += int(own)
    if not found:
        raise Unsupported(f"no import times: {text[:200]!r}")
    return found


def measure(run: Run) -> list[Values]:
    imports = list(START.rows)[2]
    for version in run.versions:
        imported(version)  # also makes the .pyc files
    columns = run.medians(run.versions, started, rounds=2 * run.rounds - 3 if run.rounds > 1 else 1)
    for version, column in zip(run.versions, columns, strict=True):
        found = sorted((imported(version) for _ in range(3)), key=Counter.total)[1]
        column[imports] = found.total() / 1000
        most = ", ".join(f"{name} {own / 1000:.0f}" for name, own in found.most_common(10))
        run.notes.append(f"Imports at start, ms by package ({version.name}): {most}.")
    return columns


START = Part(
    "start",
    {
        "start to listening, s": time_at_most(0.3),
        "start to the first answer, s": None,
        "imports at start, with -X importtime, ms": None,
    },
    measure,
)
