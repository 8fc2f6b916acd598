"""The laws of CAP's codec: `decode(encode(events)) == normalise(events)` and `parse(build(request)) == request`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import orjson
from hypothesis import given
from hypothesis import strategies as st
from property.test_encoders_properties import answers, batches, disorders
from protocols.cap.streams import STARTED_AT, encoder, feed, read_lines

from bridge.core.events import (
    CANCELLED,
    CLIENT_GONE,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.core.items import full_name
from bridge.protocols.cap.decoder import MESSAGE, CapDecoder, Shown, kind_of
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.cap.models import AgentRequest, Identity, ServiceRequest, SessionContext
from bridge.protocols.cap.request import parse_service_request
from bridge.protocols.cap.stream import PacketReader

ALL = ("tool_call", "metrics", "reasoning_raw")
optional = st.sampled_from([ALL, (*ALL, "reasoning_stream")])


def decode(messages: Iterable[Any]) -> tuple[list[TurnEvent], CapDecoder]:
    """The turn's events, without what only a client displays; adjacent texts joined."""
    decoder = CapDecoder()
    events = [event for message in messages for event in decoder.feed(message)]
    return joined([event for event in events if not isinstance(event, Shown)]), decoder


def joined(events: Iterable[TurnEvent]) -> list[TurnEvent]:
    found: list[TurnEvent] = []
    for event in events:
        if isinstance(event, TextDelta):
            last = found[-1] if found else None
            if isinstance(last, TextDelta):
                last.pieces[0] += "".join(event.pieces)
            elif any(event.pieces):
                found.append(TextDelta(MESSAGE, ["".join(event.pieces)]))
        else:
            found.append(event)
    return found


class Normaliser:
    """What CAP can carry of a turn: one message with blank lines, complete thoughts, calls by their full names."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self._thought: ReasoningDelta | None = None
        self._message: str | None = None
        self._usage: Usage | None = None

    def add(self, event: TurnEvent) -> None:
        if isinstance(event, TextDelta) and any(event.pieces):
            between = "" if self._message in (None, event.item) else "\n\n"
            self._content(TextDelta(MESSAGE, [between, *event.pieces]))
            self._message = event.item
        elif isinstance(event, ReasoningDelta):
            self._think(event)
        elif isinstance(event, ReasoningDone):
            if self._thought is not None and self._thought.item == event.item:
                self._end_thought()
        elif isinstance(event, ToolCall):
            name, call_id = full_name(event.namespace, event.name), event.call_id
            self._content(ToolCall(call_id, call_id, name, arguments(event), custom=event.custom))
        elif isinstance(event, WebSearch):
            action = {name: value for name, value in event.action.items() if name != "sources"}
            self._content(WebSearch(event.item, action))
        elif isinstance(event, UsageUpdate):
            self._usage = event.usage
        elif isinstance(event, Finished):
            self._end_thought()
            self._finish(event)

    def _content(self, event: TurnEvent) -> None:
        self._end_thought()
        self.events.append(event)

    def _think(self, event: ReasoningDelta) -> None:
        last = self._thought
        if last is None or (last.item, last.index, last.raw) != (event.item, event.index, event.raw):
            self._end_thought()
            self._thought = last = ReasoningDelta(event.item, event.index, [""], event.raw)
        last.pieces[0] += "".join(event.pieces)

    def _end_thought(self) -> None:
        thought, self._thought = self._thought, None
        if thought is not None and any(thought.pieces):
            self.events.append(thought)

    def _finish(self, end: Finished) -> None:
        by_client = end.outcome == "cancelled" and end.reason in (CANCELLED, CLIENT_GONE)
        if by_client:
            end = Finished("completed")
        elif end.outcome in ("failed", "cancelled"):
            end = Finished("failed", error=end.error)
        elif end.outcome == "incomplete":
            end = Finished("incomplete", end.reason or "incomplete")
        if self._usage is not None and end.outcome != "failed" and not by_client:
            usage = self._usage
            counts = (usage.input, usage.cached, usage.output, usage.reasoning)
            self.events.append(UsageUpdate(Usage(*counts, estimated=usage.estimated)))
        self.events.append(end)


def arguments(call: ToolCall) -> str:
    """A function's arguments as the JSON that their object is written as; other texts as they are."""
    try:
        found = json.loads(call.arguments)
    except ValueError:
        return call.arguments
    is_object = isinstance(found, dict) and not call.custom
    return orjson.dumps(found).decode() if is_object else call.arguments


def normalise(events: Iterable[TurnEvent]) -> list[TurnEvent]:
    normaliser = Normaliser()
    for event in events:
        normaliser.add(event)
    return joined(normaliser.events)


def check_same(found: list[TurnEvent], expected: list[TurnEvent]) -> None:
    """Errors are compared by what CAP says of them; all else must be equal."""
    assert found[:-1] == expected[:-1]
    end, wanted = found[-1], expected[-1]
    assert isinstance(end, Finished)
    assert isinstance(wanted, Finished)
    assert (end.outcome, end.reason) == (wanted.outcome, wanted.reason)
    assert (end.error is None) == (wanted.outcome != "failed")
    if end.error is not None and wanted.error is not None:
        sent = failure_from(wanted.error, now=STARTED_AT).error
        assert (end.error.code, end.error.message, end.error.severity) == (sent.code, sent.message, sent.severity)


@given(answers() | disorders(), optional, st.data())
def test_decode_is_the_reverse_of_encode(events: list[TurnEvent], asked: tuple[str, ...], data: st.DataObject) -> None:
    stream = feed(encoder(*asked, form="ndjson"), *data.draw(batches(events)))
    found, decoder = decode(map(json.loads, stream.splitlines()))
    check_same(found, normalise(events))
    assert (decoder.finished, decoder.skipped) == (True, 0)


@given(answers(), optional)
def test_one_object_decodes_as_the_stream_does(events: list[TurnEvent], asked: tuple[str, ...]) -> None:
    """The same parts; only their order is not in it."""
    whole = encoder(*asked, form="json")
    feed(whole, events)
    if whole.failure is not None:
        return
    found, _ = decode([json.loads(whole.body())])
    expected = normalise(events)
    for kind in (ToolCall, ReasoningDelta, WebSearch):
        assert [each for each in found if isinstance(each, kind)] == [
            each for each in expected if isinstance(each, kind)
        ]
    text, expected_text = (
        "".join(each.pieces[0] for each in turn if isinstance(each, TextDelta)) for turn in (found, expected)
    )
    assert text == expected_text
    assert isinstance(found[-1], Finished)


broken: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        [],
        "text",
        {},
        {"op": "open", "p": None},
        {"op": "delta", "p": 1},
        {"op": "delta"},
        {"op": "error", "p": None},
        {"op": "error", "p": {"code": "x"}},
        {"op": "event", "p": []},
        {"op": "event", "p": {"type": 1, "data": {}}},
        {"op": "event", "p": {"type": "tool_call", "data": {"tool": None}}},
        {"op": "event", "p": {"type": "thought_trace", "data": {"thought": 1}}},
        {"op": "event", "p": {"type": "thought_trace", "data": None}},
    ]
)


@given(answers(), optional, st.lists(st.tuples(st.integers(0, 30), broken), max_size=5))
def test_what_is_broken_is_skipped_and_counted(
    events: list[TurnEvent], asked: tuple[str, ...], damage: list[tuple[int, Any]]
) -> None:
    packets: list[Any] = [json.loads(line) for line in feed(encoder(*asked, form="ndjson"), events).splitlines()]
    damaged = list(packets)
    for at, wrong in damage:
        damaged.insert(at, wrong)
    found, decoder = decode(damaged)
    expected, intact = decode(packets)
    assert found[:-1] == expected[:-1]
    assert isinstance(found[-1], Finished)
    assert isinstance(expected[-1], Finished)
    assert (found[-1].outcome, found[-1].reason) == (expected[-1].outcome, expected[-1].reason)
    assert (decoder.error, decoder.metrics) == (intact.error, intact.metrics)
    assert (decoder.skipped, intact.skipped) == (len(damage), 0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


packet_like = st.fixed_dictionaries({"op": st.sampled_from(["delta", "event", "error"]), "p": json_values})


@given(st.lists(json_values | packet_like))
def test_nothing_breaks_the_decoder(messages: list[Any]) -> None:
    decoder = CapDecoder()
    known = sum(kind_of(message) is not None for message in messages)
    for message in messages:
        assert isinstance(decoder.feed(message), list)
    assert decoder.skipped >= len(messages) - known


@given(answers(), st.data())
def test_frames_are_read_however_they_are_chunked(events: list[TurnEvent], data: st.DataObject) -> None:
    stream = feed(encoder(*ALL), events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reader = PacketReader()
    found = [
        each for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) for each in reader.packets(stream[a:b])
    ]
    assert [packet for _, packet in found] == read_lines(feed(encoder(*ALL, form="ndjson"), events))
    assert [name.rpartition(":")[2] for name, _ in found] == [str(number) for number in range(1, len(found) + 1)]


# Requests

ids = st.uuids()
words = st.text(max_size=5)
identities = st.builds(Identity, id=words, name=words, role=st.none() | words)
metas = st.dictionaries(words, st.none() | st.integers() | words | st.lists(words), max_size=3)


@st.composite
def payloads(draw: st.DrawFn) -> AgentRequest:
    lineage: dict[str, UUID] = {"request_id": draw(ids)} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        lineage["root_request_id"] = draw(ids)
        if draw(st.booleans()):
            lineage["parent_request_id"] = draw(ids)
    return AgentRequest(
        **lineage,
        query=draw(words),
        files=draw(st.lists(words, max_size=2)),
        conversation_id=draw(st.none() | words),
        session_id=draw(st.none() | words),
        meta=draw(metas),
    )


requests = st.builds(
    ServiceRequest,
    request_id=ids,
    context=st.builds(SessionContext, session_id=words, user=identities, agent=st.none() | identities),
    payload=payloads(),
)


@given(requests)
def test_parse_is_the_reverse_of_build(request: ServiceRequest) -> None:
    assert parse_service_request(request.dump()) == request
    assert parse_service_request(json.loads(request.to_json())) == request
    assert parse_service_request(json.loads(request.to_json())).compute_hash() == request.compute_hash()
