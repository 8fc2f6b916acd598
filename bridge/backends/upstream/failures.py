"""A provider's refusals as our errors: by HTTP status, and by the error objects inside a stream."""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping
from typing import Any

import orjson

from bridge.errors import BridgeError, InvalidRequest, UpstreamError
from bridge.redact import harmless

MAX_SAID = 2000
"""Characters of a provider's own words that are passed on."""

_OUT_OF_QUOTA = frozenset(
    {
        "usage_limit_reached",
        "usage_not_included",
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_error",
    }
)
_OVERLOADED = frozenset({"server_is_overloaded", "slow_down", "overloaded", "overloaded_error"})
_STATUS = {
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "cyber_policy": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "request_too_large": 413,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
}
"""The status that an error would have had, had it come before the stream."""

_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_CREDIT = re.compile(r"credit balance is too low", re.IGNORECASE)
_TOO_LONG = re.compile(r"prompt is too long|maximum context length|context window", re.IGNORECASE)


def error_from_status(status: int, headers: Mapping[str, str], body: bytes, now: datetime.datetime) -> BridgeError:
    """The error of an answer that is no stream. `headers` are looked up in lower case."""
    said = _error_object(body)
    text = _words(said) or _plain_words(status, headers, body)
    wait = retry_after(headers, now)
    if wait is None:
        wait = _number(said.get("resets_in_seconds")) or _retry_delay(said.get("details"))
    if 300 <= status < 400:
        return UpstreamError(f"The provider answers {status}, to go elsewhere; check the base URL.")
    return _error(status, said, text, wait)


def error_from_object(said: Mapping[str, Any]) -> BridgeError:
    """The error of a stream's `error` or `response.failed` event: `message`, `code` or `type`, `param`."""
    text = _words(said) or "The provider failed without saying why."
    return _error(_STATUS.get(_code(said) or "", _STATUS.get(_text(said.get("type")) or "", 500)), said, text, None)


def _error(status: int, said: Mapping[str, Any], text: str, wait: float | None) -> BridgeError:
    code = _code(said)
    if status == 402 or code in _OUT_OF_QUOTA or _NO_CREDIT.search(text):
        # Waiting a moment does not help: nothing is to be tried again by itself.
        return UpstreamError(
            text, code="insufficient_quota", http_status=429, kind="insufficient_quota", retry_after=wait
        )
    if status == 401 or _is_about_key(said.get("details")):
        return UpstreamError(text, code="upstream_unauthorized", http_status=401, kind="authentication_error")
    if status == 403:
        return UpstreamError(text, code="upstream_forbidden", http_status=403, kind="permission_error")
    if status == 429:
        return UpstreamError(
            text,
            code="rate_limit_exceeded",
            http_status=429,
            kind="rate_limit_error",
            severity="transient",
            retry_after=wait,
        )
    if code in _OVERLOADED or status in (503, 529):
        return UpstreamError(text, code="overloaded", http_status=503, severity="transient", retry_after=wait)
    if status >= 500 or status == 408:
        return UpstreamError(text, severity="transient", retry_after=wait)
    if _TOO_LONG.search(text):
        code = "context_length_exceeded"
    elif code == "not_found_error" or (status == 404 and "model" in text.lower()):
        code = "model_not_found"
    elif status == 413:
        code = "request_too_large"
    return InvalidRequest(
        text,
        code=code or "upstream_rejected",
        http_status=413 if status == 413 else 404 if code == "model_not_found" else 400,
        param=_text(said.get("param")),
    )


def retry_after(headers: Mapping[str, str], now: datetime.datetime) -> float | None:
    """Seconds to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None for nothing sensible."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    told = headers.get("retry-after")
    if told is None:
        return None
    seconds = _number(told)
    if seconds is not None:
        return seconds
    try:
        then = email.utils.parsedate_to_datetime(told)
    except (ValueError, OverflowError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return max(0.0, (then - now).total_seconds())


def _error_object(body: bytes) -> Mapping[str, Any]:
    """The error in a body: OpenAI's `{"error": {…}}`, a bare string there, or `{"detail": …}`."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if isinstance(data, list) and len(data) == 1:  # Gemini
        data = data[0]
    if not isinstance(data, dict):
        return {}
    error = data.get("error", data.get("detail", data))
    if isinstance(error, str):
        return {"message": data.get("error_description") or error}
    return error if isinstance(error, dict) else {}


def _words(said: Mapping[str, Any]) -> str | None:
    message = _text(said.get("message"))
    # Cut before it is looked through, too: an event may have megabytes.
    return harmless(message[: 2 * MAX_SAID])[:MAX_SAID] if message else None


def _plain_words(status: int, headers: Mapping[str, str], body: bytes) -> str:
    if "html" in headers.get("content-type", "") or body.lstrip()[:1] == b"<":
        return f"The provider answers {status} with a web page; check the base URL and the way to it."
    text = " ".join(body[: 2 * MAX_SAID].decode("utf-8", "replace").split())
    return f"The provider answers {status}" + (f": {harmless(text)[:200]}" if text else ".")


def _retry_delay(details: Any) -> float | None:
    """Google's `{"@type": "…RetryInfo", "retryDelay": "30s"}`."""
    for detail in details if isinstance(details, list) else ():
        told = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(told, str) and told.endswith("s"):
            return _number(told[:-1])
    return None


def _is_about_key(details: Any) -> bool:
    """Whether Google's details say that the key is wrong: Gemini's status for that is 400."""
    found = details if isinstance(details, list) else ()
    return any(isinstance(detail, dict) and detail.get("reason") == "API_KEY_INVALID" for detail in found)


def _code(said: Mapping[str, Any]) -> str | None:
    """What programs can compare; anything else is words."""
    found = _text(said.get("code")) or _text(said.get("type"))
    return found if found is not None and _CODE.fullmatch(found) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    """A finite, non-negative number of seconds; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < float("inf") else None
