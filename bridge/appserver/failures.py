"""Codex's error kinds as our errors.

`codexErrorInfo` is a string or an object with one key; the legacy dialect spells it in snake case. An unknown kind is
an upstream error with Codex's own message.

The status decides what clients do: the SDKs repeat a request after 408, 409, 429 and every 5xx. So a failure that will
be the same the next time gets a status that they do not repeat.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from bridge.errors import LOG_IN, BridgeError, InvalidRequest, Severity, UpstreamError
from bridge.redact import harmless
from bridge.turn.events import Finished

MAX_SAID = 4096
"""So much of what Codex says of a failure is told."""

_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (\w+)")
_RETRY_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?s", re.IGNORECASE)
_STATUS = re.compile(r"\b(?:status|unexpected status)[: ]+(\d{3})\b")
_MISSING_VARIABLE = re.compile(r"Missing environment variable: `")
_MODEL = re.compile(r"\bmodel\b", re.IGNORECASE)


class _Meaning(NamedTuple):
    """What a failure means to a client. `cause` is what CAP calls it, where `code` stands for several."""

    status: int
    code: str
    type: str
    severity: Severity = "fatal"
    cause: str | None = None


_REJECTED = _Meaning(400, "upstream_rejected", "invalid_request_error")
_NO_MODEL = _Meaning(404, "model_not_found", "invalid_request_error")
_NO_QUOTA = _Meaning(429, "insufficient_quota", "insufficient_quota")
_TOO_FAST = _Meaning(429, "rate_limit_exceeded", "rate_limit_error", "transient")
_OVERLOADED = _Meaning(503, "overloaded", "server_error", "transient")
_UNAUTHORIZED = _Meaning(401, "upstream_unauthorized", "authentication_error")
# 401 like a missing login, and not 500: it is the operator's to set the variable, and no second try will find it.
_MISCONFIGURED = _Meaning(401, "codex_misconfigured", "authentication_error")
_UNKNOWN = _Meaning(502, "upstream_error", "server_error", "transient")
"""Codex says `other` of much that passes: of a stream that broke, for example."""

_KINDS = {
    "contextwindowexceeded": _Meaning(400, "context_length_exceeded", "invalid_request_error"),
    "cyberpolicy": _Meaning(400, "upstream_rejected", "invalid_request_error", cause="policy_violation"),
    "misalignmentpolicyviolation": _Meaning(
        400, "upstream_rejected", "invalid_request_error", cause="policy_violation"
    ),
    "unauthorized": _UNAUTHORIZED,
    "inferencehookdenied": _Meaning(403, "upstream_forbidden", "permission_error", cause="policy_violation"),
    # Codex's reviewer of approvals has rejected so many actions of one turn that Codex ended it.
    "toomanydenials": _Meaning(403, "too_many_denials", "permission_error", cause="policy_violation"),
    "modelnotfound": _NO_MODEL,
    "usagelimitexceeded": _NO_QUOTA,
    "sessionbudgetexceeded": _Meaning(429, "insufficient_quota", "insufficient_quota", cause="session_budget_exceeded"),
    "ratelimitexceeded": _TOO_FAST,
    "flexunavailable": _Meaning(429, "flex_unavailable", "rate_limit_error", "transient"),
    "serveroverloaded": _OVERLOADED,
    "policycapacityunavailable": _OVERLOADED,
    "sandboxerror": _Meaning(502, "upstream_error", "server_error", cause="sandbox_error"),
    "threadrollbackfailed": _Meaning(502, "upstream_error", "server_error", cause="thread_rollback_failed"),
    "activeturnnotsteerable": _Meaning(502, "upstream_error", "server_error", "transient", "turn_busy"),
}
"""Kinds that stand for one failure each."""

_VAGUE_KINDS = {
    "badrequest": _REJECTED,
    "httpconnectionfailed": _UNKNOWN._replace(cause="upstream_unavailable"),
    "responsestreamconnectionfailed": _UNKNOWN._replace(cause="upstream_unavailable"),
    "responsestreamdisconnected": _UNKNOWN._replace(cause="upstream_stream_disconnected"),
    "responsetoomanyfailedattempts": _UNKNOWN._replace(cause="upstream_retries_exhausted"),
    "internalservererror": _UNKNOWN._replace(cause="upstream_internal_error"),
    "other": _UNKNOWN,
}
"""Kinds that stand for many failures. Which one it is says the provider's status or body, where there is one."""

_STATUSES = {
    401: _UNAUTHORIZED,
    402: _NO_QUOTA,
    403: _Meaning(403, "upstream_forbidden", "permission_error"),
    413: _Meaning(413, "request_too_large", "invalid_request_error"),
    429: _TOO_FAST,
    503: _OVERLOADED._replace(cause="upstream_unavailable"),
    529: _OVERLOADED,
}
"""The provider's statuses. Of the others, those from 400 to 499 reject the request, unless they pass by themselves."""
_PASSING = (408, 409, 425)


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
    meaning = _KINDS.get(kind) or _meaning_of_status(kind, status, upstream, text)
    code, param = meaning.code, upstream.get("param")
    if meaning.code == _REJECTED.code and upstream.get("code"):
        code = str(upstream["code"])
    if meaning.code == _UNAUTHORIZED.code:
        text = f"{text} {LOG_IN}"
    elif meaning is _MISCONFIGURED:
        text = f"{text} Set it where the bridge is started; `codex-bridge doctor` checks it."
    wait = _RETRY_IN.search(message) if meaning.code == _TOO_FAST.code else None
    make = InvalidRequest if meaning.type == InvalidRequest.kind else UpstreamError
    return make(
        text,
        code=code,
        http_status=meaning.status,
        kind=meaning.type,
        severity=meaning.severity,
        cause=meaning.cause,
        param=param if isinstance(param, str) else None,
        retry_after=float(wait[1]) if wait else None,
    )


def has_meaning(kind: str) -> bool:
    """Whether a kind of `codexErrorInfo`, in either spelling, is mapped."""
    name = _plain(kind)
    return name in _KINDS or name in _VAGUE_KINDS


def _meaning_of_status(kind: str, status: int | None, upstream: dict[str, Any], text: str) -> _Meaning:
    """The meaning of a failure whose kind does not tell it: by the provider's status, its body, or Codex's message."""
    if status in _STATUSES:
        return _STATUSES[status]
    # Before 0.166 Codex has no kind for this, and keeps of the provider's 404 the message alone.
    if upstream.get("code") == _NO_MODEL.code or (status == 404 and _MODEL.search(text)):
        return _NO_MODEL
    if upstream or (status is not None and 400 <= status < 500 and status not in _PASSING):
        return _REJECTED
    if _MISSING_VARIABLE.match(text):
        return _MISCONFIGURED
    return _VAGUE_KINDS.get(kind, _UNKNOWN)


def _split_info(info: object) -> tuple[str, int | None]:
    """(kind in lower case without separators, HTTP status) of a codexErrorInfo."""
    detail: object = None
    if isinstance(info, dict) and len(info) == 1:
        info, detail = next(iter(info.items()))
    kind = _plain(info) if isinstance(info, str) else ""
    status = None
    if isinstance(detail, dict):
        status = detail.get("httpStatusCode", detail.get("http_status_code"))
    return kind, status if isinstance(status, int) else None


def _plain(kind: str) -> str:
    return kind.replace("_", "").lower()


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
