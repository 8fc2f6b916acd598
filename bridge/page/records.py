"""The records of a held turn, as the event log has them, and what is read back from them.

The recorder of the event log makes them, with its format and its redaction, and the reader of event logs reads them. So
the page shows nothing that a log would not show, and a secret is removed in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bridge.appserver.connection import CurrentDecoder, LegacyDecoder, LineSplitter
from bridge.appserver.dialect import key_of
from bridge.log.read import parse_record, request_of
from bridge.log.record import Recorder
from bridge.log.recording import EXIT, Recording, read_recordings
from bridge.page.ring import Entry, Feed, HeldTurn, Read
from bridge.redact import Redactor

_DECODERS = (CurrentDecoder(), LegacyDecoder())
_NOWHERE = Path("memory")


class _Owner(NamedTuple):
    key: str | None
    req_id: str | None


class News(NamedTuple):
    """What a turn got since it was last visited. It can be read in another thread, while the turn continues."""

    parts: Sequence[Entry | Read]
    """In order. Nothing that a child sent after the end belongs to the turn."""
    start: dict[str, Any] | None
    end: dict[str, Any] | None
    torn: Collection[Feed]
    """The children of which something was dropped before it could be visited."""


class RecordMaker:
    """Makes the records of one turn, in pieces: `visit` in the event loop, then `records` in any thread.

    `keys` are secrets that must never be shown.
    """

    def __init__(self, turn: HeldTurn, keys: tuple[str, ...] = ()) -> None:
        self.turn = turn
        self.missed = 0
        """Entries and reads that were dropped before they could be visited."""
        self._lines: list[bytes] = []
        self._at = turn.at
        self._recorder = Recorder(self._lines.append, self._now, Redactor(keys), "")
        self._entries = 0
        self._positions: dict[Feed, int] = {}
        self._splitters: dict[Feed, LineSplitter] = {}
        self._owners: dict[Feed, dict[str, str]] = {}
        """The attempt that each thread of a child serves (`ID#N`). Another one may take it over."""
        self._calls: dict[tuple[Feed, int | str], dict[str, Any]] = {}
        self._has_begun = self._has_started = self._has_ended = False

    def visit(self) -> News:
        """What came since the last visit."""
        turn = self.turn
        first = self._entries - turn.dropped
        self.missed += max(0, -first)
        parts: list[Entry | Read] = [*turn.entries[max(0, first) :]]
        self._entries = turn.dropped + len(turn.entries)
        torn = set()
        for feed in turn.threads:
            before = self._positions.get(feed)
            reads, self._positions[feed] = reads_since(feed, turn.at, before or 0)
            if before is not None and feed.gone > before:
                self.missed += feed.gone - before
                torn.add(feed)
            parts += reads if turn.running else [read for read in reads if read.at <= turn.end_at]
        parts.sort(key=_time_of)
        return News(parts, turn.start, turn.end, torn)

    def records(self, news: News) -> list[dict[str, Any]]:
        """The records of what a visit found."""
        turn, recorder = self.turn, self._recorder
        if not self._has_begun:
            self._has_begun = True
            self._lines.append(recorder.header())
            recorder.event("http_ingress", "in", "client_request", turn.id, turn.request)
        if not self._has_started and news.start is not None:
            self._has_started = True
            recorder.event("turn", "none", "turn_start", turn.id, news.start)
        for feed in news.torn:
            self._splitters.pop(feed, None)
        for part in news.parts:
            self._at = part.at
            if isinstance(part, Read):
                self._read(part, self._owners.get(part.feed, {}))
            else:
                self._entry(part)
        if not self._has_ended and news.end is not None:
            self._has_ended, self._at = True, turn.end_at
            recorder.event("turn", "none", "turn_end", turn.id, news.end)
            if turn.exit is not None:
                recorder.lifecycle(EXIT, turn.exit)
        lines = b"".join(self._lines).split(b"\n")
        self._lines.clear()
        return [record for line in lines if line and (record := parse_record(line)) is not None]

    def _now(self) -> tuple[str, float]:
        return iso_time(self.turn.time + self._at - self.turn.at), self._at

    def _entry(self, entry: Entry) -> None:
        if entry.kind == "rpc":
            direction, kind, line, about, feed = entry.arguments
            if kind == "rpc_request" and feed is not None:
                self._calls[feed, about["rpc_id"]] = about
            if about["key"] is not None and about["req_id"] is not None:
                self._owners.setdefault(feed, {})[about["key"]] = about["req_id"]
            self._recorder.rpc(direction, kind, line, **about)
        elif entry.kind == "claim":
            key, req_id, feed = entry.arguments
            self._owners.setdefault(feed, {})[key] = req_id
            self._recorder.claim(key, req_id)
        else:
            getattr(self._recorder, entry.kind)(*entry.arguments)

    # What a child sent

    def _read(self, read: Read, owners: Mapping[str, str]) -> None:
        splitter = self._splitters.get(read.feed)
        data = read.data
        if splitter is None or read.is_first or read.has_gap:
            splitter = self._splitters[read.feed] = LineSplitter()
            if not read.is_first:
                # The beginning of its first line is not known any more.
                data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
        keys = [key.encode() for key in owners]
        self._recorder.begin_read()
        deltas: list[tuple[bytes, str, _Owner]] = []
        for line in splitter.feed(data):
            is_notice = line.startswith(b'{"method"')
            if is_notice and not any(key in line for key in keys):
                continue
            delta = self._delta(line, owners) if is_notice else None
            if delta is not None:
                deltas.append(delta)
                continue
            self._deltas(deltas)
            self._message(read.feed, line, owners)
        self._deltas(deltas)
        self._recorder.end_read()

    def _delta(self, line: bytes, owners: Mapping[str, str]) -> tuple[bytes, str, _Owner] | None:
        """A piece of text of this turn, with its owner; None for any other line."""
        for decoder in _DECODERS:
            if line.startswith(decoder.delta):
                try:
                    key, _, text = decoder.read_delta(line)
                    return line, text, _Owner(key, owners[key])
                except (ValueError, KeyError, TypeError):
                    return None
        return None

    def _deltas(self, deltas: list[tuple[bytes, str, _Owner]]) -> None:
        if deltas:
            lines, texts, owners = zip(*deltas, strict=True)
            self._recorder.deltas([*lines], [*texts], [*owners])
            deltas.clear()

    def _message(self, feed: Feed, line: bytes, owners: Mapping[str, str]) -> None:
        """Any other line, if it is about this turn."""
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if not isinstance(message, dict):
            return
        method, rpc_id = message.get("method"), message.get("id")
        if isinstance(method, str):
            key = key_of(message.get("params"))
            if key is not None and key in owners:
                kind = "server_request" if "id" in message else "rpc_notification"
                known_id = rpc_id if isinstance(rpc_id, int | str) else None
                self._recorder.rpc("in", kind, line, method=method, rpc_id=known_id, key=key, req_id=owners[key])
        elif isinstance(rpc_id, int | str) and (call := self._calls.get((feed, rpc_id))) is not None:
            kind = "rpc_response" if message.get("error") is None else "rpc_error"
            self._recorder.rpc("in", kind, line, method=call["method"], rpc_id=rpc_id, req_id=call["req_id"])


def reads_since(feed: Feed, since: float, position: int = 0) -> tuple[list[Read], int]:
    """(the kept reads of a child from this time, and from this position in all of its reads; the position after them).

    Only what is new is visited.
    """
    found: list[Read] = []
    end = feed.gone + len(feed.reads)
    for at, read in zip(range(end - 1, -1, -1), reversed(feed.reads), strict=False):
        if at < position or read.at < since:
            break
        found.append(read)
    return found[::-1], end


def iso_time(seconds: float) -> str:
    """A time as records have it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


def _time_of(part: Entry | Read) -> float:
    return part.at


def brief_recording(turn: HeldTurn, keys: tuple[str, ...], *, request: bool) -> Recording:
    """The turn without its messages and its answer: enough for its row. Without `request` it costs next to nothing."""
    notes = [entry for entry in turn.entries if entry.kind == "event" and entry.arguments[0] == "tool_parse"]
    asked = turn.request if request else {}
    brief = HeldTurn(turn.id, turn.key, turn.at, turn.time, asked, None, 0, turn.start, turn.end, turn.end_at)
    brief.entries = notes
    maker = RecordMaker(brief, keys)
    return read_back(turn.id, maker.records(maker.visit()))


def read_back(name: str, records: Iterable[dict[str, Any]]) -> Recording:
    """The recording in the records of one request."""
    return next(read_recordings((_NOWHERE, record) for record in records), Recording(name, _NOWHERE))


def new_parts(turn: HeldTurn, records: Sequence[dict[str, Any]]) -> Recording:
    """A recording of nothing but these records: what is new of a turn."""
    recording = Recording(turn.id, _NOWHERE, at=turn.at)
    for record in records:
        if record["req_id"] is not None and record["kind"] != "client_request":
            recording.add(record, request_of(record["req_id"])[1])
    return recording
