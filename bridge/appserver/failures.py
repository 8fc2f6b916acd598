"""Codex's error kinds as our errors.

`codexErrorInfo` is a string or an object with one key; the legacy dialect spells it in snake case. What is unknown
is an upstream error with Codex's own words.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from bridge.errors import LOG_IN, BridgeError, InvalidRequest, Severity, UpstreamError
from bridge.redact import harmless
from bridge.turn.events import Finished

MAX_SAID = 4096
"""So much of what Codex says of a failure is told."""

_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (\w+)")
_RETRY_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?s", re.IGNORECASE)
_STATUS = re.compile(r"\b(?:status|unexpected status)[: ]+(\d{3})\b")

_POLICIES = ("cyberpolicy", "misalignmentpolicyviolation")
_CAUSES: dict[str, tuple[str, Severity]] = {
    "sandboxerror": ("sandbox_error", "fatal"),
    "threadrollbackfailed": ("thread_rollback_failed", "fatal"),
    "httpconnectionfailed": ("upstream_unavailable", "transient"),
    "responsestreamconnectionfailed": ("upstream_unavailable", "transient"),
    "responsestreamdisconnected": ("upstream_stream_disconnected", "transient"),
    "responsetoomanyfailedattempts": ("upstream_retries_exhausted", "transient"),
    "internalservererror": ("upstream_internal_error", "transient"),
    "activeturnnotsteerable": ("turn_busy", "transient"),
}
"""What is `upstream_error` to OpenAI's clients, in particular."""
_UNKNOWN: tuple[None, Severity] = (None, "transient")
"""Codex says `other` of much that passes: of a stream that broke, for example."""
_PASSING = (408, 409, 425, 429)
"""Statuses of a client's fault that may be gone the next time."""


def finished_from_error(message: str, info: object, details: object = None) -> Finished:
    """The end of a turn that Codex calls failed: incomplete where the answer was cut, else failed."""
    cut = _INCOMPLETE.search(message)
    if cut:
        return Finished("incomplete", reason=cut[1])
    return Finished("failed", error=error_from_codex(message, info, details))


def error_from_codex(message: str, info: object, details: object = None) -> BridgeError:
    """One of our errors for Codex's `message` and `codexErrorInfo`."""
    kind, status = _split_info(info)
    if status is None and (found := _STATUS.search(message)):
        status = int(found[1])
    upstream = _upstream_body(message)
    said = upstream.get("message")
    text = harmless((said if isinstance(said, str) and said else message)[:MAX_SAID])
    if isinstance(details, str) and details and (more := harmless(details[:MAX_SAID])) not in text:
        text = f"{text} ({more})"
    if kind == "contextwindowexceeded":
        return InvalidRequest(text, code="context_length_exceeded")
    if kind in ("usagelimitexceeded", "sessionbudgetexceeded"):
        cause = "session_budget_exceeded" if kind == "sessionbudgetexceeded" else None
        return UpstreamError(text, code="insufficient_quota", http_status=429, kind="insufficient_quota", cause=cause)
    if kind == "ratelimitexceeded" or status == 429:
        wait = _RETRY_IN.search(message)
        return UpstreamError(
            text,
            code="rate_limit_exceeded",
            http_status=429,
            kind="rate_limit_error",
            severity="transient",
            retry_after=float(wait[1]) if wait else None,
        )
    if kind == "unauthorized" or status == 401:
        return UpstreamError(
            f"{text} {LOG_IN}",
            code="upstream_unauthorized",
            http_status=401,
            kind="authentication_error",
        )
    if kind in ("badrequest", *_POLICIES) or status in (400, 404, 422) or upstream:
        param = upstream.get("param")
        code = str(upstream.get("code") or "upstream_rejected")
        cause = "policy_violation" if kind in _POLICIES else None
        return InvalidRequest(text, code=code, param=param if isinstance(param, str) else None, cause=cause)
    if status == 403:
        return UpstreamError(text, code="upstream_forbidden", http_status=403, kind="permission_error")
    if kind == "serveroverloaded":
        return UpstreamError(text, code="overloaded", http_status=503, severity="transient")
    cause, severity = _CAUSES.get(kind, _UNKNOWN)
    if status is not None and 400 <= status < 500 and status not in _PASSING:
        severity = "fatal"
    return UpstreamError(text, severity=severity, cause=cause)


def _split_info(info: object) -> tuple[str, int | None]:
    """(kind in lower case without separators, HTTP status) of a codexErrorInfo."""
    detail: object = None
    if isinstance(info, dict) and len(info) == 1:
        info, detail = next(iter(info.items()))
    kind = info.replace("_", "").lower() if isinstance(info, str) else ""
    status = None
    if isinstance(detail, dict):
        status = detail.get("httpStatusCode", detail.get("http_status_code"))
    return kind, status if isinstance(status, int) else None


def _upstream_body(message: str) -> dict[str, Any]:
    """The provider's own error object, where Codex passes its body on as the message."""
    if not message.lstrip().startswith("{"):
        return {}
    try:
        body = orjson.loads(message)
    except orjson.JSONDecodeError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}
