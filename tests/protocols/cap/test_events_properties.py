"""What holds for every stream of packets, whatever the turn, in whatever order, and however it is cut into batches."""

from __future__ import annotations

import re
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from property.test_encoders_properties import answers, anything, batches, disorders, ends, restarted, successes
from protocols.cap.streams import encoder, feed, fold, read_lines, read_sse

from bridge.core.collect import TextOutput, collect
from bridge.core.events import Finished, Restarted, TurnEvent
from bridge.protocols.cap.request import EVENTS
from bridge.protocols.cap.stream import DeltaPacket, ErrorPacket, EventPacket, StreamPacket

GRAMMAR = re.compile(r"[de]*x?c")
LETTERS = {"delta": "d", "event": "e", "error": "x", "close": "c"}

optional_events = st.sets(st.sampled_from(sorted(EVENTS)))
restarts = st.builds(Restarted, st.just("again"))
chaos = st.lists(anything | restarts | ends, max_size=12)
"""Events in no order at all: restarts anywhere, several ends, events after the end."""


def spelled(packets: list[StreamPacket]) -> str:
    """A letter for each packet."""
    return "".join(LETTERS[packet.op] for packet in packets)


def check_safe(packet: StreamPacket) -> None:
    """Nothing in an event that a reader of untagged unions would take for something else."""
    if not isinstance(packet, EventPacket):
        return
    assert isinstance(packet.p, dict)
    assert list(packet.p) == ["id", "timestamp", "type", "data"]
    data: dict[str, Any] = packet.p["data"]
    if packet.p["type"] in ("thought_trace", "user_error"):
        assert not {"content", "items"} & data.keys()
        assert not {"label", "status"} <= data.keys()


@given(chaos, ends, optional_events, st.data())
def test_every_stream_is_of_the_grammar(
    events: list[TurnEvent], end: Finished, wanted: set[str], data: st.DataObject
) -> None:
    """`(delta | event)* error? close`: one close packet, and nothing after it; the same for any batches."""
    cut = data.draw(batches([*events, end, *events]))
    stream = feed(encoder(*wanted), *cut)
    assert stream == feed(encoder(*wanted), [*events, end])
    packets = read_sse(stream)
    assert GRAMMAR.fullmatch(spelled(packets))
    for packet in packets:
        check_safe(packet)
    made = encoder(*wanted)
    feed(made, [*events, end])
    assert made.sequence == len(packets)
    assert (made.failure is not None) == ("x" in spelled(packets))


@given(chaos, optional_events)
def test_a_stream_that_is_not_over_is_not_closed(events: list[TurnEvent], wanted: set[str]) -> None:
    made = encoder(*wanted)
    packets = read_sse(feed(made, events))
    assert re.fullmatch("[de]*" if not made.finished else GRAMMAR, spelled(packets))


@given(answers() | disorders(), optional_events, st.data())
def test_every_form_has_the_same_content(events: list[TurnEvent], wanted: set[str], data: st.DataObject) -> None:
    """Events and lines hold the same packets, and one answer is what they come to."""
    wanted |= {"metrics"}
    packets = read_sse(feed(encoder(*wanted), *data.draw(batches(events))))
    assert read_lines(feed(encoder(*wanted, form="ndjson"), *data.draw(batches(events)))) == packets
    whole = encoder(*wanted, form="json")
    assert feed(whole, *data.draw(batches(events))) == b""
    folded = fold(packets)
    assert (whole.failure is None) == (folded.error is None)
    end = events[-1]
    assert isinstance(end, Finished)
    if whole.failure is None and end.outcome != "cancelled":
        body = orjson.loads(whole.body())
        assert body["output"] == folded.output(("c1", "new"))
        assert body["metrics"] == folded.metrics


@given(answers() | disorders())
def test_all_text_is_sent(events: list[TurnEvent]) -> None:
    """The deltas are the messages, with a blank line where another one begins."""
    packets = read_sse(feed(encoder(), events))
    messages = [output for output in collect(events).outputs if isinstance(output, TextOutput) and output.text]
    expected = ""
    for at, output in enumerate(messages):
        expected += "\n\n" if at and messages[at - 1].item != output.item else ""
        expected += output.text
    assert fold(packets).text == expected
    assert all(packet.p for packet in packets if isinstance(packet, DeltaPacket))


@given(answers(successes), optional_events)
def test_the_same_turn_has_the_same_ids(events: list[TurnEvent], wanted: set[str]) -> None:
    packets = read_sse(feed(encoder(*wanted), events))
    ids = [packet.p["id"] for packet in packets if isinstance(packet, EventPacket) and isinstance(packet.p, dict)]
    assert len(set(ids)) == len(ids)
    assert read_sse(feed(encoder(*wanted), events)) == packets


@given(restarted(), optional_events)
def test_a_restarted_turn(turn: tuple[list[TurnEvent], list[TurnEvent]], wanted: set[str]) -> None:
    """As one answer it is the new attempt alone; streamed it fails if anything had been shown."""
    events, alive = turn
    whole, clean = encoder(*wanted, form="json"), encoder(*wanted, form="json")
    feed(whole, events)
    feed(clean, alive)
    # An attempt that is nothing but calls is a failure.
    assert (whole.failure is None) == (clean.failure is None)
    if clean.failure is None:
        assert orjson.loads(whole.body())["output"] == orjson.loads(clean.body())["output"]
    dead = events[: events.index(Restarted("again"))]
    before = encoder(*wanted)
    feed(before, dead)
    packets = read_sse(feed(encoder(*wanted), events))
    assert any(isinstance(packet, ErrorPacket) for packet in packets) == (before.visible or clean.failure is not None)
