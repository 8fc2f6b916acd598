"""The encoder of wire protocol v0: whatever a backend says, and in whatever order, the lines keep the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property.test_encoders_properties import answers, batches, disorders
from protocols.wire.lines import Event, calls_of, check_events, items_of, read_lines, text_of, usage_of

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
from bridge.errors import BackendCrashed, BridgeError, UpstreamError, UsageError
from bridge.protocols.wire import WireEncoder, error_line

END = Finished("completed")
CALL = ToolCall("fc_1", "call_1", "find", '{"q": "é\\n"}')


def numbered() -> Callable[[str], str]:
    """Ids that count up."""
    numbers = iter(range(1, 1000))
    return lambda prefix: f"{prefix}_{next(numbers)}"


def encode(*batches: list[TurnEvent]) -> list[Event]:
    """The lines of a run, which are valid."""
    encoder = WireEncoder("gpt-test", numbered())
    lines = encoder.begin()
    for batch in batches:
        lines += encoder.feed(batch)
    assert encoder.finished
    return check_events(read(lines))


def read(lines: list[bytes]) -> list[Event]:
    """Lines without their ends."""
    assert not any(b"\n" in line for line in lines)
    return read_lines(b"".join(line + b"\n" for line in lines))


# Any turn


@given(answers() | disorders(), st.data())
def test_any_turn_keeps_the_protocol(events: list[TurnEvent], data: st.DataObject) -> None:
    """Valid lines in order, one end, deltas that add up; however the events are cut into batches."""
    lines = encode(*data.draw(batches(events)))
    assert lines == encode(events)
    end, result = events[-1], collect(events)
    assert isinstance(end, Finished)
    assert (lines[-1]["type"] == "error") is (end.outcome != "completed")
    assert text_of(lines) == result.text
    calls = [(call.id, call.call_id, call.name) for call in result.calls]
    kinds = ("function_call", "custom_tool_call")
    assert [(item["id"], item["call_id"], item["name"]) for item in items_of(lines) if item["type"] in kinds] == calls
    if end.outcome == "completed":
        usage = result.usage or Usage()
        counts = lines[-1]["response"]["usage"]
        assert counts == {"input_tokens": usage.input, "output_tokens": usage.output, "cached_tokens": usage.cached}


@given(answers() | disorders(), st.integers(0, 20))
def test_a_failure_from_outside_is_the_last_line(events: list[TurnEvent], at: int) -> None:
    """Wherever it comes; after the end it says nothing more."""
    encoder = WireEncoder("gpt-test", numbered())
    lines = encoder.begin() + encoder.feed(events[:at])
    over = encoder.finished
    told = encoder.fail(BackendCrashed("gone"))
    assert len(told) == (0 if over else 1)
    assert encoder.fail(UsageError("again")) == []
    assert encoder.feed(events) == []
    last = check_events(read(lines + told))[-1]
    assert over or (last["message"], last["code"]) == ("gone", "backend_crashed")
    assert (encoder.failure is None) is (last["type"] == "response.completed")


@given(answers(), answers())
def test_a_turn_that_starts_again(dead: list[TurnEvent], alive: list[TurnEvent]) -> None:
    """What was shown cannot be taken back: the run fails. When nothing was, it never happened."""
    lines = encode([*dead[:-1], Restarted("broke"), *alive])
    shown = encode([*dead[:-1], Finished("failed", error=UpstreamError("broke"))])[1:-1]
    if shown:
        assert lines[-1]["code"] == "stream_interrupted"
        assert len(lines) <= len(shown) + 2
    else:
        assert [line["type"] for line in lines] == [line["type"] for line in encode(alive)]


# Its parts


def test_an_empty_answer() -> None:
    """Created and completed, with the same id and model."""
    assert encode([END]) == [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-test"}},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "model": "gpt-test",
                "usage": {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0},
            },
        },
    ]


def test_a_call_within_a_message() -> None:
    """The message ends before it; what follows is another one."""
    lines = encode([TextDelta("m", ["a", "b"]), CALL, TextDelta("m", ["c"]), TextDone("m"), END])
    assert [item["id"] for item in items_of(lines)] == ["msg_2", "fc_1", "msg_3"]
    assert calls_of(lines) == [("find", CALL.arguments)]


def test_a_custom_call_and_a_namespace() -> None:
    """Free text is `input`; a namespace is told."""
    calls: list[TurnEvent] = [
        ToolCall("ctc_1", "call_2", "patch", "*** é\n", custom=True),
        ToolCall("fc_2", "call_3", "read", "{}", namespace="files"),
    ]
    custom, named = items_of(encode([*calls, END]))
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "*** é\n")
    assert named["namespace"] == "files"


def test_reasoning_keeps_the_id_of_its_provider() -> None:
    """What is encrypted is bound to it; another one gets an id of ours."""
    thoughts: list[TurnEvent] = [
        ReasoningDelta("rs_abc", 0, ["a", "b"]),
        ReasoningDelta("rs_abc", 1, ["c"]),
        ReasoningDelta("rs_abc", 0, ["raw"], raw=True),
        ReasoningDone("rs_abc", "gAAA"),
        ReasoningDelta("item-7", 0, ["d"]),
        ReasoningDone("item-7"),
        ReasoningDone("rs_hidden", "gBBB"),
        ReasoningDone("rs_nothing"),
    ]
    first, second, third = items_of(encode([*thoughts, END]))
    assert first == {
        "id": "rs_abc",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "ab"}, {"type": "summary_text", "text": "c"}],
        "content": [{"type": "reasoning_text", "text": "raw"}],
        "encrypted_content": "gAAA",
    }
    assert second["id"].startswith("rs_")
    assert (third["id"], third["summary"], third["encrypted_content"]) == ("rs_hidden", [], "gBBB")


def test_a_web_search() -> None:
    """Its states come at once, since they are told when it is over."""
    lines = encode([WebSearch("ws", {"type": "search", "query": "q"}), END])
    assert [line["type"].rpartition(".")[2] for line in lines[1:-1]] == [
        "added",
        "in_progress",
        "searching",
        "completed",
        "done",
    ]


def test_usage_is_the_last_that_was_told() -> None:
    """An update is not a difference."""
    updates: list[TurnEvent] = [UsageUpdate(Usage(1, 0, 1)), UsageUpdate(Usage(5, 2, 3, 1))]
    assert usage_of(encode([*updates, END])) == (5, 3, 2)


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        (Finished("incomplete", reason="max_output_tokens"), "max_output_tokens", "limit of tokens"),
        (Finished("incomplete", reason="content_filter"), "content_filter", "filter"),
        (Finished("incomplete", reason="other"), "other", "(other)"),
        (Finished("incomplete"), "incomplete", "incomplete"),
        (Finished("failed", error=UpstreamError("slow", code="rate_limit_exceeded")), "rate_limit_exceeded", "slow"),
        (Finished("failed"), "interrupted", "interrupted"),
        (Finished("cancelled"), "interrupted", "interrupted"),
    ],
)
def test_an_end_that_is_no_success(end: Finished, code: str, message: str) -> None:
    """The text is complete as far as it goes; then one error."""
    lines = encode([TextDelta("m", ["so far"]), end])
    assert items_of(lines)[0]["content"][0]["text"] == "so far"
    assert lines[-1]["code"] == code
    assert message in lines[-1]["message"]


def test_an_error_line_of_anything() -> None:
    """A message may hold arguments that are no text."""
    assert json.loads(error_line(BridgeError("--\udcff\n'\"", code="c"))) == {
        "type": "error",
        "message": "--?\n'\"",
        "code": "c",
    }
