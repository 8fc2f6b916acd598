"""What Codex cannot do is named, never dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.api.chat.request import parse_chat
from bridge.api.dropped import dropped_fields
from bridge.api.responses.request import parse_responses
from bridge.turn.models import ModelChoice

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}


def same(name: str) -> ModelChoice:
    return ModelChoice(name, name)


def dropped(body: dict[str, Any]) -> list[str]:
    parse = parse_chat if "messages" in body else parse_responses
    return dropped_fields(body, parse(body, same))


def test_a_plain_request_drops_nothing() -> None:
    """What was not asked for is not named."""
    assert dropped(CHAT) == []
    assert dropped(RESPONSES) == []
    assert dropped(CHAT | {"temperature": None, "stop": None, "logprobs": False, "n": 1, "logit_bias": {}}) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1),
        ("top_p", 0.5),
        ("max_tokens", 5),
        ("max_completion_tokens", 5),
        ("frequency_penalty", 1.0),
        ("presence_penalty", 1.0),
        ("logit_bias", {"5": 1}),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("seed", 7),
        ("stop", "x"),
        ("stop", ["x"]),
        ("n", 2),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("prediction", {"type": "content"}),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
    ],
)
def test_a_chat_field_without_effect_is_named(field: str, value: Any) -> None:
    """Codex takes no sampling settings, no limits and no penalties."""
    assert dropped(CHAT | {field: value}) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1),
        ("top_p", 0.5),
        ("max_output_tokens", 5),
        ("max_tool_calls", 1),
        ("truncation", "auto"),
        ("top_logprobs", 3),
    ],
)
def test_a_responses_field_without_effect_is_named(field: str, value: Any) -> None:
    """The same for the other endpoint."""
    assert dropped(RESPONSES | {field: value}) == [field]


@pytest.mark.parametrize("field", ["temperature", "top_p", "seed"])
@pytest.mark.parametrize("value", [0, 0.0])
def test_zero_is_a_value(field: str, value: float) -> None:
    """A temperature of 0 is the most wanted one of all: that it has no effect is said."""
    assert dropped(CHAT | {field: value}) == [field]


def test_a_json_object_without_a_schema_is_named() -> None:
    """Codex knows structured output by a schema alone; `json_object` reaches no model."""
    assert "response_format" in dropped(CHAT | {"response_format": {"type": "json_object"}})


def test_tools_that_are_no_functions_are_named_once() -> None:
    """Each foreign type once, sorted; functions are not named."""
    tools = [
        {"type": "web_search"},
        {"type": "custom", "name": "c"},
        {"type": "web_search"},
        {"type": "function", "name": "f"},
    ]
    assert dropped(RESPONSES | {"tools": tools}) == ["tools:custom", "tools:web_search"]


@pytest.mark.parametrize("kind", ["a\r\nb: c", "é", "a\x00", "x" * 500])
def test_the_names_are_fit_for_a_header(kind: str) -> None:
    """No name can break out of the header that carries it."""
    for name in dropped(RESPONSES | {"tools": [{"type": kind}]}):
        assert name.isascii()
        assert name.isprintable()
        assert len(name) < 60
