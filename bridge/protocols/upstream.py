"""What the protocols of providers share: the names of functions, the base class of the decoders, and errors."""

from __future__ import annotations

import datetime
import email.utils
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from bridge.core.buffer import EventBuffer
from bridge.core.events import CallBegun, CallDelta, ToolCall, TurnEvent
from bridge.core.items import FunctionTool
from bridge.core.stages import ItemOrder
from bridge.errors import BridgeError, InvalidRequest, UpstreamError
from bridge.protocols.sse import SseReader
from bridge.redact import harmless

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def legal_name(name: str, longest: int) -> str:
    """The nearest name that providers accept. Two names may become the same."""
    return _NOT_IN_NAMES.sub("_", name.replace(".", "__"))[:longest] or "_"


class ToolNames:
    """The functions of one request under names that a provider accepts, each different from the others.

    Providers accept letters, digits, underscores and dashes, up to `longest`: no dot, which divides a namespace from a
    name. `reserved` names are not given to functions.
    """

    def __init__(self, functions: Iterable[FunctionTool], longest: int, reserved: Collection[str] = ()) -> None:
        functions = tuple(functions)
        self._longest = longest
        self._names: dict[str, str] = {}
        self._numbers = dict.fromkeys(reserved, 1)
        """The last number that was appended to each name in use."""
        # A function with a legal name keeps it, wherever it is in the list.
        for tool in sorted(functions, key=lambda tool: legal_name(tool.full_name, longest) != tool.full_name):
            if tool.full_name not in self._names:
                self._names[tool.full_name] = self._free(legal_name(tool.full_name, longest))
        self.tools: dict[str, FunctionTool] = {}
        """By their names upstream, in the client's order."""
        for tool in functions:
            self.tools.setdefault(self._names[tool.full_name], tool)

    def of(self, full_name: str) -> str:
        """The name of a function upstream; also of one in the history that is no longer offered."""
        return self._names.get(full_name) or legal_name(full_name, self._longest)

    def _free(self, name: str) -> str:
        free = name
        while free in self._numbers:
            # Counted for each name: to try every number again would be quadratic for many names with one beginning.
            self._numbers[name] += 1
            ending = f"_{self._numbers[name]}"
            free = name[: self._longest - len(ending)] + ending
        self._numbers[free] = 1
        return free


CHANGED_ARGUMENTS = "The provider sent the arguments of a call in pieces, and then others as the whole. Try again."
BROKEN_EVENT = "The provider sent an event that makes no sense. Try again."
_BROKEN = (ValueError, KeyError, TypeError, AttributeError)
"""What a decoder raises for an event of an unknown shape."""


@dataclass(slots=True)
class _OpenCall:
    """The arguments of a call so far, and how many of their characters have been passed on."""

    pieces: list[str] = field(default_factory=list)
    sent: int = 0


class UpstreamBuffer(EventBuffer, ABC):
    """One answer, decoded one event at a time.

    A live stream fails with its first broken event (`receive`). In a recorded one broken events are skipped
    (`receive_or_skip`), so that a damaged log can still be shown.
    """

    reader: type[SseReader] = SseReader
    """Splits the body into events."""

    def __init__(self) -> None:
        super().__init__()
        self._order = ItemOrder()
        self._open_calls: dict[str, _OpenCall] = {}
        self.answer_id: str | None = None
        self.finish_reason: str | None = None
        """How the answer ended, in the protocol's own term."""
        self.error_object: dict[str, Any] | None = None
        """The error object as it was sent."""
        self.skipped = 0
        """Events that `receive_or_skip` could not read."""

    @abstractmethod
    def receive_event(self, event: Any) -> None:
        """Decode one event. Raises ValueError, KeyError, TypeError or AttributeError for an unknown shape."""

    def receive(self, data: bytes) -> None:
        """Decode one event from its bytes. Raises UpstreamError for an unknown shape."""
        try:
            self.receive_event(orjson.loads(data))
        except _BROKEN:
            raise UpstreamError(BROKEN_EVENT, code="broken_event") from None

    def receive_or_skip(self, event: Any) -> None:
        """Decode one event of a log; one of an unknown shape is only counted."""
        try:
            self.receive_event(event)
        except _BROKEN:
            self.skipped += 1

    def over(self, *, told: bool) -> None:
        """The stream is over: `told` by `[DONE]`, or the body ended. For APIs whose last event is not marked."""

    def take(self) -> list[TurnEvent]:
        """All events since the last call. Events in the middle of a call wait for its end."""
        return self._order.feed(super().take())

    def call_begun(self, call: CallBegun) -> None:
        """The model begins a call of a client's function; `called` ends it."""
        self._said = True
        self._streamed.setdefault(call.id, 0)
        self._open_calls[call.id] = _OpenCall()
        self.add(call)

    def call_delta(self, call: str, piece: str) -> None:
        """A piece of the arguments of a call that has begun. Leading white space waits: alone it means no arguments."""
        opened = self._open_calls[call]
        opened.pieces.append(piece)
        self._size += len(piece)
        if not opened.sent:
            if not piece.strip():
                return
            piece = "".join(opened.pieces)
        opened.sent += len(piece)
        last = self._events[-1] if self._events else None
        if isinstance(last, CallDelta) and last.id == call:
            last.pieces.append(piece)
        else:
            self.add(CallDelta(call, [piece]))

    def arguments_of(self, call: str) -> str:
        """The arguments so far of a call that has begun."""
        return "".join(self._open_calls[call].pieces)

    def called(self, call: ToolCall) -> None:
        opened = self._open_calls.pop(call.id, None)
        if opened is not None:
            sent = "".join(opened.pieces)[: opened.sent]
            if not call.arguments.startswith(sent):
                # What was sent cannot be taken back. It is valid if it means the same; otherwise the call must not run.
                if not _is_same_json(sent, call.arguments):
                    return self.fail(UpstreamError(CHANGED_ARGUMENTS, code="broken_event"))
                call = replace(call, arguments=sent)
        return super().called(call)


def _is_same_json(one: str, other: str) -> bool:
    return is_json(one) and is_json(other) and bool(orjson.loads(one) == orjson.loads(other))


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def string(value: Any) -> str:
    """A string. Raises TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def text_or_none(value: Any) -> str | None:
    """A string that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


MAX_SAID = 2000
"""Characters of a provider's message that are passed on."""

_OUT_OF_QUOTA = frozenset(
    {
        "usage_limit_reached",
        "usage_not_included",
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_error",
    }
)
_OVERLOADED = frozenset({"server_is_overloaded", "slow_down", "overloaded", "overloaded_error"})
_STATUS = {
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "cyber_policy": 400,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "request_too_large": 413,
    "authentication_error": 401,
    "permission_error": 403,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
}
"""The status that an error would have had before the stream."""

_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_CREDIT = re.compile(r"credit balance is too low", re.IGNORECASE)
_TOO_LONG = re.compile(r"prompt is too long|maximum context length|context window", re.IGNORECASE)


def error_from_status(status: int, headers: Mapping[str, str], body: bytes, now: datetime.datetime) -> BridgeError:
    """The error of an answer that is not a stream. The names in `headers` are in lower case."""
    said = _error_object(body)
    text = _words(said) or _plain_words(status, headers, body)
    wait = retry_after(headers, now)
    if 300 <= status < 400:
        return UpstreamError(f"The provider answers {status}, a redirect; check the base URL.")
    return _error(status, said, text, _wait(said) if wait is None else wait)


def error_from_object(said: Mapping[str, Any], status: int | None = None) -> BridgeError:
    """The error of a stream's `error` or `response.failed` event: `message`, `code` or `type`, `param`.

    Some servers give the status that it would have had before the stream.
    """
    text = _words(said) or "The provider failed without saying why."
    if status is not None:
        return _error(status, said, text, _wait(said))
    statuses = (_STATUS.get(name) for name in (_code(said), text_or_none(said.get("type"))) if name)
    return _error(next(filter(None, statuses), 500), said, text, None)


def _error(status: int, said: Mapping[str, Any], text: str, wait: float | None) -> BridgeError:
    code, fail = _code(said), partial(UpstreamError, text)
    if status == 402 or code in _OUT_OF_QUOTA or _NO_CREDIT.search(text):
        # Waiting a moment does not help, so this is not transient: no automatic retry.
        return fail(code="insufficient_quota", http_status=429, kind="insufficient_quota", retry_after=wait)
    if status == 401 or _is_about_key(said.get("details")):
        return fail(code="upstream_unauthorized", http_status=401, kind="authentication_error")
    if status == 403:
        return fail(code="upstream_forbidden", http_status=403, kind="permission_error")
    fail = partial(fail, severity="transient", retry_after=wait)
    if status == 429:
        return fail(code="rate_limit_exceeded", http_status=429, kind="rate_limit_error")
    if code in _OVERLOADED or status in (503, 529):
        return fail(code="overloaded", http_status=503)
    if status >= 500 or status == 408:
        return fail()
    if _TOO_LONG.search(text):
        code = "context_length_exceeded"
    elif code == "not_found_error" or (status == 404 and "model" in text.lower()):
        code = "model_not_found"
    elif status == 413:
        code = "request_too_large"
    http_status = 413 if status == 413 else 404 if code == "model_not_found" else 400
    param = text_or_none(said.get("param"))
    return InvalidRequest(text, code=code or "upstream_rejected", http_status=http_status, param=param)


def retry_after(headers: Mapping[str, str], now: datetime.datetime) -> float | None:
    """Seconds to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None for anything else."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after", "")
    if (seconds := _number(given)) is not None:
        return seconds
    try:
        then = email.utils.parsedate_to_datetime(given)
    except (ValueError, OverflowError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return max(0.0, (then - now).total_seconds())


def _error_object(body: bytes) -> Mapping[str, Any]:
    """The error in a body: OpenAI's `{"error": {…}}`, a bare string there, or `{"detail": …}`."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if isinstance(data, list) and len(data) == 1:  # Gemini
        data = data[0]
    if not isinstance(data, dict):
        return {}
    error = data.get("error", data.get("detail", data))
    if isinstance(error, str):
        return {"message": data.get("error_description") or error}
    return error if isinstance(error, dict) else {}


def _words(said: Mapping[str, Any]) -> str | None:
    message = text_or_none(said.get("message"))
    # Cut first: an event may have megabytes.
    return harmless(message[: 2 * MAX_SAID])[:MAX_SAID] if message else None


def _plain_words(status: int, headers: Mapping[str, str], body: bytes) -> str:
    if "html" in headers.get("content-type", "") or body.lstrip()[:1] == b"<":
        return f"The provider answers {status} with a web page; check the base URL and any proxy in between."
    text = " ".join(body[: 2 * MAX_SAID].decode("utf-8", "replace").split())
    return f"The provider answers {status}" + (f": {harmless(text)[:200]}" if text else ".")


def _wait(said: Mapping[str, Any]) -> float | None:
    """Seconds to wait, from an error: Codex's, or Google's `{"@type": "…RetryInfo", "retryDelay": "30s"}`."""
    if seconds := _number(said.get("resets_in_seconds")):
        return seconds
    details = said.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            return _number(delay[:-1])
    return None


def _is_about_key(details: Any) -> bool:
    """Whether Google's details report an invalid key: Gemini's status for that is 400."""
    found = details if isinstance(details, list) else ()
    return any(isinstance(detail, dict) and detail.get("reason") == "API_KEY_INVALID" for detail in found)


def _code(said: Mapping[str, Any]) -> str | None:
    """The code, if it is one that programs can compare."""
    found = text_or_none(said.get("code")) or text_or_none(said.get("type"))
    return found if found is not None and _CODE.fullmatch(found) else None


def _number(value: Any) -> float | None:
    """A finite, non-negative number of seconds; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < float("inf") else None
