"""Logs played again in the test's own process, and how they compare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import trio

from bridge.log.read import RecordReader, log_files
from bridge.log.recording import Recording, read_recordings
from bridge.replay.compare import Comparison
from bridge.replay.verify import Verifier


def recordings_in(*paths: Path) -> list[Recording]:
    """The requests of a log."""
    return list(read_recordings(RecordReader([file for path in paths for file in log_files(path)])))


def compared(recordings: Iterable[Recording]) -> list[Comparison]:
    """Each request, answered again."""

    async def play() -> list[Comparison]:
        verifier = Verifier()
        return [await verifier.verify(recording) for recording in recordings]

    return trio.run(play)


def play_log(log: Path) -> list[Comparison]:
    """Every request of a log gives the same again, byte for byte."""
    found = compared(recordings_in(log))
    assert [each.outcome for each in found] == ["same"] * len(found), told(found)
    assert found
    return found


def told(comparisons: Iterable[Comparison]) -> str:
    """What a person should know of those that are not the same."""
    return "\n\n".join(
        "\n".join((each.outcome, str(each.recording.request)[:400], *each.lines))
        for each in comparisons
        if each.outcome != "same"
    )
