"""The decoder: packets as they were sent become TurnEvents. Its laws are in `property/test_cap_codec.py`."""

from __future__ import annotations

from typing import Any

import pytest
from protocols.cap.streams import encoder

from bridge.core.events import Finished, ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, WebSearch
from bridge.protocols.cap.decoder import CapDecoder, Shown, effective_meta

CLOSE = {"op": "close", "p": None}


def shown(kind: str, /, **data: Any) -> dict[str, Any]:
    return {"op": "event", "p": {"type": kind, "data": data}}


def thought(text: str, *, final: bool) -> dict[str, Any]:
    return shown("thought_trace", thought=text, kind="summary", item_id="rs", index=0, final=final)


def decode(*messages: Any) -> list[TurnEvent | Shown]:
    decoder = CapDecoder()
    return [event for message in messages for event in decoder.feed(message)]


def test_a_restart_is_decoded() -> None:
    packets = encoder().packets([Restarted("again")])
    assert b"reconnecting" in packets[0]
    assert decode(shown("progress_indicator", label="reconnecting", status="running")) == [Restarted("reconnecting")]


def test_without_the_tool_call_event_only_names_are_known() -> None:
    running, complete, failed = (
        shown("progress_indicator", label="tool: find", status=status) for status in ("running", "complete", "failed")
    )
    assert decode(running, complete) == [ToolCall("", "", "find", "")]
    assert decode(running, failed) == []
    searched = shown("progress_indicator", label="tool: web_search", status="complete")
    assert decode(searched) == [WebSearch("", {})]


def test_a_function_may_be_named_like_the_web_search() -> None:
    about = {"call_id": "c", "tool": "web_search", "arguments": {"q": 1}, "state": "requested"}
    assert decode(shown("tool_call", kind="function", **about)) == [ToolCall("c", "c", "web_search", '{"q":1}')]
    assert decode(shown("tool_call", kind="web_search", **about)) == [WebSearch("c", {"q": 1})]


def test_the_last_packet_of_a_thought_repeats_all_of_it() -> None:
    """So a piece that is missing in a damaged log does no harm."""
    assert decode(thought("Hel", final=False), thought("Hello", final=True)) == [ReasoningDelta("rs", 0, ["Hello"])]


def test_a_thought_that_was_cut_off_is_decoded_at_the_end() -> None:
    decoder = CapDecoder()
    for piece in ("Hel", "l"):
        assert decoder.feed(thought(piece, final=False)) == []
    assert decoder.unfinished_thoughts == [ReasoningDelta("rs", 0, ["Hel", "l"])]
    assert decoder.feed(CLOSE) == [ReasoningDelta("rs", 0, ["Hel", "l"]), Finished("completed")]
    assert decoder.unfinished_thoughts == []


def test_what_clients_display_is_kept_in_its_order() -> None:
    notice = {"message": "Cut.", "code": 206, "reason": "max_output_tokens"}
    events = decode({"op": "delta", "p": "a"}, shown("citation_block", items=[]), shown("user_error", **notice), CLOSE)
    assert events == [
        TextDelta("message", ["a"]),
        Shown("citation_block", {"items": []}),
        Shown("user_error", notice),
        Finished("incomplete", "max_output_tokens"),
    ]


def test_an_error_ends_the_answer() -> None:
    error = {"code": "overloaded", "message": "Busy.", "severity": "transient", "details": {"retry_after": 3}}
    for stream in ([{"op": "error", "p": error}, CLOSE], [error]):
        decoder = CapDecoder()
        (end,) = [event for message in stream for event in decoder.feed(message)]
        assert isinstance(end, Finished)
        assert end.outcome == "failed"
        assert end.error is not None
        assert (end.error.code, end.error.severity, end.error.retry_after) == ("overloaded", "transient", 3)
        assert (decoder.error, decoder.skipped) == (error, 0)


def test_nothing_follows_the_end() -> None:
    decoder = CapDecoder()
    assert decoder.feed(CLOSE) == [Finished("completed")]
    assert decoder.feed({"op": "delta", "p": "late"}) == []
    assert decoder.skipped == 1


def test_events_without_meaning_are_not_broken() -> None:
    decoder = CapDecoder()
    assert [decoder.feed({"op": "event", "p": payload}) for payload in ("text", None)] == [[], []]
    assert decoder.skipped == 0


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        ({"model": "a", "codex": {"model": "b"}}, {"model": "b"}),
        ({"model": "a", "codex": {"model": None}}, {"model": None}),
        ({"model": "a", "codex": 1}, {"model": "a"}),
        ([], {}),
        (None, {}),
    ],
)
def test_names_under_codex_take_precedence(meta: Any, found: dict[str, Any]) -> None:
    assert effective_meta(meta) == found
