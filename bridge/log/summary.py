"""One request of a log in a few words: what `log ls` shows, and where its lines are in the files.

Most lines of a log are pieces of text, which a summary does not need. Parsing them all would take five times as long.
So one expression matches a stretch of such lines of one run, and their numbers tell whether one is missing. A line that
was cut off can look whole by chance, but then the next line does not continue the run: the last line of a stretch is
always parsed, and so is every line of a stretch whose numbers do not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.appserver.dialect import COUNTS, PROMPTS
from bridge.core.events import Finished, ReasoningDelta, TextDelta, Usage
from bridge.exact_json import member, text_of
from bridge.log.read import Trouble, continues, parse_record, request_of
from bridge.log.record import TOKENS, usage_record
from bridge.log.transcript import TranscriptReader, total_used
from bridge.protocols.cap.decoder import effective_meta

if TYPE_CHECKING:
    from bridge.log.content import ChildReader

OUTCOMES = ("completed", "incomplete", "failed", "cancelled", "unfinished")
"""How a request can end; `unfinished`: its end is not in the log."""
TRANSCRIPT = "transcript"
"""The path of a turn in a plain transcript, which has no client requests."""
MESSAGE_KEPT = 400


@dataclass(slots=True)
class Span:
    """Where lines of a request are: between two bytes of a file, among those of other requests."""

    file: str
    start: int
    end: int


@dataclass(slots=True)
class Summary:
    """One request. What the log does not have is None or empty."""

    id: str
    run: str = ""
    time: str = ""
    """When it arrived, ISO; empty in a transcript, and where its beginning is missing."""
    ended: str = ""
    path: str = ""
    model: str = ""
    requested_model: str = ""
    backend: str = ""
    outcome: str = "unfinished"
    reason: str | None = None
    error: str | None = None
    """The error's code."""
    message: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: float | None = None
    currency: str | None = None
    first_event_s: float | None = None
    total_s: float | None = None
    calls: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    invalid_arguments: list[str] = field(default_factory=list)
    """The tools that were called with arguments that are not JSON."""
    rejects: int = 0
    begun: bool = True
    """Whether its beginning is in the log."""
    spans: list[Span] = field(default_factory=list)

    @property
    def is_transcript(self) -> bool:
        return self.path == TRANSCRIPT

    @property
    def short_id(self) -> str:
        """Enough of the id to select the request."""
        return self.id.removeprefix("req_")[:8] if self.id.startswith("req_") else self.id

    def take_request(self, payload: Any) -> None:
        self.path, body = _text(member(payload, "path")), member(payload, "body")
        wishes = effective_meta(member(body, "payload", "meta"))
        self.requested_model = _text(member(body, "model") or wishes.get("model"))

    def take_start(self, payload: Any) -> None:
        if isinstance(payload, dict):
            self.model = _text(payload.get("model")) or self.model
            self.requested_model = _text(payload.get("requested_model")) or self.requested_model
            self.backend = _text(payload.get("backend"))

    def take_end(self, payload: Any) -> None:
        if not isinstance(payload, dict):
            return
        outcome = payload.get("outcome")
        self.outcome = outcome if isinstance(outcome, str) and outcome in OUTCOMES else "unfinished"
        reason, error, usage = payload.get("reason"), payload.get("error"), payload.get("usage")
        self.reason = reason if isinstance(reason, str) else None
        if isinstance(error, dict):
            self.error = _text(error.get("code")) or "unknown"
            self.message = _text(error.get("message"))[:MESSAGE_KEPT]
        if isinstance(usage, dict):
            for name in TOKENS:
                count = usage.get(name)
                setattr(self, name, count if isinstance(count, int) and not isinstance(count, bool) else None)
        self.cost = _seconds(payload.get("cost"))
        self.currency = _text(payload.get("currency"))[:3] or None
        self.first_event_s = _seconds(payload.get("first_event_s"))
        self.total_s = _seconds(payload.get("total_s"))
        for name in ("calls", "repairs", "invalid_arguments"):
            if isinstance(payload.get(name), list):
                setattr(self, name, [each for each in payload[name] if isinstance(each, str)])

    def take_note(self, kind: str, payload: Any) -> None:
        """Read a note on a parsed call. `turn_end` repeats it; a request that did not end has only this."""
        if kind == "tool_reject":
            self.rejects += 1
        elif kind == "tool_call":
            self.calls.append(_text(member(payload, "name")))
        elif kind == "tool_repair" and isinstance(repairs := member(payload, "repairs"), list):
            self.repairs += [each for each in repairs if isinstance(each, str)]

    def joined(self, later: Summary) -> Summary:
        """This one together with `later`, its continuation in the next file."""
        later.time, later.begun = self.time or later.time, self.begun or later.begun
        for name in ("path", "run", "model", "requested_model", "backend"):
            setattr(later, name, getattr(later, name) or getattr(self, name))
        later.rejects += self.rejects
        later.spans = self.spans + later.spans
        return later


def summary_from_json(data: dict[str, Any]) -> Summary:
    """A summary from its JSON. Raises TypeError or KeyError for anything else."""
    data["spans"] = [Span(**span) for span in data["spans"]]
    return Summary(**data)


# From the lines of a file

_PIECE = (
    rb'\{"ts":"[^"\\\n]*","mono":[-+0-9.eE]+,"run":"%b",(?:"chunk":[0-9]+,)?"seq":(%b[0-9]{1,18}),'
    rb'"phase":"(?:backend_io|backend_submission|client_egress|tool_parse","direction":"none","kind":"tool_(?:call|repair))"'
    rb"[^\n]*\}\n"
)
_PIECES = re.compile(_PIECE % (rb'(?P<run>[^"\\\n]+)', b"?P<first>") + b"(?:%b)*" % _PIECE % (b"(?P=run)", b"?P<last>"))
"""Lines that no summary needs; `turn_end` repeats the notes on tool calls.

The repetition is not possessive, although matching never gives a line back: Python 3.11.2 gets that wrong for groups.
"""
_PHASES = frozenset({"turn", "tool_parse", "http_ingress"})
"""The phases whose records a summary is made of."""


@dataclass(slots=True)
class Run:
    """The sequence numbers of one run's records in a file."""

    first: int
    next: int
    continues: bool
    """Whether its records begin in another file."""


@dataclass(slots=True)
class Scanner:
    """Reads the blocks of one file in order. Returns summaries as their requests end and keeps the open ones."""

    name: str
    """The name of the file, for the spans."""
    open: dict[str, Summary] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    trouble: Trouble = field(default_factory=Trouble)
    """Lines that are not records, and missing ones, in this file."""
    turns: dict[str, _TranscriptTurn] = field(default_factory=dict)
    """The turns of a plain transcript."""
    _transcript: TranscriptReader = field(init=False)
    _used: dict[str, Usage] = field(default_factory=dict)
    """How many tokens each thread of a transcript has used so far."""
    _ended: list[Summary] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._transcript = TranscriptReader(Path(self.name).stem)

    def feed(self, offset: int, block: bytes) -> list[Summary]:
        """Read whole lines, the first of which begins at `offset`. Returns the requests that ended in them."""
        at = 0
        while at < len(block):
            pieces = _PIECES.match(block, at)
            if pieces is None:
                end = block.index(b"\n", at) + 1
            else:
                at, end = self._skip(pieces), pieces.end()
            for line in block[at : end - 1].split(b"\n"):
                if line.strip():
                    self._read_line(offset + at, line)
                at += len(line) + 1
        ended, self._ended = self._ended, []
        return ended

    def rest(self, size: int) -> Iterator[Summary]:
        """The requests that have not ended when the file is over at `size`, and the turns of a transcript."""
        for summary in self.open.values():
            summary.spans[-1].end = size
            yield summary
        for turn in self.turns.values():
            turn.summary.spans = [Span(self.name, 0, size)]
            yield turn.summary

    def _skip(self, pieces: re.Match[bytes]) -> int:
        """Number a stretch of lines except the last one. Returns where parsing begins."""
        block, (start, end) = pieces.string, pieces.span()
        first, last = int(pieces["first"]), int(pieces["last"] or pieces["first"])
        known = self.runs.get(pieces["run"].decode("utf-8", "replace"))
        if known is None or known.next != first or last - first + 1 != block.count(b"\n", start, end):
            return start
        known.next = last
        return block.rfind(b"\n", start, end - 1) + 1 or start

    def _read_line(self, at: int, line: bytes) -> None:
        record = parse_record(line)
        if record is None:
            record = self._transcript.record(line)
            if record is None:
                self.trouble.note_foreign(self.name, at)
            elif record["req_id"] is not None:
                self._read_transcript(record)
            return
        run, seq = record.get("run", ""), record["seq"]
        known = self.runs.setdefault(run, Run(seq, seq, continues(record)))
        self.trouble.gaps += max(0, seq - known.next)
        known.next = seq + 1
        self._read_record(record, run, at, at + len(line) + 1)

    def _read_record(self, record: dict[str, Any], run: str, start: int, end: int) -> None:
        kind, req_id, payload = record["kind"], record["req_id"], record.get("payload")
        self.trouble.note_format(record)
        if req_id is None or record["phase"] not in _PHASES:
            return
        name = request_of(req_id)[0]
        if kind == "client_request":
            before = self.open.get(name)
            if before is not None:  # The same log twice in one file: the first copy of the request has no end.
                before.spans[-1].end = start
                self._ended.append(before)
            summary = self.open[name] = Summary(name, run, record["ts"], spans=[Span(self.name, start, start)])
            summary.take_request(payload)
            return
        summary = self.open.get(name) or Summary(name, run, begun=False, spans=[Span(self.name, 0, 0)])
        # Without its beginning in this file, its lines may be anywhere before this one.
        self.open[name] = summary
        if kind == "turn_end":
            del self.open[name]
            summary.ended = record["ts"]
            summary.take_end(payload)
            summary.spans[-1].end = end
            self._ended.append(summary)
        elif kind == "turn_start":
            summary.take_start(payload)
        elif kind == "tool_reject":
            summary.rejects += 1

    def _read_transcript(self, record: dict[str, Any]) -> None:
        kind, method, payload = record["kind"], record.get("method"), record["payload"]
        name, at = record["req_id"], record["mono"]
        turn = self.turns.get(name)
        if turn is None:
            turn = self.turns[name] = _TranscriptTurn(Summary(name, path=TRANSCRIPT, backend="app-server"), at)
            turn.name_model(payload.get("params"))
        thread = record.get("conversation_id") or ""
        if method in PROMPTS and kind == "rpc_request":
            if turn.prompted is None:
                turn.used = self._used.get(thread, Usage())
            turn.prompted = at
            turn.name_model(record.get("thread"))
        elif method in PROMPTS and kind == "rpc_error":
            turn.end("failed", at, "error", text_of(member(payload, "error", "message")))
        elif method in PROMPTS and kind == "rpc_response":
            turn.accepted = True
        elif method in COUNTS and (total := total_used(payload)) is not None:
            self._used[thread] = total
            turn.count(total)
        turn.receive(kind, payload, at)


@dataclass(slots=True)
class _TranscriptTurn:
    """The summary of a turn in a plain transcript, from what the decoder of its dialect reads."""

    summary: Summary
    began: float
    child: ChildReader = field(init=False)
    prompted: float | None = None
    accepted: bool = False
    """Whether the prompt was accepted. A resumed or forked thread may count its earlier usage shortly before that."""
    used: Usage = field(default_factory=Usage)
    """What the thread had used before."""

    def __post_init__(self) -> None:
        # Imported here: the dialects take longer to load than most commands take to run.
        from bridge.log.content import ChildReader

        self.child = ChildReader()

    def receive(self, kind: str, payload: Any, at: float) -> None:
        for event in self.child.read(kind, payload):
            if isinstance(event, TextDelta | ReasoningDelta) and self.summary.first_event_s is None:
                self.summary.first_event_s = round(at - (self.prompted or self.began), 6)
            elif isinstance(event, Finished):
                self._finish(event, at)
        if (announced := self.child.announced) is not None:
            self._finish(announced, at)  # the transcript may lack the end of the turn

    def count(self, total: Usage) -> None:
        """A thread counts from its beginning; what a turn has used is the difference."""
        if not self.accepted:
            self.used = total
            return
        for name, tokens in usage_record(total - self.used).items():
            setattr(self.summary, name, tokens)

    def name_model(self, about: Any) -> None:
        if isinstance(model := member(about, "model"), str):
            self.summary.model = self.summary.requested_model = model

    def _finish(self, end: Finished, at: float) -> None:
        if end.error is None or end.error.code == "empty_response":
            # That an answer is empty is the decoder's verdict, not the child's.
            self.end("completed" if end.outcome == "failed" else end.outcome, at)
        else:
            self.end(end.outcome, at, end.error.code, end.error.message)

    def end(self, outcome: str, at: float, error: str | None = None, message: str | None = None) -> None:
        self.summary.outcome, self.summary.total_s = outcome, round(at - self.began, 6)
        self.summary.error, self.summary.message = error, message and message[:MESSAGE_KEPT]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
