"""The events that the scripted backend streams: their order and their ids."""

from __future__ import annotations

from typing import Any

from upstream.events import (
    NOTHING,
    answer,
    call,
    completed,
    custom_call,
    error,
    failed,
    incomplete,
    reasoning,
    search,
    text,
)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text_and_reasoning_come_in_the_order_of_the_responses_api() -> None:
    events = answer(reasoning("a", raw="b"), text("c", "d"), end=completed(cached=9))
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "reasoning_text.delta",
        "reasoning_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["encrypted_content"]
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 9}
    assert {event["item_id"] for event in events if "delta" in event["type"]} == {
        item["id"] for item in response["output"]
    }


def test_calls_may_come_at_once() -> None:
    events = answer(call("add", '{"a"', ":2}"), custom_call("patch", "x", call_id="mine"), interleaved=True, tag="t")
    assert kinds(events)[2:-1] == [
        "output_item.added",
        "output_item.added",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
        "function_call_arguments.delta",
        "custom_tool_call_input.done",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.done",
    ]
    done = {item["name"]: item for item in events[-1]["response"]["output"]}
    assert (done["add"]["id"], done["add"]["call_id"], done["add"]["arguments"]) == ("fc_t_0", "call_t_0", '{"a":2}')
    assert (done["patch"]["call_id"], done["patch"]["input"]) == ("mine", "x")


def test_a_search_tells_its_states() -> None:
    events = answer(search("weather"), end=completed(output=False))
    assert [kind for kind in kinds(events) if "search" in kind] == [
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
    ]
    assert events[-2]["item"]["action"] == {"type": "search", "query": "weather"}
    assert events[-1]["response"]["output"] == []


def test_an_answer_may_end_badly() -> None:
    assert answer(text("a"), end=failed("x", "y"))[-1]["response"]["error"] == {"code": "x", "message": "y"}
    assert answer(text("a"), end=incomplete())[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    flat, nested = answer(end=error("x"))[-1], answer(end=error("x", nested=True))[-1]
    assert (flat["type"], flat["code"], nested["type"], nested["error"]["code"]) == ("error", "x", "error", "x")
    assert kinds(answer(text("a"), end=NOTHING))[-1] == "output_item.done"
