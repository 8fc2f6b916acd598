"""Headers of answers and of requests that several paths share."""

from __future__ import annotations

from bridge.api.openapi.schemas import STRING, Json, header_ref

_REQUEST_ID = {
    "description": "The id of this request; the bridge's log and its event log have it too.",
    "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
}


def _quota(window: str) -> dict[str, Json]:
    told = {
        "used-percent": "How much of the account's quota is used, in percent",
        "window-minutes": "For how many minutes the quota is counted",
        "reset-at": "When it begins anew, in seconds since 1970",
    }
    return {
        f"x-codex-{window}-{name}": {
            "description": f"{what} ({window} window). There when Codex has told it.",
            "schema": {"type": "number"},
        }
        for name, what in told.items()
    }


HEADERS: dict[str, Json] = {
    "request-id": {**_REQUEST_ID, "required": True},
    "x-request-id": _REQUEST_ID,
    "x-bridge-dropped": {
        "description": "What was left out of the request because nobody could do it: names, separated by commas.",
        "schema": {"type": "string", "pattern": "^[!-~]+$"},
    },
    "x-bridge-model-rerouted": {
        "description": "The model that answers, when the provider uses another one than the requested one.",
        "schema": {"type": "string", "pattern": "^[!-~]+$"},
    },
    "retry-after": {
        "description": "Whole seconds after which trying again is sensible.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "x-should-retry": {
        "description": "Present when a retry is useless although the status suggests one.",
        "schema": {"const": "false"},
    },
    "www-authenticate": {"description": "There when the key is missing or wrong.", "schema": {"const": "Bearer"}},
    **_quota("primary"),
    **_quota("secondary"),
}

TURN_HEADERS: Json = {
    "x-request-id": {"$ref": "#/components/headers/request-id"},
    **header_ref("x-bridge-dropped", "x-bridge-model-rerouted", *_quota("primary"), *_quota("secondary")),
}
"""What the answer of a model has."""

PARAMETERS: dict[str, Json] = {
    "provider-key": {
        "name": "x-provider-key",
        "in": "header",
        "description": "A key for the model's provider, for this request alone: a backend that asks a provider over "
        "HTTP uses it in place of its own. It is never logged, stored or sent elsewhere.",
        "schema": {**STRING, "pattern": "^[!-~]+$"},
    },
}
