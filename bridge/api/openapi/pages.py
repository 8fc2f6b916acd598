"""Models, usage, rate limits, probes, and this document."""

from __future__ import annotations

from bridge.api.openapi.errors import OF_THE_GATE, refusals
from bridge.api.openapi.schemas import (
    BOOLEAN,
    COUNT,
    SECONDS_SINCE_1970,
    STRING,
    Json,
    any_of,
    closed,
    const,
    json_content,
    list_of,
    one_of_words,
    opened,
    or_null,
    ref,
    response,
)

MAX_DAYS = 400
"""Days for which usage is told."""

_COUNTED = (
    "requests",
    "failed",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "total_tokens",
)
_COUNTS = dict.fromkeys(_COUNTED, COUNT)
_DAY: Json = {"type": "string", "format": "date"}
_NUMBER = or_null({"type": "number"})
_WINDOW = or_null(
    closed(
        {
            "used_percent": _NUMBER,
            "window_minutes": _NUMBER,
            "resets_at": _NUMBER,
            "resets_in_seconds": or_null(COUNT),
        }
    )
)

SCHEMAS: dict[str, Json] = {
    "Model": closed(
        {
            "id": STRING,
            "object": const("model"),
            "created": SECONDS_SINCE_1970,
            "owned_by": const("codex-bridge"),
        },
        {
            "name": {**STRING, "description": "The name for people."},
            "description": STRING,
            "context_length": {**COUNT, "description": "Tokens of the context window."},
            "max_model_len": {**COUNT, "description": "The same, under the name that clients of vLLM read."},
            "reasoning_efforts": list_of(STRING),
            "default_reasoning_effort": STRING,
            "architecture": closed({"input_modalities": list_of(STRING), "output_modalities": list_of(STRING)}),
        },
        "The members after `owned_by` are present where they are known.",
    ),
    "ModelList": closed({"object": const("list"), "data": list_of(ref("Model"))}),
    "UsageReport": closed(
        {
            "object": const("list"),
            "since": _DAY,
            "data": list_of(
                closed(
                    {
                        "day": _DAY,
                        "key": {**STRING, "description": "A label of the key; never the key itself."},
                        "model": STRING,
                        **_COUNTS,
                    }
                )
            ),
            "total": closed(_COUNTS),
        }
    ),
    "RateLimits": closed(
        {
            "object": const("rate_limits"),
            "known": {**BOOLEAN, "description": "Whether Codex told anything."},
            "plan": or_null(STRING),
            "reached": or_null(STRING),
            "primary": _WINDOW,
            "secondary": _WINDOW,
            "credits": any_of({"type": "object"}, {"type": "null"}),
        }
    ),
    "Health": closed({"status": one_of_words("ok", "degraded"), "reason": STRING}),
    "Alive": closed({"status": const("ok"), "service": const("codex-bridge")}),
    "Ready": closed({"status": one_of_words("ready", "not_ready"), "reason": STRING}),
}


def _shown(description: str, schema: str, status: str = "200") -> Json:
    return {status: response(description, json_content(ref(schema)))}


_OPEN: list[Json] = []
"""The security of a path that needs no key."""
_PLACE = (400, 403)
"""What a request without a key may be refused with."""

PATHS: dict[str, Json] = {
    "/v1/models": {
        "get": {
            "operationId": "listModels",
            "tags": ["Models"],
            "summary": "The models that a request may name",
            "description": "Codex's own, those of the operator, the mock models and, unless the operator leaves them "
            "out, aliases and the endings for efforts. Without a login for Codex, the mock models alone.",
            "responses": {**_shown("The models.", "ModelList"), **refusals(OF_THE_GATE)},
        }
    },
    "/v1/models/{model}": {
        "get": {
            "operationId": "getModel",
            "tags": ["Models"],
            "summary": "One model",
            "parameters": [
                {
                    "name": "model",
                    "in": "path",
                    "required": True,
                    "description": "The model's name; it may have slashes in it.",
                    "schema": STRING,
                    "examples": {"mock": {"value": "mock-echo"}},
                }
            ],
            "responses": {**_shown("The model.", "Model"), **refusals((*OF_THE_GATE, 404))},
        }
    },
    "/v1/usage": {
        "get": {
            "operationId": "getUsage",
            "tags": ["Usage"],
            "summary": "What this key has used",
            "description": "By day (UTC) and model, and in total.",
            "parameters": [
                {
                    "name": "days",
                    "in": "query",
                    "description": "How many days, today included.",
                    "schema": {"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": 30},
                }
            ],
            "responses": {**_shown("The usage.", "UsageReport"), **refusals((*OF_THE_GATE, 503))},
        }
    },
    "/v1/rate-limits": {
        "get": {
            "operationId": "getRateLimits",
            "tags": ["Usage"],
            "summary": "What is left of the account's quota",
            "responses": {**_shown("The quota, as far as Codex tells it.", "RateLimits"), **refusals(OF_THE_GATE)},
        }
    },
    "/metrics": {
        "get": {
            "operationId": "getMetrics",
            "tags": ["Usage"],
            "summary": "The bridge's numbers, for Prometheus",
            "description": "Its text format, version 0.0.4. docs/operations.md has the names.",
            "responses": {
                "200": response("The numbers.", {"text/plain": {"schema": STRING}}),
                **refusals(OF_THE_GATE),
            },
        }
    },
    "/healthz": {
        "get": {
            "operationId": "getHealthz",
            "tags": ["Health"],
            "summary": "Whether the program runs, and how",
            "description": "200 while the program runs; `reason` says why it is degraded.",
            "security": _OPEN,
            "responses": {**_shown("It runs.", "Health"), **refusals(_PLACE)},
        }
    },
    "/livez": {
        "get": {
            "operationId": "getLivez",
            "tags": ["Health"],
            "summary": "Whether the program runs",
            "security": _OPEN,
            "responses": {**_shown("It runs.", "Alive"), **refusals(_PLACE)},
        }
    },
    "/readyz": {
        "get": {
            "operationId": "getReadyz",
            "tags": ["Health"],
            "summary": "Whether a turn can be taken",
            "security": _OPEN,
            "responses": {
                **_shown("It can.", "Ready"),
                **_shown("Not now; `reason` is the state.", "Ready", "503"),
                **refusals(_PLACE),
            },
        }
    },
    "/openapi.json": {
        "get": {
            "operationId": "getOpenApi",
            "tags": ["Health"],
            "summary": "This document",
            "security": _OPEN,
            "responses": {
                "200": response(
                    "An OpenAPI document.",
                    json_content(
                        opened({"openapi": const("3.1.0"), "info": {"type": "object"}, "paths": {"type": "object"}})
                    ),
                ),
                **refusals(_PLACE),
            },
        }
    },
}
