"""Compare what a client got with what it would get now, and put the new answer into the log."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import orjson

from bridge import exact_json
from bridge.errors import ConfigError
from bridge.exact_json import member
from bridge.log.read import parse_record
from bridge.log.recording import EGRESS, Assembler, Piece, Recording
from bridge.log.transcript import TranscriptReader

_COMMENT = re.compile(rb"^:[^\n]*\n\n", re.MULTILINE)
_OWN_ID = re.compile(rb"\b([a-z]{2,10}[_-])[0-9a-f]{32}\b")
_TIME = re.compile(rb'"(timestamp|created_at)":"[^"\\]*"|"(duration_ms|ttft_ms)":[0-9]+')
_PACKET = rb'(?:event: stream\.packet\nid: [^\n]*\ndata: )?\{"op":"%b"[^\n]*\n+'
_CUT_END = re.compile(rb"(?:%b)?%b\Z" % (_PACKET % b"error", _PACKET % b"close"))
_VOLATILE_HEADERS = frozenset({"date", "request-id", "x-request-id", "x-bridge-request-id", "x-client-request-id"})
"""Response headers that must be present, with any value."""
CONTEXT = 2
"""Equal events that are shown before the first that differs."""
MAX_LINES = 60
MAX_EVENTS = 20

Outcome = Literal["same", "different", "not_played"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one request; `lines` explain it."""

    recording: Recording
    outcome: Outcome
    lines: tuple[str, ...] = ()
    now: Recording | None = None
    """What the client would get now."""

    @property
    def same(self) -> bool:
        return self.outcome == "same"


def compare(recording: Recording, played: Recording) -> Comparison:
    """Compare status, headers and every byte except comments, which only keep a stream alive.

    If the client left before the end, or the log was cut, only the recorded beginning is compared. A CAP turn that was
    ended from outside was sent an end of its own, whatever its backend sent until then.
    """
    then, now = without_comments(recording.sent), without_comments(played.sent)
    if None not in (recording.status, played.status) and recording.status != played.status:
        lines = (f"HTTP status {played.status}, recorded was {recording.status}", *show_difference(then, now))
        return Comparison(recording, "different", lines, played)
    if headers := _differing_headers(recording, played):
        return Comparison(recording, "different", headers, played)
    partial = _is_partial(recording)
    choices = isinstance(n := (recording.body or {}).get("n"), int) and n > 1
    attempts: list[tuple[Callable[[bytes], bytes], str | None]] = [
        (bytes, None),
        (renamed, "ids that are not in the log were generated"),
        (timeless, "times that are not in the log were generated"),
    ]
    for simplify, note in attempts:
        if _equal(simplify(then), simplify(now), partial=partial, choices=choices):
            notes = ("only the recorded beginning was compared" if partial else None, note)
            return Comparison(recording, "same", tuple(each for each in notes if each), played)
    return Comparison(recording, "different", tuple(show_difference(then, now)), played)


def _is_partial(recording: Recording) -> bool:
    end = recording.end
    if end is None or (end.get("outcome") == "cancelled" and end.get("reason") == "client_gone"):
        return True
    late = member(end, "error", "code") == "deadline_exceeded"
    return (late or end.get("outcome") == "cancelled") and _CUT_END.search(recording.sent) is not None


def _differing_headers(recording: Recording, played: Recording) -> tuple[str, ...]:
    """How the response headers differ; nothing if either recording has none."""
    then, now = _headers(recording), _headers(played)
    if then is None or now is None or then == now:
        return ()
    lines = difflib.unified_diff(then, now, "recorded", "now", lineterm="", n=0)
    return ("the response headers differ", *(line for line in lines if not line.startswith("@@")))


def _headers(recording: Recording) -> list[str] | None:
    if recording.headers is None:
        return None
    volatile = _VOLATILE_HEADERS
    if member(recording.end, "error", "code") == "insufficient_quota":
        # It counts from the second of the answer until the quota is renewed.
        volatile |= {"retry-after"}
    return sorted(f"{name}: {'…' if name in volatile else value}" for name, value in recording.headers)


def _equal(then: bytes, now: bytes, *, partial: bool, choices: bool) -> bool:
    if not choices:
        return now == then or (partial and now.startswith(_CUT_END.sub(b"", then)))
    # Which choice streams first is a race; each must be the same.
    before, after = _by_choice(then), _by_choice(now)
    if not partial:
        return before == after
    return all(after.get(choice, b"").startswith(sent) for choice, sent in before.items())


def without_comments(stream: bytes) -> bytes:
    return _COMMENT.sub(b"", stream) if b":" in stream else stream


def renamed(stream: bytes) -> bytes:
    """With numbers in place of our own ids: an id that no client was sent is not in the log."""
    numbers: dict[bytes, int] = {}
    return _OWN_ID.sub(lambda found: found[1] + b"%d" % numbers.setdefault(found[0], len(numbers)), stream)


def timeless(stream: bytes) -> bytes:
    """As `renamed`, and without the times in CAP: which of them are sent depends on what was streamed."""
    return _TIME.sub(rb'"\1\2":0', renamed(stream))


def _by_choice(stream: bytes) -> dict[int, bytes]:
    """The events of each choice; under -1 those that concern all."""
    found: dict[int, bytes] = {}
    for event in filter(None, stream.split(b"\n\n")):
        try:
            choice = int(orjson.loads(event.removeprefix(b"data: "))["choices"][0]["index"])
        except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
            choice = -1
        found[choice] = found.get(choice, b"") + event + b"\n\n"
    return found


def show_difference(then: bytes, now: bytes) -> list[str]:
    """A unified diff of the events around the first that differs, as pretty JSON."""
    before, after = ([each for each in re.split(_separator(stream), stream) if each] for stream in (then, now))
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    shown = slice(max(0, same - CONTEXT), same + MAX_EVENTS)
    left, right = ([line for event in events[shown] for line in _pretty(event)] for events in (before, after))
    lines = list(difflib.unified_diff(left, right, "recorded", "now", lineterm="", n=3))
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… {len(lines) - MAX_LINES} more lines"]
    return [f"event {same + 1} of {len(before)} (now {len(after)}) is the first that differs", *lines]


def _separator(stream: bytes) -> bytes:
    return b"\n\n" if b"\n\n" in stream else b"\n"


def _pretty(event: bytes) -> Iterator[str]:
    for line in event.split(b"\n"):
        try:
            value = exact_json.loads(line.removeprefix(b"data: "))
        except orjson.JSONDecodeError:
            yield line.decode("utf-8", "replace")
            continue
        yield from exact_json.dumps(value, option=orjson.OPT_INDENT_2).decode("utf-8", "replace").splitlines()


# Updating a log. Only the lines of changed answers are written again; every other line keeps its bytes.


def update_log(files: list[Path], changed: Iterable[tuple[Recording, Recording]]) -> None:
    """Put new answers into the log. `changed` are pairs of a recorded request and what its client would get now.

    Each file is replaced in one step. Raises ConfigError.
    """
    answers = {then.number: _distribute(then, now) for then, now in changed}
    assembler = Assembler()
    for path in (path.resolve() for path in files):
        aside = path.with_name(f".{path.name}.new")
        try:
            with (
                path.open("rb") as old,
                open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new,
            ):
                new.writelines(_rewrite(path, old, assembler, answers))
                os.fchmod(new.fileno(), os.fstat(old.fileno()).st_mode)
                new.flush()
                os.fsync(new.fileno())
            aside.replace(path)
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise ConfigError(f"{path} cannot be rewritten: {error.strerror}.") from error


def _rewrite(
    path: Path, old: IO[bytes], assembler: Assembler, answers: Mapping[int, Iterator[list[Piece]]]
) -> Iterator[bytes]:
    transcript = TranscriptReader(path.stem)
    for line in old:
        record = parse_record(line) or transcript.record(line)
        if record is None or record["req_id"] is None:
            yield line
            continue
        assembler.add(path, record)
        number = assembler.number(record["req_id"])
        if record["phase"] != EGRESS or number is None or number not in answers:
            yield line
            continue
        for piece in next(answers[number], ()):
            yield exact_json.dumps(record | {"kind": piece.kind, "payload": piece.payload}) + b"\n"


def _distribute(then: Recording, now: Recording) -> Iterator[list[Piece]]:
    """The new content of each recorded piece: as many events as before; the last piece gets the rest.

    A piece without content is kept empty, so that the numbers of the records have no gap.
    """
    new = [event for piece in now.client for event in _events(_with_recorded_ids(piece, then))]
    last = then.client[-1]
    for piece in then.client:
        count = len(new) if piece is last else len(_events(piece))
        joined: list[Piece] = []
        for event in new[:count]:
            if joined and joined[-1].kind == event.kind == "client_sse":
                joined[-1] = Piece(event.mono, event.kind, joined[-1].payload + event.payload)
            else:
                joined.append(event)
        new = new[count:]
        yield joined or [Piece(0.0, "client_sse", "")]


def _with_recorded_ids(piece: Piece, then: Recording) -> Piece:
    """A response head with the recorded ids, so that an update changes nothing that is not compared."""
    if piece.kind != "client_start" or then.headers is None:
        return piece
    old = {name: value for name, value in then.headers if name in _VOLATILE_HEADERS}
    headers = [[name, old.get(name, value)] for name, value in piece.payload["headers"]]
    return Piece(piece.mono, piece.kind, piece.payload | {"headers": headers})


def _events(piece: Piece) -> list[Piece]:
    """Each event of a piece of a stream on its own."""
    if piece.kind != "client_sse" or not isinstance(piece.payload, str):
        return [piece]
    # Packets of CAP may be lines.
    end = "\n" if piece.payload.startswith("{") else "\n\n"
    return [Piece(piece.mono, piece.kind, event + end) for event in piece.payload.split(end)[:-1]]
