"""Our errors as CAP tells them: code, severity, status, and when to try again."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import orjson
import pytest
from protocols.cap.samples import REQUEST_ID

from bridge.appserver.failures import error_from_codex
from bridge.errors import (
    BackendCrashed,
    BackendTimeout,
    BridgeError,
    Forbidden,
    InvalidRequest,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    Unauthorized,
    UpstreamError,
)
from bridge.log.record import error_record
from bridge.playback.backend import read_error
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.cap.stream import StreamError
from bridge.protocols.reading import parse_json

NOW = 1_700_000_000.0


def codex(info: Any, message: str = "No.") -> BridgeError:
    """What Codex says, as our error."""
    return error_from_codex(message, info)


CASES: dict[str, tuple[BridgeError, str, str, int, int | None, str]] = {
    "too_large": (PayloadTooLarge(""), "payload_too_large", "fatal", 413, None, "client"),
    "media_type": (
        InvalidRequest("", code="unsupported_media_type", http_status=415),
        "unsupported_media_type",
        "fatal",
        415,
        None,
        "client",
    ),
    "no_key": (Unauthorized(""), "unauthorized", "fatal", 401, None, "security"),
    "foreign": (Forbidden(""), "forbidden", "fatal", 403, None, "security"),
    "queue_full": (Overloaded(""), "overloaded", "transient", 503, 1, "system"),
    "queue_full_for_long": (Overloaded("", retry_after=6.2), "overloaded", "transient", 503, 7, "system"),
    "overloaded": (codex("serverOverloaded"), "server_overloaded", "transient", 503, 5, "llm"),
    "usage_limit": (codex("usageLimitExceeded"), "usage_limit_exceeded", "fatal", 429, None, "llm"),
    "rate_limit": (codex({"other": {"httpStatusCode": 429}}), "rate_limit_exceeded", "transient", 429, 10, "llm"),
    "rate_limit_told": (
        codex("rateLimitExceeded", "Slow down, try again in 1.5s"),
        "rate_limit_exceeded",
        "transient",
        429,
        2,
        "llm",
    ),
    "unreachable": (
        UpstreamError("", code="upstream_unreachable", severity="transient"),
        "upstream_unavailable",
        "transient",
        502,
        2,
        "llm",
    ),
    "certificate": (
        UpstreamError("", code="upstream_unreachable"),
        "upstream_unavailable",
        "fatal",
        502,
        None,
        "llm",
    ),
    "disconnected": (
        UpstreamError("", code="stream_interrupted", severity="transient"),
        "upstream_stream_disconnected",
        "transient",
        502,
        2,
        "llm",
    ),
    "not_logged_in": (codex("unauthorized"), "upstream_unauthorized", "fatal", 502, None, "llm"),
    "no_variable": (
        codex("other", "Missing environment variable: `HOUSE_KEY`."),
        "codex_misconfigured",
        "fatal",
        500,
        None,
        "system",
    ),
    "rejected": (codex("badRequest"), "upstream_bad_request", "fatal", 400, None, "llm"),
    "context": (codex("contextWindowExceeded"), "context_window_exceeded", "fatal", 422, None, "llm"),
    "crashed": (BackendCrashed(""), "agent_crashed", "transient", 502, 2, "system"),
    "not_ready": (NotReady(""), "agent_not_ready", "transient", 503, 2, "system"),
    "deadline": (BackendTimeout(""), "deadline_exceeded", "transient", 504, 1, "system"),
    "drain": (NotReady("", code="shutdown_initiated"), "shutting_down", "transient", 503, 5, "system"),
    "busy": (InvalidRequest("", code="turn_busy", http_status=409), "turn_busy", "transient", 409, 1, "client"),
    "other": (UpstreamError(""), "upstream_error", "fatal", 502, None, "llm"),
    "internal": (codex({"other": {}}), "upstream_error", "transient", 502, 5, "llm"),
    "bug": (BridgeError("KeyError: 'secret'"), "internal_error", "fatal", 500, None, "system"),
}


@pytest.mark.parametrize("name", CASES)
def test_errors(name: str) -> None:
    """A transient error says when to try again, in whole seconds, at least one; a fatal one does not."""
    error, code, severity, status, wait, domain = CASES[name]
    failure = failure_from(error, now=NOW, request_id=UUID(REQUEST_ID))
    told = failure.error
    assert (told.code, told.severity, failure.status, failure.retry_after) == (code, severity, status, wait)
    assert told.details is not None
    assert told.details.get("retry_after") == wait
    assert told.details["domain"] == domain
    assert told.details["request_id"] == REQUEST_ID
    assert told.message
    assert StreamError.model_validate_json(failure.body) == told


CODEX: list[tuple[Any, str, str, int, int | None, str]] = [
    ("contextWindowExceeded", "context_window_exceeded", "fatal", 422, None, "llm"),
    ("sessionBudgetExceeded", "session_budget_exceeded", "fatal", 402, None, "llm"),
    ("usageLimitExceeded", "usage_limit_exceeded", "fatal", 429, None, "llm"),
    ("rateLimitExceeded", "rate_limit_exceeded", "transient", 429, 10, "llm"),
    ("serverOverloaded", "server_overloaded", "transient", 503, 5, "llm"),
    ("policyCapacityUnavailable", "server_overloaded", "transient", 503, 5, "llm"),
    ("flexUnavailable", "flex_unavailable", "transient", 429, 30, "llm"),
    ("modelNotFound", "model_not_found", "fatal", 404, None, "client"),
    ("inferenceHookDenied", "policy_violation", "fatal", 403, None, "security"),
    ("tooManyDenials", "policy_violation", "fatal", 403, None, "security"),
    ("cyberPolicy", "policy_violation", "fatal", 403, None, "security"),
    ("misalignmentPolicyViolation", "policy_violation", "fatal", 403, None, "security"),
    ({"httpConnectionFailed": {"httpStatusCode": None}}, "upstream_unavailable", "transient", 502, 2, "llm"),
    ({"httpConnectionFailed": {"httpStatusCode": 408}}, "upstream_unavailable", "transient", 502, 2, "llm"),
    ({"httpConnectionFailed": {"httpStatusCode": 451}}, "upstream_bad_request", "fatal", 400, None, "llm"),
    ({"httpConnectionFailed": {"httpStatusCode": 402}}, "usage_limit_exceeded", "fatal", 429, None, "llm"),
    ({"httpConnectionFailed": {"httpStatusCode": 413}}, "payload_too_large", "fatal", 413, None, "client"),
    ({"httpConnectionFailed": {"httpStatusCode": 529}}, "server_overloaded", "transient", 503, 5, "llm"),
    ({"responseStreamConnectionFailed": {"httpStatusCode": 503}}, "upstream_unavailable", "transient", 502, 2, "llm"),
    ("responseStreamDisconnected", "upstream_stream_disconnected", "transient", 502, 2, "llm"),
    ({"responseTooManyFailedAttempts": {}}, "upstream_retries_exhausted", "transient", 502, 30, "llm"),
    ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "rate_limit_exceeded", "transient", 429, 10, "llm"),
    ("internalServerError", "upstream_internal_error", "transient", 502, 5, "llm"),
    ("unauthorized", "upstream_unauthorized", "fatal", 502, None, "llm"),
    ("badRequest", "upstream_bad_request", "fatal", 400, None, "llm"),
    ("sandboxError", "sandbox_error", "fatal", 500, None, "system"),
    ("threadRollbackFailed", "thread_rollback_failed", "fatal", 500, None, "system"),
    ({"activeTurnNotSteerable": {"turnKind": "review"}}, "turn_busy", "transient", 409, 1, "client"),
    ("other", "upstream_error", "transient", 502, 5, "llm"),
    (None, "upstream_error", "transient", 502, 5, "llm"),
]


def _in_snake_case(info: Any) -> Any:
    if isinstance(info, dict):
        return {re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name): value for name, value in info.items()}
    return info if info is None else re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", info)


@pytest.mark.parametrize("spelling", ["camel", "snake"])
@pytest.mark.parametrize(("info", "code", "severity", "status", "wait", "domain"), CODEX, ids=lambda value: str(value))
def test_codex_own_kinds(
    info: Any, code: str, severity: str, status: int, wait: int | None, domain: str, spelling: str
) -> None:
    """Each has the word, the status and the patience that belong to it, in both dialects' spellings; also replayed."""
    error = error_from_codex("No.", info if spelling == "camel" else _in_snake_case(info))
    for each in (error, read_error(error_record(error))):
        failure = failure_from(each, now=NOW)
        found = failure.error
        assert (found.code, found.severity, failure.status, failure.retry_after) == (code, severity, status, wait)
        assert (found.details or {})["domain"] == domain


@pytest.mark.parametrize("kind", ["cyberPolicy", "misalignmentPolicyViolation"])
def test_a_policy_is_one_whatever_the_providers_body_calls_it(kind: str) -> None:
    error = error_from_codex('{"error":{"message":"no","code":"own_code"}}', kind)
    assert (error.code, error.http_status) == ("own_code", 400)
    assert failure_from(error, now=NOW).error.code == "policy_violation"


def test_an_internal_error_reveals_nothing() -> None:
    assert b"secret" not in failure_from(BridgeError("KeyError: 'secret'"), now=NOW).body


@pytest.mark.parametrize(("wait", "severity"), [(60.0, "transient"), (3600.0, "transient"), (3601.0, "fatal")])
def test_a_usage_limit_that_resets_soon_is_transient(wait: float, severity: str) -> None:
    error = UpstreamError("", code="insufficient_quota", http_status=429, retry_after=wait)
    failure = failure_from(error, now=NOW)
    assert failure.error.severity == severity
    assert failure.retry_after == (int(wait) if severity == "transient" else None)
    assert failure.error.details is not None
    assert failure.error.details["resets_at"].endswith("Z")


def test_a_usage_limit_without_a_reset_is_fatal() -> None:
    error = UpstreamError("", code="insufficient_quota", retry_after=1e18)
    assert failure_from(error, now=NOW).error.dump()["details"] == {"domain": "llm"}


def test_codes_are_snake_case() -> None:
    """A provider's own code gets the form of all codes."""
    assert failure_from(UpstreamError("", code="Model.Not-Found: X"), now=NOW).error.code == "model_not_found_x"
    assert failure_from(UpstreamError("", code="???"), now=NOW).error.code == "upstream_error"


def test_the_location_of_a_fault_is_reported() -> None:
    details = failure_from(InvalidRequest("", param="payload.query"), now=NOW).error.details
    assert details == {"domain": "client", "param": "payload.query"}


def test_a_message_is_always_utf_8() -> None:
    assert orjson.loads(failure_from(InvalidRequest("a\ud800"), now=NOW).body)["message"] == "a?"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"{", b'{"a":NaN}', b"[" * 100 + b"]" * 100, b'{"a":' * 100 + b"1" + b"}" * 100]
)
def test_invalid_json(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    failure = failure_from(caught.value, now=NOW)
    assert (failure.error.code, failure.status) == ("invalid_json", 400)
