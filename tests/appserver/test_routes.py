"""How a notification finds its turn, and how a turn's events are kept until they are taken."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.appserver.turn import MAX_EARLY, Call, Flow, Routes, RunningTurn
from bridge.core.collect import collect
from bridge.core.events import (
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import BackendCrashed, SlowClient, UpstreamError


class PlainTurn(RunningTurn):
    """A dialect of one word: every notification is a piece of text, an `end`, or raises what it names."""

    def __init__(self, max_buffered: int = 1000) -> None:
        super().__init__()
        self.max_buffered = max_buffered
        self.woken = 0
        self.wake = self._woken

    def begin(self) -> Flow:
        yield Call("begin", {})

    def interrupt(self) -> Call | None:
        return Call("interrupt", {})

    def end(self) -> list[Call]:
        return [Call("end", {})]

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "raise":
            raise params["error"]
        if method == "end":
            self.complete()
        else:
            self.text("item", params["delta"])

    def _woken(self) -> None:
        self.woken += 1


def text_of(events: list[TurnEvent]) -> str:
    return "".join(piece for event in events if isinstance(event, TextDelta) for piece in event.pieces)


def say(routes: Routes, key: str | None, delta: Any) -> None:
    routes.notify(key, "text", {"delta": delta})


# Routes


def test_notifications_reach_the_turn_that_owns_the_key() -> None:
    """Two turns, interleaved, and each gets its own."""
    routes, first, second = Routes(), PlainTurn(), PlainTurn()
    routes.register("1", first)
    routes.register("2", second)
    for key, delta in [("1", "a"), ("2", "x"), ("1", "b"), ("2", "y")]:
        say(routes, key, delta)
    assert first.take() == [TextDelta("item", ["a", "b"])]
    assert second.take() == [TextDelta("item", ["x", "y"])]
    assert first.key == "1"
    assert routes.get("1") is first
    assert len(routes) == 2


def test_early_notifications_are_delivered_in_order() -> None:
    """What came before the turn was registered is delivered first, in its order, and wakes the turn."""
    routes, turn = Routes(), PlainTurn()
    say(routes, "1", "a")
    say(routes, "2", "other")
    say(routes, "1", "b")
    routes.register("1", turn)
    say(routes, "1", "c")
    assert text_of(turn.take()) == "abc"
    routes.wake_touched()
    assert turn.woken == 1
    assert "early=1" in repr(routes)


def test_early_notifications_are_delivered_once() -> None:
    """A second turn under the same key does not get what the first one got."""
    routes, first, second = Routes(), PlainTurn(), PlainTurn()
    say(routes, "1", "a")
    routes.register("1", first)
    routes.unregister(first)
    routes.register("1", second)
    assert text_of(first.take()) == "a"
    assert second.take() == []


def test_what_is_kept_early_is_bounded() -> None:
    """No flood of unclaimed notifications grows without end; what does not fit is counted."""
    routes, turn = Routes(), PlainTurn(10_000)
    for number in range(MAX_EARLY + 100):
        say(routes, f"{number % 3}", "x")
    assert routes.unclaimed == 100
    assert f"early={MAX_EARLY}" in repr(routes)
    routes.register("0", turn)
    assert len(text_of(turn.take())) >= MAX_EARLY // 3
    say(routes, "9", "y")
    assert routes.unclaimed == 100


def test_unclaimed_early_notifications_can_be_dropped() -> None:
    """When no turn is about to register, nothing is kept."""
    routes, turn = Routes(), PlainTurn()
    say(routes, "1", "a")
    routes.forget_early()
    assert routes.unclaimed == 1
    routes.register("1", turn)
    assert turn.take() == []


def test_late_notifications_of_finished_turns_do_not_displace_early_ones() -> None:
    """Late notifications of old threads are dropped; they must not displace those of threads that will be claimed."""
    routes = Routes()
    for number in range(MAX_EARLY + 1):
        old = PlainTurn()
        routes.register(f"old-{number}", old)
        routes.unregister(old)
        say(routes, f"old-{number}", "late")
    new = PlainTurn()
    say(routes, "new", "early")
    routes.register("new", new)
    assert text_of(new.take()) == "early"


def test_events_of_a_finished_turn_are_dropped() -> None:
    """After `unregister` a thread's notifications reach neither the old turn nor any other."""
    routes, old, other = Routes(), PlainTurn(), PlainTurn()
    routes.register("old", old)
    routes.register("other", other)
    say(routes, "old", "a")
    routes.unregister(old)
    say(routes, "old", "b")
    assert text_of(old.take()) == "a"
    assert other.take() == []
    assert routes.get("old") is None


def test_unregister_leaves_a_successor_alone() -> None:
    """An old turn that is cleaned up late does not take the key from its successor."""
    routes, old, new = Routes(), PlainTurn(), PlainTurn()
    routes.register("1", old)
    routes.register("1", new)
    routes.unregister(old)
    routes.unregister(PlainTurn())
    say(routes, "1", "a")
    assert text_of(new.take()) == "a"
    assert old.take() == []


def test_a_notification_about_nothing_is_ignored() -> None:
    """Without a key there is no turn to find, and nothing to keep."""
    routes, turn = Routes(), PlainTurn()
    routes.register("1", turn)
    say(routes, None, "a")
    assert turn.take() == []
    assert "early=0" in repr(routes)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), AttributeError("x"), ValueError("x")])
def test_a_malformed_notification_stops_no_other_turn(error: Exception) -> None:
    """A decoder's stumble is counted; the same turn and the others go on."""
    routes, turn, other = Routes(), PlainTurn(), PlainTurn()
    routes.register("1", turn)
    routes.register("2", other)
    routes.notify("1", "raise", {"error": error})
    say(routes, "1", "a")
    say(routes, "2", "b")
    assert routes.unclaimed == 1
    assert text_of(turn.take()) == "a"
    assert text_of(other.take()) == "b"


def test_a_turn_is_woken_once_per_read() -> None:
    """However many notifications one read holds, each touched turn wakes once, and no other."""
    routes, turn, idle = Routes(), PlainTurn(), PlainTurn()
    routes.register("1", turn)
    routes.register("2", idle)
    for _ in range(50):
        say(routes, "1", "a")
    assert turn.woken == 0
    routes.wake_touched()
    assert (turn.woken, idle.woken) == (1, 0)
    routes.wake_touched()
    assert turn.woken == 1
    say(routes, "1", "a")
    routes.wake_touched()
    assert turn.woken == 2


def test_a_slow_consumer_fails_alone() -> None:
    """A turn above its bound ends as slow_client: its buffer is freed, its stream closed, the other turn untouched."""
    routes, slow, quick = Routes(), PlainTurn(10), PlainTurn(10)
    overflowed: list[str] = []
    slow.on_overflow = lambda: overflowed.append("slow")
    quick.on_overflow = lambda: overflowed.append("quick")
    routes.register("slow", slow)
    routes.register("quick", quick)
    for _ in range(3):
        say(routes, "slow", "123456")
        say(routes, "quick", "123456")
        routes.wake_touched()
        assert text_of(quick.take()) == "123456"
    (end,) = slow.take()
    assert isinstance(end, Finished)
    assert isinstance(end.error, SlowClient)
    assert overflowed == ["slow"]
    say(routes, "slow", "more")
    routes.wake_touched()
    assert slow.take() == []
    assert not quick.finished


def test_one_read_is_no_slow_client() -> None:
    """However much one read brings, there was no time yet to take it; the next read shows who left it."""
    routes, turn = Routes(), PlainTurn(10)
    routes.register("1", turn)
    for _ in range(3):
        say(routes, "1", "a" * 100)
        routes.wake_touched()
        assert text_of(turn.take()) == "a" * 100
    say(routes, "1", "a" * 100)
    routes.wake_touched()
    assert not turn.finished
    say(routes, "1", "b")
    routes.wake_touched()
    (end,) = turn.take()
    assert isinstance(end, Finished)
    assert isinstance(end.error, SlowClient)


def test_the_bound_counts_what_waits_not_what_came() -> None:
    """A consumer that keeps up may take any amount."""
    routes, turn = Routes(), PlainTurn(10)
    routes.register("1", turn)
    for _ in range(100):
        say(routes, "1", "1234567890")
        routes.wake_touched()
        assert text_of(turn.take()) == "1234567890"
    assert not turn.finished


def test_the_end_of_the_child_fails_every_turn() -> None:
    """All turns fail with the given error and wake; one that is over stays as it ended."""
    routes, running, over = Routes(), PlainTurn(), PlainTurn()
    routes.register("1", running)
    routes.register("2", over)
    say(routes, "2", "x")
    routes.notify("2", "end", {})
    error = BackendCrashed("gone")
    routes.fail_all(error)
    assert running.take() == [Finished("failed", error=error)]
    assert over.take()[-1] == Finished("completed")
    assert running.ended
    assert running.woken == 1


def test_turns_are_found_by_their_key_in_raw_bytes() -> None:
    """The head of an oversize line names its turn, which fails alone."""
    routes, turn, other = Routes(), PlainTurn(), PlainTurn()
    routes.register("thread-a", turn)
    routes.register("thread-b", other)
    error = BackendCrashed("lost")
    routes.touch_named(b'{"method":"x","params":{"threadId":"thread-b","text":"', error)
    routes.touch_named(b"{}", error)
    routes.wake_touched()
    assert other.take() == [Finished("failed", error=error)]
    assert (turn.take(), turn.woken, other.woken) == ([], 0, 1)


# A turn's events


def test_adjacent_deltas_of_an_item_are_one_event() -> None:
    """A run keeps the pieces' boundaries; another item, another event or a `take` ends it."""
    turn = PlainTurn()
    turn.text("a", "1")
    turn.text("a", "2")
    turn.text("b", "3")
    turn.text("a", "4")
    turn.usage(UsageUpdate(Usage(1)))
    turn.text("a", "5")
    assert turn.take() == [
        TextDelta("a", ["1", "2"]),
        TextDelta("b", ["3"]),
        TextDelta("a", ["4"]),
        UsageUpdate(Usage(1)),
        TextDelta("a", ["5"]),
    ]
    assert turn.take() == []


def test_what_was_taken_does_not_change_any_more() -> None:
    """A delta that follows a `take` is a new event, not a change of the old one."""
    turn = PlainTurn()
    turn.text("a", "1")
    turn.reasoning("r", 0, "x", raw=False)
    taken = turn.take()
    turn.reasoning("r", 0, "y", raw=False)
    turn.text("a", "2")
    assert taken == [TextDelta("a", ["1"]), ReasoningDelta("r", 0, ["x"])]
    assert turn.take() == [ReasoningDelta("r", 0, ["y"]), TextDelta("a", ["2"])]


def test_a_completed_message_adds_what_was_not_streamed() -> None:
    """The full text is the truth; only its missing rest is added."""
    turn = PlainTurn()
    turn.text("a", "Hel")
    turn.text_done("a", "Hello")
    turn.text_done("b", "whole")
    turn.text_done("c", "")
    assert turn.take() == [
        TextDelta("a", ["Hel", "lo"]),
        TextDone("a"),
        TextDelta("b", ["whole"]),
        TextDone("b"),
    ]


def test_reasoning_is_kept_by_part_and_kind() -> None:
    """Summary and raw parts are separate, adjacent pieces of one part are joined."""
    turn = PlainTurn()
    turn.reasoning("r", 0, "a", raw=False)
    turn.reasoning("r", 0, "b", raw=False)
    turn.reasoning("r", 1, "c", raw=False)
    turn.reasoning("r", 1, "d", raw=True)
    turn.reasoning_done("r", ["ab", "c"], ["", "d"])
    assert turn.take() == [
        ReasoningDelta("r", 0, ["a", "b"]),
        ReasoningDelta("r", 1, ["c"]),
        ReasoningDelta("r", 1, ["d"], raw=True),
        ReasoningDone("r"),
    ]


def test_reasoning_that_was_not_streamed_comes_with_its_end() -> None:
    """A completed reasoning item is shown even when it had no deltas; an empty one is not."""
    turn = PlainTurn()
    turn.reasoning_done("r", ["why"], ["raw"])
    turn.reasoning_done("empty", [], [])
    assert turn.take() == [
        ReasoningDelta("r", 0, ["why"]),
        ReasoningDelta("r", 0, ["raw"], raw=True),
        ReasoningDone("r"),
    ]


def test_a_restart_voids_the_text_before_it() -> None:
    """A retry is an event only when there was text before it."""
    turn = PlainTurn()
    turn.restart("silent")
    turn.text("a", "dead")
    turn.restart("loud")
    turn.text("b", "alive")
    turn.complete()
    assert turn.take() == [
        TextDelta("a", ["dead"]),
        Restarted("loud"),
        TextDelta("b", ["alive"]),
        Finished("completed"),
    ]


def test_an_end_without_an_answer_is_a_failure() -> None:
    """A turn that said nothing, or nothing that still holds, has not succeeded."""
    silent, restarted = PlainTurn(), PlainTurn()
    silent.complete()
    restarted.text("a", "dead")
    restarted.restart("retry")
    restarted.complete()
    for turn in (silent, restarted):
        end = turn.take()[-1]
        assert isinstance(end, Finished)
        assert end.outcome == "failed"
        assert end.error is not None
        assert end.error.code == "empty_response"


def test_a_remembered_failure_becomes_the_end() -> None:
    """An error that the child announced makes its later completion a failure."""
    turn = PlainTurn()
    failure = Finished("failed", error=UpstreamError("no"))
    turn.text("a", "partial")
    turn.fail_later(failure)
    assert not turn.finished
    turn.complete()
    assert turn.take() == [TextDelta("a", ["partial"]), failure]
    assert turn.ended


def test_nothing_follows_the_end() -> None:
    """After Finished every further event is dropped, another end too."""
    turn = PlainTurn()
    turn.text("a", "x")
    turn.cancelled()
    turn.text("a", "y")
    turn.text("b", "y")
    turn.text_done("a", "xyz")
    turn.reasoning("r", 0, "y", raw=False)
    turn.usage(UsageUpdate(Usage()))
    turn.restart("y")
    turn.complete()
    turn.fail(BackendCrashed("y"))
    assert turn.take() == [TextDelta("a", ["x"]), Finished("cancelled")]


def test_a_turn_can_be_printed() -> None:
    """Its state can be read off it."""
    routes, turn = Routes(), PlainTurn()
    routes.register("k", turn)
    turn.text("a", "x")
    assert repr(turn) == "<PlainTurn k running events=1>"
    turn.complete()
    assert repr(turn) == "<PlainTurn k finished events=2>"


# Calls, searches, and reasoning that ends elsewhere

CALL = ToolCall("fc_1", "call_1", "find", "{}")


def test_a_call_is_an_answer() -> None:
    """A turn that only called has not been silent; text may come before and after it, in order."""
    turn = PlainTurn()
    turn.text("m", "a")
    turn.called(CALL)
    turn.text("m", "b")
    turn.complete()
    assert turn.take() == [TextDelta("m", ["a"]), CALL, TextDelta("m", ["b"]), Finished("completed")]
    alone = PlainTurn()
    alone.called(CALL)
    alone.complete()
    assert alone.take() == [CALL, Finished("completed")]


def test_a_search_is_no_answer_yet() -> None:
    """The answer is still to come."""
    turn = PlainTurn()
    turn.searched("ws", {"type": "search"})
    turn.complete()
    search, end = turn.take()
    assert search == WebSearch("ws", {"type": "search"})
    assert isinstance(end, Finished)
    assert end.error is not None
    assert end.error.code == "empty_response"


@pytest.mark.parametrize("search", [True, False])
def test_a_restart_voids_calls_and_searches(search: bool) -> None:
    """It is an event even when no text had come."""
    turn = PlainTurn()
    if search:
        turn.searched("ws", {})
    else:
        turn.called(CALL)
    turn.restart("again")
    events = turn.take()
    assert events[-1] == Restarted("again")
    assert collect(events).outputs == []


def test_reasoning_may_end_elsewhere() -> None:
    """Its text is an event now; its end comes with the rest."""
    turn = PlainTurn()
    turn.reasoning_done("r", ["a"], [], more_to_come=True)
    assert turn.take() == [ReasoningDelta("r", 0, ["a"])]
    turn.reasoning_done("r", ["a"], [])
    assert turn.take() == [ReasoningDone("r")]


def test_only_some_turns_leave_calls_open() -> None:
    """By default every request of the child is answered."""
    assert not PlainTurn().parks_tool_calls
