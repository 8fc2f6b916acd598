"""A provider's refusals as our errors: by HTTP status, and by the error objects inside a stream."""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Mapping
from typing import Any

import orjson

from bridge.errors import BridgeError, InvalidRequest, UpstreamError
from bridge.redact import harmless

MAX_SAID = 2000
"""Characters of a provider's own words that are passed on."""

_OUT_OF_QUOTA = ("usage_limit_reached", "usage_not_included", "insufficient_quota", "billing_hard_limit_reached")
_RATE = ("rate_limit_exceeded", "rate_limit_error", "too_many_requests")
_OVERLOADED = ("server_is_overloaded", "slow_down", "overloaded", "overloaded_error")


def error_from_status(status: int, headers: Mapping[str, str], body: bytes, now: datetime.datetime) -> BridgeError:
    """The error of an answer that is no stream. `headers` are looked up in lower case."""
    said = _error_object(body)
    text = _words(said) or _plain_words(status, headers, body)
    wait = retry_after(headers, now)
    if wait is None:
        wait = _number(said.get("resets_in_seconds"))
    if status == 401:
        return UpstreamError(text, code="upstream_unauthorized", http_status=401, kind="authentication_error")
    if status == 403:
        return UpstreamError(text, code="upstream_forbidden", http_status=403, kind="permission_error")
    if status == 429 or status >= 500:
        return _transient(status, said, text, wait)
    if 300 <= status < 400:
        return UpstreamError(f"The provider answers {status}, to go elsewhere; check the base URL.")
    return _rejected(said, text)


def error_from_object(said: Mapping[str, Any]) -> BridgeError:
    """The error of a stream's `error` or `response.failed` event: `message`, `code` or `type`, `param`."""
    text = _words(said) or "The provider failed without saying why."
    code = _code(said)
    if code in ("invalid_prompt", "context_length_exceeded", "cyber_policy") or _text(said.get("type")) == (
        "invalid_request_error"
    ):
        return _rejected(said, text)
    return _transient(429 if code in _RATE or code in _OUT_OF_QUOTA else 500, said, text, None)


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
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return max(0.0, (then - now).total_seconds())


def _transient(status: int, said: Mapping[str, Any], text: str, wait: float | None) -> BridgeError:
    code = _code(said)
    if code in _OUT_OF_QUOTA:
        # Waiting a moment does not help: nothing is to be tried again by itself.
        return UpstreamError(
            text, code="insufficient_quota", http_status=429, kind="insufficient_quota", retry_after=wait
        )
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
    return UpstreamError(text, severity="transient", retry_after=wait)


def _rejected(said: Mapping[str, Any], text: str) -> BridgeError:
    return InvalidRequest(text, code=_code(said) or "upstream_rejected", param=_text(said.get("param")))


def _error_object(body: bytes) -> Mapping[str, Any]:
    """The error in a body: OpenAI's `{"error": {…}}`, a bare string there, or `{"detail": …}`."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(data, dict):
        return {}
    error = data.get("error", data.get("detail", data))
    if isinstance(error, str):
        return {"message": data.get("error_description") or error}
    return error if isinstance(error, dict) else {}


def _words(said: Mapping[str, Any]) -> str | None:
    message = _text(said.get("message"))
    return harmless(message)[:MAX_SAID] if message else None


def _plain_words(status: int, headers: Mapping[str, str], body: bytes) -> str:
    if "html" in headers.get("content-type", "") or body.lstrip()[:1] == b"<":
        return f"The provider answers {status} with a web page; check the base URL and the way to it."
    text = " ".join(body.decode("utf-8", "replace").split())
    return f"The provider answers {status}" + (f": {harmless(text)[:200]}" if text else ".")


def _code(said: Mapping[str, Any]) -> str | None:
    return _text(said.get("code")) or _text(said.get("type"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: Any) -> float | None:
    """A finite, non-negative number of seconds; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < float("inf") else None
