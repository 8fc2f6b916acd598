"""`scripts/simulate`: histories of the whole bridge, each from one integer. See docs/simulation.md."""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import machine  # noqa: F401 — first: it replaces the sources of time
from history import History, run_history
from mutants import MUTANTS, try_all
from shrink import kind_of, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="run this history; the output is the same each time")
    what.add_argument("--replay", type=int, metavar="SEED", help="the same, readably, and shrunk if it fails")
    what.add_argument("--minutes", type=float, help="run histories for so long, in all processes")
    what.add_argument("--count", type=int, help="number of histories to run")
    what.add_argument("--mutants", action="store_true", help="plant faults in the bridge; are they found?")
    parser.add_argument("--plant", metavar="FAULT", help="run with this fault of --mutants planted in the bridge")
    parser.add_argument("--start", type=int, default=0, help="the first seed of several")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=400, help="with --mutants: histories until one counts as missed")
    options = parser.parse_args()
    if options.mutants:
        return try_all(options.most, options.processes)
    with planted(options.plant):
        return run(options)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant the fault of this name."""
    if name is None:
        yield
        return
    mutant = next((each for each in MUTANTS if each.name == name), None)
    if mutant is None:
        sys.exit(f"Unknown fault {name!r}. Choose one of: " + "; ".join(each.name for each in MUTANTS))
    with mutant.planted():
        yield


def run(options: argparse.Namespace) -> int:
    """What the options ask for; the exit code."""
    if options.seed is not None:
        history = run_history(options.seed)
        print(f"seed {history.seed}: {history.digest}, {len(history.taken)} decisions, {' '.join(history.outcomes)}")
        for violation in history.violations:
            print(f"VIOLATION: {violation}")
        return 1 if history.violations else 0
    if options.replay is not None:
        return replay(options.replay)
    return run_many(options.start, options.minutes, options.count or 400, options.processes)


def replay(seed: int) -> int:
    """Print a history; of a failing one, print what is left of it."""
    history = run_history(seed)
    if not history.violations:
        show(history)
        return 0
    print(f"seed {seed} breaks {len(history.violations)} promise(s) with {len(history.taken)} decisions; shrinking")
    show(shrink(history))
    return 1


def show(history: History) -> None:
    """A history, for a person."""
    print(f"seed {history.seed}, digest {history.digest}")
    print(f"\ndecisions that differ from the default ({len(history.taken)}):")
    orders = [name for name in history.taken if name.startswith("order.")]
    for name, value in history.taken.items():
        if not name.startswith("order.") or len(orders) <= 12:
            print(f"  {name} = {value!r}")
    if len(orders) > 12:
        print(f"  and the order of tasks in {len(orders)} passes")
    print("\nwhat happens:")
    for at, text in history.events:
        print(f"  {at:9.4f} s  {text}")
    print()
    for violation in history.violations:
        print(f"VIOLATION: {violation}")
    if not history.violations:
        print("every promise was kept")


@dataclass
class Tally:
    """What the histories of one process came to."""

    total: int = 0
    shapes: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def add(self, history: History) -> None:
        self.total += 1
        self.shapes.add(history.shape)
        self.outcomes.update(history.outcomes)
        if history.violations:
            self.failed[history.seed] = history.violations
            print(f"seed {history.seed}: {history.violations[0]}", flush=True)

    def merge(self, other: Tally) -> None:
        self.total += other.total
        self.shapes |= other.shapes
        self.outcomes += other.outcomes
        self.failed |= other.failed


def run_some(seeds: Iterable[int], until: float) -> Tally:
    """Run the histories of these seeds, until the time is over."""
    gc.collect()
    gc.freeze()  # spare the garbage collector what was imported
    tally = Tally()
    for seed in seeds:
        if time.perf_counter() > until:
            break
        tally.add(run_history(seed))
    return tally


def run_many(start: int, minutes: float | None, count: int, processes: int) -> int:
    """Run histories in several processes until the time or the number is reached."""
    began = time.perf_counter()
    until = began + 60 * minutes if minutes is not None else math.inf
    stop = start + count if minutes is None else sys.maxsize
    tally = Tally()
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for found in pool.starmap(run_some, [(range(start + n, stop, processes), until) for n in range(processes)]):
            tally.merge(found)
    seconds = time.perf_counter() - began
    print(f"{tally.total} histories in {seconds:.1f} s ({tally.total / seconds:.0f} per second), ", end="")
    print(f"{len(tally.shapes)} distinct")
    print("ends of requests: " + ", ".join(f"{name} {number}" for name, number in tally.outcomes.most_common()))
    if not tally.failed:
        print("every promise was kept")
        return 0
    print(f"{len(tally.failed)} histories broke a promise:")
    kinds = Counter(kind for each in tally.failed.values() for kind in set(map(kind_of, each)))
    for kind, number in kinds.most_common():
        print(f"  {number:5}  {kind}")
    print("seeds: " + " ".join(map(str, sorted(tally.failed)[:50])))
    print("scripts/simulate --replay SEED shows one, shrunk")
    return 1


if __name__ == "__main__":
    sys.exit(main())
