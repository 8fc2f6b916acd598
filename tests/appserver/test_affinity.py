"""Which thread a turn continues: only one whose whole conversation it begins with, and each thread once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.thread_cache import AnswerDigest, KeptThread, KeptThreads, conversation_number
from bridge.core.events import Finished, ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, Usage
from bridge.core.items import FunctionCall, FunctionOutput, Image, Item, Message, RawItem, Text

START = b'{"model":"m","developerInstructions":"be kind"}'


def said(role: Any, *texts: str) -> Message:
    return Message(role, tuple(map(Text, texts)))


HI, HELLO, MORE = said("user", "hi"), said("assistant", "hello"), said("user", "more")


def digested(*events: TurnEvent) -> AnswerDigest:
    """An answer that came event by event."""
    answer = AnswerDigest()
    for event in events:
        answer.add([event])
    return answer


def answered(*texts: str) -> AnswerDigest:
    """An answer of these messages."""
    return digested(*(TextDelta(str(number), [text]) for number, text in enumerate(texts)), Finished("completed"))


def kept_after(
    threads: KeptThreads,
    items: list[Item],
    answer: AnswerDigest,
    name: str = "t",
    until: float = 10,
    turn: str | None = None,
) -> list[str]:
    """Answer a turn and keep its thread; the ids of those that have to go."""
    place = threads.find(START, items, 0)
    gone = threads.keep(KeptThread(name, Usage(), answer.after(place.digest), until, len(answer.calls), turn))
    return [thread.id for thread in gone]


def test_the_next_turn_continues_the_thread() -> None:
    """It knows all but the last message."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], answered("hello"))
    place = threads.find(START, [HI, HELLO, MORE], 0)
    assert place.thread is not None
    assert (place.thread.id, place.known) == ("t", 2)


def test_a_thread_is_taken_by_one_turn() -> None:
    """Two that continue the same conversation at once do not meet in one thread."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], answered("hello"))
    assert threads.find(START, [HI, HELLO, MORE], 0).thread is not None
    assert threads.find(START, [HI, HELLO, MORE], 0).thread is None


@pytest.mark.parametrize(
    "items",
    [
        [HI, said("assistant", "hello!"), MORE],
        [said("user", "hi "), HELLO, MORE],
        [HI, said("user", "hello"), MORE],
        [said("system", "obey"), HI, HELLO, MORE],
        [HI, HELLO],
        [HI],
        [HELLO, MORE],
        [Message("user", (Text("hi"), Image("data:x"))), HELLO, MORE],
    ],
)
def test_another_conversation_gets_a_thread_of_its_own(items: list[Item]) -> None:
    """An edited, shorter or longer beginning never meets the thread; nor does a request that is repeated."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], answered("hello"))
    assert threads.find(START, items, 0).thread is None


@pytest.mark.parametrize("start", [b"{}", START.replace(b'"m"', b'"n"'), START + b"session"])
def test_other_settings_get_a_thread_of_their_own(start: bytes) -> None:
    """What a thread began with cannot be changed any more."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], answered("hello"))
    assert threads.find(start, [HI, HELLO, MORE], 0).thread is None


@pytest.mark.parametrize("back", [[said("assistant", "a"), said("assistant", "b")], [said("assistant", "ab")]])
def test_an_answer_comes_back_in_either_way(back: list[Item]) -> None:
    """Message by message as a response's items do, or all in one as in a chat."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], answered("a", "b"))
    assert threads.find(START, [HI, *back, MORE], 0).thread is not None


def test_reasoning_may_be_left_out_or_given_back() -> None:
    """The thread has it in any case."""
    reasoning = RawItem("reasoning", {"type": "reasoning", "encrypted_content": "x"})
    histories: list[list[Item]] = [[HI, HELLO, MORE], [HI, reasoning, HELLO, MORE]]
    for items in histories:
        threads = KeptThreads(4)
        thought = digested(ReasoningDelta("r", 0, ["hm"]), TextDelta("m", ["hello"]), Finished("completed"))
        kept_after(threads, [HI], thought)
        assert threads.find(START, items, 0).thread is not None


CALL, OUTPUT = FunctionCall("c", "f", '{"a": 1, "b": 2}'), FunctionOutput("c", (Text("1"),))
CALLED = digested(
    TextDelta("m", ["x"]), ToolCall("fc", "c", "f", '{"a": 1, "b": 2}'), TextDelta("n", ["y"]), Finished("completed")
)


@pytest.mark.parametrize(
    "back",
    [
        [said("assistant", "x"), CALL, said("assistant", "y")],
        [said("assistant", "xy"), CALL],
        [said("assistant", "xy"), replace(CALL, arguments='{"b":2,"a":1}')],
    ],
    ids=["one by one", "in a chat", "written again"],
)
def test_an_answer_with_calls_is_continued(back: list[Item]) -> None:
    """By the calls' ids, names and arguments, however the client writes the JSON of these."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], CALLED)
    place = threads.find(START, [HI, *back, OUTPUT], 0)
    assert place.thread is not None
    assert (place.thread.calls, place.known) == (1, 1 + len(back))


@pytest.mark.parametrize("content", [[], [said("assistant", "")]], ids=["none", "empty"])
def test_calls_without_a_text(content: list[Item]) -> None:
    """Chat clients write null or an empty text beside them."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], digested(ToolCall("fc", "c", "f", "not json"), Finished("completed")))
    assert threads.find(START, [HI, *content, FunctionCall("c", "f", "not json"), OUTPUT], 0).thread is not None


@pytest.mark.parametrize("change", [{"call_id": "d"}, {"name": "g"}, {"arguments": '{"a": 1, "b": 3}'}])
def test_other_calls_are_another_conversation(change: dict[str, Any]) -> None:
    """An edited call gets a thread of its own."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], CALLED)
    assert threads.find(START, [HI, said("assistant", "xy"), replace(CALL, **change), OUTPUT], 0).thread is None


def test_a_turn_that_waits_is_continued_by_the_outputs_of_its_calls() -> None:
    """All of them, before anything else; without them another thread is begun, and this one stays."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], CALLED, turn="turn")
    before: list[Item] = [HI, said("assistant", "xy"), CALL]
    assert threads.waits("t")
    assert threads.find(START, [*before, MORE], 0).thread is None
    assert threads.find(START, [*before, MORE, OUTPUT], 0).thread is None
    place = threads.find(START, [*before, OUTPUT, MORE], 0)
    assert place.thread is not None
    assert (place.thread.turn, place.known) == ("turn", 3)
    assert not threads.waits("t")


@pytest.mark.parametrize(
    ("new", "options"),
    [
        ([replace(OUTPUT, call_id="another")], {}),
        ([OUTPUT, replace(CALL, call_id="c2"), replace(OUTPUT, call_id="c2")], {}),
        ([OUTPUT], {"effort": "high"}),
    ],
    ids=["another call", "a call of the client's own", "other options"],
)
def test_a_turn_that_waits_is_not_continued_by(new: list[Item], options: dict[str, Any]) -> None:
    """What it could not be given."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], CALLED, turn="turn")
    assert threads.find(START, [HI, said("assistant", "xy"), CALL, *new], 0, options).thread is None


def test_a_turn_that_is_over_waits_no_longer() -> None:
    """Only one that waited is forgotten."""
    threads = KeptThreads(4)
    kept_after(threads, [HI], CALLED, "waits", turn="turn")
    kept_after(threads, [MORE], answered("hello"), "over")
    assert [thread.id for name in ("over", "unknown", None) for thread in threads.take_waiting(name)] == []
    assert [(thread.id, thread.turn) for thread in threads.take_waiting("waits")] == [("waits", None)]
    assert len(threads) == 1


def test_calls_further_back_are_no_hindrance() -> None:
    """They were injected, as items."""
    items: list[Item] = [HI, FunctionCall("c", "f", "{}"), FunctionOutput("c", (Text("1"),))]
    threads = KeptThreads(4)
    kept_after(threads, items, answered("hello"))
    assert threads.find(START, [*items, HELLO, MORE], 0).thread is not None
    kept_after(threads, items, answered("hello"))
    other = replace(FunctionOutput("c", ()), parts=(Text("2"),))
    assert threads.find(START, [*items[:2], other, HELLO, MORE], 0).thread is None


def test_threads_are_forgotten_in_time_and_number() -> None:
    """Beyond the limit the oldest goes; after its time each goes."""
    threads = KeptThreads(2)
    for number in range(4):
        gone = kept_after(threads, [said("user", str(number))], answered("x"), str(number), until=5 + number)
        assert gone == ([str(number - 2)] if number >= 2 else [])
    assert [thread.id for thread in threads.expire(7.5)] == ["2"]
    assert len(threads) == 1
    assert threads.find(START, [said("user", "3"), said("assistant", "x"), MORE], 8).thread is None
    assert threads.find(START, [said("user", "3"), said("assistant", "x"), MORE], 7).thread is not None


def test_the_same_conversation_again_replaces_its_thread() -> None:
    """Two equal conversations have one thread to continue; the other is let go."""
    threads = KeptThreads(4)
    assert kept_after(threads, [HI], answered("hello"), "first") == []
    assert kept_after(threads, [HI], answered("hello"), "second") == ["first"]
    place = threads.find(START, [HI, HELLO, MORE], 0)
    assert place.thread is not None
    assert place.thread.id == "second"


def test_nothing_is_kept_where_nothing_may_be() -> None:
    """The thread itself has to go then."""
    threads = KeptThreads(0)
    assert kept_after(threads, [HI], answered("hello")) == ["t"]
    assert len(threads) == 0


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6), st.data())
def test_only_the_same_beginning_is_ever_continued(texts: list[str], data: st.DataObject) -> None:
    """Whatever was said: a thread is found exactly when the items before the new one are what it has."""
    roles = ["user", "assistant"]
    items: list[Item] = [said(roles[number % 2], text) for number, text in enumerate(texts)]
    threads = KeptThreads(4)
    kept_after(threads, items, answered("answer"))
    others = data.draw(st.lists(st.text(max_size=3), min_size=1, max_size=6))
    asked: list[Item] = [said(roles[number % 2], text) for number, text in enumerate(others)]
    place = threads.find(START, [*asked, said("assistant", "answer"), MORE], 0)
    assert (place.thread is not None) == (others == texts)


@given(st.lists(st.lists(st.text(max_size=4), max_size=4), max_size=4), st.booleans())
def test_it_does_not_matter_in_which_pieces_an_answer_came(messages: list[list[str]], one_by_one: bool) -> None:
    """Whatever is in them: it is found by its messages, or by all of its text in one."""
    threads = KeptThreads(4)
    pieces = [TextDelta(str(number), [piece]) for number, message in enumerate(messages) for piece in message]
    kept_after(threads, [HI], digested(TextDelta("void", ["x"]), Restarted("again"), *pieces, Finished("completed")))
    texts = ["".join(message) for message in messages if message]
    back = [said("assistant", text) for text in (texts if one_by_one else ["".join(texts)])]
    place = threads.find(START, [HI, *back, MORE], 0)
    assert place.thread is not None
    assert place.known == 1 + len(back)


def test_a_conversation_has_one_number() -> None:
    """However long it grows; so that with several children it stays with one."""
    assert conversation_number([HI, HELLO]) == conversation_number([HI, HELLO, MORE])
    assert conversation_number([MORE]) != conversation_number([HI])
