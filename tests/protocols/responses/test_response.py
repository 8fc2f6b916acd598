"""The response object: the request echoed, usage and errors in the API's words."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response, ResponseUsage
from openai.types.responses.response_error import ResponseError
from protocols.official import check_response

from bridge.core.events import Usage
from bridge.core.models import ModelChoice
from bridge.errors import BackendCrashed, BridgeError, InvalidRequest, PayloadTooLarge, UpstreamError
from bridge.protocols.reading import conversation_id
from bridge.protocols.responses.encoder import echo_of, error_object, response_object, usage_object
from bridge.protocols.responses.request import parse_responses

FILES = {"type": "namespace", "name": "files", "description": "d", "tools": [{"type": "function", "name": "find"}]}


def response_to(store: bool = False, **members: Any) -> dict[str, Any]:
    """A completed response to a request with these members."""
    body = {"model": "Alias", "input": "hi", **members}
    turn = parse_responses(body).for_model(ModelChoice(body["model"], "effective", "low"))
    return response_object(echo_of(body, turn, store=store), id="resp_1", created_at=5, status="completed")


def test_the_request_is_echoed() -> None:
    """What was asked for comes back, the model under the name that the client wrote."""
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    given: dict[str, Any] = {
        "instructions": "be kind",
        "tools": [tool, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "temperature": 0.0,
        "top_p": 0.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "previous_response_id": "resp_0",
        "conversation": {"id": "conv_1"},
        "background": True,
        "user": "u",
    }
    response = response_to(**given)
    assert {key: response[key] for key in given} == given
    assert response["model"] == "Alias"


def test_what_was_not_said_has_the_apis_defaults() -> None:
    """Every member is present, with the value that the API would show."""
    response = response_to()
    assert response["instructions"] is None
    assert response["tools"] == []
    assert response["tool_choice"] == "auto"
    assert response["parallel_tool_calls"] is True
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["text"] == {"format": {"type": "text"}}
    assert response["metadata"] == {}
    assert response["store"] is False
    assert response["background"] is False
    assert response["previous_response_id"] is None
    assert response["conversation"] is None
    assert (response["truncation"], response["top_logprobs"]) == ("disabled", 0)
    assert (response["temperature"], response["top_p"]) == (1.0, 1.0)
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0.0, 0.0)
    assert response["service_tier"] == "default"


@pytest.mark.parametrize("name", ["temperature", "top_p", "presence_penalty", "frequency_penalty", "service_tier"])
def test_null_has_the_apis_default_too(name: str) -> None:
    """A client that names a member without a value gets what one gets that does not name it."""
    null: dict[str, Any] = {name: None}
    assert response_to(**null) == response_to()


@pytest.mark.parametrize("value", [3, -2.5, "1", True, [], {}])
@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_is_a_number_in_the_apis_range(name: str, value: Any) -> None:
    """Nothing uses them, so a wrong one is not refused; it is not repeated either."""
    assert response_to(**{name: value})[name] == 0.0


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("auto", "default"), ("default", "default"), ("priority", "priority"), ("", "default")],
)
def test_the_service_tier(given: Any, echoed: str) -> None:
    """`auto` leaves the choice to the server, whose only tier is the default."""
    assert response_to(service_tier=given)["service_tier"] == echoed


def test_every_member_of_the_newest_type_is_there() -> None:
    """What nothing here can fill is null, never missing."""
    assert Response.model_fields.keys() - response_to().keys() == set()


@pytest.mark.parametrize("store", [True, False])
def test_whether_it_is_kept_is_not_the_requests_word_alone(store: bool) -> None:
    """The bridge knows, and says so."""
    assert response_to(store=store)["store"] is store


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("conv_1", {"id": "conv_1"}),
        ({"id": "conv_1", "object": "conversation"}, {"id": "conv_1"}),
        ({}, None),
        ({"id": 5}, None),
        (5, None),
    ],
)
def test_a_conversation_by_its_id_or_as_an_object(given: Any, expected: Any) -> None:
    """Echoed as an object."""
    assert response_to(conversation=given)["conversation"] == expected
    assert conversation_id({"conversation": given}) == (expected and expected["id"])


@pytest.mark.parametrize(
    ("status", "members"),
    [
        ("in_progress", {}),
        ("queued", {}),
        ("completed", {"completed_at": 6, "usage": usage_object(Usage(1, 0, 1))}),
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}),
        ("failed", {"error": error_object(BackendCrashed("gone"))}),
        ("cancelled", {}),
    ],
)
def test_every_state_is_the_clients_type(status: str, members: dict[str, Any]) -> None:
    """All members in all of them."""
    body = {"model": "m", "input": "hi"}
    echo = echo_of(body, parse_responses(body))
    check_response(response_object(echo, id="resp_1", created_at=5, **({"status": status} | members)))


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"tools": [{"type": "function", "name": "f"}, {"type": "function", "function": {"name": "g"}}]},
        {"tool_choice": "required", "metadata": {"a": "b"}, "user": 5, "prompt_cache_key": {"a": 1}},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"reasoning": {"effort": "xhigh", "summary": "detailed"}, "temperature": 1, "max_output_tokens": 5},
        {"reasoning": {"effort": "none", "summary": "none"}},
        {"text": {"verbosity": "high"}},
        {"tools": [{"type": "custom", "name": "c", "format": {"type": "text"}}, {"type": "web_search"}]},
        {"tools": [{"type": "custom", "name": "c"}], "tool_choice": {"type": "custom", "name": "c"}},
        {"tools": [FILES], "tool_choice": {"type": "function", "name": "find"}},
        {"tools": [FILES], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
        {"tools": [FILES], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "web_search"}, "find", None]}},
        {"tools": [FILES], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "allowed_tools"}]}},
        {"tools": [FILES], "tool_choice": {"type": "allowed_tools", "tools": [], "function": {"tools": 5}}},
        {"tools": [{"type": "function", "name": "f", "parameters": True}]},
        {"text": {"format": {"type": "json_object", "more": 1}}},
        {"text": {"format": {"type": "json_schema", "name": 5, "description": 5, "strict": None, "schema": {}}}},
        {"service_tier": "auto", "presence_penalty": 1, "frequency_penalty": "high"},
        {"tools": [{"type": "web_search_preview"}], "tool_choice": {"type": "web_search_preview"}},
        {"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        {"text": {"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}}},
    ],
)
def test_the_object_is_the_clients_type(members: dict[str, Any]) -> None:
    """The official client's own model accepts it, and knows all of it; so does the Open Responses specification."""
    check_response(response_to(**members))


def test_the_nested_spelling_is_echoed_flat() -> None:
    """Tools, choices and formats of a chat body have this API's spelling in the response."""
    response = response_to(
        tools=[{"type": "function", "function": {"name": "g", "strict": True}}],
        tool_choice={"type": "function", "function": {"name": "g"}},
        text={"format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
    )
    tool = {"type": "function", "name": "g", "description": None, "parameters": None, "strict": True}
    assert response["tools"] == [tool]
    assert response["tool_choice"] == {"type": "function", "name": "g"}
    assert response["text"]["format"] == {
        "type": "json_schema",
        "name": "output",
        "description": None,
        "schema": {"type": "object"},
        "strict": False,
    }


def test_usage_in_the_apis_words() -> None:
    """Cached and reasoning tokens are details of input and output."""
    usage = ResponseUsage.model_validate(usage_object(Usage(10, 4, 5, 2)), strict=True)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 5, 15)
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.output_tokens_details.reasoning_tokens == 2
    assert usage.input_tokens_details.cache_write_tokens == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UpstreamError("x", code="rate_limit_exceeded", http_status=429), "rate_limit_exceeded"),
        (UpstreamError("x", code="insufficient_quota", http_status=429), "rate_limit_exceeded"),
        (InvalidRequest("x", code="context_length_exceeded"), "invalid_prompt"),
        (PayloadTooLarge("x"), "invalid_prompt"),
        (BackendCrashed("x"), "server_error"),
        (UpstreamError("x", http_status=401), "server_error"),
        (BridgeError("x"), "server_error"),
    ],
)
def test_errors_have_codes_that_clients_know(error: BridgeError, code: str) -> None:
    """The client's own type has few codes; ours stands beside."""
    built = error_object(error)
    assert ResponseError.model_validate(built, strict=True).code == code
    assert (built["message"], built["bridge_code"]) == ("x", error.code)
