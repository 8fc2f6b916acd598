"""The records of a proto-event log, as lines (payloads §5). Pure: time comes in, bytes go out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from bridge import __version__, exact_json
from bridge.appserver.tap import Owner
from bridge.errors import BridgeError, Forbidden, InvalidRequest, Unauthorized, UpstreamError
from bridge.redact import POLICY, Redactor

FORMAT = 2
"""2 has the run in every record, attempts of one request (`req_id#n`), and the head of each answer."""
GARBAGE_KEPT = 4096


class Recorder:
    """Makes the lines and hands them to `write`; also the tap of the child (see `bridge.appserver.tap`).

    `now()` gives (ISO time, monotonic seconds); `run` tells this process from others that write to the same file.
    Lines of one read of the child share a time and a chunk number, so that the cutting of the stream can be replayed.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        now: Callable[[], tuple[str, float]],
        redactor: Redactor,
        run: str,
    ) -> None:
        self.run = run
        self._run = run.encode()
        self._write = write
        self._now = now
        self._redactor = redactor
        self._seq = 0
        self._chunk = 0
        self._stamp = b""
        self._reading = False
        self._parts: list[bytes] = []
        self._owners: dict[str, str] = {}
        self._delta_heads: dict[str, bytes] = {}

    def header(self, **members: Any) -> None:
        """The first line of a file."""
        self._restamp()
        about = {"format": FORMAT, "program": f"codex-bridge {__version__}", "redaction": POLICY, **members}
        head = {"phase": "header", "direction": "none", "kind": "header", "req_id": None}
        self._line(orjson.dumps(head | about)[1:-1])

    # The child

    def begin_read(self) -> None:
        self._chunk += 1
        self._restamp(b'"chunk":%d,' % self._chunk)
        self._reading = True

    def end_read(self) -> None:
        self._reading = False
        self._flush()

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        stamp, seq = self._stamp, self._seq
        # Everything else in these lines is ids; one look over the texts together is enough.
        if self._redactor.suspicious("".join(texts).encode()):
            lines = [self._redactor.json(line) for line in lines]
        first, count = owners[0], len(owners)
        if owners.count(first) == count:
            heads = [self._delta_head(lines[0], first)] * count
        else:
            heads = list(map(self._delta_head, lines, owners))
        # To be joined once: putting each line together would be twice the work.
        pieces = [stamp] * (5 * count)
        pieces[1::5] = orjson.dumps(list(range(seq, seq + count)))[1:-1].split(b",")
        pieces[2::5] = heads
        pieces[3::5] = lines
        pieces[4::5] = [b"}\n"] * count
        self._parts += pieces
        self._seq += count

    def _delta_head(self, line: bytes, owner: Owner) -> bytes:
        key = owner.key or ""
        head = self._delta_heads.get(key)
        if head is None:
            method = orjson.loads(line)["method"]
            head = b"," + self._head("in", "rpc_notification", method, owner.key, owner.req_id) + b',"payload":'
            self._delta_heads[key] = head
        return head

    def rpc(
        self,
        direction: str,
        kind: str,
        line: bytes,
        *,
        method: str | None = None,
        rpc_id: int | str | None = None,
        key: str | None = None,
        req_id: str | None = None,
    ) -> None:
        if not self._reading:
            self._restamp()
        if key is not None:
            if req_id is None:
                req_id = self._owners.get(key)
            else:
                self._owners[key] = req_id
        head = self._head(direction, kind, method, key, req_id)
        if rpc_id is not None:
            head += b',"rpc_id":' + orjson.dumps(rpc_id)
        line = self._redactor.json(line)
        self._line(head, *_payload(line, kind))

    def lifecycle(self, kind: str, payload: dict[str, Any]) -> None:
        self.event("backend_lifecycle", "none", kind, None, payload)

    # The client's side and the turn

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        """One record with a payload that is still an object."""
        if not self._reading:
            self._restamp()
        head = orjson.dumps({"phase": phase, "direction": direction, "kind": kind, "req_id": req_id})[1:-1]
        self._line(head, b',"payload":', self._redactor.json(exact_json.dumps(payload)))

    def upstream(self, req_id: str, direction: str, data: bytes) -> None:
        """A body that goes to a provider (`out`), or an event that came from it (`in`)."""
        self._restamp()
        try:
            payload = exact_json.dumps(exact_json.loads(data))
        except orjson.JSONDecodeError:
            payload = orjson.dumps(data[:GARBAGE_KEPT].decode("utf-8", "replace"))
        phase, kind = (
            ("backend_submission", "upstream_request") if direction == "out" else ("backend_io", "upstream_event")
        )
        head = {"phase": phase, "direction": direction, "kind": kind, "req_id": req_id}
        self._line(orjson.dumps(head)[1:-1], b',"payload":', self._redactor.json(payload))

    def client_json(self, req_id: str, body: bytes) -> None:
        """A whole JSON answer as it went to the client."""
        self._client("client_json", req_id, self._redactor.json(body))

    def client_line(self, req_id: str, line: bytes) -> None:
        """One line of `exec --json` as it was written, without its newline."""
        self._client("client_line", req_id, self._redactor.json(line))

    def client_sse(self, req_id: str, chunk: bytes, said: str | None = None) -> None:
        """One chunk of a stream as it went to the client. `said`: the only text in it that is not ours, where known."""
        if said is None:
            chunk = self._redactor.sse(chunk)
        elif self._redactor.suspicious(said.encode()):
            chunk = self._redactor.text(chunk)
        self._client("client_sse", req_id, orjson.dumps(chunk.decode()))

    def _client(self, kind: str, req_id: str, payload: bytes) -> None:
        self._restamp()
        head = {"phase": "client_egress", "direction": "out", "kind": kind, "req_id": req_id}
        self._line(orjson.dumps(head)[1:-1], b',"payload":', payload)

    @property
    def threads(self) -> int:
        """How many threads something is remembered of."""
        return len(self._owners.keys() | self._delta_heads.keys())

    def claim(self, key: str, req_id: str | None) -> None:
        self.forget(key)
        if req_id is not None:
            self._owners[key] = req_id

    def forget(self, key: str) -> None:
        self._owners.pop(key, None)
        self._delta_heads.pop(key, None)

    def _head(self, direction: str, kind: str, method: str | None, key: str | None, req_id: str | None) -> bytes:
        phase = "backend_submission" if kind == "rpc_request" else "backend_io"
        members: dict[str, Any] = {"phase": phase, "direction": direction, "kind": kind, "req_id": req_id}
        if method is not None:
            members["method"] = method
        if key is not None:
            members["conversation_id"] = key
        return orjson.dumps(members)[1:-1]

    def _restamp(self, more: bytes = b"") -> None:
        iso, mono = self._now()
        self._stamp = b'{"ts":"%b","mono":%.6f,"run":"%b",%b"seq":' % (iso.encode(), mono, self._run, more)

    def _line(self, *members: bytes) -> None:
        # Payloads may be megabytes: nothing is joined here, the writer hands the pieces to the kernel.
        self._parts += (self._stamp, b"%d," % self._seq, *members, b"}\n")
        self._seq += 1
        if not self._reading:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._write(b"".join(parts))


def error_record(error: BridgeError) -> dict[str, Any]:
    """All that makes an error, so that it can be told again."""
    return {
        "code": error.code,
        "message": error.message,
        "http_status": error.http_status,
        "type": error.kind,
        "param": error.param,
        "severity": error.severity,
        "retry_after": error.retry_after,
        "side": _side(error),
        **({} if error.cause is None else {"cause": error.cause}),
    }


def _side(error: BridgeError) -> str:
    """Whose fault it was: CAP tells it."""
    if isinstance(error, InvalidRequest | Unauthorized | Forbidden):
        return "client"
    return "provider" if isinstance(error, UpstreamError) else "bridge"


def _payload(line: bytes, kind: str) -> tuple[bytes, ...]:
    """The message itself; garbage as a string, cut and marked where it is long."""
    if kind != "garbage":
        return b',"payload":', line
    text = orjson.dumps(line[:GARBAGE_KEPT].decode("utf-8", "replace"))
    mark = b',"truncated":true,"length":%d' % len(line) if len(line) > GARBAGE_KEPT else b""
    return mark, b',"payload":', text
