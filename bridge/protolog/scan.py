"""Summaries out of a log's blocks, without looking at most of its lines.

A log is mostly pieces of text, which say nothing that a summary needs. So a block is searched for the heads of the few
lines that do. Whether the rest is in order is told by counts: all lines begin and end as ours do, and are numbered
without gaps. Only a block where that does not fit is read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge.protolog.assist import wishes_of
from bridge.protolog.read import Trouble, parse_record, request_of
from bridge.protolog.record import FORMAT
from bridge.protolog.summary import Span, Summary
from bridge.protolog.transcript import TranscriptReader
from bridge.protolog.transcript_summary import TranscriptSummaries

LARGEST_PARSED = 1024 * 1024
"""A request that is larger is not read for its model's name alone; `turn_start` tells that, too."""

_BEGIN, _END = b'{"ts":"', b"}\n"
_BETWEEN = _END + _BEGIN
_NUMBER = rb'\{"ts":"([^"\\]*)","mono":[-+0-9.eE]+,(?:"run":"([^"\\]*)",)?(?:"chunk":[0-9]+,)?"seq":([0-9]+),'
_TELLING = re.compile(rb'"phase":"(?:turn|tool_parse|http_ingress|header)"')
_HEAD = re.compile(
    _NUMBER + rb'"phase":"[a-z_]+","direction":"[a-z]+","kind":"([^"\\]+)","req_id":(?:null|"([^"\\]*)")'
)
_NUMBERED = re.compile(_NUMBER)
_ALL_NUMBERED = re.compile(rb"\n" + _NUMBER)
_ASKED = re.compile(rb'.*?,"payload":\{"path":"([^"\\]*)"(?:,"body":\{"model":"([^"\\]*)")?')
_TOLD_AT_THE_END = frozenset({b"tool_call", b"tool_repair"})
"""Lines whose content `turn_end` repeats, since format 2."""
_PHASES = frozenset({"turn", "tool_parse", "http_ingress", "header"})


@dataclass(slots=True)
class Run:
    """The numbers of one run's records in a file."""

    first: int
    next: int


@dataclass(slots=True)
class Scanner:
    """Takes the blocks of one file in order, gives summaries as their requests end, and keeps those that have not."""

    name: str
    """The file's, for the spans."""
    open: dict[str, Summary] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    foreign: int = 0
    first_foreign: int | None = None
    newer: int = 0
    gaps: int = 0
    transcripts: TranscriptSummaries = field(default_factory=TranscriptSummaries)
    _transcript: TranscriptReader = field(init=False)
    _ended: list[Summary] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._transcript = TranscriptReader(Path(self.name).stem)

    def feed(self, offset: int, block: bytes) -> list[Summary]:
        """The next whole lines; the requests that ended in them."""
        if self._in_order(block):
            done = 0
            for hit in _TELLING.finditer(block):
                if hit.start() < done:
                    continue  # the same words in what a line has recorded
                begin = block.rfind(b"\n", 0, hit.start()) + 1
                done = block.find(b"\n", hit.end())
                head = _HEAD.match(block, begin)
                if head is not None and head.end() > hit.end():
                    self._told(head, offset, block, done)
        else:
            self._read_lines(offset, block)
        ended, self._ended = self._ended, []
        return ended

    def rest(self, size: int) -> Iterator[Summary]:
        """What has not ended, when the file is over at `size`."""
        for summary in self.open.values():
            summary.spans[-1].end = size
            yield summary
        yield from self.transcripts.summaries(Span(self.name, 0, size))

    def add_trouble(self, trouble: Trouble) -> None:
        """Tell what was found that is no record."""
        trouble.foreign += self.foreign
        trouble.newer += self.newer
        trouble.gaps += self.gaps
        if self.first_foreign is not None and trouble.first is None:
            trouble.first = f"at byte {self.first_foreign} of {self.name}"

    # Blocks in order

    def _in_order(self, block: bytes) -> bool:
        """Whether all lines are of our writer's form and none is missing. Takes the numbers in if so.

        What stands between two of our lines is counted: a line that begins or ends in another way leaves one out. And
        the numbers of the first and the last line must differ by as many lines, all of them of one run.
        """
        if not block.startswith(_BEGIN) or not block.endswith(_END):
            return False
        first, last = _NUMBERED.match(block), _NUMBERED.match(block, block.rfind(b"\n", 0, len(block) - 1) + 1)
        if first is None or last is None:
            return False
        run, start, following = _name(first[2]), int(first[3]), int(last[3]) + 1
        lines = block.count(b"\n")
        if block.count(_BETWEEN) != lines - 1:
            return False
        alone = not run or block.count(b',"run":"%b",' % first[2]) == lines
        if alone and run == _name(last[2]) and following - start == lines:
            known = self.runs.get(run)
            if known is None or known.next == start:
                self._number(run, start, following)
                return True
        # Where another run begins, the last one may have been killed within a line, and that may look whole.
        begun = block.find(b'"phase":"header"', block.find(b"\n")) >= 0
        return not begun and self._runs_in_order(first, block, lines)

    def _runs_in_order(self, first: re.Match[bytes], block: bytes, lines: int) -> bool:
        """The same for lines of several runs."""
        numbers: dict[bytes, list[int]] = {first[2] or b"": [int(first[3])]}
        for _, run, seq in _ALL_NUMBERED.findall(block):
            numbers.setdefault(run, []).append(int(seq))
        if sum(map(len, numbers.values())) != lines:
            return False
        found = []
        for run, each in numbers.items():
            name = _name(run)
            known = self.runs.get(name)
            follows = known is None or known.next == each[0] or not run
            if not follows or (run and each != list(range(each[0], each[0] + len(each)))):
                return False
            found.append((name, each[0], each[-1] + 1))
        for numbered in found:
            self._number(*numbered)
        return True

    def _number(self, run: str, first: int, following: int) -> None:
        known = self.runs.get(run)
        if known is None:
            self.runs[run] = Run(first, following)
        else:
            known.next = following

    def _told(self, head: re.Match[bytes], offset: int, block: bytes, end: int) -> None:
        """A line that tells something, by its head; it goes up to `end`."""
        begin, (ts, run, _, kind, req_id) = head.start(), head.groups()
        if kind == b"header":
            self._header(_parse(block[begin:end]))
        if req_id is None or (run and kind in _TOLD_AT_THE_END):
            return
        name = request_of(req_id.decode("utf-8", "replace"))[0]
        if kind == b"client_request":
            asked = _ASKED.match(block, head.end(), end)
            if asked is not None and (asked[2] is not None or end - begin > LARGEST_PARSED):
                told: Any = {"path": asked[1].decode("utf-8", "replace"), "body": {"model": _name(asked[2])}}
            else:
                told = _parse(block[begin:end]).get("payload") if end - begin <= LARGEST_PARSED else None
            self._asked(name, _name(run), ts.decode("utf-8", "replace"), offset + begin, told)
            return
        record = _parse(block[begin:end])
        if not record:
            self._note_foreign(offset + begin)
            return
        self._event(name, _name(run), ts.decode("utf-8", "replace"), kind.decode(), record, offset + end + 1)

    # Line by line

    def _read_lines(self, offset: int, block: bytes) -> None:
        at = offset
        for line in block.split(b"\n")[:-1]:
            if line.strip():
                self._read_line(at, line)
            at += len(line) + 1

    def _read_line(self, at: int, line: bytes) -> None:
        record = parse_record(line)
        if record is None:
            record = self._transcript.record(line)
            if record is None:
                self._note_foreign(at)
            else:
                self.transcripts.add(record)
            return
        run, seq = _text(record.get("run")), record["seq"]
        known = self.runs.get(run)
        if known is not None and run and seq > known.next:
            self.gaps += seq - known.next
        self._number(run, seq, seq + 1)
        kind, req_id = record["kind"], record["req_id"]
        if kind == "header":
            self._header(record)
        if req_id is None or record["phase"] not in _PHASES:
            return
        name, end = request_of(req_id)[0], at + len(line) + 1
        if kind == "client_request":
            self._asked(name, run, record["ts"], at, record.get("payload"))
        else:
            self._event(name, run, record["ts"], kind, record, end)

    # What the lines say

    def _header(self, record: dict[str, Any]) -> None:
        if isinstance(record.get("format"), int) and record["format"] > FORMAT:
            self.newer += 1

    def _asked(self, name: str, run: str, ts: str, start: int, payload: Any) -> None:
        path, model = "", ""
        if isinstance(payload, dict):
            path = _text(payload.get("path"))
            body = payload.get("body")
            model = _text(body.get("model") or wishes_of(body).get("model")) if isinstance(body, dict) else ""
        before = self.open.get(name)
        if before is not None:  # The same log twice in one file: the first of the two has no end.
            before.spans[-1].end = start
            self._ended.append(before)
        self.open[name] = Summary(
            name, run, ts, path=path, requested_model=model, spans=[Span(self.name, start, start)]
        )

    def _event(self, name: str, run: str, ts: str, kind: str, record: dict[str, Any], end: int) -> None:
        summary = self.open.get(name)
        if summary is None:
            # Its beginning is not in this file; its lines may stand anywhere in it before this one.
            summary = self.open[name] = Summary(name, run, begun=False, spans=[Span(self.name, 0, 0)])
        if kind == "turn_end":
            del self.open[name]
            summary.ended = ts
            summary.take_end(record.get("payload"))
            summary.spans[-1].end = end
            self._ended.append(summary)
        elif kind == "turn_start":
            summary.take_start(record.get("payload"))
        elif kind == "tool_reject" or not run:
            summary.take_note(kind, record.get("payload"))

    def _note_foreign(self, at: int) -> None:
        self.foreign += 1
        if self.first_foreign is None:
            self.first_foreign = at


def _parse(line: bytes) -> dict[str, Any]:
    """A line as a record; an empty one when it is broken."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return record if isinstance(record, dict) else {}


def _name(run: bytes | None) -> str:
    return run.decode("utf-8", "replace") if run else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
