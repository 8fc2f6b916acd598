"""Errors as CAP reports them: a StreamError, the HTTP status before a stream begins, and when to retry."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from bridge.errors import BridgeError, Forbidden, InvalidRequest, NotReady, Severity, Unauthorized, UpstreamError
from bridge.protocols.cap.models import ErrorDomain
from bridge.protocols.cap.stream import CLOSE_PACKET, StreamError

MAX_FAULTS = 20
LONG_WAIT = 3600
"""Seconds. A usage limit that resets later than this is fatal."""
MAX_WAIT = 366 * 86400
"""Seconds. A reset further away than this is not reported."""

_JSON_POSITION = re.compile(r": line \d+ column \d+ \(char \d+\)$")
_NOT_IN_CODES = re.compile(r"[^a-z0-9]+")


class InvalidMessage(InvalidRequest):
    """A message with an invalid member.

    For JSON that does not match the models, `faults` name the location and the kind of each fault, never the value.
    """

    http_status = 422

    def __init__(self, message: str, faults: Sequence[dict[str, Any]] = (), **options: Any) -> None:
        super().__init__(message, **options)
        self.faults = tuple(faults)


def invalid_message(name: str, error: ValidationError) -> InvalidMessage:
    """The error for pydantic's findings."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    faults = [
        {"loc": [step if isinstance(step, int) else step[:64] for step in fault["loc"]], "type": fault["type"]}
        for fault in found[:MAX_FAULTS]
    ]
    where = ".".join(map(str, faults[0]["loc"]))
    return InvalidMessage(
        f"This is not a valid {name}: see {where!r}." if where else f"This is not a valid {name}.",
        faults,
        param=where or None,
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """How CAP reports one of our codes. None: as the error itself says."""

    code: str
    status: int
    domain: ErrorDomain
    severity: Severity | None = None
    wait: int = 1


_RULES = {
    "request_too_large": _Rule("payload_too_large", 413, "client"),
    "message_too_large": _Rule("payload_too_large", 413, "client"),
    "nesting_too_deep": _Rule("invalid_json", 400, "client"),
    "model_not_found": _Rule("model_not_found", 404, "client"),
    "unsupported_image_url": _Rule("unsupported_file", 422, "client"),
    "invalid_image": _Rule("unsupported_file", 422, "client"),
    "invalid_api_key": _Rule("unauthorized", 401, "security"),
    "overloaded": _Rule("overloaded", 503, "system", "transient"),
    "server_overloaded": _Rule("server_overloaded", 503, "llm", "transient", 5),
    "insufficient_quota": _Rule("usage_limit_exceeded", 429, "llm"),
    "rate_limit_exceeded": _Rule("rate_limit_exceeded", 429, "llm", "transient", 10),
    "flex_unavailable": _Rule("flex_unavailable", 429, "llm", "transient", 30),
    "upstream_unreachable": _Rule("upstream_unavailable", 502, "llm", None, 2),
    "stream_interrupted": _Rule("upstream_stream_disconnected", 502, "llm", "transient", 2),
    "stream_truncated": _Rule("upstream_stream_disconnected", 502, "llm", "transient", 2),
    "upstream_unavailable": _Rule("upstream_unavailable", 502, "llm", None, 2),
    "upstream_stream_disconnected": _Rule("upstream_stream_disconnected", 502, "llm", None, 2),
    "upstream_retries_exhausted": _Rule("upstream_retries_exhausted", 502, "llm", None, 30),
    "upstream_internal_error": _Rule("upstream_internal_error", 502, "llm", None, 5),
    "upstream_unauthorized": _Rule("upstream_unauthorized", 502, "llm", "fatal"),
    "upstream_forbidden": _Rule("upstream_unauthorized", 502, "llm", "fatal"),
    "upstream_rejected": _Rule("upstream_bad_request", 400, "llm", "fatal"),
    "context_length_exceeded": _Rule("context_window_exceeded", 422, "llm", "fatal"),
    "session_budget_exceeded": _Rule("session_budget_exceeded", 402, "llm", "fatal"),
    "cyber_policy": _Rule("policy_violation", 403, "security", "fatal"),
    "policy_violation": _Rule("policy_violation", 403, "security", "fatal"),
    "codex_misconfigured": _Rule("codex_misconfigured", 500, "system", "fatal"),
    "sandbox_error": _Rule("sandbox_error", 500, "system", "fatal"),
    "thread_rollback_failed": _Rule("thread_rollback_failed", 500, "system", "fatal"),
    "backend_crashed": _Rule("agent_crashed", 502, "system", "transient", 2),
    "backend_not_ready": _Rule("agent_not_ready", 503, "system", "transient", 2),
    "backend_timeout": _Rule("deadline_exceeded", 504, "system", "transient"),
    "deadline_exceeded": _Rule("deadline_exceeded", 504, "system", "transient"),
    "shutdown_initiated": _Rule("shutting_down", 503, "system", "transient", 5),
    "turn_busy": _Rule("turn_busy", 409, "client", "transient"),
    "upstream_error": _Rule("upstream_error", 502, "llm", None, 5),
    "backend_error": _Rule("upstream_error", 502, "system"),
    "empty_response": _Rule("empty_response", 502, "llm"),
    "interrupted": _Rule("interrupted", 502, "system", "transient"),
}
"""Our codes and causes that have another name or other rules in CAP. All others stay as they are."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in CAP. `status` is for an error before the first byte; `retry_after` is whole seconds."""

    error: StreamError
    status: int
    retry_after: int | None = None

    @property
    def body(self) -> bytes:
        """The bare StreamError: the body of an answer that is not a stream."""
        return self.error.to_json().encode()

    @property
    def packets(self) -> list[bytes]:
        """The last packets of a stream that fails."""
        return [b'{"op":"error","p":%b}' % self.body, CLOSE_PACKET]


def failure_from(error: BridgeError, *, now: float, request_id: UUID | None = None) -> Failure:
    """`error` in CAP. `now` is in seconds since 1970."""
    # An overload of the provider is not an overload of the bridge.
    is_upstreams = error.code == "overloaded" and isinstance(error, UpstreamError)
    rule = _RULES.get(error.cause or "") or _RULES.get("server_overloaded" if is_upstreams else error.code)
    if rule is None and isinstance(error, NotReady):
        rule = _RULES[NotReady.code]
    code = _NOT_IN_CODES.sub("_", error.code.lower()).strip("_")[:64]
    rule = rule or _Rule(code or "upstream_error", error.http_status, _domain(error))
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
    details["domain"] = rule.domain
    if error.side_effects:
        details["side_effects"] = True
    if request_id is not None:
        details["request_id"] = str(request_id)
    if isinstance(error, InvalidMessage) and error.faults:
        details["errors"] = list(error.faults)
    elif error.param is not None:
        details["param"] = error.param
    sent = StreamError(code=rule.code, message=_readable(error), severity=severity, details=details)
    return Failure(sent, rule.status, wait)


def _readable(error: BridgeError) -> str:
    if error.code == BridgeError.code:
        # A bug in the bridge: its text is for the log only.
        return "Internal error in the service."
    # The parser's position means nothing to the client.
    message = _JSON_POSITION.sub(".", error.message) if error.code == "invalid_json" else error.message
    return message.encode("utf-8", "replace").decode() or f"The request failed ({error.code})."


def _domain(error: BridgeError) -> ErrorDomain:
    if isinstance(error, Unauthorized | Forbidden):
        return "security"
    if isinstance(error, InvalidRequest):
        return "client"
    return "llm" if isinstance(error, UpstreamError) else "system"
