"""Measure a running bridge from outside: raw-socket clients, a child that costs little, the bridge's own CPU time.

Without options everything is measured, in about four minutes, and printed with the goals. CPU times are those of the
bridge's process (all its threads), so that a busy machine changes them little; latencies need a quiet machine. Goals
for times and rates are scaled by the speed of this machine, which is measured between the parts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import resource
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import codex
import commands
import event_log
import memory
import page
import request_costs
import start
import streams
from calibration import Calibration
from side_by_side import HERE, Run, Values, installed, progress
from table import Part, Rows, machine, missed, page_table, put_into_page, scaled, text_table

PARTS: list[Part] = [
    start.START,
    memory.AT_REST,
    memory.STREAMS,
    request_costs.AT_ONCE,
    request_costs.OVER_HTTP,
    request_costs.ONE_AT_A_TIME,
    streams.LATENCY,
    streams.FLOODS,
    memory.MANY,
    memory.STORED,
    commands.EXEC,
    commands.LAB,
    commands.CAP,
    page.PAGE,
    event_log.EVENT_LOG,  # last, because its files keep the disk busy for a while
]


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed (on a quiet machine)")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        help="only the parts whose name, or the name of one of whose rows, has this regular expression in it, "
        "whatever the case; may be repeated",
    )
    parser.add_argument(
        "--against",
        metavar="REF",
        help="measure another version (a commit, branch or tag) in turns with this one, and print both and the ratio "
        "of this one to it; a row that it cannot do stays empty. Takes twice as long, and a minute to install it",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds whose median counts (default 5); fewer are less sure"
    )
    parser.add_argument("--codex", action="store_true", help="measure turns with a real Codex, and nothing else")
    parser.add_argument("--list", action="store_true", help="list the parts, their rows and goals, and measure nothing")
    return parser, parser.parse_args()


def selected(parts: list[Part], patterns: list[str] | None) -> list[Part]:
    if patterns is None:
        return parts
    compiled = [re.compile(pattern, re.IGNORECASE) for pattern in patterns]
    return [part for part in parts if any(map(part.matches, compiled))]


def measure(parts: list[Part], run: Run, calibration: Calibration) -> list[Values]:
    """All rows of these parts, of each version."""
    calibration.sample()
    columns: list[Values] = [{} for _ in run.versions]
    for number, part in enumerate(parts, 1):
        progress(f"{number} of {len(parts)}: {part.name}")
        began = time.monotonic()
        for column, found in zip(columns, part.measure(run), strict=True):
            column |= found
        calibration.sample()
        progress(f"  {time.monotonic() - began:.0f} s")
    return columns


def main() -> None:
    parser, options = arguments()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more.")
    if options.docs and (options.only or options.against):
        parser.error("--docs needs the whole table: leave out --only and --against.")
    parts = [codex.CODEX] if options.codex else PARTS
    try:
        parts = selected(parts, options.only)
    except re.error as error:
        parser.error(f"--only is not a regular expression: {error}.")
    if not parts:
        parser.error("--only matches no part and no row; --list shows them.")
    if options.list:
        for part in parts:
            print(
                part.name,
                *(f"  {row}{f'  (goal {goal})' if goal else ''}" for row, goal in part.rows.items()),
                sep="\n",
            )
        return
    rows: Rows = {row: goal for part in parts for row, goal in part.rows.items()}
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # a thousand connections, here and in the bridge
    gc.disable()  # so that the client is never late; it makes little garbage
    with installed(options.against) if options.against else nullcontext() as other:
        run = Run([HERE, other] if other else [HERE], rounds=options.rounds)
        calibration = Calibration()
        columns = measure(parts, run, calibration)
    rows = scaled(rows, calibration.ratio)
    run.notes.append(str(calibration))
    names = [version.name for version in run.versions]
    print(text_table(rows, names, columns))
    print(*run.notes, f"Load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.", sep="\n")
    if options.docs:
        put_into_page(
            "codex results" if options.codex else "results", page_table(rows, columns[0]), *run.notes, machine()
        )
    if options.json:
        found = {row: {name: column.get(row) for name, column in zip(names, columns, strict=True)} for row in rows}
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    sys.exit(1 if options.check and missed(rows, columns[0]) else 0)


if __name__ == "__main__":
    main()
