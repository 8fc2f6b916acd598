"""Requests put together from the records of a log: what was asked, what the backend said, what the client got."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge import exact_json
from bridge.appserver.standin.tape import PARTS, PROMPTS
from bridge.protolog.crashes import AFTER, EXIT, ends_turn, is_crash
from bridge.protolog.loose import text_of
from bridge.protolog.read import request_of
from bridge.protolog.transcript import COUNTS, body_from_calls, total_used

EGRESS = "client_egress"
MOST_HELD = 1000
MOST_EXITS = 100
"""So many recordings wait for the exit of a child, and so many exits are looked through for it."""
_LATE = (
    "turn/interrupt",
    "thread/unsubscribe",
    "interruptConversation",
    "removeConversationListener",
    "archiveConversation",
)
"""Calls that come after a turn's end."""
_FRAMES = frozenset(
    {
        "rpc_request",
        "rpc_response",
        "rpc_error",
        "rpc_notification",
        "server_request",
        "server_reply",
        "upstream_request",
        "upstream_event",
    }
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between the bridge and a backend."""

    mono: float
    chunk: int | None
    """The number of the child's read that it came with."""
    direction: str
    kind: str
    method: str | None
    rpc_id: Any
    key: str | None
    payload: Any


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that the client was sent; `kind` is one of the client_egress kinds."""

    mono: float
    kind: str
    payload: Any


@dataclass(slots=True)
class Recording:
    """One request, as far as the log knows it."""

    id: str
    file: Path
    ts: str = ""
    """When it came, as written in the log; empty in a transcript."""
    at: float = 0.0
    """The same, in the monotonic seconds of its run."""
    header: dict[str, Any] = field(default_factory=dict)
    """The header of its run."""
    request: dict[str, Any] | None = None
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    end_mono: float | None = None
    attempts: dict[int, list[Frame]] = field(default_factory=dict)
    client: list[Piece] = field(default_factory=list)
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(kind, payload) of what was noted when calls were parsed."""
    limits: dict[str, Any] | None = None
    """The account's quota, as it was last told before."""
    exit: dict[str, Any] | None = None
    """How the child ended that took the turn along: the payload of `backend_exit`."""
    used: dict[str, Any] | None = None
    """What the thread that it continues had used before, as Codex counts."""
    thread: dict[str, Any] | None = None
    """Of a turn in a transcript: what its thread was begun with."""
    number: int = 0
    """How many others began before it in the log: ids may stand in it twice, if it was copied together."""

    @property
    def path(self) -> str:
        """Where the request went: an HTTP path, or `exec`."""
        return str((self.request or {}).get("path", ""))

    @property
    def body(self) -> dict[str, Any] | None:
        """The request's body; None where it could not be read."""
        body = (self.request or {}).get("body")
        return body if isinstance(body, dict) else None

    @property
    def complete(self) -> bool:
        """Whether the log has its end."""
        return self.end is not None

    def has_prompt(self, kind: str) -> bool:
        """Whether it has a call, or a reply, by which a child was asked to answer."""
        frames = (frame for frames in self.attempts.values() for frame in frames)
        return any(frame.kind == kind and frame.method in PARTS | PROMPTS for frame in frames)

    @property
    def streamed(self) -> bool:
        """Whether the client got events."""
        return any(piece.kind == "client_sse" and piece.payload for piece in self.client)

    @property
    def head(self) -> dict[str, Any]:
        """The status and the headers that the client got; empty where they are not on record."""
        found = (piece.payload for piece in self.client if piece.kind == "client_start")
        return next((payload for payload in found if isinstance(payload, dict)), {})

    @property
    def status(self) -> int | None:
        """The HTTP status that the client got, where it is on record."""
        status = self.head.get("status")
        return status if isinstance(status, int) else None

    @property
    def headers(self) -> list[tuple[str, str]] | None:
        """The response headers, where they are on record."""
        headers = self.head.get("headers")
        if not isinstance(headers, list):
            return None
        pairs = (header for header in headers if isinstance(header, list) and len(header) == 2)
        return [(text_of(name), text_of(value)) for name, value in pairs]

    def client_header(self, name: str) -> str | None:
        """A header of the answer that the client got, where it is on record."""
        return next((value for header, value in self.headers or () if header == name), None)

    @property
    def sent(self) -> bytes:
        """The stream or the body that the client got, in one."""
        parts = []
        for piece in self.client:
            if piece.kind == "client_sse" and isinstance(piece.payload, str):
                parts.append(piece.payload.encode("utf-8", "surrogatepass"))
            elif piece.kind == "client_json":
                parts.append(exact_json.dumps(piece.payload))
            elif piece.kind == "client_line" and piece.payload is not None:
                parts.append(exact_json.dumps(piece.payload) + b"\n")
        return b"".join(parts)

    def add(self, record: dict[str, Any], attempt: int) -> None:
        """Take one of its records in."""
        kind, payload = record["kind"], record.get("payload")
        if kind in _FRAMES:
            self.thread = self.thread or record.get("thread")
            self.attempts.setdefault(attempt, []).append(_frame(record))
        elif record["phase"] == EGRESS:
            self.client.append(Piece(record["mono"], kind, payload))
        elif not isinstance(payload, dict):
            return
        elif kind == "client_request":
            self.request, self.ts, self.at = payload, record["ts"], record["mono"]
        elif kind == "turn_start":
            self.start = payload
        elif kind == "turn_end":
            self.end, self.end_mono = payload, record["mono"]
        elif record["phase"] == "tool_parse":
            self.notes.append((kind, payload))


class Assembler:
    """Puts recordings together from records in any order of requests. Holds what has not ended yet."""

    def __init__(self) -> None:
        self._open: dict[str, Recording] = {}
        self._headers: dict[str, dict[str, Any]] = {}
        self._limits: dict[str, dict[str, Any]] = {}
        self._used: dict[tuple[str, str], dict[str, Any]] = {}
        self._ended: set[str] = set()
        self._left: list[Recording] = []
        self._begun = 0

    def number(self, req_id: str) -> int | None:
        """The number of the recording that a record belongs to now; None when it belongs to none."""
        found = self._open.get(request_of(req_id)[0])
        return found.number if found is not None else None

    def add(self, path: Path, record: dict[str, Any]) -> Recording | None:
        """Take one record in; the recording that it ends, if it does."""
        run = record.get("run", "")
        if record["kind"] == "header":
            self._headers[run] = record
        if record["req_id"] is None:
            self._note(run, record)
            return None
        name, attempt = request_of(record["req_id"])
        found = self._open.get(name)
        if found is not None and found.request is not None and record["kind"] == "client_request":
            # The same id again: logs were put together, and this one was cut before its end.
            self._left.append(self._open.pop(name))
            found = None
        if found is None:
            if name in self._ended and record["kind"] != "client_request":
                # What comes after the end: the child is told to forget the thread.
                if record.get("method") in _LATE:
                    self._used.pop((run, record.get("conversation_id") or ""), None)
                return None
            found = self._open[name] = Recording(name, path, record["ts"], record["mono"], self._headers.get(run, {}))
            found.number = self._begun
            self._begun += 1
        if record["kind"] in ("client_request", "turn_start"):
            found.limits = self._limits.get(run)
        self._follow_thread(run, record, found)
        found.add(record, attempt)
        if record["kind"] != "turn_end":
            return None
        self._ended.add(name)
        return self._open.pop(name)

    def rest(self) -> Iterator[Recording]:
        """What has no end, in the order in which it began."""
        rest = [*self._left, *self._open.values()]
        self._left, self._open = [], {}
        for recording in sorted(rest, key=lambda recording: recording.number):
            yield _from_transcript(recording) if recording.request is None else recording

    def _follow_thread(self, run: str, record: dict[str, Any], recording: Recording) -> None:
        """A thread's count of its usage goes on from turn to turn, until it is let go of."""
        method, thread = record.get("method"), (run, record.get("conversation_id") or "")
        if record["kind"] == "rpc_request" and method in PARTS | PROMPTS:
            if not recording.has_prompt("rpc_request"):
                recording.used = self._used.get(thread)
        elif method in COUNTS:
            total = total_used(record.get("payload"))
            if total is not None:
                self._used[thread] = total
                if recording.thread is not None and not recording.has_prompt("rpc_response"):
                    # Codex tells what a resumed or forked thread had used when its first turn was asked for already.
                    recording.used = total

    def _note(self, run: str, record: dict[str, Any]) -> None:
        if record.get("method") == "account/rateLimits/updated" and isinstance(record.get("payload"), dict):
            params = record["payload"].get("params")
            if isinstance(params, dict) and isinstance(params.get("rateLimits"), dict):
                self._limits[run] = params["rateLimits"]


def read_recordings(records: Iterable[tuple[Path, dict[str, Any]]]) -> Iterator[Recording]:
    """The requests of a log, in the order in which they ended; last those without an end.

    One that its child took along waits for the record of the child's exit, and those after it wait with it.
    """
    assembler, held, exits = Assembler(), deque[Recording](), deque[dict[str, Any]](maxlen=MOST_EXITS)
    for path, record in records:
        done = assembler.add(path, record)
        if done is not None:
            held.append(done)
        if record["kind"] == EXIT:
            exits.append(record)
        while held and (_is_whole(held[0], exits) or _waited(held[0], record) or len(held) > MOST_HELD):
            yield held.popleft()
    for recording in held:
        _is_whole(recording, exits)
        yield recording
    yield from assembler.rest()


def _is_whole(recording: Recording, exits: Iterable[dict[str, Any]]) -> bool:
    """Whether nothing is missing; what its child ended with is added where that is known."""
    if recording.exit is None and recording.end_mono is not None and is_crash(recording.end):
        run, end = recording.header.get("run", ""), recording.end_mono
        found = (each.get("payload") for each in exits if ends_turn(each, recording.id, run, end))
        recording.exit = next((payload for payload in found if isinstance(payload, dict)), None)
        return recording.exit is not None
    return True


def _waited(recording: Recording, record: dict[str, Any]) -> bool:
    """Whether the log has come so far after a recording's end that the exit of its child does not follow."""
    same = record.get("run", "") == recording.header.get("run", "")
    return bool(same and recording.end_mono is not None and record["mono"] > recording.end_mono + AFTER)


def _from_transcript(recording: Recording) -> Recording:
    """Make up the request of a turn that nobody asked for over HTTP."""
    frames = recording.attempts.get(0, [])
    calls = [frame.payload for frame in frames if frame.kind == "rpc_request" and isinstance(frame.payload, dict)]
    body = body_from_calls(calls, recording.thread)
    if body is not None:
        recording.request = {"path": "/v1/responses", "body": body}
    return recording


def _frame(record: dict[str, Any]) -> Frame:
    chunk, method, key = record.get("chunk"), record.get("method"), record.get("conversation_id")
    return Frame(
        record["mono"],
        chunk if isinstance(chunk, int) else None,
        record.get("direction", ""),
        record["kind"],
        method if isinstance(method, str) else None,
        record.get("rpc_id"),
        key if isinstance(key, str) else None,
        record.get("payload"),
    )
