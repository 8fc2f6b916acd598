"""What the event log adds: pairs of a bridge with and one without it, measured in turns."""

from __future__ import annotations

from contextlib import ExitStack

from bridge_process import Bridge, bridge
from request_costs import STREAMED, TURN, cost
from side_by_side import Run, Unsupported, Values
from streams import flood
from table import Part, time_at_most

DELTAS = 50_000
Pair = tuple[Bridge, Bridge]
"""Without the log, and with it."""


def requests(pair: Pair) -> Values:
    turn, streamed, *_ = EVENT_LOG.rows
    plain, logging = ([cost(running, kind, 400) for kind in (TURN, STREAMED)] for running in pair)
    return {turn: logging[0] - plain[0], streamed: logging[1] - plain[1]}


def one_stream(pair: Pair) -> Values:
    """The event loop's share is what slows turns down. The rest is the writer's thread, nearly all of it in the kernel:
    there the same bytes cost several times more on a virtual machine whose free memory the host has taken back."""

    def spent(running: Bridge) -> tuple[float, float]:
        before = running.loop_cpu()
        total = 1e6 / flood(running, 1, DELTAS)
        return 1e6 * (running.loop_cpu() - before) / DELTAS, total

    (loop, total), (logging_loop, logging_total) = map(spent, pair)
    _, _, of_loop, of_all, _ = EVENT_LOG.rows
    return {of_loop: logging_loop - loop, of_all: logging_total - total}


def many_streams(pair: Pair) -> Values:
    plain, logging = (1e6 / flood(running, 64, 500) for running in pair)
    return {list(EVENT_LOG.rows)[-1]: logging - plain}


def measure(run: Run) -> list[Values]:
    with ExitStack() as stack:
        pairs: list[Pair | None] = []
        for number, version in enumerate(run.versions):
            try:
                plain = stack.enter_context(bridge(version=version))
                logging = stack.enter_context(bridge(version=version, log=True))
                pairs.append((plain, logging))
            except Unsupported as reason:
                run.lacks(number, reason)
                pairs.append(None)
        for pair in filter(None, pairs):
            requests(pair)
        # A difference of two numbers is less sure than either: more rounds. Requests first, and not too many deltas:
        # else the CPU that the kernel takes to write hundreds of megabytes at once is what is measured.
        columns: list[Values] = [{} for _ in pairs]
        for measure_pair in (requests, one_stream, many_streams):
            found = run.medians(pairs, measure_pair, rounds=2 * run.rounds - 1)
            columns = [column | more for column, more in zip(columns, found, strict=True)]
        return columns


EVENT_LOG = Part(
    "event log",
    {
        "event log, added CPU µs per short turn": time_at_most(400),
        "event log, added CPU µs per short turn streamed": time_at_most(400),
        "event log, added CPU µs per delta in the event loop, 1 stream": time_at_most(0.8),
        "event log, added CPU µs per delta, 1 stream": None,
        "event log, added CPU µs per delta, 64 streams": None,
    },
    measure,
)
