"""Every error that a person or a client program can see.

One object serves all dialects: the OpenAI envelope, the stream's error event and the log all read the
same `code`, `http_status`, `kind`, `severity` and `retry_after`. The message says what happened and what to do;
it never holds a path, a host name or a secret of this machine unless the operator is the one who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

Severity = Literal["transient", "fatal"]

LOG_IN = "Log in with `codex-bridge auth login` (add --device-auth on a machine without a browser), then try again."
"""What to do about a login that is missing or refused."""


class BridgeError(Exception):
    """Base of all. Subclasses set the defaults, an instance may override each of them."""

    code: str = "internal_error"
    http_status: int = 500
    kind: str = "server_error"
    """The `type` member of OpenAI's error object."""
    severity: Severity = "fatal"
    side_effects: bool = False
    """Whether something was done before it, that a second try would do again."""

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
        """What it is in particular, for a dialect with a word for that, where `code` stands for several."""

    def after_effects(self) -> BridgeError:
        """The same error, of a turn that has done something; others may have failed of this very object."""
        told = type(self).__new__(type(self), *self.args)
        told.__dict__.update(self.__dict__, side_effects=True)
        return told

    def body(self) -> dict[str, Any]:
        """The error object that OpenAI's clients understand."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class ConfigError(BridgeError):
    """A setting is wrong; the program does not start."""

    code = "invalid_configuration"


class UsageError(ConfigError):
    """A command was typed wrong."""

    code = "usage_error"


class InvalidRequest(BridgeError):
    """The client's request cannot be served as it is."""

    code = "invalid_request"
    http_status = 400
    kind = "invalid_request_error"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.8) -> list[str]:
    """Up to three known names that are spelled nearly so, the nearest first."""
    from difflib import get_close_matches  # slow to import, and seldom wanted

    spelled = {each.lower(): each for each in known}
    return [spelled[each] for each in get_close_matches(name[:80].lower(), spelled, cutoff=cutoff)]


class ModelNotFound(InvalidRequest):
    """No backend serves the model that was asked for.

    `reason` is why a backend that would is not there; `patterns` match the names that need not be listed.
    """

    code = "model_not_found"

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
            "GET /v1/models lists all, and so does `codex-bridge models`.",
            param="model",
        )


class Unauthorized(BridgeError):
    """No key, or a wrong one."""

    code = "invalid_api_key"
    http_status = 401
    kind = "invalid_request_error"


class Forbidden(BridgeError):
    """The request comes from a place that is not let in (Host or Origin)."""

    code = "forbidden"
    http_status = 403
    kind = "invalid_request_error"


class PayloadTooLarge(InvalidRequest):
    """The body exceeds the configured limit."""

    code = "request_too_large"
    http_status = 413


class NotReady(BridgeError):
    """The child is not (or not yet) able to take a turn."""

    code = "backend_not_ready"
    http_status = 503
    severity = "transient"


class Overloaded(BridgeError):
    """Too many turns at once, here or in the child."""

    code = "overloaded"
    http_status = 503
    severity = "transient"


class KeyLimitReached(BridgeError):
    """A client has as much as its key allows; others are served."""

    code = "key_limit_exceeded"
    http_status = 429
    kind = "rate_limit_error"
    severity = "transient"


class BackendCrashed(BridgeError):
    """The child went away while the turn was running."""

    code = "backend_crashed"
    http_status = 502
    severity = "transient"


class BackendTimeout(BridgeError):
    """The child did not answer, or fell silent, for longer than the limit."""

    code = "backend_timeout"
    http_status = 504
    severity = "transient"


class BackendProtocolError(BridgeError):
    """The child refused a call or answered something that makes no sense."""

    code = "backend_error"
    http_status = 502


class UpstreamError(BridgeError):
    """The model's provider failed; the child reported it."""

    code = "upstream_error"
    http_status = 502


class SlowClient(BridgeError):
    """The client reads more slowly than the model speaks, beyond the buffer."""

    code = "slow_client"
    http_status = 503
