"""Errors in the form of the Gemini API."""

from __future__ import annotations

from typing import Any

from bridge.errors import BridgeError

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_status(error: BridgeError) -> int:
    """The status of an error."""
    # OpenAI's endpoints answer 400 for an unknown model. Google's clients look for a 404.
    return 404 if error.code == "model_not_found" else error.http_status


def error_body(error: BridgeError) -> dict[str, Any]:
    """The error object. Its details have the bridge's own code and the member that is wrong."""
    status = error_status(error)
    name = _STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    info: dict[str, Any] = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": error.code,
        "domain": "turnbridge",
    }
    if error.param:
        info["metadata"] = {"param": error.param}
    details: list[dict[str, Any]] = [info]
    if error.retry_after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{error.retry_after:g}s"})
    return {"error": {"code": status, "message": error.message, "status": name, "details": details}}
