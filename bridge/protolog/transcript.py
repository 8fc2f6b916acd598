"""Plain JSON-RPC transcripts, `{"t": seconds, "dir": "out" | "in", "msg": {…}}` a line, as records of a log.

A transcript knows nothing of clients. Each turn in it becomes a request to /v1/responses, made up from what the child
was asked: enough to see what today's code makes of the answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bridge.appserver.rpc import key_of
from bridge.appserver.standin.tape import BEGINS, ENDS, PARTS, PROMPTS, Dialect, key_in
from bridge.protolog.loose import dumps, member, objects
from bridge.protolog.read import parse_line

_STARTED = ("turn/started", "codex/event/task_started")
STEERS = "turn/steer"
"""The prompt that never begins a turn."""
COUNTS = ("thread/tokenUsage/updated", "codex/event/token_count", "resumeConversation")
"""Notifications, and a reply, that tell how many tokens a thread has used."""
_TOKENS = {
    "inputTokens": "input_tokens",
    "cachedInputTokens": "cached_input_tokens",
    "outputTokens": "output_tokens",
    "reasoningOutputTokens": "reasoning_output_tokens",
}
"""What is counted, in the words of both dialects."""


@dataclass(slots=True)
class _Thread:
    """A thread, and the turn in it that its messages belong to now."""

    req_id: str
    dialect: Dialect
    about: dict[str, Any] = field(default_factory=dict)
    """Its `model` and `developerInstructions`, as far as they are known."""
    over: bool = False
    """Whether that turn has ended."""


@dataclass(slots=True)
class TranscriptReader:
    """Turns lines into records, one for one. `name` makes the requests' ids.

    A turn begins with the call that makes its thread or, later in the thread, with the first prompt after the end of
    the turn before. The records of prompts tell in `thread` what the thread was begun with.
    """

    name: str
    _seq: int = 0
    _calls: dict[Any, tuple[str, _Thread | None, str | None]] = field(default_factory=dict)
    """Calls in flight: (method, thread, request)."""
    _threads: dict[str, _Thread] = field(default_factory=dict)
    _count: int = 0

    def record(self, line: bytes) -> dict[str, Any] | None:
        """A line as a record; None when it is no line of a transcript."""
        entry = parse_line(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("msg"), dict):
            return None
        at, direction, message = entry.get("t"), entry.get("dir"), entry["msg"]
        if not isinstance(at, int | float) or direction not in ("in", "out"):
            return None
        return self._record(float(at), direction, message)

    def _record(self, at: float, direction: str, message: dict[str, Any]) -> dict[str, Any]:
        method, rpc_id, params = message.get("method"), message.get("id"), message.get("params")
        method = method if isinstance(method, str) else None
        key = key_of(params)
        thread = self._threads.get(key or "")
        if method is not None and rpc_id is None:
            kind = "rpc_notification"
            if thread is not None and method.startswith("codex/event") == (thread.dialect == "legacy"):
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
            method, thread, req_id = self._calls.pop(_hashable(rpc_id), (None, None, None))
            key = self._reply(method, thread, message)
        record = {
            "ts": "",
            "mono": at,
            "seq": self._seq,
            "phase": "backend_submission" if kind == "rpc_request" else "backend_io",
            "direction": direction,
            "kind": kind,
            "req_id": req_id,
            "payload": message,
        }
        self._seq += 1
        about = thread.about if thread is not None and kind == "rpc_request" and method in PROMPTS else None
        named = {"method": method, "conversation_id": key, "rpc_id": rpc_id, "thread": about}
        return record | {name: value for name, value in named.items() if value is not None}

    def _call(self, method: str, rpc_id: Any, key: str | None, params: dict[str, Any]) -> _Thread | None:
        """The thread that a call makes, or is about."""
        thread = self._threads.get(key or "")
        if method in BEGINS:
            thread = _Thread(self._new_id(), BEGINS[method], _about(params))
        elif method in PARTS or (method in PROMPTS and method != STEERS):
            if thread is None:
                # The transcript begins within its thread.
                thread = _Thread(self._new_id(), "legacy" if "conversationId" in params else "current")
                if key is not None:
                    self._threads[key] = thread
            elif thread.over:
                thread.req_id, thread.over = self._new_id(), False
            if method in PROMPTS:
                thread.about |= _about(params)
        self._calls[_hashable(rpc_id)] = (method, thread, None if thread is None else thread.req_id)
        return thread

    def _follow(self, thread: _Thread, method: str) -> None:
        """Notice where a turn ends, and one that begins by itself: two prompts at once may become two turns."""
        if method in ENDS:
            thread.over = True
        elif method in _STARTED and thread.over:
            thread.req_id, thread.over = self._new_id(), False

    def _reply(self, method: str | None, thread: _Thread | None, message: dict[str, Any]) -> str | None:
        """The thread that it names, if it names one."""
        if thread is None:
            return None
        if method in PROMPTS and "error" in message:
            thread.over = True
        result = message.get("result")
        key = key_in(result) if method in BEGINS else None
        if key is not None:
            self._threads[key] = thread
            thread.about = _about(result) | thread.about
        return key

    def _new_id(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"


def body_from_calls(calls: list[dict[str, Any]], thread: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The body of a request that would have led to these calls of a child; None without any that prompts.

    `thread` is what the turn's thread was begun with, if that is known.
    """
    items = deque[dict[str, Any]]()
    about: dict[str, Any] = {}
    for call in calls:
        method, params = call.get("method"), call.get("params")
        if not isinstance(params, dict):
            continue
        if method in BEGINS:
            about |= _about(params)
            items += _said(params.get("history"))
        elif method in PARTS or method in PROMPTS:
            items += _said(params.get("items") or params.get("input"))
            if method == "review/start":
                items.append({"role": "user", "content": f"review/start {dumps(params.get('target'))}"})
    if not items:
        return None
    about |= thread or {}
    body = {"model": about.get("model") or "unknown", "input": list(items), "stream": True, "store": False}
    instructions = about.get("developerInstructions")
    return body | ({"instructions": instructions} if instructions else {})


def total_used(payload: Any) -> dict[str, Any] | None:
    """What a thread has used since its beginning, from one of `COUNTS`, in the words of the current dialect."""
    total = member(payload, "params", "tokenUsage", "total")
    if isinstance(total, dict):
        return total
    before = objects(member(payload, "result", "initialMessages"))
    for message in (member(payload, "params", "msg"), *reversed(list(before))):
        total = member(message, "info", "total_token_usage")
        if isinstance(total, dict):
            return {new: total.get(old, 0) for new, old in _TOKENS.items()}
    return None


def _about(params: Any) -> dict[str, Any]:
    """What a call or a reply tells of a thread: its model and its instructions. resumeConversation has `overrides`."""
    found = {}
    for name in ("model", "developerInstructions"):
        value = member(params, "overrides", name) or member(params, name)
        if isinstance(value, str):
            found[name] = value
    return found


def _said(items: Any) -> list[dict[str, Any]]:
    """Input of a turn: Responses items as they are, texts of both dialects as messages."""
    said = []
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        data = item.get("data")
        text = item.get("text") or (data.get("text") if isinstance(data, dict) else None)
        if isinstance(text, str):
            said.append({"role": "user", "content": text})
        elif item.get("type") not in ("text", "image"):
            said.append(item)
    return said


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else repr(value)
