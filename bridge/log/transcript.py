"""Plain JSON-RPC transcripts, `{"t": seconds, "dir": "out" | "in", "msg": {…}}` a line, as records of a log.

A transcript has no clients. Each turn in it becomes a request to /v1/responses, made up from the calls to the child:
enough to see how today's code translates the answer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bridge.appserver.dialect import BEGINS, ENDS, PARTS, PROMPTS, STARTS, Dialect, dialect_of, key_of
from bridge.appserver.standin.recorded import key_in
from bridge.core.events import Usage
from bridge.exact_json import member, objects, safe_dumps
from bridge.log.read import parse_line

_STEER = "turn/steer"
"""The prompt that never begins a turn."""


@dataclass(slots=True)
class _Thread:
    """A thread, and its current turn."""

    req_id: str
    dialect: Dialect
    settings: dict[str, Any] = field(default_factory=dict)
    """Its `model` and `developerInstructions`, as far as they are known."""
    over: bool = False
    """Whether the turn has ended."""


@dataclass(slots=True)
class TranscriptReader:
    """Converts lines to records, one for one. `name` makes the requests' ids.

    A turn begins with the call that creates its thread or, later in the thread, with the first prompt after the end of
    the previous turn. The record of a prompt has the settings of its thread in `thread`.
    """

    name: str
    _seq: int = 0
    _calls: dict[Any, tuple[str, _Thread | None, str | None]] = field(default_factory=dict)
    """Calls in flight: (method, thread, request)."""
    _threads: dict[str, _Thread] = field(default_factory=dict)
    _turns: int = 0

    def record(self, line: bytes) -> dict[str, Any] | None:
        """A line as a record; None if it is not a line of a transcript."""
        entry = parse_line(line)
        at, direction, message = member(entry, "t"), member(entry, "dir"), member(entry, "msg")
        if not isinstance(at, int | float) or direction not in ("in", "out") or not isinstance(message, dict):
            return None
        method, rpc_id, params = message.get("method"), message.get("id"), message.get("params")
        method = method if isinstance(method, str) else None
        key = key_of(params)
        thread = self._threads.get(key or "")
        if method is not None and rpc_id is None:
            kind = "rpc_notification"
            if thread is not None and dialect_of(method) == thread.dialect:
                self._follow(thread, method)
        elif method is not None:
            kind = "rpc_request" if direction == "out" else "server_request"
            if direction == "out":
                thread = self._call(method, rpc_id, key, params if isinstance(params, dict) else {})
        else:
            kind = "server_reply"
        req_id = None if thread is None else thread.req_id
        if method is None and direction == "in":
            kind = "rpc_error" if "error" in message else "rpc_response"
            method, thread, req_id = self._calls.pop(hashable_id(rpc_id), (None, None, None))
            key = self._reply(method, thread, message)
        record = {
            "ts": "",
            "mono": float(at),
            "seq": self._seq,
            "phase": "backend_submission" if kind == "rpc_request" else "backend_io",
            "direction": direction,
            "kind": kind,
            "req_id": req_id,
            "payload": message,
        }
        self._seq += 1
        settings = thread.settings if thread is not None and kind == "rpc_request" and method in PROMPTS else None
        named = {"method": method, "conversation_id": key, "rpc_id": rpc_id, "thread": settings}
        return record | {name: value for name, value in named.items() if value is not None}

    def _call(self, method: str, rpc_id: Any, key: str | None, params: dict[str, Any]) -> _Thread | None:
        """The thread that a call creates, or is about."""
        thread = self._threads.get(key or "")
        if method in BEGINS:
            thread = _Thread(self._new_id(), dialect_of(method), _settings(params))
        elif method in PARTS or (method in PROMPTS and method != _STEER):
            if thread is None:
                # The transcript begins within its thread.
                thread = _Thread(self._new_id(), dialect_of(method))
                if key is not None:
                    self._threads[key] = thread
            elif thread.over:
                thread.req_id, thread.over = self._new_id(), False
            if method in PROMPTS:
                thread.settings |= _settings(params)
        self._calls[hashable_id(rpc_id)] = (method, thread, None if thread is None else thread.req_id)
        return thread

    def _follow(self, thread: _Thread, method: str) -> None:
        """Note the end of a turn, and one that begins without a prompt: two prompts at once may become two turns."""
        if method in ENDS:
            thread.over = True
        elif method in STARTS and thread.over:
            thread.req_id, thread.over = self._new_id(), False

    def _reply(self, method: str | None, thread: _Thread | None, message: dict[str, Any]) -> str | None:
        """The id of the thread that a reply creates."""
        if thread is None:
            return None
        if method in PROMPTS and "error" in message:
            thread.over = True
        result = message.get("result")
        key = key_in(result) if method in BEGINS else None
        if key is not None:
            self._threads[key] = thread
            thread.settings = _settings(result) | thread.settings
        return key

    def _new_id(self) -> str:
        self._turns += 1
        return f"{self.name}-{self._turns}"


def body_from_calls(calls: list[dict[str, Any]], thread: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The body of a request that would have led to these calls; None if none of them prompts.

    `thread` has the settings of the turn's thread, if they are known.
    """
    items: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    for call in calls:
        method, params = call.get("method"), call.get("params")
        if not isinstance(params, dict):
            continue
        if method in BEGINS:
            settings |= _settings(params)
            items += _input_items(params.get("history"))
        elif method in PARTS or method in PROMPTS:
            items += _input_items(params.get("items") or params.get("input"))
            if method == "review/start":
                items.append({"role": "user", "content": f"review/start {safe_dumps(params.get('target')).decode()}"})
    if not items:
        return None
    settings |= thread or {}
    body = {"model": settings.get("model") or "unknown", "input": items, "stream": True, "store": False}
    instructions = settings.get("developerInstructions")
    return body | ({"instructions": instructions} if instructions else {})


def total_used(payload: Any) -> Usage | None:
    """What a thread has used since its beginning, from a message with its counts."""
    # Imported here: the dialects take longer to load than most commands take to run.
    from bridge.appserver import current, legacy

    with suppress(KeyError, TypeError, AttributeError):
        return current.read_counts(payload["params"]["tokenUsage"]["total"])
    before = list(objects(member(payload, "result", "initialMessages")))
    for message in (member(payload, "params", "msg"), *reversed(before)):
        with suppress(KeyError, TypeError, AttributeError):
            return legacy.read_counts(message["info"]["total_token_usage"])
    return None


def hashable_id(value: Any) -> Any:
    """An id of JSON-RPC as a key: a log may contain anything there."""
    return value if isinstance(value, int | str) else repr(value)


def _settings(params: Any) -> dict[str, Any]:
    """A thread's model and instructions in a call or a reply. resumeConversation has them in `overrides`."""
    names = ("model", "developerInstructions")
    found = {name: member(params, "overrides", name) or member(params, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _input_items(items: Any) -> list[dict[str, Any]]:
    """Input of a turn: Responses items as they are, texts of both dialects as messages."""
    found = []
    for item in objects(items):
        text = item.get("text") or member(item, "data", "text")
        if isinstance(text, str):
            found.append({"role": "user", "content": text})
        elif item.get("type") not in ("text", "image"):
            found.append(item)
    return found
