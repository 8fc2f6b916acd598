"""The ring's bounds, whatever happens in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.events import Finished
from bridge.core.models import ModelChoice
from bridge.core.observer import TurnFacts
from bridge.page.ring import PER_ENTRY, PER_TURN, Ring, size_of
from bridge.protocols.registry import PROTOCOLS

LIMIT = 64 * 1024
TURN = PROTOCOLS["responses"].parse({"model": "m", "input": "hi"}, ()).for_model(ModelChoice("m", "m", backend="b"))


@dataclass
class Life:
    """A ring, and the requests that run."""

    ring: Ring = field(default_factory=lambda: Ring(LIMIT))
    running: list[TurnFacts] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    count: int = 0

    def arrive(self, size: int) -> None:
        self.count += 1
        facts = TurnFacts(f"req_{self.count}", "key-a", 0.0, turn=TURN)
        self.ring.arrived(facts, {"path": "/v1/responses", "body": {"input": "x" * size}})
        self.ring.starting(facts)
        self.running.append(facts)

    def end(self, at: int) -> None:
        facts = self.running.pop(at % len(self.running))
        self.ring.ended(facts, Finished("completed"), None, 1.0)
        self.ended.append(facts.id)


STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "end", "read", "sse", "event", "rpc"]), st.integers(0, 40_000)), max_size=120
)


def apply(life: Life, feed: Any, step: str, size: int) -> None:
    ring = life.ring
    if step == "arrive":
        life.arrive(size)
    elif step == "read":
        feed.read(b"x" * size + b"\n" * (size % 2), is_first=True)
    elif life.running:
        facts = life.running[size % len(life.running)]
        if step == "end":
            life.end(size)
        elif step == "sse":
            ring.client_sse(facts.id, b"x" * size)
        elif step == "event":
            ring.event("client_egress", "out", "client_start", f"{facts.id}#1", {"headers": ["x" * size]})
        else:
            feed.rpc("out", "rpc_request", b"x" * size, method="turn/start", rpc_id=1, key="t", req_id=facts.id)


@given(STEPS)
def test_the_ring_never_grows_beyond_its_limit(steps: list[tuple[str, int]]) -> None:
    """Its size is that of its contents, and only what cannot be dropped is above the limit: turns that run."""
    life = Life()
    feed = life.ring.connect()
    for step, size in steps:
        apply(life, feed, step, size)
        ring = life.ring
        turns = list(ring.turns.values())
        assert ring.size == sum(turn.size for turn in turns) + sum(read.size for read in feed.reads)
        least = sum(turn.size for turn in turns if turn.running) - sum(
            entry.size for turn in turns for entry in turn.entries if turn.running
        )
        assert ring.size <= max(LIMIT, least)
        for turn in turns:
            kept = PER_TURN + (size_of(turn.request) if "not_kept" not in turn.request else 0)
            assert turn.size == kept + sum(entry.size for entry in turn.entries)
            assert turn.size <= LIMIT or not turn.entries
        assert {facts.id for facts in life.running} <= ring.turns.keys(), "a turn that runs is never dropped"


@given(STEPS)
def test_what_ended_first_is_dropped_first(steps: list[tuple[str, int]]) -> None:
    life, gone = Life(), list[str]()
    life.ring.on_gone = lambda turn: gone.append(turn.id)
    feed = life.ring.connect()
    for step, size in steps:
        apply(life, feed, step, size)
    assert gone == life.ended[: len(gone)]
    assert [turn.id for turn in life.ring.turns.values() if not turn.running] == sorted(
        life.ended[len(gone) :], key=lambda name: int(name.removeprefix("req_"))
    )


def test_an_endless_answer_keeps_its_end() -> None:
    """One turn alone fills the ring: the beginning is dropped, and counted."""
    life = Life()
    life.arrive(10)
    sent = 0
    for number in range(1000):
        life.ring.client_sse("req_1", b"%06d" % number * 100)
        sent += 600 + PER_ENTRY
    (turn,) = life.ring.turns.values()
    assert turn.entries[-1].arguments[1].startswith(b"000999")
    assert turn.left_out + sum(entry.size for entry in turn.entries) == sent
    assert turn.dropped + len(turn.entries) == 1000
    assert life.ring.size <= LIMIT


def test_an_endless_line_of_a_child_does_not_empty_the_ring() -> None:
    """Nothing can be read of a line without its end."""
    life = Life()
    life.arrive(10)
    life.end(0)
    life.arrive(10)
    feed = life.ring.connect()
    feed.read(b'{"method":"a"}\n', is_first=True)
    for _ in range(1000):
        feed.read(b"x" * 1000, is_first=False)
    assert [read.data for read in feed.reads] == [b'{"method":"a"}\n']
    assert "req_1" in life.ring.turns
    feed.read(b'xx\n{"method":"b"}\n', is_first=False)
    assert feed.reads[-1].has_gap
    feed.read(b'{"method"', is_first=True)
    feed.read(b':"c"}\n', is_first=False)
    assert [read.has_gap for read in feed.reads] == [False, True, False, False]


def test_a_request_that_is_too_large_is_named_only() -> None:
    life = Life()
    life.arrive(LIMIT)
    (turn,) = life.ring.turns.values()
    assert turn.request["path"] == "/v1/responses"
    assert turn.left_out >= LIMIT
    assert life.ring.size == PER_TURN


def test_what_was_read_before_the_oldest_turn_is_dropped_with_the_one_before() -> None:
    life = Life()
    feed = life.ring.connect()
    feed.read(b"before any turn\n", is_first=True)
    assert not feed.reads
    life.arrive(15_000)
    feed.read(b"of the first\n", is_first=True)
    life.end(0)
    life.arrive(15_000)
    feed.read(b"of the second\n", is_first=True)
    for _ in range(2):
        life.arrive(15_000)
    assert [read.data for read in feed.reads] == [b"of the second\n"]


def test_a_request_of_millions_of_members_is_not_counted_to_the_end() -> None:
    """The event loop would stand still: what is beyond the limit is not kept anyway."""
    numbers = [[0] * 1000] * 1000
    assert size_of(numbers, 1 << 20) < 2 << 20 < size_of(numbers)
    life = Life()
    life.ring.arrived(TurnFacts("req_1", "key-a", 0.0, turn=TURN), {"path": "/v1/responses", "body": numbers})
    assert "not_kept" in life.ring.turns["req_1"].request
