"""What is played is recorded anew, so that a log of played answers can be played, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge import exact_json
from bridge.protolog.record import Recorder
from bridge.protolog.recording import Frame

LIMITS = "account/rateLimits/updated"


def copy_limits(recorder: Recorder, limits: dict[str, Any]) -> None:
    """Write what was left of the account's quota; before the turn begins, as its head tells it."""
    message = {"method": LIMITS, "params": {"rateLimits": limits}}
    recorder.rpc("in", "rpc_notification", exact_json.dumps(message), method=LIMITS)


class FrameCopy:
    """Writes the frames of one turn into another log, for the request that they answer now."""

    def __init__(self, recorder: Recorder, req_id: str) -> None:
        self._recorder = recorder
        self._req_id = req_id
        self._keys: set[str] = set()

    def add(self, read: Sequence[Frame]) -> None:
        """What came with one read."""
        together = read[0].chunk is not None
        if together:
            self._recorder.begin_read()
        for frame in read:
            self._write(frame, exact_json.dumps(frame.payload))
        if together:
            self._recorder.end_read()

    def end(self) -> None:
        """Nothing more comes."""
        for key in self._keys:
            self._recorder.forget(key)

    def _write(self, frame: Frame, line: bytes) -> None:
        if frame.kind.startswith("upstream"):
            self._recorder.upstream(self._req_id, frame.direction, line)
            return
        if frame.key is not None:
            self._keys.add(frame.key)
        self._recorder.rpc(
            frame.direction,
            frame.kind,
            line,
            method=frame.method,
            rpc_id=frame.rpc_id,
            key=frame.key,
            req_id=self._req_id,
        )
