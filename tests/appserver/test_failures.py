"""Codex's errors as ours (spec/app-server.md, "Errors")."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridge.appserver.failures import error_from_codex, finished_from_error
from bridge.errors import InvalidRequest, UpstreamError

TOO_MANY = "exceeded retry limit, last status: 429 Too Many Requests"
DENIED = "unexpected status 401 Unauthorized: scripted HTTP 401"
NO_MODEL = '{"error":{"message":"No such model","param":"model","code":"model_not_found"}}'
BAD_BODY = '{"error":{"message":"bad schema","type":"invalid_request_error","param":"tools","code":"invalid_schema"}}'


@pytest.mark.parametrize(
    ("message", "info", "status", "code"),
    [
        (TOO_MANY, {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, 429, "rate_limit_exceeded"),
        (TOO_MANY, {"response_too_many_failed_attempts": {"http_status_code": 429}}, 429, "rate_limit_exceeded"),
        (TOO_MANY, "other", 429, "rate_limit_exceeded"),
        ("slow down", "rateLimitExceeded", 429, "rate_limit_exceeded"),
        ("slow down", "rate_limit_exceeded", 429, "rate_limit_exceeded"),
        ("no quota", "usageLimitExceeded", 429, "insufficient_quota"),
        ("no quota", "usage_limit_exceeded", 429, "insufficient_quota"),
        ("too long", "contextWindowExceeded", 400, "context_length_exceeded"),
        ("too long", "context_window_exceeded", 400, "context_length_exceeded"),
        (DENIED, "other", 401, "upstream_unauthorized"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 401}}, 401, "upstream_unauthorized"),
        ("x", "unauthorized", 401, "upstream_unauthorized"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 403}}, 403, "upstream_forbidden"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 404}}, 400, "upstream_rejected"),
        ("The model `x` is not here", {"httpConnectionFailed": {"httpStatusCode": 404}}, 404, "model_not_found"),
        ("unexpected status 404 Not Found: no such model", "other", 404, "model_not_found"),
        ("x", "modelNotFound", 404, "model_not_found"),
        (NO_MODEL, "other", 404, "model_not_found"),
        (NO_MODEL, "badRequest", 404, "model_not_found"),
        ("x", "inferenceHookDenied", 403, "upstream_forbidden"),
        ("x", "tooManyDenials", 403, "too_many_denials"),
        ("x", "policyCapacityUnavailable", 503, "overloaded"),
        ("x", "flexUnavailable", 429, "flex_unavailable"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 402}}, 429, "insufficient_quota"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 408}}, 502, "upstream_error"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 413}}, 413, "request_too_large"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 451}}, 400, "upstream_rejected"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 503}}, 503, "overloaded"),
        ("x", {"httpConnectionFailed": {"httpStatusCode": 529}}, 503, "overloaded"),
        ("unexpected status 529 <unknown status code>: x", "other", 503, "overloaded"),
        ("Missing environment variable: `HOUSE_KEY`.", "other", 401, "codex_misconfigured"),
        ("x", "badRequest", 400, "upstream_rejected"),
        (BAD_BODY, "other", 400, "invalid_schema"),
        ("x", "cyberPolicy", 400, "upstream_rejected"),
        ("x", "misalignmentPolicyViolation", 400, "upstream_rejected"),
        ("x", "sessionBudgetExceeded", 429, "insufficient_quota"),
        ("x", "sandboxError", 502, "upstream_error"),
        ("x", {"activeTurnNotSteerable": {"turnKind": "review"}}, 502, "upstream_error"),
        ("x", "serverOverloaded", 503, "overloaded"),
        ("x", "internalServerError", 502, "upstream_error"),
        ("x", {"responseStreamDisconnected": {"httpStatusCode": None}}, 502, "upstream_error"),
        ("x", "other", 502, "upstream_error"),
        ("x", None, 502, "upstream_error"),
    ],
)
def test_codex_kinds_become_statuses(message: str, info: Any, status: int, code: str) -> None:
    """Both dialects' spellings give the same status and code."""
    error = error_from_codex(message, info)
    assert (error.http_status, error.code) == (status, code)


@pytest.mark.parametrize("info", [5, [], {}, {"a": 1, "b": 2}, {"x": None}, {"x": {"httpStatusCode": "429"}}, True, ""])
def test_what_is_unknown_is_an_upstream_error_in_codex_own_words(info: Any) -> None:
    """No shape of codexErrorInfo is a surprise."""
    error = error_from_codex("something odd", info)
    assert isinstance(error, UpstreamError)
    assert error.message == "something odd"
    assert error.severity == "transient"


def test_the_providers_own_words_are_passed_on() -> None:
    """A message that is the provider's JSON body is read, not shown as JSON."""
    error = error_from_codex(BAD_BODY, "other")
    assert isinstance(error, InvalidRequest)
    assert (error.message, error.param) == ("bad schema", "tools")
    refused = error_from_codex('{"detail":"The model is not supported."}', "other")
    assert (refused.message, refused.http_status) == ("The model is not supported.", 400)


@pytest.mark.parametrize("body", ["{", "{}", '{"error":"text"}', '{"detail":[1]}', '{"error":{"message":null}}', "[1]"])
def test_a_body_of_another_shape_stays_as_it_is(body: str) -> None:
    """Nothing is lost when the body is not the usual error object."""
    assert error_from_codex(body, "other").message == body


@pytest.mark.parametrize("message", [{"a": 1}, 5, ["x"], True])
@pytest.mark.parametrize("details", [None, "more"])
def test_the_message_is_always_text(message: Any, details: str | None) -> None:
    """A provider whose error message is no text still gives an error that a client can read."""
    body = orjson.dumps({"error": {"message": message, "code": 7}}).decode()
    error = error_from_codex(body, "other", details)
    assert isinstance(error.message, str)
    assert isinstance(error.code, str)


def test_details_are_added_once() -> None:
    """Additional details follow in brackets, unless the message says them already."""
    assert error_from_codex("broken", "other", "socket closed").message == "broken (socket closed)"
    assert error_from_codex("broken: socket closed", "other", "socket closed").message == "broken: socket closed"
    assert error_from_codex("broken", "other", {"a": 1}).message == "broken"


@pytest.mark.parametrize("place", ["message", "details"])
def test_a_key_that_the_provider_repeats_is_not_passed_on(place: str) -> None:
    """Nor is its address; the rest of its words is."""
    key = "sk-proj-" + "a1B2" * 12
    said = f"Incorrect API key provided: {key}, url: http://10.0.0.7/v1/responses"
    message, details = (said, None) if place == "message" else ("failed", said)
    told = error_from_codex(message, "other", details).message
    assert "Incorrect API key" in told
    assert key not in told
    assert "10.0.0.7" not in told


def test_a_rate_limit_has_a_retry_after() -> None:
    """The seconds in the provider's words become retry_after."""
    assert error_from_codex("Please try again in 1.5s.", "rateLimitExceeded").retry_after == 1.5
    assert error_from_codex("Please try again in 20 s", "rateLimitExceeded").retry_after == 20
    assert error_from_codex("Please wait", "rateLimitExceeded").retry_after is None


def test_a_missing_login_names_the_remedy() -> None:
    """401 names the command that helps."""
    assert "turnbridge auth login" in error_from_codex(DENIED, "other").message


def test_a_missing_variable_names_the_remedy() -> None:
    """The name of the variable is passed on, with where to set it."""
    told = error_from_codex("Missing environment variable: `HOUSE_KEY`.", "other")
    assert "`HOUSE_KEY`" in told.message
    assert "turnbridge doctor" in told.message


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_answer_that_was_cut_is_incomplete_not_failed(reason: str) -> None:
    """What Codex calls a failure after the whole text came is `incomplete` to clients."""
    end = finished_from_error(f"Incomplete response returned, reason: {reason}", "other")
    assert (end.outcome, end.reason, end.error) == ("incomplete", reason, None)


def test_any_other_error_is_a_failure() -> None:
    """A failure carries its error."""
    end = finished_from_error("boom", "other")
    assert end.outcome == "failed"
    assert end.error is not None
    assert end.error.message == "boom"
