"""A sans-I/O JSON-RPC peer: our calls and their replies, the child's notifications and requests.

The peer neither reads nor writes. `receive` takes one line of the child; what has to be written collects in
`outgoing`. Codex omits the `jsonrpc` member and adds others, so only what is needed is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from bridge import exact_json
from bridge.appserver.counts import ChildCounts
from bridge.appserver.tap import Tap
from bridge.errors import BackendProtocolError, BridgeError
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


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one of our calls: a result, or an error."""

    result: Any = None
    error: BridgeError | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    method: str
    on_reply: Callable[[Reply], None]
    req_id: str | None


class Peer:
    """Our end of the connection.

    `on_notification(method, params)` and `answer(line, method, key)` are called from within `receive`; neither may
    raise. The answer is a line, or None where the request is to stay open.
    """

    def __init__(
        self,
        *,
        on_notification: Callable[[str, dict[str, Any]], None],
        answer: Callable[[bytes, str, str | None], bytes | None],
        tap: Tap | None = None,
        counts: ChildCounts | None = None,
    ) -> None:
        self.outgoing: list[bytes] = []
        self.garbage = 0
        """Lines that were no message."""
        self.strays = 0
        """Replies to calls that nobody waits for (late, doubled or invented)."""
        self._on_notification = on_notification
        self._answer = answer
        self._tap = tap
        self._counts = counts or ChildCounts()
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0

    def __repr__(self) -> str:
        return f"<Peer pending={len(self._pending)} garbage={self.garbage} strays={self.strays}>"

    def call(self, method: str, params: Any, on_reply: Callable[[Reply], None], req_id: str | None = None) -> int:
        """Queue a request. `on_reply` is called once, unless the returned id is forgotten before."""
        self._last_id += 1
        self._pending[self._last_id] = _Pending(method, on_reply, req_id)
        line = encode_request(self._last_id, method, params)
        self.outgoing.append(line + b"\n")
        if self._tap is not None:
            self._tap.rpc(
                "out",
                "rpc_request",
                line,
                method=method,
                rpc_id=self._last_id,
                key=key_of(params),
                req_id=req_id,
            )
        return self._last_id

    def notify(self, method: str, params: Any = None) -> None:
        """Queue a notification."""
        message = {"jsonrpc": "2.0", "method": method}
        line = orjson.dumps(message if params is None else {**message, "params": params})
        self.outgoing.append(line + b"\n")
        if self._tap is not None:
            self._tap.rpc("out", "rpc_notification", line, method=method)

    def forget(self, call_id: int) -> None:
        """Nobody waits for this reply any more; it will count as a stray."""
        self._pending.pop(call_id, None)

    def receive(self, line: bytes) -> None:
        """Take one line of the child: a reply, a notification, a request, or garbage."""
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            self._receive_garbage(line)
            return
        method = message.get("method")
        if isinstance(method, str):
            params = message.get("params")
            if not isinstance(params, dict):
                params = {}
            if "id" in message:
                self._receive_request(line, method, message["id"], key_of(params))
                return
            if self._tap is not None:
                self._tap.rpc("in", "rpc_notification", line, method=method, key=key_of(params))
            self._on_notification(method, params)
        elif "id" in message:
            self._receive_reply(line, message)
        else:
            self._receive_garbage(line)

    def close(self, error: BridgeError) -> None:
        """The child is gone: every pending call fails with `error`."""
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.on_reply(Reply(error=error))

    def _receive_garbage(self, line: bytes) -> None:
        self.garbage += 1
        self._counts.garbage += 1
        if self._tap is not None:
            self._tap.rpc("in", "garbage", line)

    def _receive_request(self, line: bytes, method: str, rpc_id: Any, key: str | None) -> None:
        reply = self._answer(line, method, key)
        if self._tap is not None:
            self._tap.rpc("in", "server_request", line, method=method, rpc_id=_known_id(rpc_id), key=key)
        if reply is not None:
            self._reply(reply, method, rpc_id, key)

    def reply(self, request: bytes, reply: bytes, key: str) -> None:
        """Answer a request of the child's that was left open."""
        message = orjson.loads(request)
        self._reply(reply, message["method"], message["id"], key)

    def _reply(self, reply: bytes, method: str, rpc_id: Any, key: str | None) -> None:
        self.outgoing.append(reply + b"\n")
        if self._tap is not None:
            self._tap.rpc("out", "server_reply", reply, method=method, rpc_id=_known_id(rpc_id), key=key)

    def _receive_reply(self, line: bytes, message: dict[str, Any]) -> None:
        call_id = message["id"]
        # A bool is an int to Python, and 1.0 == 1: only a plain int is one of our ids.
        pending = self._pending.pop(call_id, None) if type(call_id) is int else None
        if pending is None:
            self.strays += 1
            self._counts.strays += 1
            if self._tap is not None:
                self._tap.rpc("in", "rpc_response", line)
            return
        failure = message.get("error")
        if self._tap is not None:
            kind = "rpc_response" if failure is None else "rpc_error"
            self._tap.rpc("in", kind, line, method=pending.method, rpc_id=call_id, req_id=pending.req_id)
        if failure is None:
            pending.on_reply(Reply(result=message.get("result")))
            return
        detail = failure if isinstance(failure, dict) else {}
        code = detail.get("code")
        error = RpcError(pending.method, code if isinstance(code, int) else 0, str(detail.get("message", failure)))
        pending.on_reply(Reply(error=error))


def _known_id(rpc_id: Any) -> int | str | None:
    return rpc_id if isinstance(rpc_id, int | str) else None


def encode_request(call_id: int, method: str, params: Any) -> bytes:
    """One request, members in the order of seed 003, without its newline."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": call_id, "method": method}
    if params is not None:
        message["params"] = params
    return exact_json.dumps(message)


def key_of(params: Any) -> str | None:
    """The thread or conversation that a message is about, in either dialect."""
    if not isinstance(params, dict):
        return None
    key = params.get("threadId") or params.get("conversationId")
    return key if isinstance(key, str) else None
