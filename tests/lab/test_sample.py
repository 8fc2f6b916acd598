"""Which failures are permanent: those that no further request would be spared."""

from __future__ import annotations

import datetime

import pytest

from bridge.appserver.failures import COMPACTED, error_from_codex
from bridge.errors import BackendCrashed, BackendTimeout, BridgeError, ModelNotFound, NotReady
from bridge.lab.case import is_permanent
from bridge.protocols.upstream import error_from_status
from bridge.upstream.anthropic import NotSignedIn

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)


def http(status: int, message: str = "No.", **more: object) -> BridgeError:
    """The error of a provider that answers with this status."""
    members = "".join(f', "{name}": "{value}"' for name, value in more.items())
    return error_from_status(status, {}, f'{{"error": {{"message": "{message}"{members}}}}}'.encode(), NOW)


PERMANENT = {
    "not logged in, Claude": NotSignedIn("Log in."),
    "no key": NotReady("ANTHROPIC_API_KEY is not set.", code="missing_key", http_status=401, severity="fatal"),
    "wrong key": http(401),
    "key without access": http(403),
    "wrong key, Codex": error_from_codex("unexpected status 401 Unauthorized", "unauthorized"),
    "no quota": http(429, type="insufficient_quota"),
    "no quota, Codex": error_from_codex("You have reached your limit.", "usageLimitExceeded"),
    "unknown model": ModelNotFound("nope", []),
    "unknown model of a provider": http(404, "The model `nope` does not exist."),
    "unknown model, Codex": error_from_codex("No such model.", "modelNotFound"),
}
PASSING = {
    "rate limit": http(429),
    "overload": http(529),
    "crash": BackendCrashed("It is gone."),
    "time-out": BackendTimeout("It is silent."),
    "prompt too long": COMPACTED,
    "case refused": http(400),
    "case refused by a policy": error_from_codex("Denied.", "inferenceHookDenied"),
    "child restarts": NotReady("Starting.", code="restarting"),
}


@pytest.mark.parametrize("error", PERMANENT.values(), ids=PERMANENT)
def test_permanent_failures(error: BridgeError) -> None:
    assert is_permanent(error)


@pytest.mark.parametrize("error", PASSING.values(), ids=PASSING)
def test_failures_of_one_request_or_one_moment(error: BridgeError) -> None:
    assert not is_permanent(error)
