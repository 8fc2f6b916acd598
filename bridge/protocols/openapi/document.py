"""The OpenAPI document: paths and parameters from the route table, schemas from this package.

The schemas of answers are written by hand, since they state more than the types in the code: `const`, bounds, and which
members may be missing. Tests check them against what is served.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import get_args

from bridge.errors import BridgeError
from bridge.http.request import Parameter, Route
from bridge.protocols.cap import ConversationState
from bridge.protocols.cap.stream import components
from bridge.protocols.client import ClientProtocol, ErrorForm
from bridge.protocols.openapi import STRING, Json, answers, any_of, closed, opt, ref, requests
from bridge.protocols.registry import PROTOCOLS

_FORMS = [protocol for protocol in PROTOCOLS.values() if protocol.mark is not None]
"""The protocols with a format of their own."""


def _bases(protocol: ClientProtocol) -> str:
    return f"under `{protocol.base or protocol.path}`, and for clients that send `{(protocol.mark or b'').decode()}`"


_OTHER_KEYS = "".join(f", `{each.key_header.decode()}: KEY`" for each in _FORMS if each.key_header is not None)
_KEYS_IN_QUERY = " ".join(
    f"The paths of {each.api.about.removesuffix('.')} also take `?{each.key_parameter}=KEY`."
    for each in _FORMS
    if each.key_parameter is not None
)
_OTHER_ERRORS = "".join(f"\n  {_bases(each)}, {each.errors.owner};" for each in _FORMS)
*_FIRST, _LAST = dict.fromkeys(protocol.errors.owner for protocol in PROTOCOLS.values())
_OWNERS = f"{', '.join(_FIRST)} and {_LAST}"
_DESCRIPTION = f"""Clients of {_OWNERS} APIs talk to a Codex app-server as if it were a model.

* **Key**: every path except the probes requires one, as `Authorization: Bearer KEY`, `x-api-key: KEY`{_OTHER_KEYS};
  several headers may carry the same key. {_KEYS_IN_QUERY} Stored objects belong to the key that created them.
* **Errors** have OpenAI's format;{_OTHER_ERRORS} on CAP's paths they are a StreamError.
  A method that a path does not support returns 405, an unlisted path 404. HEAD works wherever GET does.
* **Unknown members** of a body are accepted. What was requested but could not be done is named in the header
  `x-bridge-dropped`.
* **Request ids**: the header `x-request-id` of the answer has the id of the request. The client's own id
  (`x-client-request-id`, 1 to 128 of `A-Z a-z 0-9 . _ -`) is logged with it and sent back.
* **WebSockets**: `/v1/responses` accepts `{{"type": "response.create", …}}` messages with the members of POST, and
  sends each event as one message. `/v1/assist/ws` accepts a ServiceRequest and sends one packet per message.
"""

_TAGS = {
    **{protocol.api.tag: protocol.api.about for protocol in PROTOCOLS.values()},
    "Conversations": "Lists of items that grow with each response.",
    "Models": "The models that a request may name.",
    "Usage": "What was used, and what is left.",
    "CAP": "The Coreason Agent Protocol.",
    "Health": "Probes, and this document.",
}

# Errors

_ERRORS = {
    400: "The request cannot be served: `error.param` names the member at fault (`invalid_request`, `invalid_json`, "
    "`model_not_found`, `unsupported_parameter`, `unsupported_item`, …), or the provider refused it.",
    401: "The key is missing, wrong or revoked, or two keys differ (`invalid_api_key`). When a model is used also: the "
    "login or the key for its provider is missing or refused (`codex_not_logged_in`, `codex_misconfigured`, "
    "`upstream_unauthorized`, …).",
    403: "The Host or the Origin is not allowed (`host_not_allowed`, `origin_not_allowed`). When a model is used also: "
    "the account may not do this (`upstream_forbidden`).",
    404: "Not found: it expired, was deleted, or belongs to another key. When a model is used also: the provider does "
    "not know the model (`model_not_found`).",
    408: "The body did not arrive in time (`timeout`).",
    413: "The body is larger than `PROXY_MAX_BODY`, the limit of the key (`request_too_large`), or the limit of the "
    "provider.",
    415: "The body is not plain JSON (`unsupported_media_type`, `unsupported_encoding`).",
    429: "A limit of the key is reached (`key_limit_exceeded`). When a model is used also: a budget of the key or of "
    "all keys is used up (`budget_exceeded`), or the limit of the account is reached (`rate_limit_exceeded`, or "
    "`insufficient_quota` when nothing is left).",
    500: "A bug in the bridge (`internal_error`); its log has the id of the request.",
    502: "Codex or the provider failed (`upstream_error`, `backend_crashed`, `empty_response`, …). Try again.",
    503: "Codex is not ready, or there are too many turns (`overloaded`, `restarting`, `store_unavailable`, …). Try "
    "again.",
    504: "Codex did not answer in time, or stopped sending (`backend_timeout`).",
}
_CAP_ERRORS = {
    400: "The body is not JSON (`invalid_json`), or the provider refused the request (`upstream_bad_request`).",
    401: "The key is missing or wrong, or there are several (`unauthorized`).",
    402: "The budget of the session is used up (`session_budget_exceeded`).",
    403: "The Host, the Origin or the user is not allowed, the request exceeds what the operator allows "
    "(`forbidden`), or the provider's policy forbids it (`policy_violation`).",
    404: "The agent, the model or the conversation is unknown.",
    406: "`Accept` names none of the formats of the answer (`not_acceptable`).",
    408: _ERRORS[408],
    409: "Another request has the same id (`request_id_conflict`), or the conversation is busy (`turn_busy`).",
    410: "The request is unknown or expired, or the requested packets are no longer stored (`stream_expired`).",
    413: "The body is too large (`payload_too_large`).",
    415: "The body is not plain JSON (`unsupported_media_type`).",
    422: "The body is not a ServiceRequest, or one of its members is invalid; see `details`.",
    426: "This path is a WebSocket (`upgrade_required`).",
    429: "The limit of the account (`rate_limit_exceeded`, `usage_limit_exceeded`) or of the key "
    "(`key_limit_exceeded`) is reached, or a budget (`budget_exceeded`).",
    500: "A bug in the bridge (`internal_error`), or in Codex (`sandbox_error`, `thread_rollback_failed`).",
    502: "Codex or the provider failed (`upstream_unavailable`, `agent_crashed`, …).",
    503: "Not available now (`overloaded`, `agent_not_ready`, `shutting_down`, …).",
    504: "The deadline is exceeded (`deadline_exceeded`).",
}
_HAS_RETRY_AFTER = (429, 500, 502, 503, 504)
_MAY_COME_FROM_THE_EDGE = (400, 401, 403, 415, 429)
"""Statuses that a request may get before it has an id."""
_ERROR_FORMS = {protocol.api.tag: protocol.errors for protocol in PROTOCOLS.values()}
_OPENAI_FORM = ErrorForm()
_PROTOCOL_ERROR_TYPES = ("application/vnd.coreason.error+json", "application/json")


def _error_responses() -> Json:
    found: Json = {}
    for status, description in _ERRORS.items():
        names = ["www-authenticate"] if status == 401 else ["retry-after"] if status in _HAS_RETRY_AFTER else []
        headers = _headers(*names, *(["x-should-retry"] if status == 429 else []))
        headers["x-request-id"] = _header("x-request-id" if status in _MAY_COME_FROM_THE_EDGE else "request-id")
        content = _json(ref("Error"))
        for form in dict.fromkeys((_OPENAI_FORM, *_ERROR_FORMS.values())):
            answer = {"description": description, "headers": headers, "content": _json(ref(form.schema))}
            found[f"{form.schema}{_status_in(form, status)}"] = answer
    for status, description in _CAP_ERRORS.items():
        headers = _headers("retry-after", *(["www-authenticate"] if status == 401 else []))
        content = {kind: {"schema": ref("StreamError")} for kind in _PROTOCOL_ERROR_TYPES}
        found[f"CapError{status}"] = {"description": description, "headers": headers, "content": content}
    return found


def _status_in(form: ErrorForm, status: int) -> int:
    """What a status is in this form."""
    return form.status(BridgeError("", http_status=status))


def _error_statuses(route: Route) -> set[int]:
    found = {400, 403, *route.errors}
    if route.needs_key:
        found |= {401, 429} if route.is_limited else {401}
    return found | {408, 413, 415} if route.method == "POST" else found


# Headers

_REQUEST_ID = {
    "description": "The id of this request, also in the bridge's log and its event log.",
    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
}
_VISIBLE_ASCII = {"type": "string", "pattern": "^[!-~]+$"}
_QUOTA = {
    f"x-codex-{window}-{name}": {
        "description": f"{what} ({window} window). Present when Codex reported it.",
        "schema": {"type": "number"},
    }
    for window in ("primary", "secondary")
    for name, what in (
        ("used-percent", "How much of the account's quota is used, in percent"),
        ("window-minutes", "The length of the quota's window, in minutes"),
        ("reset-at", "When the quota resets, in seconds since 1970"),
    )
}
_HEADERS: Json = {
    "request-id": {**_REQUEST_ID, "required": True},
    "x-request-id": _REQUEST_ID,
    "x-bridge-dropped": {
        "description": "What was dropped from the request because it is not supported: names, separated by commas.",
        "schema": _VISIBLE_ASCII,
    },
    "x-bridge-model-rerouted": {
        "description": "The model that answers, if the provider uses another one than requested.",
        "schema": _VISIBLE_ASCII,
    },
    "x-bridge-budget": {
        "description": "What is left of each budget of the key, such as `5USD/day;left=3.21;reset=7200` (seconds), "
        "separated by commas. Present when the key has budgets.",
        "schema": _VISIBLE_ASCII,
    },
    "retry-after": {
        "description": "Seconds to wait before the next attempt.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "x-should-retry": {
        "description": "Present when a retry is useless although the status suggests one.",
        "schema": {"const": "false"},
    },
    "www-authenticate": {"description": "Present when the key is missing or wrong.", "schema": {"const": "Bearer"}},
    **_QUOTA,
}


def _header(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}


def _headers(*names: str) -> Json:
    return {name: _header(name) for name in names}


_TURN_HEADERS: Json = {
    "x-request-id": _header("request-id"),
    **_headers("x-bridge-dropped", "x-bridge-model-rerouted", "x-bridge-budget", *_QUOTA),
}
_CAP_HEADERS: Json = {
    "x-request-id": {"description": "The id in the request itself.", "schema": {"type": "string", "format": "uuid"}},
    "x-bridge-request-id": _header("request-id"),
    "x-conversation-id": {
        "description": "The conversation of the answer: for `payload.conversation_id` of the next request.",
        "schema": STRING,
    },
    "x-conversation": {
        "description": "Whether the conversation has earlier turns; also `output.conversation`.",
        "schema": {"type": "string", "enum": list(get_args(ConversationState))},
    },
    **_headers("x-bridge-dropped", "x-bridge-budget"),
}

# Operations

_STREAMS = {
    **{protocol.api.tag: protocol.api.stream for protocol in PROTOCOLS.values()},
    "CAP": "`event: stream.packet`, `id: REQUEST_ID:NUMBER`, and a StreamPacket as `data`. The last is always `close`; "
    "an error precedes it. Comments keep the connection alive.",
}
"""What a stream consists of, by tag."""
_LINES = ("application/x-ndjson", "application/jsonl", "application/vnd.coreason.stream+json")
_OWN = {protocol.name: protocol.api.schemas() for protocol in PROTOCOLS.values() if protocol.api.schemas is not None}
_BODIES = {**requests.BODIES, **{name: (own.body, own.examples) for name, own in _OWN.items()}}
_SHARED = [each.models for each in _FORMS if each.models is not None and each.models.path is None]
"""The forms of models at the path of the others."""
_SCHEMAS: dict[str, Json] = {
    "OneModel": any_of(ref("Model"), *(ref(form.schema) for form in _SHARED), description="A model."),
    "Models": any_of(ref("ModelList"), *(ref(form.page_schema) for form in _SHARED), description="The models."),
    **requests.SCHEMAS,
    **answers.SCHEMAS,
    **{name: schema for own in _OWN.values() for name, schema in own.schemas.items()},
    **components(),
}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _operation(route: Route) -> Json:
    is_cap = route.tag == "CAP"
    form = _ERROR_FORMS.get(route.tag, _OPENAI_FORM)
    error = "CapError" if is_cap else form.schema
    statuses = {_status_in(form, status) for status in _error_statuses(route)}
    found: Json = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.description,
        "parameters": [_parameter(each) for each in route.parameters],
        "requestBody": None if route.body is None else _body(route.body),
        "responses": {
            **{str(status): {"$ref": f"#/components/responses/{error}{status}"} for status in sorted(statuses)},
            **{str(status): _answer(route, is_cap=is_cap) for status in route.statuses},
        },
    }
    found = {name: value for name, value in found.items() if value}
    return found if route.needs_key else {**found, "security": []}


def _parameter(parameter: Parameter) -> Json:
    found: Json = {
        "name": parameter.name,
        "in": parameter.location,
        "description": parameter.description,
        "schema": parameter.schema,
    }
    if parameter.location == "path":
        found["required"] = True
    if parameter.example is not None:
        found["examples"] = {"example": {"value": parameter.example}}
    return found


def _body(name: str) -> Json:
    schema, examples = _BODIES[name]
    shown = {summary.lower(): {"summary": summary, "value": value} for summary, value in examples.items()}
    content = {"application/json": {"schema": schema, "examples": shown}}
    return {"required": name not in requests.OPTIONAL_BODIES, "content": content}


def _answer(route: Route, *, is_cap: bool) -> Json:
    content: Json = {}
    description = route.summary
    if route.answer is not None:
        description = _SCHEMAS[route.answer].get("description", description)
        content |= _json(ref(route.answer))
    if route.streams:
        event = closed(_STREAMS[route.tag], **({"id": STRING} if is_cap else {}), data=STRING, event=opt(STRING))
        content["text/event-stream"] = {"schema": event}
        if is_cap:
            line = {"schema": {**STRING, "description": "One StreamPacket per line. The last is always `close`."}}
            content |= dict.fromkeys(_LINES, line)
    elif not content and 101 not in route.statuses:
        content["text/plain"] = {"schema": STRING}
    found: Json = {"description": description}
    if route.runs_turn:
        found["headers"] = _CAP_HEADERS if is_cap else _TURN_HEADERS
    return {**found, "content": content} if content else found


def document(version: str, routes: Iterable[Route]) -> Json:
    """The document, OpenAPI 3.1; the caller may change it."""
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.pattern.replace(":path}", "}"), {})[route.method.lower()] = _operation(route)
    key = {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key in another header."}
    return deepcopy(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "turnbridge",
                "version": version,
                "description": _DESCRIPTION,
                "license": {"name": "MIT", "identifier": "MIT"},
            },
            "servers": [{"url": "/", "description": "The bridge that serves this document."}],
            "security": [{"bearer": []}, {"apiKey": []}],
            "tags": [{"name": name, "description": description} for name, description in _TAGS.items()],
            "paths": paths,
            "components": {
                "schemas": _SCHEMAS,
                "responses": _error_responses(),
                "headers": _HEADERS,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": "A key of the bridge."},
                    "apiKey": key,
                },
            },
        }
    )
