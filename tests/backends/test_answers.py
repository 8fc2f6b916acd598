"""What the bridge itself does around a backend's answer: stop sequences and several choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from bridge.app.answers import start_answer
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Choice, Finished, TextDelta, TextDone, TurnEvent, Usage, UsageUpdate
from bridge.core.items import Message, Text
from bridge.core.turn import Turn
from bridge.errors import Overloaded, UpstreamError

TURN = Turn("m", "m", (Message("user", (Text("four words, perhaps more"),)),))
DONE = Finished("completed")


class Played:
    """A stream that gives these batches, each so many seconds after the one before."""

    def __init__(self, batches: Sequence[tuple[float, list[TurnEvent]]]) -> None:
        self.closed = False
        self._batches = list(batches)
        self._last = trio.current_time()

    async def next(self) -> list[TurnEvent]:
        seconds, events = self._batches[0]
        self._last += seconds
        try:
            await trio.sleep_until(self._last)
        except trio.Cancelled:
            self._last -= seconds
            raise
        del self._batches[0]
        return events

    def close(self) -> None:
        self.closed = True


class Scripted(Backend):
    """A backend that starts these streams, one after the other, and then is overloaded."""

    name = "scripted"

    def __init__(self, *streams: Played) -> None:
        self.streams = list(streams)
        self.started: list[str] = []

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        if len(self.started) == len(self.streams):
            raise Overloaded("too many", retry_after=1)
        self.started.append(req_id)
        return self.streams[len(self.started) - 1]

    def models(self) -> list[str]:
        return ["m"]

    def status(self) -> tuple[bool, str]:
        return True, "ready"


def said(*texts: str, seconds: float = 0) -> list[tuple[float, list[TurnEvent]]]:
    """A text, one batch for each piece, and its end."""
    pieces: list[list[TurnEvent]] = [[TextDelta("i", [text])] for text in texts]
    pieces.append([TextDone("i"), DONE])
    return [(seconds, batch) for batch in pieces]


async def read(stream: EventStream) -> list[TurnEvent]:
    """All events up to the end."""
    events: list[TurnEvent] = []
    while not (events and isinstance(events[-1], Finished)):
        events += await stream.next()
    return events


def shown(events: list[TurnEvent]) -> str:
    return "".join(piece for event in events if isinstance(event, TextDelta) for piece in event.pieces)


@pytest.mark.parametrize("turn", [TURN, replace(TURN, n=1)])
async def test_a_plain_answer_is_the_backends_own_stream(turn: Turn) -> None:
    """Nothing is put between."""
    stream = Played(said("hi"))
    assert await start_answer(Scripted(stream), turn, "req") is stream


# Stop sequences


@pytest.mark.parametrize(
    ("texts", "text", "stop"),
    [
        (["one END two"], "one ", "END"),
        (["one E", "N", "D two"], "one ", "END"),
        (["END"], "", "END"),
        (["one E", "NE"], "one ENE", None),
        (["one EN"], "one EN", None),
        (["one STOP END"], "one ", "STOP"),
    ],
)
async def test_an_answer_ends_before_the_first_stop_sequence(texts: list[str], text: str, stop: str | None) -> None:
    """Wherever the pieces cut it; its end names the sequence. An answer without one is whole."""
    stream = Played(said(*texts))
    events = await read(await start_answer(Scripted(stream), replace(TURN, stop=("END", "STOP")), "req"))
    assert shown(events) == text
    assert events[-1] == replace(DONE, stop_sequence=stop)
    assert stream.closed == (text != "".join(texts))


async def test_a_stopped_answer_says_that_its_usage_is_a_guess() -> None:
    """The model was interrupted before it could tell."""
    stream = await start_answer(Scripted(Played(said("12345678 END"))), replace(TURN, stop=("END",)), "req")
    (update,) = [event for event in await read(stream) if isinstance(event, UsageUpdate)]
    assert update.usage.estimated
    assert update.usage.input > 0
    assert update.usage.output == 3


async def test_letting_go_of_a_stopping_stream_lets_go_of_the_turn() -> None:
    """A client may leave before any stop sequence."""
    inner = Played(said("x"))
    (await start_answer(Scripted(inner), replace(TURN, stop=("END",)), "req")).close()
    assert inner.closed


# Several choices


def of(events: list[TurnEvent], index: int) -> list[TurnEvent]:
    """What one choice said."""
    return [event for batch in events if isinstance(batch, Choice) and batch.index == index for event in batch.events]


async def test_each_choice_is_a_turn_of_its_own(autojump_clock: Any) -> None:
    """They run at once, each in its own order, and the answer ends when the last of them has."""
    backend = Scripted(Played(said("a", "b", seconds=2)), Played(said("c", seconds=5)), Played(said()))
    stream = await start_answer(backend, replace(TURN, n=3), "req")
    before = trio.current_time()
    events = await read(stream)
    assert trio.current_time() - before == pytest.approx(10)
    assert [shown(of(events, index)) for index in range(3)] == ["ab", "c", ""]
    assert [of(events, index)[-1] for index in range(3)] == [DONE] * 3
    assert events[-1] == DONE
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert backend.started == ["req", "req#1", "req#2"]


async def test_a_choice_that_fails_ends_the_answer(autojump_clock: Any) -> None:
    """With its error; the others are let go with the stream."""
    failure = Finished("failed", error=UpstreamError("boom"))
    streams = Played(said("a", seconds=5)), Played([(1, [failure])])
    stream = await start_answer(Scripted(*streams), replace(TURN, n=2), "req")
    assert (await read(stream))[-1] is failure
    stream.close()
    assert [each.closed for each in streams] == [True, True]


async def test_where_not_all_choices_can_begin_none_does() -> None:
    """Those that had are let go, and the client hears why."""
    streams = Played(said("a")), Played(said("b"))
    with pytest.raises(Overloaded):
        await start_answer(Scripted(*streams), replace(TURN, n=3), "req")
    assert [each.closed for each in streams] == [True, True]


async def test_each_choice_stops_for_itself() -> None:
    """A stop sequence in one is none in another."""
    backend = Scripted(Played(said("one END")), Played([*said("two")[:-1], (0, [UsageUpdate(Usage(1, 0, 1)), DONE])]))
    events = await read(await start_answer(backend, replace(TURN, n=2, stop=("END",)), "req"))
    assert [shown(of(events, index)) for index in range(2)] == ["one ", "two"]
    usages = [
        event.usage.estimated for index in range(2) for event in of(events, index) if isinstance(event, UsageUpdate)
    ]
    assert usages == [True, False]


async def test_waiting_for_choices_can_be_given_up(autojump_clock: Any) -> None:
    """And taken up again: nothing is lost."""
    stream = await start_answer(
        Scripted(Played(said("a", seconds=9)), Played(said("b", seconds=9))), replace(TURN, n=2), ""
    )
    with trio.move_on_after(1) as waiting:
        await stream.next()
    assert waiting.cancelled_caught
    events = await read(stream)
    assert [shown(of(events, index)) for index in range(2)] == ["a", "b"]
