"""Twenty clients with a model of what has to come, a bridge whose child fails, and a look at everything afterwards.

The same seed makes the same clients; when things happen depends on the machine. With --chaos a child dies every 25
seconds. Seeds that three divides speak the legacy dialect. Exit code 1 when a promise was broken, with a list.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from checking import check  # noqa: E402
from clients import CANARIES, CRASH_EVERY, HABITS, PATHS, Client, Office  # noqa: E402
from plans import hang, long  # noqa: E402
from running import LOG, STDERR, Bridge  # noqa: E402
from seen import LEFT, Seen, load, save  # noqa: E402
from wire import KEY, Silent, ask, connect, request_bytes  # noqa: E402

SEEN = "seen.json"
SECRETS = (KEY, *CANARIES)
PROGRESS = 10.0
SHOWN = 40
"""Violations that are printed; more are counted."""


async def soak(bridge: Bridge, office: Office, seconds: float) -> list[str]:
    """Run everything; what went wrong besides what the log will tell."""
    found: list[str] = []
    office.next_crash = time.monotonic() + min(5.0, seconds / 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, bridge, office, seconds)
        async with trio.open_nursery() as clients:
            for number, habit in enumerate(HABITS):
                client = Client(office, f"{habit.__name__}{number}")
                clients.start_soon(guarded, client, habit, office, found)
            await trio.sleep(seconds)
            office.stopping = True
        await trio.sleep(2)
        metrics = await bridge.metrics()
        for name in ("turnbridge_turns_in_flight", "turnbridge_turns_waiting", "turnbridge_websockets_open"):
            if metrics.get(name, 0):
                found.append(f"when all clients had gone, {name} was {metrics[name]:g}")
        found += await farewell(bridge, office)
        nursery.cancel_scope.cancel()
    return found


async def guarded(client: Client, habit: object, office: Office, found: list[str]) -> None:
    """A client. Its mistakes, and the bridge's, are reported and do not end the soak."""
    while not office.stopping:
        try:
            await client.run(habit)  # type: ignore[arg-type]
        except Silent:
            found.append(f"{client.name} heard nothing for too long (its request {client.token})")
        except (OSError, trio.BrokenResourceError) as error:
            found.append(f"{client.name} lost its connection: {error!r} (its request {client.token})")


async def farewell(bridge: Bridge, office: Office) -> list[str]:
    """SIGTERM while streams run: each of them comes to its end."""
    async with trio.open_nursery() as nursery:
        begun: list[trio.Event] = []
        for number in range(12):
            begun.append(trio.Event())
            nursery.start_soon(last_stream, bridge, Client(office, f"last{number}"), number, begun[-1])
        for event in begun:
            await event.wait()
        return await bridge.stop()


async def last_stream(bridge: Bridge, client: Client, number: int, begun: trio.Event) -> None:
    """A stream that the bridge is stopped in."""
    path = ("responses", "chat")[number % 2]
    token, plan = client.plan(long if number % 3 else hang)
    plan.steps.insert(0, {"deltas": [""]})
    seen = client.look_for(token, plan, path, stream=True)
    seen.allowed |= {"shutdown_initiated"}
    try:
        async with await connect(bridge.port) as stream:
            body = client.body(token, plan, path, stream=True)
            answer = await ask(stream, request_bytes("POST", PATHS[path], body))
            begun.set()
            await client.receive(seen, answer)
    finally:
        begun.set()
        client.keep(seen)


async def watch(bridge: Bridge, office: Office, seconds: float) -> None:
    """Measure every half second, and tell how it goes."""
    began = told = time.monotonic()
    while bridge.process.poll() is None:
        if not office.stopping:
            bridge.sample()
        if time.monotonic() - told >= PROGRESS or not office.seen:
            told = time.monotonic()
            tell(bridge, office.seen, told - began, seconds)
        await trio.sleep(0.5)


def tell(bridge: Bridge, seen: list[Seen], elapsed: float, seconds: float) -> None:
    """One line of progress."""
    outcomes = Counter(each.outcome if each.outcome in ("completed", LEFT) else "errors" for each in seen)
    uses = ", ".join(f"{samples[-1][1]:.0f} {name}" for name, samples in bridge.samples.items())
    counts = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"{elapsed:5.0f} of {seconds:.0f} s: {len(seen)} requests ({counts}); {uses}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long; a fraction will do (default 10)")
    parser.add_argument("--chaos", action="store_true", help=f"a child dies every {CRASH_EVERY:g} seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave the log in this directory, which is not there yet"
    )
    parser.add_argument("--check", type=Path, metavar="DIR", help="run nothing, look at what was kept there once more")
    options = parser.parse_args()
    if options.check:
        found, _ = check(
            options.check / LOG, load(options.check / SEEN), stderr=options.check / STDERR, secrets=SECRETS
        )
        show(found)
        sys.exit(1 if found else 0)
    if options.minutes <= 0:
        parser.error("--minutes is more than 0.")
    directory = options.keep or Path(tempfile.mkdtemp(prefix="turnbridge-soak-"))
    if options.keep:
        directory.mkdir(parents=True)
    try:
        found = run(directory, 60 * options.minutes, chaos=options.chaos, seed=options.seed)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)
    sys.exit(1 if found else 0)


def run(directory: Path, seconds: float, *, chaos: bool, seed: int) -> list[str]:
    """One soak; what was violated."""
    bridge = Bridge(directory, "legacy" if seed % 3 == 0 else "current")
    office = Office(bridge.port, chaos, seed)
    try:
        found = trio.run(soak, bridge, office, seconds)
    finally:
        if bridge.process.poll() is None:
            bridge.process.kill()
            bridge.process.wait()
    print("reading the log", file=sys.stderr, flush=True)
    save(directory / SEEN, office.seen)
    more, ledger = check(directory / LOG, office.seen, stderr=directory / STDERR, secrets=SECRETS)
    found += more + bridge.grown()
    report(bridge, office, found, len(ledger.requests), len(ledger.exits), ledger.most)
    return found


def report(bridge: Bridge, office: Office, found: list[str], logged: int, exits: int, most: int) -> None:
    """What happened, and what was violated."""
    outcomes = Counter(each.outcome for each in office.seen)
    plans = Counter(each.plan for each in office.seen)
    files = len(list(bridge.log.iterdir()))
    print(f"{len(office.seen)} requests, {logged} in the log ({files} files)")
    print(f"{exits} children ended; at most {most} turns at once")
    print("ends: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    print("asked for: " + ", ".join(f"{count} {name}" for name, count in plans.most_common()))
    for name, samples in bridge.samples.items():
        values = [value for _, value in samples]
        print(f"{name}: {values[0]:.1f} at first, {max(values):.1f} at most, {values[-1]:.1f} at last")
    show(found)


def show(found: list[str]) -> None:
    """The violations."""
    for sentence in found[:SHOWN]:
        print(f"VIOLATED  {sentence}")
    if len(found) > SHOWN:
        print(f"VIOLATED  … and {len(found) - SHOWN} more")
    print("every promise was kept" if not found else f"{len(found)} violations")


if __name__ == "__main__":
    main()
