"""What Codex cannot do is named, never dropped in silence."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.backend import Abilities
from bridge.errors import InvalidRequest
from bridge.protocols.dropped import MAX_NAMES, apply_policy, dropped_fields
from bridge.protocols.reading import parse_request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}


def dropped(body: dict[str, Any], path: str | None = None) -> list[str]:
    """What is dropped of a body that came to `path`, by default the one of its shape."""
    path = path or ("chat" if "messages" in body else "responses")
    return dropped_fields(body, parse_request(body, path), path)


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
        ("prediction", {"type": "content"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("store", True),
        ("background", True),
        ("moderation", {"model": "x"}),
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
        ("context_management", [{"type": "compaction"}]),
        ("stop", "x"),
        ("n", 2),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
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


@pytest.mark.parametrize(
    "members",
    [
        {"truncation": "disabled"},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"modalities": ["text"]},
        {"store": False},
        {"n": 1},
        {"top_logprobs": 0},
        {"logprobs": False},
    ],
)
def test_what_happens_anyway_is_not_named(members: dict[str, Any]) -> None:
    """A value that asks for the usual asks for nothing."""
    assert dropped(CHAT | members) == []
    assert dropped(RESPONSES | members) == []


@pytest.mark.parametrize(
    "members",
    [
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"n": 2},
        {"functions": [{"name": "f"}], "function_call": "auto"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        {"tools": [{"type": "custom", "custom": {"name": "c"}}]},
        {"web_search_options": {}},
        {"reasoning_effort": "high", "verbosity": "low", "parallel_tool_calls": False},
        {"user": "u", "metadata": {"a": "b"}, "prompt_cache_key": "k", "safety_identifier": "s"},
    ],
)
def test_what_is_done_in_chat_is_not_named(members: dict[str, Any]) -> None:
    """Not here: whether a backend can do it, that backend says."""
    assert dropped(CHAT | members) == []


@pytest.mark.parametrize(
    "members",
    [
        {"previous_response_id": "resp_1", "store": True, "background": True},
        {"conversation": {"id": "conv_1"}},
        {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
        {"include": ["reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results"]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]},
        {"tools": [{"type": "web_search"}, {"type": "web_search_preview"}, {"type": "web_search_2025_08_26"}]},
    ],
)
def test_what_is_done_in_responses_is_not_named(members: dict[str, Any]) -> None:
    """The same for the other endpoint."""
    assert dropped(RESPONSES | members) == []


def test_old_functions_beside_tools_are_named() -> None:
    """The tools count, and the client hears that the others do not; the choice among them neither."""
    tools = [{"type": "function", "function": {"name": "find"}}]
    old = {"functions": [{"name": "open"}], "function_call": "auto"}
    assert dropped(CHAT | {"tools": tools} | old) == ["functions", "function_call"]


@pytest.mark.parametrize("body", [CHAT, RESPONSES])
def test_the_path_decides_what_an_answer_can_be(body: dict[str, Any]) -> None:
    """A completion is not stored and does not go on without its client; a response has no choices."""
    kept = {"store": True, "background": True}
    assert dropped(body | kept, "chat") == ["store", "background"]
    assert dropped(body | kept, "responses") == []
    assert dropped(body | {"n": 2}, "responses") == ["n"]
    assert dropped(CHAT | {"n": 1, "stop": "x"}, "responses") == []


def test_what_cannot_be_included_is_named() -> None:
    """Each by its own name."""
    include = ["message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results"]
    assert dropped(RESPONSES | {"include": include}) == [
        "include:message.output_text.logprobs",
        "include:file_search_call.results",
    ]


@pytest.mark.parametrize("value", [5, {"a": 1}, True, [5, None, []]])
def test_an_include_of_another_shape_includes_nothing(value: Any) -> None:
    """A chat body may say there what it likes: the field is none of chat's, and named as such."""
    assert dropped(CHAT | {"include": value}) == ["include"]


@pytest.mark.parametrize("body", [CHAT, RESPONSES])
def test_a_field_that_nobody_knows_is_named(body: dict[str, Any]) -> None:
    """Also one that is misspelt, of the other shape, or of a time to come."""
    odd = {"temprature": 1, "cwd": "/", "new_option": {"a": 1}, "off": False, "empty": [], "unset": None}
    assert dropped(body | odd) == ["temprature", "cwd", "new_option"]
    assert dropped(CHAT | {"instructions": "x", "reasoning": {"effort": "low"}}) == ["instructions", "reasoning"]
    assert dropped(RESPONSES | {"reasoning_effort": "low"}) == ["reasoning_effort"]


def test_no_more_names_than_a_header_can_hold() -> None:
    """The rest is not worth a failure."""
    names = dropped(CHAT | {f"option_{number}": 1 for number in range(1000)})
    assert names == [f"option_{number}" for number in range(MAX_NAMES)]


def test_tools_of_other_types_are_named_once() -> None:
    """Each foreign type once, sorted; functions, custom tools and searches are not named."""
    tools = [
        {"type": "mcp", "server_label": "x"},
        {"type": "web_search"},
        {"type": "custom", "name": "c"},
        {"type": "file_search", "vector_store_ids": ["v"]},
        {"type": "mcp", "server_label": "y"},
        {"type": "function", "name": "f"},
    ]
    assert dropped(RESPONSES | {"tools": tools}) == ["tools:file_search", "tools:mcp"]


def test_all_of_it_is_named() -> None:
    """Fields, includes and tools, in one list."""
    body = RESPONSES | {"temperature": 1, "truncation": "auto", "include": ["x"], "tools": [{"type": "mcp"}]}
    assert dropped(body) == ["temperature", "truncation", "include:x", "tools:mcp"]


@pytest.mark.parametrize("odd", ["a\r\nb: c", "é", "a\x00", "a,b", " ", "x" * 500])
def test_the_names_are_fit_for_a_header(odd: str) -> None:
    """No name can break out of the header that carries it, or out of its place in the list."""
    names = dropped(RESPONSES | {"tools": [{"type": odd}], "include": [odd], odd: 1})
    assert len(names) == 3
    for name in names:
        assert name.isascii()
        assert name.isprintable()
        assert len(name) <= 64
        assert not set(name) & set(", ")


def test_a_member_without_a_name_is_told_too() -> None:
    """An empty header would say that nothing was left out."""
    assert dropped(RESPONSES | {"": 1}) == ["?"]


# The policy


def test_dropping_lets_everything_pass() -> None:
    """It is left out and named, that is all."""
    apply_policy("drop", ["temperature"])
    apply_policy("drop", [])


def test_rejecting_refuses_what_would_be_dropped() -> None:
    """All of it is named, the first as the place; the message says what the operator can do."""
    with pytest.raises(InvalidRequest) as caught:
        apply_policy("reject", iter(["temperature", "tools:mcp"]))
    error = caught.value
    assert (error.http_status, error.param, error.code) == (400, "temperature", "unsupported_parameter")
    assert "temperature, tools:mcp" in error.message
    assert "PROXY_UNSUPPORTED=drop" in error.message


def test_rejecting_lets_the_rest_pass() -> None:
    """A request that asks for nothing special is served."""
    apply_policy("reject", dropped(CHAT | {"stop": "x", "n": 2, "user": "u"}))
    apply_policy("reject", dropped(RESPONSES | {"include": ["reasoning.encrypted_content"]}))


def test_rejecting_misses_nothing_because_of_its_name() -> None:
    """What has no name that a header could carry is not served in silence either."""
    with pytest.raises(InvalidRequest):
        apply_policy("reject", dropped(RESPONSES | {"tools": [{"type": "é"}]}))


def test_a_limit_of_tokens_that_is_kept_is_not_named() -> None:
    """Where the bridge counts them itself; a temperature has no place there all the same."""
    body = CHAT | {"max_tokens": 5, "temperature": 1}
    turn = parse_request(body, "chat")
    assert dropped_fields(body, turn, "chat", Abilities(counts_tokens=True)) == ["temperature"]


def test_the_service_tier_is_the_backends_to_name() -> None:
    """It is part of the turn."""
    assert dropped(CHAT | {"service_tier": "flex"}) == []
    assert parse_request(CHAT | {"service_tier": "flex"}, "chat").service_tier == "flex"
    for usual in ("auto", "default", None):
        assert parse_request(RESPONSES | {"service_tier": usual}, "responses").service_tier is None


def test_names_of_people_are_named() -> None:
    """In either shape, once; a tool's name is no person's."""
    said = {"role": "user", "content": "hi", "name": "ada"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "x"},
    ]
    assert dropped({"model": "m", "messages": [said, said]}) == ["messages.name"]
    assert dropped({"model": "m", "input": [said]}) == ["input.name"]
    assert dropped({"model": "m", "messages": [{"role": "user", "content": "hi"}, *tool]}) == []


def test_members_of_options_are_named() -> None:
    """`reasoning` and `text` grow new members; those that nobody reads are named."""
    asked = {"reasoning": {"effort": "low", "context": "auto", "mode": None}, "text": {"stops": ["x"]}}
    assert dropped(RESPONSES | asked) == ["reasoning.context", "text.stops"]


def test_restrictions_of_a_search_that_nobody_reads_are_named() -> None:
    """They are what the client relies on; those that are read are not named."""
    known = {"filters": {"allowed_domains": ["a"]}, "user_location": {"city": "Bern"}, "search_context_size": "low"}
    search = {"type": "web_search", **known, "filters": {"allowed_domains": ["a"], "blocked_domains": ["b"]}, "new": 1}
    assert dropped(RESPONSES | {"tools": [{"type": "web_search", **known}]}) == []
    assert dropped(RESPONSES | {"tools": [search]}) == ["web_search.new", "web_search.filters.blocked_domains"]
    assert dropped(CHAT | {"web_search_options": {"search_context_size": "low", "depth": 2}}) == ["web_search.depth"]
