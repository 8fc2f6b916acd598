"""Whatever the order of notifications, registrations and reads: each turn hears its own, whole and in order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.turn import MAX_EARLY, Call, Flow, Routes, RunningTurn
from bridge.core.collect import collect
from bridge.core.events import Finished, TextDelta, TurnEvent

KEYS = ["a", "b", "c"]


class NumberedTurn(RunningTurn):
    """A turn whose notifications are numbers, and `end`."""

    def begin(self) -> Flow:
        yield Call("begin", {})

    def interrupt(self) -> Call | None:
        return None

    def end(self) -> list[Call]:
        return []

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "end":
            self.complete()
        else:
            self.text(params["item"], params["delta"])


steps = st.lists(
    st.tuples(
        st.sampled_from(["notify", "notify", "notify", "bad", "end", "register", "take", "wake", "unregister"]),
        st.sampled_from(KEYS),
    ),
    max_size=60,
)


@given(steps)
def test_each_turn_gets_exactly_its_own_in_order(script: list[tuple[str, str]]) -> None:
    """No notification is lost, doubled, reordered or given to another turn; after its end a turn hears nothing."""
    routes = Routes()
    turns: dict[str, NumberedTurn] = {}
    heard: dict[str, list[TurnEvent]] = {key: [] for key in KEYS}
    expected: dict[str, list[str]] = {key: [] for key in KEYS}
    over: set[str] = set()
    gone: set[str] = set()
    wakes: dict[str, int] = dict.fromkeys(KEYS, 0)

    for number, (step, key) in enumerate(script):
        if key in gone:
            continue
        if step == "notify":
            routes.notify(key, "text", {"item": f"item-{number % 2}", "delta": f"{key}{number} "})
            if key not in over:
                expected[key].append(f"{key}{number} ")
        elif step == "bad":
            routes.notify(key, "text", {})
        elif step == "end":
            routes.notify(key, "end", {})
            over.add(key)
        elif step == "register" and key not in turns:
            turns[key] = NumberedTurn()
            turns[key].wake = lambda key=key: wakes.__setitem__(key, wakes[key] + 1)  # type: ignore[misc]
            routes.register(key, turns[key])
        elif step == "take" and key in turns:
            heard[key] += turns[key].take()
        elif step == "unregister" and key in turns:
            routes.unregister(turns[key])
            gone.add(key)
        elif step == "wake":
            before = dict(wakes)
            routes.wake_touched()
            assert all(wakes[key] - before[key] <= 1 for key in KEYS)
            assert routes.touched == []

    for key, turn in turns.items():
        heard[key] += turn.take()
        pieces = [piece for event in heard[key] if isinstance(event, TextDelta) for piece in event.pieces]
        assert pieces == expected[key]
        ends = [event for event in heard[key] if isinstance(event, Finished)]
        assert len(ends) == (key in over)
        assert not ends or heard[key][-1] is ends[0]


@given(st.lists(st.text(max_size=4), max_size=20), st.lists(st.integers(0, 20), max_size=8))
def test_taking_more_often_changes_nothing(deltas: list[str], takes: list[int]) -> None:
    """The pieces and the result are the same however often the consumer looks."""
    turn = NumberedTurn()
    events: list[TurnEvent] = []
    for number, delta in enumerate(deltas):
        turn.text("item", delta)
        if number in takes:
            events += turn.take()
    turn.complete()
    events += turn.take()
    assert [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces] == deltas
    assert collect(events).text == "".join(deltas)


@given(st.lists(st.sampled_from(["1", "2", "3"]), max_size=2 * MAX_EARLY))
def test_early_notifications_never_exceed_the_bound(keys: list[str]) -> None:
    """Kept and dropped together are all that came."""
    routes = Routes()
    for key in keys:
        routes.notify(key, "text", {"item": "i", "delta": "x"})
    turns = {key: NumberedTurn() for key in "123"}
    for key, turn in turns.items():
        routes.register(key, turn)
    delivered = sum(len(collect(turn.take()).text) for turn in turns.values())
    assert delivered == min(len(keys), MAX_EARLY)
    assert delivered + routes.unclaimed == len(keys)
