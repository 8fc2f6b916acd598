"""Every error that a person or a client program can see.

One object serves all dialects: the OpenAI envelope, the stream's error event and the log read the same `code`,
`http_status`, `kind`, `severity` and `retry_after`. The message says what happened and what to do. It contains no path,
host name or secret of this machine, unless only the operator reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

Severity = Literal["transient", "fatal"]

LOG_IN = "Log in with `turnbridge auth login` (add --device-auth on a machine without a browser), then try again."
"""What to do about a login that is missing or refused."""


class BridgeError(Exception):
    """Base of all errors. A class sets defaults with keywords after its base; an instance may override each of them."""

    code: str = "internal_error"
    http_status: int = 500
    kind: str = "server_error"
    """The `type` member of OpenAI's error object."""
    severity: Severity = "fatal"
    side_effects: bool = False
    """Whether the turn did something before it failed that a retry would repeat."""

    def __init_subclass__(
        cls,
        code: str | None = None,
        http_status: int | None = None,
        kind: str | None = None,
        severity: Severity | None = None,
    ) -> None:
        cls.code = code or cls.code
        cls.http_status = http_status or cls.http_status
        cls.kind = kind or cls.kind
        cls.severity = severity or cls.severity

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        http_status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        severity: Severity | None = None,
        retry_after: float | None = None,
        cause: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.http_status = http_status or self.http_status
        self.kind = kind or self.kind
        self.severity = severity or self.severity
        self.param = param
        self.retry_after = retry_after
        self.cause = cause
        """A more precise code than `code`, for a dialect that has one."""

    def after_effects(self) -> BridgeError:
        """A copy for a turn that had side effects; other turns may have failed with this very object."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__, side_effects=True)
        return copy

    def body(self) -> dict[str, Any]:
        """The error object that OpenAI's clients understand."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class ConfigError(BridgeError, code="invalid_configuration"):
    """A setting is invalid; the program does not start."""


class UsageError(ConfigError, code="usage_error"):
    """Invalid command line."""


class LogFailed(BridgeError, code="event_log_failed"):
    """The event log cannot be written, and the operator wants nothing to happen unrecorded."""


class InvalidRequest(BridgeError, code="invalid_request", http_status=400, kind="invalid_request_error"):
    """The client must change the request."""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.8) -> list[str]:
    """Up to three known names with a similar spelling, the nearest first."""
    from difflib import get_close_matches  # slow to import, and rarely needed

    spelled = {each.lower(): each for each in known}
    return [spelled[each] for each in get_close_matches(name[:80].lower(), spelled, cutoff=cutoff)]


class ModelNotFound(InvalidRequest, code="model_not_found"):
    """No backend serves the model of the request.

    `reason` is why a backend that would serve it is off; `patterns` match the names that need not be listed.
    """

    def __init__(self, model: str, known: list[str], reason: str | None = None, patterns: Sequence[str] = ()) -> None:
        why = f" {reason}" if reason else ""
        if near := nearest(model, known):
            why += f" Did you mean {' or '.join(near)}?"
        else:
            if known:
                why += f" Some that do: {', '.join(known[:8])}{', …' if len(known) > 8 else ''}."
            if patterns and not reason:
                some = f"{', '.join(patterns[:16])}{', …' if len(patterns) > 16 else ''}"
                why += f" A name that is not listed must begin with or match one of {some}. For others, define an alias"
                why += " (PROXY_MODEL_ALIASES) or a pattern ([routing.patterns])."
        super().__init__(
            f"The model {model[:80]!r} does not exist here.{why} "
            "GET /v1/models lists all, and so does `turnbridge models`.",
            param="model",
        )


class Unauthorized(BridgeError, code="invalid_api_key", http_status=401, kind="invalid_request_error"):
    """No key, or a wrong one."""


class Forbidden(BridgeError, code="forbidden", http_status=403, kind="invalid_request_error"):
    """The request's Host or Origin is not allowed."""


class PayloadTooLarge(InvalidRequest, code="request_too_large", http_status=413):
    """The body exceeds the configured limit."""


class NotReady(BridgeError, code="backend_not_ready", http_status=503, severity="transient"):
    """The child cannot take a turn, or not yet."""


class Overloaded(BridgeError, code="overloaded", http_status=503, severity="transient"):
    """Too many turns at once, here or in the child."""


class KeyLimitReached(
    BridgeError, code="key_limit_exceeded", http_status=429, kind="rate_limit_error", severity="transient"
):
    """The limit of the client's key is reached; other clients are served."""


class BudgetExceeded(BridgeError, code="budget_exceeded", http_status=429, kind="rate_limit_error"):
    """A budget of the client's key, or of all keys, has no room."""


class BackendCrashed(BridgeError, code="backend_crashed", http_status=502, severity="transient"):
    """The child ended while the turn was running."""


class BackendTimeout(BridgeError, code="backend_timeout", http_status=504, severity="transient"):
    """The child sent nothing for longer than the limit."""


class BackendProtocolError(BridgeError, code="backend_error", http_status=502):
    """The child refused a call, or its answer is invalid."""


class UpstreamError(BridgeError, code="upstream_error", http_status=502):
    """The model's provider failed; the child reported it."""


class SlowClient(BridgeError, code="slow_client", http_status=503):
    """The client reads more slowly than the model speaks, beyond the buffer."""
