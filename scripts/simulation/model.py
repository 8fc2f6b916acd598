"""The oracle: what has to come of each request, from what its child did and what was done to it, and by when.

It knows when the bridge read what, and holds the bridge to one second for everything that follows from it. So a fault
of the first line is seen even where a time limit of the second line would hide it from the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from child import Attempt, Process, attempts_of
from clients import Seen
from plans import FIRST_EVENT, GRACE, IDLE, QUEUE, RPC, KeyPlan

from bridge.app.app import App
from bridge.appserver.supervisor import Pool
from bridge.log.read import RecordReader, request_of

if TYPE_CHECKING:
    from history import World

SLACK = 1.0
"""Seconds within which the bridge must have done what it owes."""
EXIT_DRAIN = 0.7
"""Seconds for which the output of a child that has ended is still read."""
SETTLED = 3.0
"""Seconds after which a child that was started must be ready: every read of its handshake may come late."""
KEY_WATCH = 2.0
"""Seconds within which a key that ends must have ended (promised in `bridge.app.keys`)."""
RELEASE = 2.5
"""Seconds until the child must have stopped a turn whose client is gone; reads of its stdin may come late."""

MAX_DEATHS = 5
"""Ends of children within a minute after which the bridge waits for a minute."""
RESTART = 0.25 * 1.25
"""Seconds until the first restart; each further one may take twice as long."""

UNREADY = frozenset(
    {"handshake_failed", "handshake_pending", "restarting", "degraded", "worker_not_started", "backend_not_ready"}
)
FAILED = frozenset({"upstream_error"})
CRASHED = frozenset({"backend_crashed"})
TIMEOUT = frozenset({"backend_timeout"})
REVOKED = frozenset({"invalid_api_key"})
STOPPING = frozenset({"shutdown_initiated"})
BUSY = frozenset({"overloaded", "key_limit_exceeded"})
CANCELLED = frozenset({"interrupted"})
# In these protocols, errors have other names than ours.
KINDS = {
    "cap": {
        "agent_crashed": CRASHED,
        "agent_not_ready": UNREADY,
        "deadline_exceeded": TIMEOUT,
        "shutting_down": STOPPING,
        "unauthorized": REVOKED,
    },
    "messages": {
        "authentication_error": REVOKED,
        "rate_limit_error": frozenset({"key_limit_exceeded"}),
        "overloaded_error": UNREADY | BUSY | STOPPING,
        "timeout_error": TIMEOUT,
        "api_error": FAILED | CRASHED | TIMEOUT | UNREADY | STOPPING | CANCELLED,
    },
}


@dataclass(frozen=True)
class End:
    """An end that a request may have, and when it has to be decided."""

    outcomes: frozenset[str]
    first: float
    last: float
    is_certain: bool = True
    """Whether the request cannot go on after it."""


def judge(world: World) -> None:
    """Compare what the clients saw with what had to come."""
    for seen in world.seen:
        name = f"{seen.mark} ({seen.ask.protocol}{', streamed' if seen.ask.stream else ''}, {seen.ask.fate})"
        attempts = attempts_of(world.children, seen.mark)
        if len(attempts) > 1:
            world.violate(f"{name} has {len(attempts)} turns")
        for fault in seen.faults:
            world.violate(f"{name}: {fault}")
        attempt = attempts[0] if attempts else None
        if seen.left is None:
            for fault in _judge_end(world, seen, attempt):
                world.violate(f"{name}: {fault}")
        if attempt is not None:
            for fault in (*_judge_text(seen, attempt), *_judge_release(world, seen, attempt)):
                world.violate(f"{name}: {fault}")


def judge_children(world: World) -> None:
    """A child that has ended is started again in time, and a bridge that stops begins no turn."""
    starts = sorted([*world.failed_starts, *(child.began for child in world.children)])
    ends = sorted([*world.failed_starts, *(child.died for child in world.children if child.died is not None)])
    for number, end in enumerate(ends):
        if number >= MAX_DEATHS - 1 or (world.over is not None and end >= world.over):
            break  # from then on it is given a minute
        due = end + RESTART * 2**number + 2 * SLACK
        following = starts[number + 1] if len(starts) > number + 1 else None
        if following is None and (world.over is None or due > world.over):
            break
        if following is None or following > due:
            world.violate(f"a child ended at {end:.3f}, and the next was not started by {due:.3f}")
    if world.stopped is not None:
        for child in world.children:
            for attempt in child.attempts.values():
                if attempt.began > world.stopped + SLACK:
                    world.violate(f"{attempt.mark} began {attempt.began - world.stopped:.3f} s after the stop")


def judge_slots(world: World) -> None:
    """No more turns than there are slots; and none waits while a slot is free, or is overtaken."""
    most = world.plan.settings["max_turns"]
    # With one slot, a turn that begins later got the slot later. With several, the calls that begin it may take longer.
    margin = 0.01 if most == 1 else SLACK
    every = [each for seen in world.seen if (each := _held(world, seen)) is not None]
    # When the others gave up their slots, no client can know.
    held = [each for each in every if each[0].ask.manner not in ("stalls", "cancels")]
    for seen, began, _ in held:
        running = [other.mark for other, start, end in held if start <= began and end > began + 0.001]
        if len(running) > most:
            world.violate(f"{' '.join(running)} run at {began:.3f}, but {most} may")
        for other, start, _ in held:
            if _is_before(world, seen, other) and start + margin < began:
                world.violate(f"{other.mark}, which was asked later, began before {seen.mark}")
    for seen in world.seen:
        if (
            seen.outcome != "overloaded"
            or seen.sent is None
            or seen.ended is None
            or seen.ended < seen.sent + QUEUE - 1
        ):
            continue
        if not any(_is_settled(child, seen.sent, seen.ended) for child in world.children) or seen.key:
            continue
        for other, start, _ in held:
            if _is_before(world, seen, other) and start + margin < seen.ended:
                world.violate(f"{other.mark}, which was asked later, began while {seen.mark} waited in vain")
        free = 0.0
        at = seen.sent
        while at < seen.ended:
            at += 0.25
            free = free + 0.25 if sum(start <= at < end for _, start, end in every) < most else 0.0
            if free > 2 * SLACK:
                world.violate(f"{seen.mark} was refused at {seen.ended:.3f}, although a slot was free at {at:.3f}")
                break


def _held(world: World, seen: Seen) -> tuple[Seen, float, float] | None:
    """From when to when a request had a turn."""
    attempts = attempts_of(world.children, seen.mark)
    if not attempts:
        return None
    ended = None if seen.ask.manner in ("stalls", "cancels") else attempts[0].ended
    overs = [each for each in (ended, seen.ended, seen.left) if each is not None]
    return (seen, attempts[0].began, min(overs)) if overs else None


def _is_before(world: World, first: Seen, other: Seen) -> bool:
    """Whether a request came to the queue before another one, and nothing but their order decides."""
    return (
        first.sent is not None
        and first.sent + 0.1 < other.began
        and not first.key
        and not other.key
        and any(_is_settled(child, first.sent, first.sent + 0.1) for child in world.children)
    )


def _judge_end(world: World, seen: Seen, attempt: Attempt | None) -> Iterator[str]:
    if seen.ended is None:
        yield "the client never hears of an end"
        return
    ends = list(_ends(world, seen, attempt))
    fitting = [each for each in ends if _fits(seen, each.outcomes) and each.first - 0.001 <= seen.ended]
    if not fitting:
        said = "no turn" if attempt is None else f"a turn that the child ended as {attempt.end or 'nothing'}"
        yield f"ended as {seen.outcome} at {seen.ended:.3f} with {said}; expected {_expected(ends)}"
        return
    end = max(fitting, key=lambda each: each.last)
    if seen.ended > max(end.last, seen.stalled) + SLACK:
        yield f"heard of {seen.outcome} at {seen.ended:.3f}, {seen.ended - end.last:.3f} s after it was decided"
    # A client that cancels learns of the end only then; the call may meet another obstacle.
    is_direct = seen.outcome != "cut" and (seen.cancelled is None or seen.outcome == "cancelled")
    for other in ends if is_direct else ():
        if other.is_certain and all(max(other.last, seen.stalled) + SLACK < each.first for each in fitting):
            yield f"ended as {seen.outcome} at {seen.ended:.3f}, but it had to end before: {_expected([other])}"


def _expected(ends: list[End]) -> str:
    return (
        " or ".join(f"{'/'.join(sorted(end.outcomes))} at {end.first:.3f}-{end.last:.3f}" for end in ends) or "nothing"
    )


def _fits(seen: Seen, outcomes: frozenset[str]) -> bool:
    kinds = KINDS.get(seen.ask.protocol, {}).get(seen.outcome, frozenset({seen.outcome}))
    return not kinds.isdisjoint(outcomes)


def _ends(world: World, seen: Seen, attempt: Attempt | None) -> Iterator[End]:
    """All ends that this request may have had."""
    sent, now = seen.sent if seen.sent is not None else seen.began, seen.ended or seen.began
    key = world.plan.keys[seen.key - 1] if seen.key else KeyPlan()
    # A client that does not read has not had its end yet, and may still lose it.
    if key.ends is not None and (
        attempt is None or attempt.ended is None or max(attempt.ended, seen.stalled) >= key.ends
    ):
        yield End(REVOKED, key.ends, max(key.ends, sent) + KEY_WATCH)
    elif key.ends is not None and seen.cancelled is not None:
        yield End(REVOKED, key.ends, seen.cancelled, is_certain=False)  # the call that cancels needs a key, too
    if world.stopped is not None:
        last = world.stopped + GRACE + 0.5
        runs = attempt is not None and attempt.began < world.stopped
        is_refused = attempt is None and any(_is_settled(child, world.stopped, now) for child in world.children)
        decided = max(world.stopped if is_refused else last, sent)
        yield End(STOPPING, world.stopped + (GRACE if runs else 0), decided)
        if attempt is None or seen.cancelled is not None:
            yield End(frozenset({"refused", "cut"}), world.stopped, max(last, sent), is_certain=False)
    if attempt is not None:
        yield from _ends_of(attempt, seen.stalled)
    if seen.cancelled is not None:
        # What ended it before, the client hears now.
        yield End(frozenset({"cancelled"}), seen.cancelled, seen.cancelled)
    if attempt is not None:
        return
    if _was_busy(world, seen, key):
        yield End(BUSY, seen.began, sent + QUEUE + RPC)
    if not any(_is_settled(child, sent, now) for child in world.children):
        yield End(UNREADY, seen.began, sent + QUEUE + 4 * RPC, is_certain=False)
        # It died, or stopped answering, with the calls that would have begun the turn.
        yield End(CRASHED | TIMEOUT, seen.began, sent + QUEUE + 5 * RPC, is_certain=False)


def _ends_of(attempt: Attempt, stalled: float) -> Iterator[End]:
    child = attempt.child
    if attempt.ended is not None and not attempt.was_stopped:
        outcomes = {"completed": frozenset({"completed"}), "interrupted": CANCELLED, "failed": FAILED}[attempt.end]
        yield End(outcomes, attempt.ended, attempt.ended)
    if attempt.lost is not None:
        silent = child.silent_since
        yield End(CRASHED, attempt.lost if silent is None else min(silent, attempt.lost), attempt.lost + EXIT_DRAIN)
    if attempt.ended is None or attempt.was_stopped:
        # While the client does not read, the bridge waits for the client, and not for the child.
        last = max(attempt.last_read, stalled)
        yield End(TIMEOUT, attempt.last_read + min(FIRST_EVENT, IDLE, RPC), last + max(FIRST_EVENT, IDLE))


def _was_busy(world: World, seen: Seen, key: KeyPlan) -> bool:
    """Whether enough other requests were open when this one was refused."""
    assert seen.ended is not None
    others = [each for each in world.seen if each is not seen and was_open(each, seen.began, seen.ended)]
    of_key = [each for each in others if each.key == seen.key]
    return len(others) >= world.plan.settings["max_turns"] or (
        key.max_turns is not None and len(of_key) >= key.max_turns
    )


def was_open(seen: Seen, start: float, end: float) -> bool:
    """Whether a request held something of the bridge between these times."""
    overs = [each for each in (seen.ended, seen.left) if each is not None and not seen.goes_on]
    return seen.began <= end and (not overs or min(overs) + SLACK >= start)


def _is_settled(child: Process, start: float, end: float) -> bool:
    """Whether a child could take a turn all that time."""
    return (
        child.began + SETTLED <= start
        and (child.died is None or child.died > end)
        and (child.silent_since is None or child.silent_since > end)
    )


def _judge_text(seen: Seen, attempt: Attempt) -> Iterator[str]:
    """The text is the child's: all of it at the end, and each piece within a second."""
    whole = seen.ask.text
    if seen.outcome == "completed" and seen.text != whole:
        yield f"completed with {_short(seen.text)} instead of {_short(whole)}"
    if not whole.startswith(seen.text):
        yield f"has the text {_short(seen.text)}, which its child never said"
    if not seen.ask.stream or seen.status != 200:
        return
    fails_in_child = seen.outcome in FAILED | CRASHED | TIMEOUT
    # More than the deltas may have come with a whole message.
    if fails_in_child and not seen.text.startswith(attempt.text):
        yield f"failed with {_short(seen.text)}, although the bridge had read {_short(attempt.text)}"
    over = min(each for each in (seen.ended, seen.left, 1e9) if each is not None)
    for number, read in enumerate(attempt.deltas, 1):
        due = max(read, seen.stalled) + SLACK
        if due < over and not any(at <= due and count >= number for at, count in seen.heard):
            yield f"piece {number}, which the bridge read at {read:.3f}, was not heard by {due:.3f}"
            return


def _short(text: str) -> str:
    return repr(text.replace("x" * 300, "…")[:300])


def _judge_release(world: World, seen: Seen, attempt: Attempt) -> Iterator[str]:
    """A turn whose client is gone does not run on."""
    over = seen.left if seen.left is not None else seen.ended
    child = attempt.child
    if over is None or seen.goes_on:
        return
    due = max(over, attempt.began) + RELEASE
    if (child.died is not None and child.died <= due) or child.silent_since is not None:
        return
    if attempt.over is None or attempt.over > due:
        when = "never" if attempt.over is None else f"at {attempt.over:.3f}"
        yield f"its client was gone at {over:.3f}, and the child stopped {when}"


def judge_log(world: World, path: Path) -> None:
    """The event log has one beginning and one end of each request, and nothing of it after its end."""
    begun, ended = Counter[str](), Counter[str]()
    reader = RecordReader([path])
    for _, record in reader:
        if record["req_id"] is None or record["phase"] in ("backend_io", "backend_submission"):
            continue  # what a child says of a turn that has ended is its own affair
        name, _ = request_of(record["req_id"])
        if ended[name]:
            world.violate(f"the log has {record['kind']} after the end of a request")
        begun[name] += record["kind"] == "client_request"
        ended[name] += record["kind"] == "turn_end"
    for name in begun:
        if begun[name] != 1 or ended[name] != 1:
            world.violate(f"the log has {begun[name]} beginnings and {ended[name]} ends of a request")
    for sentence in reader.trouble.sentences():
        world.violate(f"the log: {sentence}")


class Auditor:
    """Checks what the bridge holds, one second after each end of a request."""

    def __init__(self, world: World, app: App) -> None:
        self._world = world
        self._app = app

    def state(self) -> str:
        admission, turns = self._app.service.admission, sum(runner.turns for runner in self._app.runners)
        return f"{admission.running} slots, {admission.waiting} waiting, {turns} turns"

    async def check_after(self, seen: Seen) -> None:
        """A second after the end of a request, it holds no slot."""
        await trio.sleep(SLACK + 0.001)
        now = trio.current_time()
        admission = self._app.service.admission
        most = sum(was_open(each, now, now) for each in self._world.seen)
        if admission.running > most:
            self._world.violate(
                f"{admission.running} slots are taken, but only {most} requests are open, 1 s after {seen.mark}"
            )
        if not most:
            self._check_rest(now)

    def _check_rest(self, now: float) -> None:
        """No request is open: nothing is held."""
        world, admission = self._world, self._app.service.admission
        if admission.waiting:
            world.violate(f"{admission.waiting} requests wait for a slot, but no request is open")

    async def at_rest(self) -> None:
        """After the last request: within the time that the release of threads may take, nothing is held."""
        world = self._world
        quiet = all(child.silent_since is None for child in world.children)
        await trio.sleep(SLACK + RELEASE if quiet else 12.0)
        if world.stopped is not None:
            return
        if self._app.service.admission.running:
            world.violate(f"no request is open, but the bridge holds {self.state()}")
        turns = sum(runner.turns for runner in self._app.runners)
        if turns:
            world.violate(f"no request is open, but {turns} turns are counted")
        for runner in self._app.runners:
            if isinstance(runner, Pool) and any(len(child.routes) for child in runner.children):
                world.violate("no request is open, but a child has turns that are registered")
        settings = world.plan.settings
        for child in world.children:
            threads = child.threads
            if threads and child.is_alive and quiet and not settings["kept_threads"] + settings["warm_threads"]:
                world.violate(
                    f"no request is open, but child {child.number} has {threads} threads that are not released"
                )
