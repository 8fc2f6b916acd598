"""What a refusal looks like, and which of them a path can give."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.api.openapi.schemas import STRING, Json, closed, header_ref, json_content, or_null, ref, response

SCHEMAS: dict[str, Json] = {
    "Error": closed(
        {
            "error": closed(
                {
                    "message": {**STRING, "description": "What happened, and what to do about it."},
                    "type": {**STRING, "description": "invalid_request_error, server_error, rate_limit_error, …"},
                    "param": {**or_null(STRING), "description": "The member of the request that is at fault."},
                    "code": {**STRING, "description": "The exact reason, for programs."},
                }
            )
        },
        description="An error, in OpenAI's form.",
    )
}

_DESCRIPTIONS = {
    400: "The request cannot be served as it is: `error.param` names the place (`invalid_request`, `invalid_json`, "
    "`model_not_found`, `unsupported_parameter`, `unsupported_item`, …), or the provider refused it.",
    401: "No key, a wrong or a revoked one, or two that differ (`invalid_api_key`). Where a model is asked also: "
    "the login or the key for its provider is missing or refused (`codex_not_logged_in`, `codex_misconfigured`, "
    "`upstream_unauthorized`, …).",
    403: "The Host or the Origin is not let in (`host_not_allowed`, `origin_not_allowed`). Where a model is asked "
    "also: the account may not do this (`upstream_forbidden`).",
    404: "It is not there: it expired, was deleted, or belongs to another key. Where a model is asked also: the "
    "provider does not know the model (`model_not_found`).",
    408: "The body did not come within 60 seconds (`timeout`).",
    413: "The body is larger than `PROXY_MAX_BODY` or the key's own limit (`request_too_large`), or than the provider "
    "takes.",
    415: "The body is not plain JSON (`unsupported_media_type`, `unsupported_encoding`).",
    429: "The key has as much as it may have (`key_limit_exceeded`). Where a model is asked also: the account's limit "
    "is reached (`rate_limit_exceeded`, or `insufficient_quota` when nothing is left).",
    500: "A mistake of the bridge (`internal_error`); its log has the request's id.",
    502: "Codex or the provider failed (`upstream_error`, `backend_crashed`, `empty_response`, …). Try again.",
    503: "Not now: Codex is not ready, or there are too many turns (`overloaded`, `restarting`, `store_unavailable`, "
    "…). Try again.",
    504: "Codex did not answer in time, or fell silent (`backend_timeout`).",
}

_BEFORE_THE_BODY = {400, 401, 403, 415, 429}
"""Statuses that a request may get before it has an id."""

OF_THE_GATE = (400, 401, 403, 429)
OF_A_BODY = (408, 413, 415)
OF_A_MODEL = (429, 500, 502, 503, 504)


def refusals(statuses: Iterable[int], *, numbered: bool = False) -> Json:
    """Response Objects by status. `numbered`: the path gives every request an id, and its answers tell it."""
    kind = "NumberedError" if numbered else "Error"
    return {str(status): {"$ref": f"#/components/responses/{kind}{status}"} for status in sorted(statuses)}


def _refusal(status: int, *, numbered: bool) -> Json:
    headers = header_ref("retry-after") if status in OF_A_MODEL else {}
    if status == 429:
        headers |= header_ref("x-should-retry")
    if status == 401:
        headers = header_ref("www-authenticate")
    if numbered:
        name = "x-request-id" if status in _BEFORE_THE_BODY else "request-id"
        headers["x-request-id"] = {"$ref": f"#/components/headers/{name}"}
    return response(_DESCRIPTIONS[status], json_content(ref("Error")), headers)


RESPONSES: dict[str, Json] = {
    **{f"Error{status}": _refusal(status, numbered=False) for status in _DESCRIPTIONS},
    **{f"NumberedError{status}": _refusal(status, numbered=True) for status in _DESCRIPTIONS},
}
