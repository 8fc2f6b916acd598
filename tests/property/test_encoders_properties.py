"""What holds for both encoders whatever the turn and however its events are cut into batches (reliability.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from protocols.cases import CANCEL, chat_encoder, choices_encoder, encode, messages_encoder, responses_encoder
from protocols.official import check_completion, check_message, check_response
from protocols.readers import ReadChat, ReadMessage, ReadResponse

from bridge.core.collect import OpenCall, ReasoningOutput, TextOutput, collect
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Choice,
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
from bridge.errors import BackendCrashed, InvalidRequest, UpstreamError
from bridge.protocols.chat.encoder import THINK, UNTHINK, usage_object

# Turns

texts = st.text(max_size=4) | st.sampled_from(['"\\\n', "\u2028", "\r\n\r\n", "data: x\n\n", "[DONE]", "😀"])
pieces = st.lists(texts, min_size=1, max_size=3)
counts = st.integers(0, 50)
usages = st.builds(
    lambda read, cached, written, thought, estimated: UsageUpdate(Usage(read, cached, written, thought, estimated)),
    counts,
    counts,
    counts,
    counts,
    st.booleans(),
)
successes = st.sampled_from(
    [
        Finished("completed"),
        Finished("incomplete", reason="max_output_tokens"),
        Finished("incomplete", reason="content_filter"),
    ]
)
failures = st.sampled_from(
    [
        CANCEL,
        Finished("cancelled"),
        Finished("failed", error=BackendCrashed("gone")),
        Finished("failed", error=InvalidRequest("too long", code="context_length_exceeded")),
        Finished("failed", error=UpstreamError("slow down", code="rate_limit_exceeded", http_status=429)),
    ]
)
ends = successes | failures
actions = st.one_of(
    texts.map(lambda query: {"type": "search", "query": query, "queries": [query]}),
    (texts | st.none()).map(lambda url: {"type": "open_page", "url": url}),
    st.tuples(texts, texts).map(lambda both: {"type": "find_in_page", "url": both[0], "pattern": both[1]}),
)


@st.composite
def messages(draw: st.DrawFn, item: str) -> list[TurnEvent]:
    """One assistant message; a call may stand in its middle, and its end may be missing."""
    events: list[TurnEvent] = [TextDelta(item, draw(pieces)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        place = draw(st.integers(0, len(events)))
        events[place:place] = draw(streamed(calls(f"{item}-call")))
    return [*events, TextDone(item)] if draw(st.booleans()) else events


@st.composite
def calls(draw: st.DrawFn, name: str) -> ToolCall:
    """A call of a function or of a custom tool, perhaps of a namespace."""
    arguments = draw(st.sampled_from(["{}", '{"q": 1}', "", "[]"]) | texts)
    return ToolCall(
        f"fc_{name}",
        f"call_{name}",
        draw(st.sampled_from(["find", "open"])),
        arguments,
        namespace=draw(st.sampled_from([None, None, "files"])),
        custom=draw(st.booleans()),
    )


@st.composite
def streamed(draw: st.DrawFn, call: st.SearchStrategy[ToolCall], *, cut: bool = False) -> list[TurnEvent]:
    """A call all at once, or in pieces, of which the last may come with its end; or `cut` off before that."""
    whole = draw(call)
    if not cut and draw(st.booleans()):
        return [whole]
    cuts = sorted(draw(st.lists(st.integers(0, len(whole.arguments)), max_size=3)))
    deltas = [CallDelta(whole.id, [whole.arguments[a:b]]) for a, b in pairwise([0, *cuts]) if a < b]
    begun = CallBegun(whole.id, whole.call_id, whole.name, whole.namespace, whole.custom)
    return [begun, *deltas] if cut else [begun, *deltas, whole]


@st.composite
def reasonings(draw: st.DrawFn, item: str, *, both: bool = True) -> list[TurnEvent]:
    """One reasoning item as Codex tells it: summary parts in order, then raw parts in order; perhaps encrypted."""
    kinds = draw(st.sampled_from([[False], [False, True], [True], []] if both else [[False]]))
    events: list[TurnEvent] = [
        ReasoningDelta(item, index, draw(pieces), raw)
        for raw in kinds
        for index in range(draw(st.integers(1, 2)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    encrypted = draw(st.none() | st.just("gAAAAA=="))
    return [*events, ReasoningDone(item, encrypted)] if draw(st.booleans()) else events


@st.composite
def answers(draw: st.DrawFn, end: st.SearchStrategy[Finished] = ends, *, raw: bool = True) -> list[TurnEvent]:
    """A legal list of events without a restart."""
    events: list[TurnEvent] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["message", "message", "call", "reasoning", "search", "usage"]))
        if kind == "message":
            events += draw(messages(f"m{number}"))
        elif kind == "call":
            events += draw(streamed(calls(str(number))))
        elif kind == "reasoning":
            prefix = draw(st.sampled_from(["r", "rs_0f"]))
            events += draw(reasonings(f"{prefix}{number}", both=raw))
        elif kind == "search":
            events.append(WebSearch(f"ws{number}", draw(actions)))
        else:
            events.append(draw(usages))
    last = draw(end)
    if last.outcome != "completed" and draw(st.booleans()):
        events += draw(streamed(calls("cut"), cut=True))
    return [*events, last]


items = st.sampled_from(["a", "b", "rs_0c"])
anything = st.one_of(
    st.builds(TextDelta, items, pieces),
    st.builds(TextDone, items),
    st.builds(ReasoningDelta, items, st.integers(0, 3), pieces, st.booleans()),
    st.builds(ReasoningDone, items, st.none() | st.just("gAAAAA==")),
    st.builds(WebSearch, items, actions),
    calls("?"),
    usages,
)


@st.composite
def disorders(draw: st.DrawFn) -> list[TurnEvent]:
    """Events in no order at all: items that cross each other, ends of nothing, parts that skip and come back."""
    events: list[TurnEvent] = draw(st.lists(anything, max_size=8))
    numbered = [
        replace(event, id=f"fc_{number}", call_id=f"call_{number}") if isinstance(event, ToolCall) else event
        for number, event in enumerate(events)
    ]
    return [*numbered, draw(ends)]


@st.composite
def restarted(draw: st.DrawFn) -> tuple[list[TurnEvent], list[TurnEvent]]:
    """A turn that starts again once, and the turn that then counts."""
    dead, alive = draw(answers())[:-1], draw(answers(successes))
    return [*dead, Restarted("again"), *alive], alive


@st.composite
def batches(draw: st.DrawFn, events: list[TurnEvent]) -> list[list[TurnEvent]]:
    """The same events in any batches, empty ones too."""
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    return [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]


# Responses


@given(answers(), st.data())
def test_a_responses_stream_keeps_every_rule(events: list[TurnEvent], data: st.DataObject) -> None:
    """One terminal event, gapless numbers, each item added and done once, deltas that add up; for any batches."""
    stream = encode(responses_encoder(), *data.draw(batches(events)))
    assert stream == encode(responses_encoder(), events)
    read = ReadResponse(stream)
    end = events[-1]
    assert isinstance(end, Finished)
    assert read.final["status"] == ("failed" if end == Finished("cancelled") else end.outcome)
    if end.outcome == "incomplete":
        assert read.final["incomplete_details"] == {"reason": end.reason}
    result = collect(events)
    assert (read.final["usage"] is None) == (result.usage is None)
    if result.usage is not None:
        assert read.final["usage"]["total_tokens"] == result.usage.total
        assert read.final["usage"].get("estimated", False) is result.usage.estimated


@given(disorders(), st.data())
def test_a_responses_stream_keeps_every_rule_in_any_disorder(events: list[TurnEvent], data: st.DataObject) -> None:
    """Whatever a backend says, and in whatever order: clients see a well-formed stream, and all that was said."""
    stream = encode(responses_encoder(), *data.draw(batches(events)))
    assert stream == encode(responses_encoder(), events)
    read = ReadResponse(stream)
    said = "".join(part["text"] for item in read.items if item["type"] == "message" for part in item["content"])
    assert said == collect(events).text


@given(answers())
def test_a_response_holds_what_was_said(events: list[TurnEvent]) -> None:
    """The final object is the collected turn: the same texts, calls and reasoning, in the same order."""
    read, result = ReadResponse(encode(responses_encoder(), events)), collect(events)
    assert len(read.items) == len(result.outputs)
    for item, output in zip(read.items, result.outputs, strict=True):
        if isinstance(output, TextOutput):
            assert (item["type"], item["content"][0]["text"]) == ("message", output.text)
        elif isinstance(output, ReasoningOutput):
            assert [part["text"] for part in item["summary"]] == output.summary_parts()
            assert [part["text"] for part in item.get("content", ())] == output.content_parts()
            assert item.get("encrypted_content") == output.encrypted
            assert not output.item.startswith("rs_") or item["id"] == output.item
        elif isinstance(output, WebSearch):
            assert (item["type"], item["action"]) == ("web_search_call", output.action)
        else:
            assert (item["status"] == "incomplete") == isinstance(output, OpenCall)
            output = output.so_far if isinstance(output, OpenCall) else output
            kind, member = ("custom_tool_call", "input") if output.custom else ("function_call", "arguments")
            assert item["type"] == kind
            assert (item["id"], item["call_id"], item["name"], item.get("namespace"), item[member]) == (
                output.id,
                output.call_id,
                output.name,
                output.namespace,
                output.arguments,
            )


@given(answers(successes), st.data())
def test_a_response_that_is_not_streamed_is_the_same(events: list[TurnEvent], data: st.DataObject) -> None:
    """Its body is the object that the stream ends with, and one of the client's types."""
    whole = responses_encoder(streaming=False)
    encode(whole, *data.draw(batches(events)))
    body = orjson.loads(whole.body())
    check_response(body)
    assert body == ReadResponse(encode(responses_encoder(), events)).final


@given(restarted())
def test_a_restarted_response(turn: tuple[list[TurnEvent], list[TurnEvent]]) -> None:
    """Not streamed it is the new answer alone; streamed it fails if anything had been shown."""
    events, alive = turn
    whole, clean = responses_encoder(streaming=False), responses_encoder(streaming=False)
    encode(whole, events)
    encode(clean, alive)
    told, expected = orjson.loads(whole.body()), orjson.loads(clean.body())
    for item in (*told["output"], *expected["output"]):
        item.pop("id")
    assert told["output"] == expected["output"]
    assert told["status"] == expected["status"]

    dead = events[: events.index(Restarted("again"))]
    shown = bool(ReadResponse(encode(responses_encoder(), [*dead, Finished("completed")])).items)
    read = ReadResponse(encode(responses_encoder(), events))
    assert read.final["status"] == ("failed" if shown else expected["status"])


# Chat


def full_names(events: list[TurnEvent]) -> list[tuple[str, str]]:
    """Ids and names of the calls, as chat writes them."""
    names = [(call.call_id, call.namespace, call.name) for call in collect(events).begun_calls]
    return [(call_id, name if namespace is None else f"{namespace}.{name}") for call_id, namespace, name in names]


@given(answers() | disorders(), st.booleans(), st.data())
def test_a_chat_stream_keeps_every_rule(events: list[TurnEvent], include_usage: bool, data: st.DataObject) -> None:
    """Role first, one finish_reason or one error, calls that add up, usage last and on request; for any batches."""
    stream = encode(chat_encoder(include_usage=include_usage), *data.draw(batches(events)))
    assert stream == encode(chat_encoder(include_usage=include_usage), events)
    read, result = ReadChat(stream), collect(events)
    end = events[-1]
    assert isinstance(end, Finished)
    failed = end.outcome in ("failed", "cancelled")
    assert (read.error is not None, read.only.finish_reason is None) == (failed, failed)
    assert read.usage == (usage_object(result.usage or Usage()) if include_usage and not failed else None)
    assert read.only.content == result.text
    assert [(call["id"], call[call["type"]]["name"]) for call in read.only.calls] == full_names(events)
    assert [call["type"] == "custom" for call in read.only.calls] == [call.custom for call in result.begun_calls]


@given(answers(successes, raw=False), st.booleans(), st.data())
def test_a_completion_that_is_not_streamed_is_the_same(
    events: list[TurnEvent], include_usage: bool, data: st.DataObject
) -> None:
    """Its body is what a client makes of the stream, and one of the client's types."""
    whole = chat_encoder(streaming=False)
    encode(whole, *data.draw(batches(events)))
    body = orjson.loads(whole.body())
    check_completion(body)
    read = ReadChat(encode(chat_encoder(include_usage=include_usage), events))
    (choice,) = body["choices"]
    assert_same(choice, read.only)
    assert read.usage in (None, body["usage"])


@given(disorders())
def test_thoughts_beside_the_text_are_the_same_streamed_or_not(events: list[TurnEvent]) -> None:
    """In any order of thoughts, texts and calls."""
    events = [*events[:-1], Finished("completed")]
    encoder = chat_encoder()
    read = ReadChat(encode(encoder, events)).only
    (choice,) = orjson.loads(encoder.body())["choices"]
    assert_same(choice, read)


@given(answers(successes) | disorders())
def test_hidden_thoughts_leave_no_trace(events: list[TurnEvent]) -> None:
    """The stream is that of a turn without them."""
    without: list[TurnEvent] = [event for event in events if not isinstance(event, ReasoningDelta | ReasoningDone)]
    assert encode(chat_encoder(reasoning="hidden"), events) == encode(chat_encoder(), without)


@given(answers(successes) | disorders())
def test_thoughts_in_the_text_are_the_same_streamed_or_not(events: list[TurnEvent]) -> None:
    """Every tag that is opened is closed, and the message is what the stream adds up to."""
    events = [*events[:-1], Finished("completed")]
    encoder = chat_encoder(reasoning="think")
    read = ReadChat(encode(encoder, events)).only
    (choice,) = orjson.loads(encoder.body())["choices"]
    assert_same(choice, read)
    assert read.reasoning == ""
    assert read.content.count(THINK) == read.content.count(UNTHINK)


@given(answers(successes))
def test_an_old_client_reads_the_same_streamed_or_not(events: list[TurnEvent]) -> None:
    """One call at a time, as such a client's turns have it."""
    first = next((event.id for event in events if isinstance(event, CallBegun | ToolCall)), None)
    others = [e for e in events if isinstance(e, CallBegun | CallDelta | ToolCall) and e.id != first]
    events = [event for event in events if event not in others]
    encoder = chat_encoder(functions=True)
    read = ReadChat(encode(encoder, events)).only
    (choice,) = orjson.loads(encoder.body())["choices"]
    assert_same(choice, read)
    assert read.calls == []
    assert (read.function_call is None) == (first is None)


def assert_same(choice: dict[str, Any], read: Any) -> None:
    """A choice that was not streamed is what a client makes of the stream."""
    message = choice["message"]
    assert choice["finish_reason"] == read.finish_reason
    assert (message["content"] or "") == read.content
    assert message.get("tool_calls", []) == read.calls
    assert message.get("function_call") == read.function_call
    assert message.get("reasoning_content", "") == read.reasoning


@given(st.tuples(reasonings("r"), messages("m"), reasonings("s")))
def test_reasoning_is_the_same_streamed_or_not(parts: tuple[list[TurnEvent], ...]) -> None:
    """Also where some items have summaries and others raw text alone."""
    events = [*(event for part in parts for event in part), Finished("completed")]
    whole = chat_encoder(streaming=False)
    encode(whole, events)
    message = orjson.loads(whole.body())["choices"][0]["message"]
    assert message.get("reasoning_content", "") == ReadChat(encode(chat_encoder(), events)).only.reasoning


@given(restarted())
def test_a_restarted_completion(turn: tuple[list[TurnEvent], list[TurnEvent]]) -> None:
    """Not streamed it is the new answer alone; streamed it fails if anything had been shown."""
    events, alive = turn
    whole, clean = chat_encoder(streaming=False), chat_encoder(streaming=False)
    encode(whole, events)
    encode(clean, alive)
    told, expected = orjson.loads(whole.body()), orjson.loads(clean.body())
    assert told["choices"] == expected["choices"]
    dead = events[: events.index(Restarted("again"))]
    shown = any(
        isinstance(event, TextDelta | CallBegun | ToolCall) or (isinstance(event, ReasoningDelta) and any(event.pieces))
        for event in dead
    )
    assert (ReadChat(encode(chat_encoder(), events)).error is not None) == shown


# Messages


@given(answers() | disorders(), st.booleans(), st.data())
def test_a_message_stream_keeps_every_rule(events: list[TurnEvent], shows: bool, data: st.DataObject) -> None:
    """Blocks one after the other, each begun and ended once, one end or one error; all that was said; any batches."""
    stream = encode(messages_encoder(shows_thoughts=shows), *data.draw(batches(events)))
    assert stream == encode(messages_encoder(shows_thoughts=shows), events)
    read, result, end = ReadMessage(stream), collect(events), events[-1]
    assert isinstance(end, Finished)
    assert (read.error is not None) == (end.outcome in ("failed", "cancelled"))
    assert "".join(block["text"] for block in read.content if block["type"] == "text") == result.text
    used = [block for block in read.content if block["type"] == "tool_use"]
    assert [block["id"] for block in used] == [call.call_id for call in result.begun_calls]
    assert [block["id"] for block in used if block not in read.cut] == [call.call_id for call in result.calls]
    if not shows:
        assert not any(block["thinking"] for block in read.content if block["type"] == "thinking")


@given(answers(successes), st.data())
def test_a_message_that_is_not_streamed_is_the_same(events: list[TurnEvent], data: st.DataObject) -> None:
    """Its body is what a client makes of the stream, but for a call that was cut off, and one of the client's types."""
    whole = messages_encoder(streaming=False)
    assert encode(whole, *data.draw(batches(events))) == b""
    body = orjson.loads(whole.body())
    check_message(body)
    read = ReadMessage(encode(messages_encoder(), events))
    assert body["content"] == [block for block in read.content if block not in read.cut]
    assert (body["stop_reason"], body["stop_sequence"]) == (read.end["stop_reason"], read.end["stop_sequence"])
    assert body["usage"] == read.usage


@given(answers(successes) | disorders())
def test_thoughts_that_a_client_does_not_ask_for_leave_no_trace(events: list[TurnEvent]) -> None:
    """The first block is the text."""
    read = ReadMessage(encode(messages_encoder(thinks=False), events))
    assert not any("thinking" in block["type"] for block in read.content)


@given(restarted())
def test_a_restarted_message(turn: tuple[list[TurnEvent], list[TurnEvent]]) -> None:
    """Not streamed it is the new answer alone; streamed it fails if anything had been shown."""
    events, alive = turn
    whole, clean = messages_encoder(streaming=False), messages_encoder(streaming=False)
    encode(whole, events)
    encode(clean, alive)
    told, expected = orjson.loads(whole.body()), orjson.loads(clean.body())
    for block in (*told["content"], *expected["content"]):
        for name in ("id", "tool_use_id"):
            if block["type"] in ("server_tool_use", "web_search_tool_result"):
                block.pop(name, None)
    assert (told["content"], told["stop_reason"]) == (expected["content"], expected["stop_reason"])
    dead = events[: events.index(Restarted("again"))]
    shown = bool(ReadMessage(encode(messages_encoder(), [*dead, Finished("completed")])).content)
    assert (ReadMessage(encode(messages_encoder(), events)).error is not None) == shown


# Several choices


@st.composite
def several(draw: st.DrawFn) -> tuple[list[list[TurnEvent]], list[TurnEvent]]:
    """The events of each choice, and all of them as one turn: batches of the choices in any order."""
    each: list[list[TurnEvent]] = [draw(answers(successes)) for _ in range(draw(st.integers(2, 3)))]
    waiting = [[batch for batch in draw(batches(events)) if batch] for events in each]
    turn: list[TurnEvent] = []
    while any(waiting):
        index = draw(st.sampled_from([index for index, left in enumerate(waiting) if left]))
        turn.append(Choice(index, waiting[index].pop(0)))
    return each, [*turn, Finished("completed")]


@given(several(), st.booleans(), st.data())
def test_choices_are_completions_side_by_side(
    turn: tuple[list[list[TurnEvent]], list[TurnEvent]], include_usage: bool, data: st.DataObject
) -> None:
    """Each is what it would be alone; their usage is counted together; streamed and not."""
    each, events = turn
    encoder = choices_encoder(len(each), include_usage=include_usage)
    read = ReadChat(encode(encoder, *data.draw(batches(events))), choices=len(each))
    body = orjson.loads(encoder.body())
    check_completion(body)
    for index, (alone, choice) in enumerate(zip(each, body["choices"], strict=True)):
        single = chat_encoder()
        encode(single, alone)
        (expected,) = orjson.loads(single.body())["choices"]
        assert choice == expected | {"index": index}
        assert_same(choice, read.choices[index])
    total = sum((collect(alone).usage or Usage() for alone in each), Usage())
    assert body["usage"] == usage_object(total)
    assert read.usage == (usage_object(total) if include_usage else None)


@given(several(), st.integers(0, 2), failures, st.data())
def test_a_choice_that_fails_fails_them_all(
    turn: tuple[list[list[TurnEvent]], list[TurnEvent]], index: int, end: Finished, data: st.DataObject
) -> None:
    """Wherever it happens: one error, one end, nothing after it."""
    each, events = turn
    at = data.draw(st.integers(0, len(events) - 1))
    index %= len(each)
    ended = any(
        isinstance(event, Choice) and event.index == index and event.events[-1] == each[index][-1]
        for event in events[:at]
    )
    failing = [] if ended else [Choice(index, [end])]
    encoder = choices_encoder(len(each), include_usage=True)
    read = ReadChat(encode(encoder, [*events[:at], *failing, end, *events[at:]]), choices=len(each))
    assert read.error is not None
    assert encoder.failure is not None
    assert read.error == encoder.failure.body()["error"]
