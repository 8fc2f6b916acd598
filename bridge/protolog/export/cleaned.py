"""A recording without the secrets that were spelled out in it: an export puts texts together, whole or side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bridge.protolog.pieces import PieceScrubber
from bridge.protolog.recording import EGRESS, Frame, Piece, Recording
from bridge.protolog.scrub import Scrubber
from bridge.protolog.spelled import SpelledFinder


def cleaned(recording: Recording) -> Recording:
    """The same, with the secrets gone from every piece; the recording itself where it holds none."""
    told: list[tuple[str, Frame | Piece]] = [
        (f"{recording.id}#{attempt}", frame) for attempt, frames in recording.attempts.items() for frame in frames
    ]
    told += [(recording.id, piece) for piece in recording.client]
    finder = SpelledFinder()
    for req_id, part in told:
        finder.feed(_record(req_id, part))
    finder.end()
    secrets = list(finder.shaped)
    if not secrets:
        return recording
    scrubber, pieces = Scrubber(secrets, [], texts=False, key=b""), PieceScrubber(secrets)
    records = [done for each in told for done in pieces.feed(scrubber.entry(_record(*each)))]
    payloads = (record["payload"] for record in (*records, *pieces.rest()))
    return replace(
        recording,
        request=scrubber.value(recording.request),
        end=scrubber.value(recording.end),
        exit=scrubber.value(recording.exit),
        attempts={
            attempt: [replace(frame, payload=next(payloads)) for frame in frames]
            for attempt, frames in recording.attempts.items()
        },
        client=[replace(piece, payload=next(payloads)) for piece in recording.client],
        notes=[(kind, scrubber.value(payload)) for kind, payload in recording.notes],
    )


def _record(req_id: str, part: Frame | Piece) -> dict[str, Any]:
    about = {"ts": "", "mono": part.mono, "seq": 0, "kind": part.kind, "req_id": req_id, "payload": part.payload}
    return about | ({"phase": "backend_io", "method": part.method} if isinstance(part, Frame) else {"phase": EGRESS})
