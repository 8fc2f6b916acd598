"""Which recorded call a call of a client matches."""

from __future__ import annotations

from time import perf_counter

from bridge.appserver.standin.messages import Message
from bridge.appserver.standin.recorded import (
    CallMatcher,
    Candidates,
    Position,
    RecordedCall,
    RecordedThread,
    Step,
    compared,
)

START: Message = {"model": "m"}
PROMPT: Message = {"input": [{"type": "text", "text": "hello"}]}
REFUSAL = (Step(0.0, "reply", {"error": {"code": -32600, "message": "no"}}),)


def equal_threads(count: int, *refused: int) -> tuple[RecordedThread, ...]:
    """Threads with equal calls. The prompts of those in `refused` were refused."""
    return tuple(
        RecordedThread(
            f"t{number}",
            "current",
            (
                RecordedCall("thread/start", START, (), order=2 * number),
                RecordedCall("turn/start", PROMPT, REFUSAL if number in refused else (), order=2 * number + 1),
            ),
        )
        for number in range(count)
    )


def after_start(matcher: CallMatcher) -> Candidates:
    return matcher.follow(None, compared("thread/start", START))


def prompt(matcher: CallMatcher, own: RecordedThread | None = None) -> Position:
    """The position for a prompt in a new thread."""
    position = matcher.choose(matcher.follow(after_start(matcher), compared("turn/start", PROMPT)), own)
    assert position is not None
    return position


def test_the_recorded_thread_comes_first_then_the_recorded_order() -> None:
    threads = equal_threads(4)
    matcher = CallMatcher(threads)
    found = [prompt(matcher, threads[2]), prompt(matcher, threads[2]), prompt(matcher), prompt(matcher)]
    assert [position.thread.id for position in found] == ["t2", "t0", "t1", "t3"]


def test_the_last_one_that_was_not_refused_repeats() -> None:
    matcher = CallMatcher(equal_threads(3, 2))
    found = [prompt(matcher).thread.id for _ in range(5)]
    assert found == ["t0", "t1", "t2", "t1", "t1"]


def test_the_next_position_is_in_the_same_thread() -> None:
    threads = equal_threads(3)
    matcher = CallMatcher(threads)
    matcher.choose(after_start(matcher), None)
    second = matcher.choose(after_start(matcher), None)
    assert second is not None
    following = matcher.next_of(second)
    assert following is not None
    assert (following.thread.id, following.index) == ("t1", 1)
    assert matcher.next_of(following) is None


def test_thousands_of_equal_calls_are_matched_in_linear_time() -> None:
    def seconds(count: int) -> float:
        matcher = CallMatcher(equal_threads(count))
        begun = perf_counter()
        for _ in range(count):
            prompt(matcher)
        return perf_counter() - begun

    seconds(100)
    small, large = min(seconds(500) for _ in range(3)), seconds(10_000)
    assert large < 60 * small + 0.2
