"""Plain JSON-RPC transcripts, `{"t": seconds, "dir": "out" | "in", "msg": {…}}` a line, as records of a log.

A transcript knows nothing of clients. Each thread in it becomes a request to /v1/responses, made up from what the
child was asked: enough to see what today's code makes of the answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bridge.appserver.rpc import key_of
from bridge.protolog.read import parse_line

_BEGINS = ("thread/start", "newConversation")
_PROMPTS = ("thread/inject_items", "turn/start", "sendUserTurn", "sendUserMessage")


@dataclass(slots=True)
class TranscriptReader:
    """Turns lines into records, one for one. `name` makes the requests' ids."""

    name: str
    _seq: int = 0
    _calls: dict[Any, tuple[str, str | None]] = field(default_factory=dict)
    """Calls in flight: (method, request)."""
    _requests: dict[str, str] = field(default_factory=dict)
    """Threads and the requests that they were begun for."""
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
        method, rpc_id = message.get("method"), message.get("id")
        params = message.get("params")
        key = key_of(params)
        if isinstance(method, str) and rpc_id is None:
            kind, req_id = "rpc_notification", self._requests.get(key or "")
        elif isinstance(method, str):
            kind = "rpc_request" if direction == "out" else "server_request"
            req_id = self._ask(method, rpc_id, key) if direction == "out" else self._requests.get(key or "")
        elif direction == "in":
            kind = "rpc_error" if "error" in message else "rpc_response"
            method, req_id = self._calls.pop(_hashable(rpc_id), (None, None))
            self._begun(method, req_id, message.get("result"))
        else:
            kind, req_id = "server_reply", None
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
        named = {"method": method, "conversation_id": key, "rpc_id": rpc_id}
        return record | {name: value for name, value in named.items() if value is not None}

    def _ask(self, method: str, rpc_id: Any, key: str | None) -> str | None:
        if method in _BEGINS:
            self._count += 1
            req_id: str | None = f"{self.name}-{self._count}"
        else:
            req_id = self._requests.get(key or "")
        self._calls[_hashable(rpc_id)] = (method, req_id)
        return req_id

    def _begun(self, method: str | None, req_id: str | None, result: Any) -> None:
        if method not in _BEGINS or req_id is None or not isinstance(result, dict):
            return
        thread = result.get("thread")
        found = thread.get("id") if isinstance(thread, dict) else result.get("conversationId")
        if isinstance(found, str):
            self._requests[found] = req_id


def body_from_calls(calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The body of a request that would have led to these calls of a child; None without any that prompts."""
    model, items, instructions = "unknown", deque[dict[str, Any]](), None
    for call in calls:
        method, params = call.get("method"), call.get("params")
        if not isinstance(params, dict):
            continue
        if method in _BEGINS:
            model, instructions = params.get("model") or model, params.get("developerInstructions")
        elif method in _PROMPTS:
            items += _said(params.get("items") or params.get("input"))
    if not items:
        return None
    body = {"model": model, "input": list(items), "stream": True, "store": False}
    return body | ({"instructions": instructions} if isinstance(instructions, str) and instructions else {})


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
