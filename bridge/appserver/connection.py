"""One connection to a child, without I/O: bytes come in, lines to write collect in `outgoing`.

`feed` cuts what one read gave into lines. A text delta goes straight to the list of its turn. Every other line is a
JSON-RPC message: a reply to one of our calls, a notification, or a request of the child's. Each turn that got something
is woken once per read. What cannot be read fails the turn that it belongs to, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bridge import exact_json
from bridge.appserver.dialect import UNUSED, key_of
from bridge.appserver.failures import RpcError
from bridge.core.observer import Owner, Tap
from bridge.counts import ChildCounts
from bridge.errors import BackendProtocolError, BridgeError

if TYPE_CHECKING:
    from bridge.appserver.turn import Routes

MAX_LINE = 32 * 1024 * 1024
"""The largest line kept. The largest one seen from a real Codex was 23 MB."""
HEAD = 4096
"""How much of a line that is thrown away is kept, to find its turn."""
LINE_HEAD = 512
"""How far into a line the id of its thread is looked for."""
LONG = 64 * 1024
"""Size of an unfinished line from which we check whether any turn needs it."""


# Bytes to lines


class LineSplitter:
    """Cuts a byte stream into lines, in linear time for every cutting.

    A long line is in memory three times at most: as the line, as the parser's copy, and as the text in it.

    Lines end at `\\n` and nowhere else: a JSON string may hold U+2028 or U+0085, and `\\r` is white space to JSON. The
    unfinished tail is a list of chunks that is joined once, when its newline comes. A line above `max_line` is thrown
    away while it arrives; its first bytes are put into `oversize`, for the caller to take out. So is a long one that
    begins like one of `unused`; its first bytes are put into `skipped`.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self.unused: tuple[bytes, ...] = ()
        self.oversize: list[bytes] = []
        self.skipped: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._discarding = False

    @property
    def is_between_lines(self) -> bool:
        """Whether the next byte begins a line."""
        return not self._tail and not self._discarding

    def __repr__(self) -> str:
        return f"<LineSplitter tail={self._tail_size} discarding={self._discarding}>"

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newline; empty lines are left out."""
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and (self._tail or self._discarding):
            lines[0] = self._end_tail(lines[0])
        if len(data) > self.max_line:
            # A whole line above the limit can only come in a read above the limit.
            self.oversize += [line[:HEAD] for line in lines if len(line) > self.max_line]
            lines = [line for line in lines if len(line) <= self.max_line]
        if tail and not self._discarding:
            self._keep(tail)
        if b"" in lines:
            return [line for line in lines if line]
        return lines

    def finish(self) -> list[bytes]:
        """At the end of the stream: the last line, if it came without a newline."""
        last = self._end_tail(b"")
        return [last] if last else []

    def _end_tail(self, end: bytes) -> bytes:
        """The line that `end` completes; empty where it is thrown away."""
        if self._discarding:
            self._discarding = False
            return b""
        self._tail.append(end)
        line = b"".join(self._tail)
        self._tail.clear()
        self._tail_size = 0
        if len(line) > self.max_line:
            self.oversize.append(line[:HEAD])
            return b""
        return line

    def _keep(self, tail: bytes) -> None:
        self._tail.append(tail)
        before, self._tail_size = self._tail_size, self._tail_size + len(tail)
        if before < LONG <= self._tail_size and (head := self._head()).startswith(self.unused):
            self._discard(head, self.skipped)
        elif self._tail_size > self.max_line:
            self._discard(self._head(), self.oversize)

    def _head(self) -> bytes:
        return b"".join(chunk[:HEAD] for chunk in self._tail)[:HEAD]

    def _discard(self, head: bytes, reason: list[bytes]) -> None:
        reason.append(head)
        self._tail.clear()
        self._tail_size = 0
        self._discarding = True


# Text deltas, the only lines that come by the thousand. A decoder has the beginning of their lines, reads one, and
# knows the beginnings of lines that only repeat another line and are dropped unread.


class CurrentDecoder:
    """Reads the current dialect from the wire. Its `codex/event/*` twins (0.79 to 0.107) are skipped."""

    delta = b'{"method":"item/agentMessage/delta","params":{'
    skip: tuple[bytes, ...] = (b'{"method":"codex/event/',)

    def read_delta(self, line: bytes) -> tuple[str, str, str]:
        """(thread, item, delta) of such a line. Raises for one of another shape."""
        params = orjson.loads(line)["params"]
        item, delta = params["itemId"], params["delta"]
        if type(delta) is not str or type(item) is not str:
            raise TypeError(params)
        return params["threadId"], item, delta


class LegacyDecoder:
    """Reads the legacy dialect from the wire.

    Codex sends each delta three times; the one that names its item comes first and is used. A child that has only
    the plain `agent_message_delta` is read by that, so the plain form is skipped only once the better one was seen.
    """

    delta = b'{"method":"codex/event/agent_message_content_delta","params":{'
    _twin = b'{"method":"item/agentMessage/delta","params":'
    _plain = b'{"method":"codex/event/agent_message_delta","params":'

    def __init__(self) -> None:
        self.skip: tuple[bytes, ...] = (self._twin,)

    def read_delta(self, line: bytes) -> tuple[str, str, str]:
        params = orjson.loads(line)["params"]
        if len(self.skip) == 1:
            self.skip = (self._twin, self._plain)
        message = params["msg"]
        item, delta = message["item_id"], message["delta"]
        if type(delta) is not str or type(item) is not str:
            raise TypeError(params)
        return params["conversationId"], item, delta


Decoder = CurrentDecoder | LegacyDecoder


# Messages


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


class Connection:
    """Our end of the connection.

    `on_notification(method, params)` and `answer(line, method, key)` are called while lines are read; neither may
    raise. The answer is a line, or None where the child's request is to stay open. Codex omits the `jsonrpc` member and
    adds others, so only the members that are needed are read.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        on_notification: Callable[[str, dict[str, Any]], None],
        answer: Callable[[bytes, str, str | None], bytes | None],
        tap: Tap | None = None,
        counts: ChildCounts | None = None,
    ) -> None:
        self.outgoing: list[bytes] = []
        self.counts = counts or ChildCounts()
        self._routes = routes
        self._on_notification = on_notification
        self._answer = answer
        self._tap = tap
        self._line_tap = tap if tap is not None and tap.wants_lines else None
        self._splitter = LineSplitter()
        self._decoder: Decoder | None = None
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0

    def __repr__(self) -> str:
        counts = self.counts
        return f"<Connection pending={len(self._pending)} garbage={counts.garbage} strays={counts.strays}>"

    def decode_with(self, decoder: Decoder) -> None:
        """The child's dialect is known, so there may be turns."""
        self._decoder = decoder
        if self._line_tap is None:  # the log wants all of it
            self._splitter.unused = decoder.skip + UNUSED

    # What we send

    def call(self, method: str, params: Any, on_reply: Callable[[Reply], None], req_id: str | None = None) -> int:
        """Queue a request. `on_reply` is called once, unless the returned id is forgotten before."""
        self._last_id += 1
        self._pending[self._last_id] = _Pending(method, on_reply, req_id)
        line = encode_request(self._last_id, method, params)
        about = {"method": method, "rpc_id": self._last_id, "key": key_of(params), "req_id": req_id}
        self._send("rpc_request", line, about)
        return self._last_id

    def notify(self, method: str, params: Any = None) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        line = orjson.dumps(message if params is None else {**message, "params": params})
        self._send("rpc_notification", line, {"method": method})

    def reply(self, request: bytes, reply: bytes, key: str | None) -> None:
        """Answer a request of the child's that was left open."""
        message = orjson.loads(request)
        about = {"method": message["method"], "rpc_id": _logged_id(message["id"]), "key": key}
        self._send("server_reply", reply, about)

    def forget(self, call_id: int) -> None:
        """A reply to this call will count as a stray."""
        self._pending.pop(call_id, None)

    def close(self, error: BridgeError) -> None:
        """The child is gone: every pending call fails with `error`."""
        pending, self._pending = self._pending, {}
        for call in pending.values():
            call.on_reply(Reply(error=error))

    def _send(self, kind: str, line: bytes, about: dict[str, Any]) -> None:
        self.outgoing.append(line + b"\n")
        if self._tap is not None:
            self._tap.rpc("out", kind, line, **about)

    # What comes in

    def feed(self, data: bytes) -> None:
        """What one read gave."""
        if self._tap is not None:
            self._tap.read(data, is_first=self._splitter.is_between_lines)
        self._receive_read(self._splitter.feed(data))

    def finish(self) -> None:
        """The output has ended: the rest counts as a line."""
        self._receive_read(self._splitter.finish())

    def _receive_read(self, lines: list[bytes]) -> None:
        """All lines of one read. Hot: no await, and for a delta no more than one JSON parse and one append."""
        self.counts.reads += 1
        self.counts.lines += len(lines)
        if self._line_tap is None:
            self._receive_lines(lines)
        else:
            self._line_tap.begin_read()
            try:
                self._receive_lines(lines)
            finally:
                self._line_tap.end_read()
        self._routes.wake_touched()

    def _receive_lines(self, lines: list[bytes]) -> None:
        if self._decoder is not None:
            self._receive_turns(lines, self._decoder)
        else:
            for line in lines:
                self.receive(line)
        splitter = self._splitter
        for head in splitter.oversize:
            self.counts.oversize += 1
            if self._tap is not None:
                self._tap.lifecycle("oversize_line", {"head": head[:200].decode("utf-8", "replace")})
            fault = "The Codex app-server sent a message that is too large."
            self._routes.touch_named(head, BackendProtocolError(fault, code="message_too_large"))
        for head in splitter.skipped:
            self.counts.lines += 1
            self._routes.touch_named(head[:LINE_HEAD])
        splitter.oversize.clear()
        splitter.skipped.clear()

    def _receive_turns(self, lines: list[bytes], decoder: Decoder) -> None:
        tap, receive, get = self._line_tap, self.receive, self._routes.get
        delta_start, read_delta, touched = decoder.delta, decoder.read_delta, self._routes.touched
        # Adjacent deltas, for the tap.
        run: list[bytes] = []
        texts: list[str] = []
        owners: list[Owner] = []
        for line in lines:
            if line.startswith(delta_start):
                try:
                    key, item, delta = read_delta(line)
                    turn = get(key)
                except (ValueError, KeyError, TypeError):
                    turn = None
                    # The answer that this piece belongs to cannot be whole any more.
                    fault = "The Codex app-server sent a damaged piece of the answer. Try again."
                    self._routes.touch_named(line[:LINE_HEAD], BackendProtocolError(fault))
                if turn is not None:
                    turn.text(item, delta)
                    if not turn.dirty:
                        turn.dirty = True
                        touched.append(turn)
                    if tap is not None:
                        run.append(line)
                        texts.append(delta)
                        owners.append(turn)
                    continue
            if run and tap is not None:
                tap.deltas(run, texts, owners)
                run, texts, owners = [], [], []
            # A line that repeats another one is dropped unread, but the log records it.
            if tap is not None or not line.startswith(decoder.skip):
                receive(line)
        if run and tap is not None:
            tap.deltas(run, texts, owners)

    def receive(self, line: bytes) -> None:
        """One line of the child: a reply, a notification, a request, or garbage."""
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            message = None
        method = message.get("method") if isinstance(message, dict) else None
        if isinstance(method, str):
            params = message.get("params")
            if not isinstance(params, dict):
                params = {}
            if "id" in message:
                self._receive_request(line, method, message["id"], key_of(params))
                return
            if self._line_tap is not None:
                self._line_tap.rpc("in", "rpc_notification", line, method=method, key=key_of(params))
            self._on_notification(method, params)
        elif isinstance(message, dict) and "id" in message:
            self._receive_reply(line, message["id"], message)
        else:
            self.counts.garbage += 1
            self._log("garbage", line)

    def _receive_request(self, line: bytes, method: str, rpc_id: Any, key: str | None) -> None:
        reply = self._answer(line, method, key)
        about = {"method": method, "rpc_id": _logged_id(rpc_id), "key": key}
        self._log("server_request", line, **about)
        if reply is not None:
            self._send("server_reply", reply, about)

    def _receive_reply(self, line: bytes, call_id: Any, message: dict[str, Any]) -> None:
        # A bool is an int to Python, and 1.0 == 1: only a plain int is one of our ids.
        pending = self._pending.pop(call_id, None) if type(call_id) is int else None
        if pending is None:
            self.counts.strays += 1
            self._log("rpc_response", line)
            return
        failure = message.get("error")
        kind = "rpc_response" if failure is None else "rpc_error"
        self._log(kind, line, method=pending.method, rpc_id=call_id, req_id=pending.req_id)
        error = None if failure is None else RpcError.from_reply(pending.method, failure)
        pending.on_reply(Reply(message.get("result") if error is None else None, error))

    def _log(self, kind: str, line: bytes, **about: Any) -> None:
        if self._line_tap is not None:
            self._line_tap.rpc("in", kind, line, **about)


def _logged_id(rpc_id: Any) -> int | str | None:
    return rpc_id if isinstance(rpc_id, int | str) else None


def encode_request(call_id: int, method: str, params: Any) -> bytes:
    """One request, members in the order of seed 003, without its newline."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": call_id, "method": method}
    if params is not None:
        message["params"] = params
    return exact_json.dumps(message)
