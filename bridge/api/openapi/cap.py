"""CAP, the Coreason Agent Protocol: /v1/assist and health. Its errors are bare StreamErrors."""

from __future__ import annotations

from typing import get_args

from bridge.api.cap.contract import ServiceContract
from bridge.api.cap.fold import ConversationState
from bridge.api.openapi.schemas import JSON, STRING, Json, closed, header_ref, json_content, ref, response, sse_content

TAG = "CAP"
ERROR = "application/vnd.coreason.error+json"
SOCKET = "/v1/assist/ws"
LINES = ("application/x-ndjson", "application/jsonl", "application/vnd.coreason.stream+json")

SCHEMAS: dict[str, Json] = ServiceContract.components()

_DESCRIPTIONS = {
    400: "The body is no JSON (`invalid_json`), or the provider refused the request (`upstream_bad_request`).",
    401: "No key, a wrong one, or several (`unauthorized`).",
    402: "The session's budget is used up (`session_budget_exceeded`).",
    403: "The Host, the Origin or the user is not let in, the request asks for more than the operator allows "
    "(`forbidden`), or for what the provider's policy forbids (`policy_violation`).",
    404: "The agent, the model or the conversation is not here.",
    406: "None of the forms that `Accept` takes is one of the answer's (`not_acceptable`).",
    408: "The body did not come within 60 seconds (`timeout`).",
    409: "Another request has the same id (`request_id_conflict`), or the conversation is busy (`turn_busy`).",
    410: "The request is not known (any more), or what is asked for is no longer kept (`stream_expired`).",
    413: "The body is too large (`payload_too_large`).",
    415: "The body is not plain JSON (`unsupported_media_type`).",
    422: "The body is no ServiceRequest, or a member of it cannot be used; `details` tell which.",
    426: "This is a WebSocket (`upgrade_required`).",
    429: "The account's limit is reached (`rate_limit_exceeded`, `usage_limit_exceeded`), or the key's own "
    "(`key_limit_exceeded`).",
    500: "A fault of the bridge's own (`internal_error`), or of Codex (`sandbox_error`, `thread_rollback_failed`).",
    502: "Codex or the provider failed (`upstream_unavailable`, `agent_crashed`, …).",
    503: "Not now (`overloaded`, `agent_not_ready`, `shutting_down`, …).",
    504: "It took too long (`deadline_exceeded`).",
}


_ERROR = {kind: {"schema": ref("StreamError")} for kind in (ERROR, JSON)}
RESPONSES: dict[str, Json] = {
    f"CapError{status}": response(
        description, _ERROR, header_ref("retry-after", *(["www-authenticate"] if status == 401 else []))
    )
    for status, description in _DESCRIPTIONS.items()
}


def _refusals(*statuses: int) -> Json:
    return {str(status): {"$ref": f"#/components/responses/CapError{status}"} for status in sorted(statuses)}


_REQUEST_ID_SENT = {
    "description": "The request's own id.",
    "schema": {"type": "string", "format": "uuid"},
}
_CONVERSATION = {
    "description": "The conversation that the answer belongs to: for `payload.conversation_id` of the next request.",
    "schema": STRING,
}
_ANSWER_HEADERS: Json = {
    "x-request-id": _REQUEST_ID_SENT,
    "x-bridge-request-id": {"$ref": "#/components/headers/request-id"},
    "x-conversation-id": _CONVERSATION,
    "x-conversation": {
        "description": "Whether there are earlier turns in the conversation; also `output.conversation`.",
        "schema": {"type": "string", "enum": list(get_args(ConversationState))},
    },
    **header_ref("x-bridge-dropped"),
}
_OF_A_TURN = (400, 402, 403, 404, 409, 422, 429, 500, 502, 503, 504)
"""What a turn may fail of, for whoever joins it too."""
_PACKETS = (
    "`event: stream.packet`, `id: REQUEST_ID:NUMBER`, and a StreamPacket as `data`. The last is always `close`; an "
    "error comes right before it. Silence is broken by comments."
)
_LINES = "A StreamPacket a line. The last is always `close`; an error comes right before it."
_EXAMPLE = {
    "request_id": "550e8400-e29b-41d4-a716-446655440000",
    "context": {"session_id": "session-1", "user": {"id": "user-1", "name": "Ada"}},
    "payload": {"query": "hello", "meta": {"model": "mock-echo"}},
}
_REQUEST_ID = {
    "name": "request_id",
    "in": "path",
    "required": True,
    "description": "The `request_id` of an earlier request of this key.",
    "schema": {"type": "string", "format": "uuid"},
}


_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "The id of the last packet that arrived: REQUEST_ID:NUMBER, or REQUEST_ID:ATTEMPT:NUMBER.",
    "schema": STRING,
}


def _streams() -> Json:
    lines = {kind: {"schema": {**STRING, "description": _LINES}} for kind in LINES}
    return {**sse_content(_PACKETS, numbered=True), **lines}


def _assist(operation_id: str, description: str) -> Json:
    operation = ServiceContract.operation()
    answer = operation["responses"]["200"]
    request = operation["requestBody"]
    request["content"][JSON]["examples"] = {"query": {"summary": "A question", "value": _EXAMPLE}}
    return {
        **operation,
        "operationId": operation_id,
        "tags": [TAG],
        "description": description,
        "parameters": [_LAST_EVENT_ID],
        "requestBody": request,
        "responses": {
            "200": {
                **answer,
                "headers": _ANSWER_HEADERS,
                "content": {**answer["content"], **_streams()},
            },
            **_refusals(*_OF_A_TURN, 401, 406, 408, 410, 413, 415),
        },
    }


_HEALTH_SCHEMA = json_content(ref("HealthCheckResponse"))


def _health(operation_id: str) -> Json:
    return {
        "get": {
            "operationId": operation_id,
            "tags": [TAG],
            "summary": "How the service is",
            "description": "`ok`, `degraded`, or `maintenance` while it takes no new requests.",
            "security": [],
            "responses": {
                "200": response("`ok` or `degraded`.", _HEALTH_SCHEMA),
                "503": response("`maintenance`.", _HEALTH_SCHEMA),
                **_refusals(400, 403),
            },
        }
    }


PATHS: dict[str, Json] = {
    "/v1/assist": {
        "post": _assist(
            "assist",
            "A ServiceRequest is answered by `Accept`: whole (`application/json`, or anything), or as a stream of "
            "packets (`text/event-stream`, or NDJSON under any of its names). Members that no model has are ignored "
            "and named in `x-bridge-dropped`. The same request again attaches to its answer while that is kept. A "
            "WebSocket at /v1/assist/ws takes a ServiceRequest as its first message and gives one packet a message.",
        )
    },
    "/assist": {"post": _assist("assistAtRoot", "The same as POST /v1/assist.")},
    "/cap/v1/assist": {"post": _assist("assistUnderCap", "The same as POST /v1/assist.")},
    "/v1/assist/{request_id}": {
        "get": {
            "operationId": "resumeAssist",
            "tags": [TAG],
            "summary": "Attach to an answer again",
            "description": "The packets after the one that `Last-Event-ID` names, or all, and then those to come.",
            "parameters": [_REQUEST_ID, _LAST_EVENT_ID],
            "responses": {
                "200": response("The packets, in the form that `Accept` asks for.", _streams(), _ANSWER_HEADERS),
                **_refusals(*_OF_A_TURN, 401, 406, 410),
            },
        },
        "delete": {
            "operationId": "cancelAssist",
            "tags": [TAG],
            "summary": "End an answer that is being written",
            "parameters": [_REQUEST_ID],
            "responses": {
                "202": response("It is being ended.", json_content(closed({"request_id": STRING}, {"status": STRING}))),
                **_refusals(400, 401, 403, 404, 410, 422),
            },
        },
    },
    SOCKET: {
        "get": {
            "operationId": "assistOverWebSocket",
            "tags": [TAG],
            "summary": "A WebSocket",
            "description": "The first message is a ServiceRequest; each packet of its answer is a message.",
            "responses": {"101": response("The connection is a WebSocket now."), **_refusals(400, 401, 403, 426, 429)},
        }
    },
    "/health": _health("getHealth"),
    "/v1/health": _health("getHealthV1"),
}
