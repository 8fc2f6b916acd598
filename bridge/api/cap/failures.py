"""Our errors as CAP tells them: one StreamError, the HTTP status before a stream, and when to try again."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from bridge.api.cap.presentation import ErrorDomain
from bridge.api.cap.stream import ErrorSeverity, StreamError
from bridge.api.cap.writers import CLOSE_PACKET
from bridge.errors import BridgeError, Forbidden, InvalidRequest, NotReady, Severity, Unauthorized, UpstreamError

CLIENT, SYSTEM, LLM, SECURITY = ErrorDomain.CLIENT, ErrorDomain.SYSTEM, ErrorDomain.LLM, ErrorDomain.SECURITY

MAX_FAULTS = 20
LONG_WAIT = 3600
"""Seconds. A quota that comes back later than this is not worth waiting for."""
MAX_WAIT = 366 * 86400
"""Seconds. Beyond this a time to come is not told."""

_WHERE_IT_STOPPED = re.compile(r": line \d+ column \d+ \(char \d+\)$")
_NOT_IN_CODES = re.compile(r"[^a-z0-9]+")


class InvalidMessage(InvalidRequest):
    """JSON that is none of the protocol's messages. `faults` tell places and kinds, never what stood there."""

    http_status = 422

    def __init__(self, message: str, faults: Sequence[dict[str, Any]] = (), **options: Any) -> None:
        super().__init__(message, **options)
        self.faults = tuple(faults)


def invalid_message(name: str, error: ValidationError) -> InvalidMessage:
    """The error for what pydantic found."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    faults = [{"loc": [_step(step) for step in fault["loc"]], "type": fault["type"]} for fault in found[:MAX_FAULTS]]
    place = ".".join(map(str, faults[0]["loc"]))
    return InvalidMessage(
        f"This is not a valid {name}: see {place!r}." if place else f"This is not a valid {name}.",
        faults,
        param=place or None,
    )


def _step(step: int | str) -> int | str:
    return step if isinstance(step, int) else step[:64]


@dataclass(frozen=True, slots=True)
class _Rule:
    """How one of our codes is told. None: as the error itself says."""

    code: str
    status: int
    domain: ErrorDomain
    severity: Severity | None = None
    wait: int = 1


_RULES = {
    "request_too_large": _Rule("payload_too_large", 413, CLIENT),
    "message_too_large": _Rule("payload_too_large", 413, CLIENT),
    "nesting_too_deep": _Rule("invalid_json", 400, CLIENT),
    "model_not_found": _Rule("model_not_found", 404, CLIENT),
    "unsupported_image_url": _Rule("unsupported_file", 422, CLIENT),
    "invalid_image": _Rule("unsupported_file", 422, CLIENT),
    "invalid_api_key": _Rule("unauthorized", 401, SECURITY),
    "overloaded": _Rule("overloaded", 503, SYSTEM, "transient"),
    "server_overloaded": _Rule("server_overloaded", 503, LLM, "transient", 5),
    "insufficient_quota": _Rule("usage_limit_exceeded", 429, LLM),
    "rate_limit_exceeded": _Rule("rate_limit_exceeded", 429, LLM, "transient", 10),
    "flex_unavailable": _Rule("flex_unavailable", 429, LLM, "transient", 30),
    "upstream_unreachable": _Rule("upstream_unavailable", 502, LLM, None, 2),
    "stream_interrupted": _Rule("upstream_stream_disconnected", 502, LLM, "transient", 2),
    "stream_truncated": _Rule("upstream_stream_disconnected", 502, LLM, "transient", 2),
    "upstream_unavailable": _Rule("upstream_unavailable", 502, LLM, None, 2),
    "upstream_stream_disconnected": _Rule("upstream_stream_disconnected", 502, LLM, None, 2),
    "upstream_retries_exhausted": _Rule("upstream_retries_exhausted", 502, LLM, None, 30),
    "upstream_internal_error": _Rule("upstream_internal_error", 502, LLM, None, 5),
    "upstream_unauthorized": _Rule("upstream_unauthorized", 502, LLM, "fatal"),
    "upstream_forbidden": _Rule("upstream_unauthorized", 502, LLM, "fatal"),
    "upstream_rejected": _Rule("upstream_bad_request", 400, LLM, "fatal"),
    "context_length_exceeded": _Rule("context_window_exceeded", 422, LLM, "fatal"),
    "session_budget_exceeded": _Rule("session_budget_exceeded", 402, LLM, "fatal"),
    "cyber_policy": _Rule("policy_violation", 403, SECURITY, "fatal"),
    "policy_violation": _Rule("policy_violation", 403, SECURITY, "fatal"),
    "codex_misconfigured": _Rule("codex_misconfigured", 500, SYSTEM, "fatal"),
    "sandbox_error": _Rule("sandbox_error", 500, SYSTEM, "fatal"),
    "thread_rollback_failed": _Rule("thread_rollback_failed", 500, SYSTEM, "fatal"),
    "backend_crashed": _Rule("agent_crashed", 502, SYSTEM, "transient", 2),
    "backend_not_ready": _Rule("agent_not_ready", 503, SYSTEM, "transient", 2),
    "backend_timeout": _Rule("deadline_exceeded", 504, SYSTEM, "transient"),
    "deadline_exceeded": _Rule("deadline_exceeded", 504, SYSTEM, "transient"),
    "shutdown_initiated": _Rule("shutting_down", 503, SYSTEM, "transient", 5),
    "turn_busy": _Rule("turn_busy", 409, CLIENT, "transient"),
    "upstream_error": _Rule("upstream_error", 502, LLM, None, 5),
    "backend_error": _Rule("upstream_error", 502, SYSTEM),
    "empty_response": _Rule("empty_response", 502, LLM),
    "interrupted": _Rule("interrupted", 502, SYSTEM, "transient"),
}
"""What CAP calls our codes and causes, where it has a word of its own or rules of its own. Others keep theirs."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as CAP tells it; `status` for where it comes before the first byte of an answer.

    `retry_after` is whole seconds, and the same as in the error's details.
    """

    error: StreamError
    status: int
    retry_after: int | None = None

    @property
    def body(self) -> bytes:
        """The bare StreamError: the body of an answer that is no stream."""
        return self.error.to_json().encode()

    @property
    def packets(self) -> list[bytes]:
        """The end of a stream that fails."""
        return [b'{"op":"error","p":%b}' % self.body, CLOSE_PACKET]


def failure_from(error: BridgeError, *, now: float, request_id: UUID | None = None) -> Failure:
    """What CAP says of `error`. `now` is in seconds since 1970."""
    # The provider's overload is not ours.
    is_upstreams = error.code == "overloaded" and isinstance(error, UpstreamError)
    rule = _RULES.get(error.cause or "") or _RULES.get("server_overloaded" if is_upstreams else error.code)
    if rule is None and isinstance(error, NotReady):
        rule = _RULES[NotReady.code]
    rule = rule or _Rule(_code(error.code), error.http_status, _domain(error))
    severity = rule.severity or error.severity
    details: dict[str, Any] = {}
    wait: int | None = None
    if rule.code == "usage_limit_exceeded":
        severity = "transient" if error.retry_after is not None and error.retry_after <= LONG_WAIT else "fatal"
        if error.retry_after is not None and error.retry_after < MAX_WAIT:
            details["resets_at"] = datetime.fromtimestamp(int(now + error.retry_after), UTC).isoformat()[:-6] + "Z"
    if severity == "transient":
        wait = max(1, math.ceil(error.retry_after if error.retry_after is not None else rule.wait))
        details = {"retry_after": wait, **details}
    details["domain"] = rule.domain.value
    if error.side_effects:
        details["side_effects"] = True
    if request_id is not None:
        details["request_id"] = str(request_id)
    if isinstance(error, InvalidMessage) and error.faults:
        details["errors"] = list(error.faults)
    elif error.param is not None:
        details["param"] = error.param
    message = _readable(error)
    told = StreamError(code=rule.code, message=message, severity=ErrorSeverity(severity), details=details)
    return Failure(told, rule.status, wait)


def _readable(error: BridgeError) -> str:
    if error.code == BridgeError.code:
        # A fault of ours: what it says is for the log.
        return "The service failed; the fault is its own."
    # What is wrong with JSON, and not how far a parser came.
    message = _WHERE_IT_STOPPED.sub(".", error.message) if error.code == "invalid_json" else error.message
    return message.encode("utf-8", "replace").decode() or f"The request failed ({error.code})."


def _code(code: str) -> str:
    return _NOT_IN_CODES.sub("_", code.lower()).strip("_")[:64] or "upstream_error"


def _domain(error: BridgeError) -> ErrorDomain:
    if isinstance(error, Unauthorized | Forbidden):
        return SECURITY
    if isinstance(error, InvalidRequest):
        return CLIENT
    return LLM if isinstance(error, UpstreamError) else SYSTEM
