"""TurnEvents as chat completion chunks and as a chat completion."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from protocols.cases import (
    CASES,
    CHAT_CASES,
    CUSTOM_CALL,
    END,
    FAILURES,
    FIRST_CALL,
    GOLDEN,
    NAMESPACED_CALL,
    REASONING,
    SEARCH,
    SECOND_CALL,
    THOUGHTS,
    USAGE,
    chat_encoder,
    encode,
    read_frames,
)
from protocols.official import check_completion
from protocols.readers import ReadChat

from bridge.core.events import (
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.errors import BackendCrashed
from bridge.protocols.chat.encoder import usage_object
from bridge.protocols.sse import DONE

TEXT: list[TurnEvent] = [TextDelta("m", ["Hel", "lo"]), TextDone("m")]


def deltas(stream: bytes) -> list[dict[str, Any]]:
    """The deltas of the choices, in order."""
    return [choice["delta"] for chunk in read_frames(stream) for choice in chunk.get("choices", ())]


def reasons(stream: bytes) -> list[str]:
    """All finish reasons that were given."""
    choices = [choice for chunk in read_frames(stream) for choice in chunk.get("choices", ())]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def message_of(*events: TurnEvent, **options: Any) -> dict[str, Any]:
    """The message of the answer that is not streamed."""
    encoder = chat_encoder(streaming=False, **options)
    encode(encoder, list(events))
    message: dict[str, Any] = orjson.loads(encoder.body())["choices"][0]["message"]
    return message


@pytest.mark.parametrize("name", CASES)
def test_the_golden_stream(name: str) -> None:
    """Byte for byte what is kept in fixtures/golden/chat."""
    encoder = chat_encoder(include_usage="usage" in name)
    assert encode(encoder, CASES[name]) == (GOLDEN / f"chat/{name}.sse").read_bytes()


@pytest.mark.parametrize("name", CHAT_CASES)
def test_the_golden_stream_of_another_way(name: str) -> None:
    """The same for thoughts in the text, hidden thoughts and old functions."""
    options, events = CHAT_CASES[name]
    assert encode(chat_encoder(**options), events) == (GOLDEN / f"chat/{name}.sse").read_bytes()


@pytest.mark.parametrize("name", [*CASES, *CHAT_CASES])
def test_a_golden_stream_keeps_every_rule(name: str) -> None:
    """Each chunk is the official client's own type, and they add up; a failure is an error object instead."""
    read = ReadChat((GOLDEN / f"chat/{name}.sse").read_bytes())
    assert (read.error is not None) == (name in FAILURES)
    assert (read.usage is not None) == ("usage" in name)


def test_the_members_are_those_of_the_newest_types() -> None:
    """All but those that have no meaning here; the usage of a chunk is there where it was asked for."""
    here = {"metadata", "moderation"}
    encoder = chat_encoder(include_usage=True)
    chunks = read_frames(encode(encoder, [*TEXT, USAGE, END]))
    assert ChatCompletion.model_fields.keys() - orjson.loads(encoder.body()).keys() == here
    for chunk in chunks:
        missing = ChatCompletionChunk.model_fields.keys() - chunk.keys()
        assert missing == {"moderation", "obfuscation", "service_tier"}


def test_the_role_comes_first() -> None:
    """Before any content, and only once."""
    stream = encode(chat_encoder(), [*TEXT, END])
    assert deltas(stream) == [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
    assert stream.endswith(DONE)
    assert stream.count(DONE) == 1


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([*TEXT, END], "stop"),
        ([FIRST_CALL, END], "tool_calls"),
        ([*TEXT, FIRST_CALL, *TEXT, END], "tool_calls"),
        ([*TEXT, Finished("incomplete", reason="max_output_tokens")], "length"),
        ([*TEXT, Finished("incomplete", reason="content_filter")], "content_filter"),
        ([FIRST_CALL, Finished("incomplete", reason="max_output_tokens")], "length"),
        ([*TEXT, Finished("incomplete", reason="something_new")], "length"),
    ],
)
def test_one_finish_reason(events: list[TurnEvent], reason: str) -> None:
    """The stream gives it once, and the whole answer the same."""
    encoder = chat_encoder()
    assert reasons(encode(encoder, events)) == [reason]
    assert orjson.loads(encoder.body())["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_failure_is_an_error_and_no_finish_reason(outcome: Any) -> None:
    """No client may take half an answer for a whole one."""
    encoder = chat_encoder(include_usage=True)
    error = BackendCrashed("gone") if outcome == "failed" else None
    stream = encode(encoder, [*TEXT, USAGE, Finished(outcome, error=error)])
    assert reasons(stream) == []
    last = read_frames(stream)[-1]
    assert encoder.failure is not None
    assert last == encoder.failure.body()
    assert last["error"]["code"] == ("backend_crashed" if error else "interrupted")
    assert stream.endswith(DONE)


def test_tool_calls_are_counted_and_add_up() -> None:
    """Each call has its index; name and id come once, the arguments add up."""
    stream = encode(chat_encoder(), [FIRST_CALL, TextDelta("m", ["and"]), SECOND_CALL, END])
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas(stream):
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
            known["id"] += call.get("id", "")
            known["name"] += call["function"].get("name", "")
            known["arguments"] += call["function"]["arguments"]
    assert calls == {
        0: {"id": "call_a", "name": "find", "arguments": FIRST_CALL.arguments},
        1: {"id": "call_b", "name": "open", "arguments": "{}"},
    }


def test_the_message_of_tool_calls() -> None:
    """Calls without text have null content; with text they have both."""
    message = message_of(FIRST_CALL, SECOND_CALL, END)
    assert message["content"] is None
    assert [call["id"] for call in message["tool_calls"]] == ["call_a", "call_b"]
    assert message_of(*TEXT, FIRST_CALL, END)["content"] == "Hello"
    assert "tool_calls" not in message_of(*TEXT, END)


def test_usage_comes_last_and_on_request_only() -> None:
    """Asked for: null in every chunk, then one chunk without choices before `[DONE]`. Else nothing."""
    asked = read_frames(encode(chat_encoder(include_usage=True), [*TEXT, UsageUpdate(Usage(1)), USAGE, END]))
    assert all(chunk["usage"] is None for chunk in asked[:-1])
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == usage_object(USAGE.usage)
    unasked = read_frames(encode(chat_encoder(), [*TEXT, USAGE, END]))
    assert not any("usage" in chunk for chunk in unasked)


def test_usage_in_the_apis_words() -> None:
    """Cached and reasoning tokens are details of prompt and completion."""
    usage = usage_object(Usage(10, 4, 5, 2))
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 5, 15)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2


BODIES: dict[str, tuple[dict[str, Any], list[TurnEvent]]] = {
    name: ({}, events) for name, events in CASES.items() if name not in FAILURES
} | CHAT_CASES


@pytest.mark.parametrize("name", BODIES)
def test_the_body_is_the_clients_type(name: str) -> None:
    """The official client's own model accepts the answer that is not streamed."""
    options, events = BODIES[name]
    encoder = chat_encoder(streaming=False, **options)
    encode(encoder, events)
    body = orjson.loads(encoder.body())
    check_completion(body)
    assert body["id"] == "chatcmpl-1"
    assert body["usage"] is not None


@pytest.mark.parametrize("name", BODIES)
def test_the_body_is_what_the_stream_adds_up_to(name: str) -> None:
    """Streamed or not, the client reads the same."""
    options, events = BODIES[name]
    encoder = chat_encoder(**options)
    read = ReadChat(encode(encoder, events)).only
    (choice,) = orjson.loads(encoder.body())["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == read.finish_reason
    assert (message["content"] or "") == read.content
    assert message.get("reasoning_content", "") == read.reasoning
    assert message.get("tool_calls", []) == read.calls
    assert message.get("function_call") == read.function_call


def test_estimated_usage_says_so() -> None:
    """Only where it is estimated."""
    assert usage_object(Usage(3, 0, 1, estimated=True))["estimated"] is True
    assert "estimated" not in usage_object(Usage(3, 0, 1))


# Other calls


def test_a_custom_call_has_an_input() -> None:
    """Its text is no JSON, so it has a member of its own, streamed and not."""
    call = {"id": "call_c", "type": "custom", "custom": {"name": "patch", "input": CUSTOM_CALL.arguments}}
    assert message_of(CUSTOM_CALL, END)["tool_calls"] == [call]
    assert ReadChat(encode(chat_encoder(), [CUSTOM_CALL, END])).only.calls == [call]


def test_calls_of_both_kinds_are_counted_together() -> None:
    """One index for all."""
    read = ReadChat(encode(chat_encoder(), [CUSTOM_CALL, FIRST_CALL, END])).only
    assert [call["type"] for call in read.calls] == ["custom", "function"]


def test_a_namespace_is_part_of_the_name() -> None:
    """Chat has no member for it; the client knows the function by its full name."""
    (call,) = message_of(NAMESPACED_CALL, END)["tool_calls"]
    assert call["function"]["name"] == "files.find"


def test_an_old_client_reads_a_function_call() -> None:
    """In the message and in the stream, with the finish reason of its time."""
    encoder = chat_encoder(functions=True)
    read = ReadChat(encode(encoder, [FIRST_CALL, END])).only
    expected = {"name": "find", "arguments": FIRST_CALL.arguments}
    assert (read.function_call, read.calls, read.finish_reason) == (expected, [], "function_call")
    (choice,) = orjson.loads(encoder.body())["choices"]
    assert choice["message"]["function_call"] == expected
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] is None


def test_an_old_client_reads_one_call_alone() -> None:
    """It has no ids to tell two apart: the first counts, streamed and not."""
    encoder = chat_encoder(functions=True)
    read = ReadChat(encode(encoder, [FIRST_CALL, SECOND_CALL, END])).only
    assert read.function_call == {"name": "find", "arguments": FIRST_CALL.arguments}
    assert orjson.loads(encoder.body())["choices"][0]["message"]["function_call"] == read.function_call


def test_an_old_client_that_is_not_called() -> None:
    """Text is text."""
    encoder = chat_encoder(functions=True)
    assert reasons(encode(encoder, [*TEXT, END])) == ["stop"]
    assert "function_call" not in orjson.loads(encoder.body())["choices"][0]["message"]


def test_a_web_search_is_not_told() -> None:
    """Chat has no words for it; it is no answer either."""
    encoder = chat_encoder()
    encoder.begin()
    assert encoder.feed([SEARCH]) == b""
    assert not encoder.visible
    assert message_of(SEARCH, *TEXT, END) == message_of(*TEXT, END)


# Thoughts


def test_thoughts_between_tags() -> None:
    """Before the text, closed before anything else is said; the stream adds up to the message."""
    shown = "<think>\n**Plan** first\n\nthen\n</think>\n\n"
    for rest, text in (([*TEXT, END], "Hello"), ([FIRST_CALL, END], ""), ([END], "")):
        read = ReadChat(encode(chat_encoder(reasoning="think"), [*REASONING, *rest])).only
        assert (read.content, read.reasoning) == (shown + text, "")
        message = message_of(*REASONING, *rest, reasoning="think")
        assert message["content"] == shown + text
        assert "reasoning_content" not in message


@pytest.mark.parametrize(
    "end", [Finished("failed", error=BackendCrashed("gone")), Finished("cancelled"), Restarted("Reconnecting")]
)
def test_tags_are_closed_before_an_error(end: TurnEvent) -> None:
    """What is shown of a failed answer is well formed too."""
    read = ReadChat(encode(chat_encoder(reasoning="think"), [ReasoningDelta("r", 0, ["Hm"]), end]))
    assert read.only.content == "<think>\nHm\n</think>\n\n"
    assert read.error is not None


def test_no_thoughts_no_tags() -> None:
    """Neither for no reasoning nor for reasoning that cannot be read."""
    for events in (TEXT, [ReasoningDone("rs_1", "gAAA"), *TEXT], [ReasoningDelta("r", 0, [""]), *TEXT]):
        assert ReadChat(encode(chat_encoder(reasoning="think"), [*events, END])).only.content == "Hello"
        assert message_of(*events, END, reasoning="think")["content"] == "Hello"


def test_thoughts_that_come_again() -> None:
    """Between two texts: where they stand in the stream, there they stand in the message."""
    events: list[TurnEvent] = [ReasoningDelta("r", 0, ["A"]), *TEXT, ReasoningDelta("s", 0, ["B"]), *TEXT, END]
    streamed = ReadChat(encode(chat_encoder(reasoning="think"), events)).only.content
    assert streamed == message_of(*events, reasoning="think")["content"]


def test_hidden_thoughts_are_not_shown() -> None:
    """Not a piece of them, and they do not count as visible."""
    encoder = chat_encoder(reasoning="hidden")
    encoder.begin()
    assert encoder.feed(REASONING) == b""
    assert not encoder.visible
    assert message_of(*THOUGHTS, reasoning="hidden") == message_of(*THOUGHTS[len(REASONING) :])


def test_hidden_thoughts_leave_a_restart_open() -> None:
    """Nothing was shown, so nothing has to be taken back."""
    encoder = chat_encoder(reasoning="hidden")
    read = ReadChat(encode(encoder, [*REASONING, Restarted("x"), *TEXT, END]))
    assert (read.error, read.only.content) == (None, "Hello")


@pytest.mark.parametrize("display", ["content", "think", "hidden"])
def test_a_restart_begins_the_thoughts_anew(display: Any) -> None:
    """Not streamed, the first attempt's are forgotten."""
    again = [ReasoningDelta("s", 0, ["raw"], raw=True), *TEXT, END]
    assert message_of(*REASONING, Restarted("x"), *again, reasoning=display) == message_of(*again, reasoning=display)


def test_reasoning_is_shown_beside_the_content() -> None:
    """The summary where there is one, else the raw text; the stream adds up to the message."""
    for events, shown in (
        (REASONING, "**Plan** first\n\nthen"),
        ([ReasoningDelta("r", 0, ["raw"], raw=True)], "raw"),
    ):
        stream = encode(chat_encoder(), [*events, *TEXT, END])
        assert "".join(delta.get("reasoning_content", "") for delta in deltas(stream)) == shown
        assert message_of(*events, *TEXT, END)["reasoning_content"] == shown
    assert "reasoning_content" not in message_of(*TEXT, END)


@pytest.mark.parametrize(
    "events",
    [
        [ReasoningDelta("r", 0, ["sum"]), ReasoningDelta("s", 0, ["raw"], raw=True)],
        [ReasoningDelta("r", 0, ["raw"], raw=True), ReasoningDelta("r", 0, ["sum"])],
        [ReasoningDelta("r", 0, ["raw"], raw=True), ReasoningDelta("s", 0, ["sum"])],
    ],
)
def test_the_streamed_reasoning_is_the_messages(events: list[TurnEvent]) -> None:
    """Whatever the mixture of summaries and raw reasoning: streamed or not, the client reads the same."""
    stream = encode(chat_encoder(), [*events, *TEXT, END])
    streamed = "".join(delta.get("reasoning_content", "") for delta in deltas(stream))
    assert streamed == message_of(*events, *TEXT, END)["reasoning_content"]


def test_the_batches_do_not_matter() -> None:
    """One event at a time gives the same bytes."""
    for events in CASES.values():
        assert encode(chat_encoder(), *([event] for event in events)) == encode(chat_encoder(), events)


def test_nothing_is_said_before_there_is_something() -> None:
    """Usage, empty batches and ends of nothing are silent, and do not count as visible."""
    encoder = chat_encoder()
    encoder.begin()
    assert encoder.feed([]) == b""
    assert encoder.feed([USAGE, TextDone("m"), Restarted("x")]) == b""
    assert not encoder.visible
    encoder.feed(TEXT)
    assert encoder.visible


def test_what_follows_the_end_is_ignored() -> None:
    """`[DONE]` is the last."""
    encoder = chat_encoder()
    stream = encode(encoder, [*TEXT, END, *TEXT, FIRST_CALL, END])
    assert stream == encode(chat_encoder(), [*TEXT, END])
    assert encoder.feed([*TEXT, END]) == b""


def test_a_restart_after_visible_text_fails_the_stream() -> None:
    """What was shown cannot be taken back."""
    encoder = chat_encoder()
    stream = encode(encoder, [TextDelta("a", ["dead"]), Restarted("Reconnecting"), TextDelta("b", ["alive"]), END])
    assert b"alive" not in stream
    assert reasons(stream) == []
    assert encoder.failure is not None
    assert encoder.failure.code == "stream_interrupted"


@pytest.mark.parametrize("dead", [[TextDelta("a", ["dead"])], [FIRST_CALL], REASONING, [*TEXT, FIRST_CALL]])
def test_a_restart_is_forgiven_where_nothing_was_shown(dead: list[TurnEvent]) -> None:
    """Not streamed, the answer is the new one alone."""
    encoder, clean = chat_encoder(streaming=False), chat_encoder(streaming=False)
    encode(encoder, [*dead, Restarted("x"), *TEXT, END])
    encode(clean, [*TEXT, END])
    assert encoder.body() == clean.body()


def test_it_can_be_printed() -> None:
    """Its state can be read off it."""
    encoder = chat_encoder()
    encode(encoder, [FIRST_CALL, END])
    assert repr(encoder) == "<ChatEncoder chatcmpl-1 calls=1 finished=True>"
