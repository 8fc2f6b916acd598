"""A log with what clients get now in place of what they got then; everything else as it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from bridge import exact_json
from bridge.errors import ConfigError
from bridge.protolog.compare import NEW_EACH_TIME
from bridge.protolog.read import parse_record
from bridge.protolog.recording import EGRESS, Assembler, Piece, Recording
from bridge.protolog.transcript import TranscriptReader

NOTHING = Piece(0.0, "client_sse", "")
"""What stands in a record that has nothing to say any more; it stays, so that the numbers have no gap."""


def update_log(files: list[Path], changed: Iterable[tuple[Recording, Recording]]) -> None:
    """Rewrite the files; `changed` are requests as they were recorded, and as they are now. Each is replaced whole.

    Lines that nothing is changed in stay as they are, byte for byte. Raises ConfigError.
    """
    slots = {then.number: _fill(then, now) for then, now in changed}
    assembler = Assembler()
    for path in (path.resolve() for path in files):
        aside = path.with_name(f".{path.name}.new")
        try:
            with (
                path.open("rb") as old,
                open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new,
            ):
                new.writelines(_rewritten(path, old, assembler, slots))
                os.fchmod(new.fileno(), os.fstat(old.fileno()).st_mode)
                new.flush()
                os.fsync(new.fileno())
            aside.replace(path)
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise ConfigError(f"{path} cannot be rewritten: {error.strerror}.") from error


def _rewritten(
    path: Path, old: IO[bytes], assembler: Assembler, slots: Mapping[int, Iterator[list[Piece]]]
) -> Iterator[bytes]:
    transcript = TranscriptReader(path.stem)
    for line in old:
        record = parse_record(line) or transcript.record(line)
        if record is None or record["req_id"] is None:
            yield line
            continue
        assembler.add(path, record)
        number = assembler.number(record["req_id"])
        if record["phase"] != EGRESS or number is None or number not in slots:
            yield line
            continue
        for piece in next(slots[number], ()):
            yield exact_json.dumps(record | {"kind": piece.kind, "payload": piece.payload}) + b"\n"


def _fill(then: Recording, now: Recording) -> Iterator[list[Piece]]:
    """What stands in each of the records that there were: as many events in each as before, the rest in the last."""
    new = _single(_with_old_names(piece, then) for piece in now.client)
    counts = [_events(piece) for piece in then.client]
    for index, count in enumerate(counts):
        last = index == len(counts) - 1
        taken, new = (new, []) if last else (new[:count], new[count:])
        yield _joined(taken) or [NOTHING]


def _with_old_names(piece: Piece, then: Recording) -> Piece:
    """The head of an answer with the ids that it had: so an update changes nothing that verifying does not compare."""
    if piece.kind != "client_start" or then.headers is None:
        return piece
    old = {name: value for name, value in then.headers if name in NEW_EACH_TIME}
    headers = [[name, old.get(name, value)] for name, value in piece.payload["headers"]]
    return Piece(piece.mono, piece.kind, piece.payload | {"headers": headers})


def _events(piece: Piece) -> int:
    is_stream = piece.kind == "client_sse" and isinstance(piece.payload, str)
    return piece.payload.count(_end_of_event(piece.payload)) if is_stream else 1


def _end_of_event(stream: str) -> str:
    """What ends an event: an empty line, or of packets that are lines, the line."""
    return "\n" if stream.startswith("{") else "\n\n"


def _single(pieces: Iterable[Piece]) -> list[Piece]:
    """Each event of a stream by itself."""
    single: list[Piece] = []
    for piece in pieces:
        if piece.kind != "client_sse":
            single.append(piece)
        else:
            end = _end_of_event(piece.payload)
            events = piece.payload.split(end)[:-1]
            single += [Piece(piece.mono, piece.kind, event + end) for event in events]
    return single


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Events that stand beside each other in one record."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].kind == piece.kind == "client_sse":
            joined[-1] = Piece(piece.mono, piece.kind, joined[-1].payload + piece.payload)
        else:
            joined.append(piece)
    return joined
