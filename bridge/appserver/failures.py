"""What goes wrong in Codex, as our errors: failed turns, refused calls, and warnings about its configuration.

`codexErrorInfo` is a string or an object with one key; the legacy dialect spells it in snake case. An unknown kind is
an upstream error with Codex's own message.

The status decides what clients do: the SDKs repeat a request after 408, 409, 429 and every 5xx. So a failure that will
be the same the next time gets a status that they do not repeat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from bridge.core.events import Finished
from bridge.errors import LOG_IN, BackendProtocolError, BridgeError, InvalidRequest, Overloaded, Severity, UpstreamError
from bridge.redact import harmless

OVERLOADED = -32001
METHOD_NOT_FOUND = -32601


class RpcError(BackendProtocolError):
    """The child answered a call with an error."""

    def __init__(self, method: str, code: int, message: str) -> None:
        super().__init__(f"The Codex app-server refused {method}: {harmless(message)}")
        self.method = method
        self.rpc_code = code
        self.rpc_message = message

    @property
    def is_overload(self) -> bool:
        return self.rpc_code == OVERLOADED

    @classmethod
    def from_reply(cls, method: str, failure: Any) -> RpcError:
        """The error for the `error` member of a reply, whatever its type."""
        detail = failure if isinstance(failure, dict) else {}
        code = detail.get("code")
        return cls(method, code if isinstance(code, int) else 0, str(detail.get("message", failure)))


MAX_MESSAGE = 4096
"""How many characters of Codex's error message are passed on."""

_INCOMPLETE = re.compile(r"Incomplete response returned, reason: (\w+)")
_RETRY_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?s", re.IGNORECASE)
_STATUS = re.compile(r"\b(?:status|unexpected status)[: ]+(\d{3})\b")
_MISSING_VARIABLE = re.compile(r"Missing environment variable: `")
_UNCONNECTED = "error sending request"
"""Codex's message for every failed connection: a refused one, and one with an untrusted certificate."""
_TOO_LONG = "exceeds the maximum length"
"""Part of Codex's message for a conversation of over a million characters, where it has no thread/inject_items."""
_MODEL = re.compile(r"\bmodel\b", re.IGNORECASE)


class Row(NamedTuple):
    """What one failure means to a client. `cause` is CAP's name for it, where `code` covers several."""

    status: int
    code: str
    type: str
    severity: Severity = "fatal"
    cause: str | None = None


INVALID, AUTH, DENIED = "invalid_request_error", "authentication_error", "permission_error"
QUOTA, RATE, SERVER = "insufficient_quota", "rate_limit_error", "server_error"
FATAL: Severity = "fatal"
TRANSIENT: Severity = "transient"

# fmt: off
_KINDS = {
    "contextwindowexceeded":       Row(400, "context_length_exceeded", INVALID, FATAL,     None),
    "cyberpolicy":                 Row(400, "upstream_rejected",       INVALID, FATAL,     "policy_violation"),
    "misalignmentpolicyviolation": Row(400, "upstream_rejected",       INVALID, FATAL,     "policy_violation"),
    "unauthorized":                Row(401, "upstream_unauthorized",   AUTH,    FATAL,     None),
    "inferencehookdenied":         Row(403, "upstream_forbidden",      DENIED,  FATAL,     "policy_violation"),
    "toomanydenials":              Row(403, "too_many_denials",        DENIED,  FATAL,     "policy_violation"),
    "modelnotfound":               Row(404, "model_not_found",         INVALID, FATAL,     None),
    "usagelimitexceeded":          Row(429, "insufficient_quota",      QUOTA,   FATAL,     None),
    "sessionbudgetexceeded":       Row(429, "insufficient_quota",      QUOTA,   FATAL,     "session_budget_exceeded"),
    "ratelimitexceeded":           Row(429, "rate_limit_exceeded",     RATE,    TRANSIENT, None),
    "flexunavailable":             Row(429, "flex_unavailable",        RATE,    TRANSIENT, None),
    "sandboxerror":                Row(502, "upstream_error",          SERVER,  FATAL,     "sandbox_error"),
    "threadrollbackfailed":        Row(502, "upstream_error",          SERVER,  FATAL,     "thread_rollback_failed"),
    "activeturnnotsteerable":      Row(502, "upstream_error",          SERVER,  TRANSIENT, "turn_busy"),
    "serveroverloaded":            Row(503, "overloaded",              SERVER,  TRANSIENT, None),
    "policycapacityunavailable":   Row(503, "overloaded",              SERVER,  TRANSIENT, None),
}
"""Kinds that stand for one failure each.

`tooManyDenials` ends a turn in which Codex's approval reviewer has rejected too many actions. A retry would end in the
same way.
"""

_VAGUE_KINDS = {
    "badrequest":                     Row(400, "upstream_rejected", INVALID, FATAL,     None),
    "httpconnectionfailed":           Row(502, "upstream_error",    SERVER,  TRANSIENT, "upstream_unavailable"),
    "responsestreamconnectionfailed": Row(502, "upstream_error",    SERVER,  TRANSIENT, "upstream_unavailable"),
    "responsestreamdisconnected":     Row(502, "upstream_error",    SERVER,  TRANSIENT, "upstream_stream_disconnected"),
    "responsetoomanyfailedattempts":  Row(502, "upstream_error",    SERVER,  TRANSIENT, "upstream_retries_exhausted"),
    "internalservererror":            Row(502, "upstream_error",    SERVER,  TRANSIENT, "upstream_internal_error"),
    "other":                          Row(502, "upstream_error",    SERVER,  TRANSIENT, None),
}
"""Kinds that cover many failures: the provider's status or body says which, if there is one.

Many failures of the kind `other` are temporary: a broken stream, for example.
"""

_STATUSES = {
    401: Row(401, "upstream_unauthorized",   AUTH,    FATAL,     None),
    402: Row(429, "insufficient_quota",      QUOTA,   FATAL,     None),
    403: Row(403, "upstream_forbidden",      DENIED,  FATAL,     None),
    413: Row(413, "request_too_large",       INVALID, FATAL,     None),
    429: Row(429, "rate_limit_exceeded",     RATE,    TRANSIENT, None),
    503: Row(503, "overloaded",              SERVER,  TRANSIENT, "upstream_unavailable"),
    529: Row(503, "overloaded",              SERVER,  TRANSIENT, None),
}
"""The provider's statuses. Any other from 400 to 499 rejects the request, unless it is temporary (`_PASSING`).

402 is 429 `insufficient_quota`, as in OpenAI's API and the other backends; a header tells the SDKs not to retry it.
"""
# fmt: on
_PASSING = (408, 409, 425)
_REJECTED, _NO_MODEL, _UNKNOWN = _VAGUE_KINDS["badrequest"], _KINDS["modelnotfound"], _VAGUE_KINDS["other"]
# 401 like a missing login, and not 500: only the operator can set the variable, so SDKs must not retry.
_MISCONFIGURED = Row(401, "codex_misconfigured", AUTH)


COMPACTED = InvalidRequest(
    "Codex replaced the conversation with a summary, so the model would not see what the client sent. The turn was "
    "stopped. Send a shorter conversation.",
    code="context_length_exceeded",
)
"""The windows in the child's catalog prevent compaction. If Codex still compacts, the turn fails."""


def finished_from_error(message: str, info: object, details: object = None) -> Finished:
    """The end of a turn that Codex calls failed: incomplete where the answer was cut, else failed."""
    cut = _INCOMPLETE.search(message)
    if cut:
        return Finished("incomplete", reason=cut[1])
    return Finished("failed", error=error_from_codex(message, info, details))


def error_from_codex(message: str, info: object, details: object = None) -> BridgeError:
    """One of our errors for Codex's `message` and `codexErrorInfo`."""
    kind, status = _split_info(info)
    if status is None and (found := _STATUS.search(message)):
        status = int(found[1])
    upstream = _upstream_body(message)
    body = upstream.get("message")
    text = harmless((body if isinstance(body, str) and body else message)[:MAX_MESSAGE])
    if isinstance(details, str) and details and (more := harmless(details[:MAX_MESSAGE])) not in text:
        text = f"{text} ({more})"
    meaning = _KINDS.get(kind) or _meaning_of_status(kind, status, upstream, text)
    code, param = meaning.code, upstream.get("param")
    if meaning.code == _REJECTED.code and upstream.get("code"):
        code = str(upstream["code"])
    if meaning.code == "upstream_unauthorized":
        text = f"{text} {LOG_IN}"
    elif meaning is _MISCONFIGURED:
        text = f"{text} Set it where the bridge is started; `turnbridge doctor` checks it."
    wait = _RETRY_IN.search(message) if meaning.code == "rate_limit_exceeded" else None
    make = InvalidRequest if meaning.type == INVALID else UpstreamError
    return make(
        text,
        code=code,
        http_status=meaning.status,
        kind=meaning.type,
        severity=meaning.severity,
        cause=meaning.cause,
        param=param if isinstance(param, str) else None,
        retry_after=float(wait[1]) if wait else None,
    )


ERRORS = ("error", "codex/event/error", "codex/event/stream_error")
"""Notifications of an error, whether Codex retries or not."""


def is_unconnected(params: dict[str, Any]) -> bool:
    """Whether an error is that Codex could not connect to its provider."""
    error = params.get("error", params.get("msg"))
    if not isinstance(error, dict):
        return False
    texts = (error.get("message"), error.get("additionalDetails"), error.get("additional_details"))
    return any(isinstance(text, str) and _UNCONNECTED in text for text in texts)


def has_meaning(kind: str) -> bool:
    """Whether a kind of `codexErrorInfo`, in either spelling, is mapped."""
    name = _plain(kind)
    return name in _KINDS or name in _VAGUE_KINDS


def _meaning_of_status(kind: str, status: int | None, upstream: dict[str, Any], text: str) -> Row:
    """The meaning of a failure whose kind is not specific: by the provider's status, its body, or Codex's message."""
    if status in _STATUSES:
        return _STATUSES[status]
    # Before 0.166 Codex has no kind for this, and keeps of the provider's 404 the message alone.
    if upstream.get("code") == _NO_MODEL.code or (status == 404 and _MODEL.search(text)):
        return _NO_MODEL
    if upstream or (status is not None and 400 <= status < 500 and status not in _PASSING):
        return _REJECTED
    if _MISSING_VARIABLE.match(text):
        return _MISCONFIGURED
    return _VAGUE_KINDS.get(kind, _UNKNOWN)


def _split_info(info: object) -> tuple[str, int | None]:
    """(kind in lower case without separators, HTTP status) of a codexErrorInfo."""
    detail: object = None
    if isinstance(info, dict) and len(info) == 1:
        info, detail = next(iter(info.items()))
    kind = _plain(info) if isinstance(info, str) else ""
    status = None
    if isinstance(detail, dict):
        status = detail.get("httpStatusCode", detail.get("http_status_code"))
    return kind, status if isinstance(status, int) else None


def _plain(kind: str) -> str:
    return kind.replace("_", "").lower()


def _upstream_body(message: str) -> dict[str, Any]:
    """The provider's own error object, where Codex passes its body on as the message.

    ChatGPT's backend refuses a model with `{"detail": "…"}`.
    """
    if not message.lstrip().startswith("{"):
        return {}
    try:
        body = orjson.loads(message)
    except orjson.JSONDecodeError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    if error is None and isinstance(body, dict) and isinstance(body.get("detail"), str):
        return {"message": body["detail"]}
    return error if isinstance(error, dict) else {}


def refusal(error: BridgeError) -> BridgeError:
    """Why a turn could not begin. Some of the child's errors mean something more specific than a protocol error."""
    if isinstance(error, RpcError) and error.is_overload:
        return Overloaded(f"The Codex app-server is overloaded: {harmless(error.rpc_message)}", retry_after=2)
    if isinstance(error, RpcError) and _TOO_LONG in error.rpc_message:
        return InvalidRequest(
            f"The conversation is too long for this version of Codex: {error.rpc_message}",
            code="context_length_exceeded",
        )
    return error


# What Codex finds wrong with its configuration when it starts: its `configWarning` notifications.

CONFIG_WARNING = "configWarning"
INVALID_CONFIG = "Invalid configuration; using defaults."
_SANDBOX = "bubblewrap"
"""Part of a warning at every start: Codex recommends a sandbox program, although it bundles one."""


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One warning, each text on one line."""

    summary: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.summary} {self.details}".rstrip()

    @property
    def is_fatal(self) -> bool:
        """Whether Codex ignores the whole of config.toml: its providers, its model, everything."""
        return self.summary.startswith(INVALID_CONFIG.partition(";")[0])

    def without_path(self, home: str, *, is_ours: bool) -> ConfigWarning:
        """The warning with `config.toml` in place of its path in the child's `home`.

        Where that home is the bridge's own, lines and columns are left out as well: the user's file has others.
        """
        path = re.compile(re.escape(f"{home}/config.toml") + (r"(?::\d+)*" if is_ours else ""))
        return ConfigWarning(path.sub("config.toml", self.summary), path.sub("config.toml", self.details))


def read_config_warning(params: dict[str, Any]) -> ConfigWarning | None:
    """The warning in a notification; None for one that is not about the user's configuration."""
    texts = [params.get("summary"), params.get("details")]
    summary, details = (" ".join(text.split()) if isinstance(text, str) else "" for text in texts)
    return None if not summary or _SANDBOX in summary else ConfigWarning(summary, details)
