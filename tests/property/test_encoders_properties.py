"""What holds for both encoders whatever the turn and however its events are cut into batches (reliability.md)."""

from __future__ import annotations

from typing import Any

import orjson
from api.cases import chat_encoder, encode, read_frames, responses_encoder
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from bridge.api.sse import DONE
from bridge.errors import BackendCrashed, InvalidRequest, UpstreamError
from bridge.turn.collect import ReasoningOutput, TextOutput, collect
from bridge.turn.events import (
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
)

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}

# Turns

texts = st.text(max_size=4) | st.sampled_from(['"\\\n', "\u2028", "\r\n\r\n", "data: x\n\n", "[DONE]", "😀"])
pieces = st.lists(texts, min_size=1, max_size=3)
counts = st.integers(0, 50)
usages = st.builds(lambda *numbers: UsageUpdate(Usage(*numbers)), counts, counts, counts, counts)
ends = st.one_of(
    st.just(Finished("completed")),
    st.sampled_from(["max_output_tokens", "content_filter"]).map(lambda reason: Finished("incomplete", reason=reason)),
    st.sampled_from(
        [
            Finished("cancelled"),
            Finished("failed", error=BackendCrashed("gone")),
            Finished("failed", error=InvalidRequest("too long", code="context_length_exceeded")),
            Finished("failed", error=UpstreamError("slow down", code="rate_limit_exceeded", http_status=429)),
        ]
    ),
)
successes = ends.filter(lambda end: end.outcome in ("completed", "incomplete"))


@st.composite
def messages(draw: st.DrawFn, item: str) -> list[TurnEvent]:
    """One assistant message; a call may stand in its middle, and its end may be missing."""
    events: list[TurnEvent] = [TextDelta(item, draw(pieces)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), draw(calls(f"{item}-call")))
    return [*events, TextDone(item)] if draw(st.booleans()) else events


@st.composite
def calls(draw: st.DrawFn, name: str) -> ToolCall:
    arguments = draw(st.sampled_from(["{}", '{"q": 1}', "", "[]"]) | texts)
    return ToolCall(f"fc_{name}", f"call_{name}", draw(st.sampled_from(["find", "open"])), arguments)


@st.composite
def reasonings(draw: st.DrawFn, item: str, *, both: bool = True) -> list[TurnEvent]:
    """One reasoning item as Codex tells it: summary parts in order, then raw parts in order."""
    kinds = draw(st.sampled_from([[False], [False, True], [True]] if both else [[False]]))
    events: list[TurnEvent] = [
        ReasoningDelta(item, index, draw(pieces), raw)
        for raw in kinds
        for index in range(draw(st.integers(1, 2)))
        for _ in range(draw(st.integers(1, 2)))
    ]
    return [*events, ReasoningDone(item)] if draw(st.booleans()) else events


@st.composite
def answers(draw: st.DrawFn, end: st.SearchStrategy[Finished] = ends, *, raw: bool = True) -> list[TurnEvent]:
    """A legal list of events without a restart."""
    events: list[TurnEvent] = []
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["message", "message", "call", "reasoning", "usage"]))
        if kind == "message":
            events += draw(messages(f"m{number}"))
        elif kind == "call":
            events.append(draw(calls(str(number))))
        elif kind == "reasoning":
            events += draw(reasonings(f"r{number}", both=raw))
        else:
            events.append(draw(usages))
    return [*events, draw(end)]


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


# Reading a stream back, as a client does


class ReadResponse:
    """A client's view of a Responses stream: every rule of the protocol is checked on the way."""

    def __init__(self, stream: bytes) -> None:
        self.payloads = read_frames(stream)
        self.items: list[dict[str, Any]] = []
        self._parts: dict[tuple[str, int], str] = {}
        self._done: set[tuple[str, int]] = set()
        self._open: dict[str, Any] | None = None
        for number, payload in enumerate(self.payloads):
            EVENT.validate_python(payload, strict=True)
            assert payload["sequence_number"] == number
            handle = getattr(self, payload["type"].removeprefix("response.").replace(".", "_"))
            handle(payload)
        assert self._open is None
        assert [payload["type"] for payload in self.payloads[:2]] == ["response.created", "response.in_progress"]
        assert [payload["type"] in TERMINAL for payload in self.payloads] == [False] * (len(self.payloads) - 1) + [True]
        self.final = self.payloads[-1]["response"]
        assert self.final["output"] == self.items
        assert len({item["id"] for item in self.items}) == len(self.items)

    def created(self, payload: dict[str, Any]) -> None:
        assert payload["response"]["status"] == "in_progress"
        assert payload["response"]["output"] == []

    in_progress = created

    def completed(self, payload: dict[str, Any]) -> None:
        assert payload["type"] == f"response.{payload['response']['status']}"

    incomplete = failed = completed

    def output_item_added(self, payload: dict[str, Any]) -> None:
        assert self._open is None
        assert payload["output_index"] == len(self.items)
        assert payload["item"]["status"] == "in_progress"
        self._open = payload["item"]
        self._parts, self._done = {}, set()

    def output_item_done(self, payload: dict[str, Any]) -> None:
        item = payload["item"]
        assert self._open is not None
        assert (item["id"], item["type"]) == (self._open["id"], self._open["type"])
        assert payload["output_index"] == len(self.items)
        assert self._done == self._parts.keys()
        assert self._texts("content") == [part["text"] for part in item.get("content", ())]
        assert self._texts("summary") == [part["text"] for part in item.get("summary", ())]
        assert self._texts("arguments") == ([item["arguments"]] if "arguments" in item else [])
        self.items.append(item)
        self._open = None

    def content_part_added(self, payload: dict[str, Any]) -> None:
        self._begin(payload, "content", payload["content_index"])
        assert payload["part"]["text"] == ""

    def output_text_delta(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert self._open["type"] == "message"
        self._add(payload, "content", payload["content_index"])

    def output_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["text"])

    def content_part_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["part"]["text"])
        self._end("content", payload["content_index"])

    def reasoning_summary_part_added(self, payload: dict[str, Any]) -> None:
        self._begin(payload, "summary", payload["summary_index"])

    def reasoning_summary_text_delta(self, payload: dict[str, Any]) -> None:
        self._add(payload, "summary", payload["summary_index"])

    def reasoning_summary_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "summary", payload["summary_index"], payload["text"])

    def reasoning_summary_part_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "summary", payload["summary_index"], payload["part"]["text"])
        self._end("summary", payload["summary_index"])

    def reasoning_text_delta(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert self._open["type"] == "reasoning"
        if ("content", payload["content_index"]) not in self._parts:
            self._begin(payload, "content", payload["content_index"])
        self._add(payload, "content", payload["content_index"])

    def reasoning_text_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "content", payload["content_index"], payload["text"])
        self._end("content", payload["content_index"])

    def function_call_arguments_delta(self, payload: dict[str, Any]) -> None:
        if ("arguments", 0) not in self._parts:
            self._begin(payload, "arguments", 0)
        self._add(payload, "arguments", 0)

    def function_call_arguments_done(self, payload: dict[str, Any]) -> None:
        self._check(payload, "arguments", 0, payload["arguments"])
        self._end("arguments", 0)

    def _here(self, payload: dict[str, Any]) -> None:
        assert self._open is not None
        assert payload["item_id"] == self._open["id"]
        assert payload["output_index"] == len(self.items)

    def _begin(self, payload: dict[str, Any], kind: str, index: int) -> None:
        self._here(payload)
        assert index == sum(key[0] == kind for key in self._parts)
        self._parts[kind, index] = ""

    def _add(self, payload: dict[str, Any], kind: str, index: int) -> None:
        self._here(payload)
        assert (kind, index) not in self._done
        self._parts[kind, index] += payload["delta"]

    def _check(self, payload: dict[str, Any], kind: str, index: int, text: str) -> None:
        self._here(payload)
        assert self._parts[kind, index] == text

    def _end(self, kind: str, index: int) -> None:
        assert (kind, index) not in self._done
        self._done.add((kind, index))

    def _texts(self, kind: str) -> list[str]:
        return [text for (known, _), text in self._parts.items() if known == kind]


class ReadChat:
    """A client's view of a chat stream: every rule of the protocol is checked on the way."""

    def __init__(self, stream: bytes) -> None:
        assert stream.endswith(DONE)
        assert stream.count(b"\n\n" + DONE) == 1
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] | None = None
        self.error: dict[str, Any] | None = None
        payloads = read_frames(stream)
        assert payloads[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        for payload in payloads:
            assert self.error is None
            assert self.usage is None
            if "error" in payload:
                self.error = payload["error"]
                continue
            chunk = ChatCompletionChunk.model_validate(payload, strict=True)
            assert (chunk.id, chunk.model) == (payloads[0]["id"], "mock-text")
            if chunk.choices:
                self._choice(payload["choices"])
            else:
                assert self.finish_reason is not None
                self.usage = payload["usage"]
        assert sum("role" in choice["delta"] for payload in payloads for choice in payload.get("choices", ())) == 1

    def _choice(self, choices: list[dict[str, Any]]) -> None:
        (choice,) = choices
        assert choice["index"] == 0
        assert self.finish_reason is None
        self.finish_reason = choice["finish_reason"]
        delta = choice["delta"]
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(self.calls):
                self.calls.append({"id": part["id"], "type": part["type"], "function": {"arguments": ""}})
                self.calls[-1]["function"]["name"] = part["function"]["name"]
            else:
                assert part["index"] == len(self.calls) - 1
                assert part.keys() == {"index", "function"}
            self.calls[-1]["function"]["arguments"] += part["function"]["arguments"]


# Responses


@given(answers(), st.data())
def test_a_responses_stream_keeps_every_rule(events: list[TurnEvent], data: st.DataObject) -> None:
    """One terminal event, gapless numbers, each item added and done once, deltas that add up; for any batches."""
    stream = encode(responses_encoder(), *data.draw(batches(events)))
    assert stream == encode(responses_encoder(), events)
    read = ReadResponse(stream)
    end = events[-1]
    assert isinstance(end, Finished)
    assert read.final["status"] == {"cancelled": "failed"}.get(end.outcome, end.outcome)
    assert (read.final["error"] is not None) == (end.outcome in ("failed", "cancelled"))
    assert (read.final["incomplete_details"] or {}).get("reason") == end.reason
    result = collect(events)
    assert (read.final["usage"] is None) == (result.usage is None)


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
        else:
            assert (item["id"], item["call_id"], item["name"], item["arguments"]) == (
                output.id,
                output.call_id,
                output.name,
                output.arguments,
            )


@given(answers(successes), st.data())
def test_a_response_that_is_not_streamed_is_the_same(events: list[TurnEvent], data: st.DataObject) -> None:
    """Its body is the object that the stream ends with, and one of the client's types."""
    whole = responses_encoder(streaming=False)
    encode(whole, *data.draw(batches(events)))
    body = orjson.loads(whole.body())
    Response.model_validate(body, strict=True)
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

    shown = any(not isinstance(event, UsageUpdate) for event in events[: events.index(Restarted("again"))])
    read = ReadResponse(encode(responses_encoder(), events))
    assert read.final["status"] == ("failed" if shown else expected["status"])


# Chat


@given(answers(), st.booleans(), st.data())
def test_a_chat_stream_keeps_every_rule(events: list[TurnEvent], include_usage: bool, data: st.DataObject) -> None:
    """Role first, one finish_reason or one error, calls that add up, usage last and on request; for any batches."""
    stream = encode(chat_encoder(include_usage=include_usage), *data.draw(batches(events)))
    assert stream == encode(chat_encoder(include_usage=include_usage), events)
    read, result = ReadChat(stream), collect(events)
    end = events[-1]
    assert isinstance(end, Finished)
    failed = end.outcome in ("failed", "cancelled")
    assert (read.error is not None, read.finish_reason is None) == (failed, failed)
    assert (read.usage is not None) == (include_usage and not failed)
    assert read.content == result.text
    assert [call["id"] for call in read.calls] == [call.call_id for call in result.calls]


@given(answers(successes, raw=False), st.booleans(), st.data())
def test_a_completion_that_is_not_streamed_is_the_same(
    events: list[TurnEvent], include_usage: bool, data: st.DataObject
) -> None:
    """Its body is what a client makes of the stream, and one of the client's types."""
    whole = chat_encoder(streaming=False)
    encode(whole, *data.draw(batches(events)))
    body = orjson.loads(whole.body())
    ChatCompletion.model_validate(body, strict=True)
    read = ReadChat(encode(chat_encoder(include_usage=include_usage), events))
    (choice,) = body["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == read.finish_reason
    assert (message["content"] or "") == read.content
    assert message.get("tool_calls", []) == read.calls
    assert message.get("reasoning_content", "") == read.reasoning
    assert read.usage in (None, body["usage"])


@given(st.tuples(reasonings("r"), messages("m"), reasonings("s")))
def test_reasoning_is_the_same_streamed_or_not(parts: tuple[list[TurnEvent], ...]) -> None:
    """Also where some items have summaries and others raw text alone."""
    events = [*(event for part in parts for event in part), Finished("completed")]
    whole = chat_encoder(streaming=False)
    encode(whole, events)
    message = orjson.loads(whole.body())["choices"][0]["message"]
    assert message.get("reasoning_content", "") == ReadChat(encode(chat_encoder(), events)).reasoning


@given(restarted())
def test_a_restarted_completion(turn: tuple[list[TurnEvent], list[TurnEvent]]) -> None:
    """Not streamed it is the new answer alone; streamed it fails if anything had been shown."""
    events, alive = turn
    whole, clean = chat_encoder(streaming=False), chat_encoder(streaming=False)
    encode(whole, events)
    encode(clean, alive)
    told, expected = orjson.loads(whole.body()), orjson.loads(clean.body())
    assert told["choices"] == expected["choices"]
    shown = any(
        isinstance(event, TextDelta | ToolCall | ReasoningDelta) for event in events[: events.index(Restarted("again"))]
    )
    assert (ReadChat(encode(chat_encoder(), events)).error is not None) == shown
