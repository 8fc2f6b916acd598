"""Errors in the form of the Messages API."""

from __future__ import annotations

from typing import Any

from bridge.errors import BridgeError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OVERLOADED = 529
"""The API's own status for an overload. Its clients retry it with more patience than another status."""


UNSUPPORTED_THREAD = "thread_unsupported_request"
"""The API's own code for a request that cannot be part of a thread. Its clients look for it in the details."""


def _usual_status(error: BridgeError) -> int:
    # OpenAI's endpoints answer 400 for an unknown model. Anthropic's clients look for a 404.
    return 404 if error.code == "model_not_found" else error.http_status


def error_status(error: BridgeError) -> int:
    """The status of an error."""
    status = _usual_status(error)
    return OVERLOADED if status == 503 else status


def error_body(error: BridgeError) -> dict[str, Any]:
    """The error object; `code` and `param` are the bridge's own, as on its other endpoints."""
    status = _usual_status(error)
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    found: dict[str, Any] = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    if error.code == UNSUPPORTED_THREAD:
        found["details"] = {"error_code": UNSUPPORTED_THREAD, "unsupported": ["thread"]}
    return {"type": "error", "error": found}
