"""Requests built from the records of a log: the client's request, the backend's messages, and the answer."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bridge import exact_json
from bridge.appserver.dialect import COUNTS, PARTS, PROMPTS, STOPS
from bridge.core.events import Usage
from bridge.exact_json import member, text_of
from bridge.log.read import request_of
from bridge.log.record import TURNS_PER_MODEL
from bridge.log.transcript import body_from_calls, total_used

EXIT = "backend_exit"
BEFORE, AFTER = 1.0, 15.0
"""Seconds around the end of a turn in which the exit of its child is recorded: the child must be waited for first."""
EGRESS = "client_egress"
MOST_HELD = 1000
MOST_EXITS = 100
"""How many recordings wait for the exit of their child, and how many exits are searched for it."""
_LATE = (*STOPS, "thread/unsubscribe", "removeConversationListener", "archiveConversation")
"""Calls that come after a turn's end."""
_FRAMES = (
    "rpc_request", "rpc_response", "rpc_error", "rpc_notification", "server_request", "server_reply",
    "upstream_request", "upstream_event",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between the bridge and a backend."""

    mono: float
    chunk: int | None
    """The number of the read of the child that it came with."""
    direction: str
    kind: str
    method: str | None
    rpc_id: Any
    key: str | None
    payload: Any


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of what the client got; `kind` is one of the client_egress kinds."""

    mono: float
    kind: str
    payload: Any


@dataclass(slots=True)
class Recording:
    """One request, as far as it is in the log."""

    id: str
    file: Path
    ts: str = ""
    """When it arrived, as recorded; empty in a transcript."""
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
    """(kind, payload) of the notes on parsed calls."""
    limits: dict[str, Any] | None = None
    """The last known quota of the account before it."""
    exit: dict[str, Any] | None = None
    """How the child ended, if that ended the turn: the payload of `backend_exit`."""
    used: Usage | None = None
    """The tokens that the thread had used before."""
    thread: dict[str, Any] | None = None
    """The model and instructions of its thread; only of a turn in a transcript."""
    fallbacks: int = 0
    """How many models did not begin to answer. Only the messages of the last one are kept."""
    number: int = 0
    """How many others began before it in the log: an id may occur twice, if logs were joined."""

    @property
    def path(self) -> str:
        """An HTTP path, or `exec`."""
        return str((self.request or {}).get("path", ""))

    @property
    def body(self) -> dict[str, Any] | None:
        """The request's body; None if it could not be read."""
        body = (self.request or {}).get("body")
        return body if isinstance(body, dict) else None

    @property
    def complete(self) -> bool:
        return self.end is not None

    @property
    def frames(self) -> Iterator[Frame]:
        """The messages of all attempts."""
        return chain.from_iterable(self.attempts.values())

    def has_prompt(self, kind: str) -> bool:
        """Whether it has a call of this kind (`rpc_request`, or its `rpc_response`) that prompts the model."""
        return any(frame.kind == kind and frame.method in PARTS | PROMPTS for frame in self.frames)

    @property
    def streamed(self) -> bool:
        """Whether the client got events."""
        return any(piece.kind == "client_sse" and piece.payload for piece in self.client)

    @property
    def head(self) -> dict[str, Any]:
        """The recorded status and headers of the answer."""
        found = (piece.payload for piece in self.client if piece.kind == "client_start")
        return next((payload for payload in found if isinstance(payload, dict)), {})

    @property
    def status(self) -> int | None:
        status = self.head.get("status")
        return status if isinstance(status, int) else None

    @property
    def headers(self) -> list[tuple[str, str]] | None:
        headers = self.head.get("headers")
        if not isinstance(headers, list):
            return None
        pairs = (header for header in headers if isinstance(header, list) and len(header) == 2)
        return [(text_of(name), text_of(value)) for name, value in pairs]

    def client_header(self, name: str) -> str | None:
        return next((value for header, value in self.headers or () if header == name), None)

    @property
    def sent(self) -> bytes:
        """The stream or the body that the client got, in one piece."""
        parts = []
        for piece in self.client:
            if piece.kind == "client_sse" and isinstance(piece.payload, str):
                parts.append(piece.payload.encode("utf-8", "surrogatepass"))
            elif piece.kind == "client_json":
                parts.append(exact_json.dumps(piece.payload))
            elif piece.kind == "client_line" and piece.payload is not None:
                parts.append(exact_json.dumps(piece.payload) + b"\n")
        return b"".join(parts)

    def made_up_body(self) -> dict[str, Any] | None:
        """The body of a request that would have led to the calls to the child; None if none of them prompts."""
        calls = [each.payload for each in self.frames if each.kind == "rpc_request" and isinstance(each.payload, dict)]
        return body_from_calls(calls, self.thread)

    def add(self, record: dict[str, Any], attempt: int) -> None:
        kind, payload = record["kind"], record.get("payload")
        model, attempt = divmod(attempt, TURNS_PER_MODEL)
        if (kind in _FRAMES or record["phase"] == "tool_parse") and model != self.fallbacks:
            return  # late, from a model that was given up
        if kind in _FRAMES:
            self.thread = self.thread or record.get("thread")
            chunk = record.get("chunk")
            frame = Frame(
                record["mono"],
                chunk if isinstance(chunk, int) else None,
                record.get("direction", ""),
                kind,
                record.get("method"),
                record.get("rpc_id"),
                record.get("conversation_id"),
                payload,
            )
            self.attempts.setdefault(attempt, []).append(frame)
        elif record["phase"] == EGRESS:
            self.client.append(Piece(record["mono"], kind, payload))
        elif not isinstance(payload, dict):
            return
        elif kind == "client_request":
            self.request, self.ts, self.at = payload, record["ts"], record["mono"]
        elif kind == "turn_start":
            self.start = payload
        elif kind == "turn_fallback":
            self.fallbacks += 1
            self.attempts, self.notes = {}, []
        elif kind == "turn_end":
            self.end, self.end_mono = payload, record["mono"]
        elif record["phase"] == "tool_parse":
            self.notes.append((kind, payload))


class Assembler:
    """Builds recordings from the records of requests that may overlap. Holds those that have not ended yet."""

    def __init__(self) -> None:
        self._open: dict[str, Recording] = {}
        self._headers: dict[str, dict[str, Any]] = {}
        self._limits: dict[str, dict[str, Any]] = {}
        self._used: dict[tuple[str, str], Usage] = {}
        self._ended: set[str] = set()
        self._left: list[Recording] = []
        self._begun = 0

    def number(self, req_id: str) -> int | None:
        """The number of the open recording of a record's request; None without one."""
        found = self._open.get(request_of(req_id)[0])
        return found.number if found is not None else None

    def add(self, path: Path, record: dict[str, Any]) -> Recording | None:
        """Add a record. Returns the recording that it ends, if it ends one."""
        run = record.get("run", "")
        if record["kind"] == "header":
            self._headers[run] = record
        if record["kind"] == "rpc_response" and record.get("method") == "thread/start":
            # It has used nothing yet, although a child before it may have used the same id.
            self._used.pop((run, str(member(record.get("payload"), "result", "thread", "id"))), None)
        if record["req_id"] is None:
            limits = member(record.get("payload"), "params", "rateLimits")
            if record.get("method") == "account/rateLimits/updated" and isinstance(limits, dict):
                self._limits[run] = limits
            return None
        name, attempt = request_of(record["req_id"])
        found = self._open.get(name)
        if found is not None and found.request is not None and record["kind"] == "client_request":
            # The same id again: logs were joined, and this one was cut before its end.
            self._left.append(self._open.pop(name))
            found = None
        if found is None:
            if name in self._ended and record["kind"] != "client_request":
                # A call after the end: the child is to forget the thread.
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
        """The recordings without an end, in the order in which they began."""
        rest = [*self._left, *self._open.values()]
        self._left, self._open = [], {}
        for recording in sorted(rest, key=lambda recording: recording.number):
            if recording.request is None and (body := recording.made_up_body()) is not None:
                # A turn of a transcript, which has no clients.
                recording.request = {"path": "/v1/responses", "body": body}
            yield recording

    def _follow_thread(self, run: str, record: dict[str, Any], recording: Recording) -> None:
        """A thread counts its usage from turn to turn, until it is released."""
        method, thread = record.get("method"), (run, record.get("conversation_id") or "")
        if record["kind"] == "rpc_request" and method in PARTS | PROMPTS:
            if not recording.has_prompt("rpc_request"):
                recording.used = self._used.get(thread)
        elif method in COUNTS:
            total = total_used(record.get("payload"))
            if total is not None:
                self._used[thread] = total
                if recording.thread is not None and not recording.has_prompt("rpc_response"):
                    # Codex reports the earlier usage of a resumed or forked thread only after its first prompt.
                    recording.used = total


def read_recordings(records: Iterable[tuple[Path, dict[str, Any]]]) -> Iterator[Recording]:
    """The requests of a log, in the order in which they ended, then those without an end.

    One that failed because its child ended waits for the record of the child's exit, and those after it wait with it.
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
    """Whether nothing is missing. Adds the exit of its child if that is known."""
    if recording.exit is None and recording.end_mono is not None and is_crash(recording.end):
        run, end = recording.header.get("run", ""), recording.end_mono
        found = (each.get("payload") for each in exits if ends_turn(each, recording.id, run, end))
        recording.exit = next((payload for payload in found if isinstance(payload, dict)), None)
        return recording.exit is not None
    return True


def _waited(recording: Recording, record: dict[str, Any]) -> bool:
    """Whether the log is so far past a recording's end that no exit of its child can follow."""
    same = record.get("run", "") == recording.header.get("run", "")
    return bool(same and recording.end_mono is not None and record["mono"] > recording.end_mono + AFTER)


# How a child ended: its exit code and its last output are known when it has been waited for, perhaps seconds after its
# turns have failed.


def is_crash(end: Any) -> bool:
    """Whether a turn with this `turn_end` failed because its child ended."""
    return bool(member(end, "error", "code") == "backend_crashed")


def ends_turn(exit: dict[str, Any], name: str, run: str, end: float) -> bool:
    """Whether the child with this exit record ended the request, which ended at `end`.

    Older logs do not name the requests: there it is the exit next to their end.
    """
    named = member(exit.get("payload"), "ended_requests")
    if isinstance(named, list):
        return name in {request_of(each)[0] for each in named if isinstance(each, str)}
    return bool(exit.get("run", "") == run and -BEFORE <= exit["mono"] - end <= AFTER)


def exit_cause(exit: Any) -> str:
    """How the child ended, in words that follow "The child"."""
    code = member(exit, "code")
    if not isinstance(code, int):
        return "has ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def last_words(exit: Any) -> str:
    """The end of the child's stderr, without colours."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text_of(member(exit, "stderr"))).strip()
