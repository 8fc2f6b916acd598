"""The event log of one run: what makes its records and what writes them, opened and closed together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import trio

from bridge.errors import BridgeError
from bridge.protolog.record import Recorder
from bridge.protolog.rotation import files_at, is_directory, utc_now
from bridge.protolog.writer import LogWriter
from bridge.redact import Redactor
from bridge.tools.stage import Record

if TYPE_CHECKING:
    from bridge.config import Settings

OnError = Literal["drop", "stop"]

DIRECTORY_MAX_BYTES = 256 * 1024 * 1024
"""What a file in a directory grows to, unless the operator says something else. A file alone grows for ever."""


class LogFailed(BridgeError):
    """Something could not be recorded, and it was asked for that nothing happens unrecorded."""

    code = "event_log_failed"


class EventLog:
    """A recorder with its files. Raises ConfigError when they cannot be written.

    `target` is a file or a directory, `about` is what the headers tell. With the policy `drop` the program's log tells
    of records that are lost; with `stop`, `failed` is called then, and `check` raises.
    """

    def __init__(
        self,
        target: str,
        redactor: Redactor,
        about: Mapping[str, Any],
        *,
        max_bytes: int | None = None,
        max_age: float = 0,
        keep: int = 0,
        on_error: OnError = "drop",
    ) -> None:
        run = secrets.token_hex(4)
        if max_bytes is None:
            max_bytes = DIRECTORY_MAX_BYTES if is_directory(target) else 0
        self._about = about
        self.redactor = redactor
        self._stops = on_error == "stop"
        self._failed: Callable[[], None] = lambda: None
        self.writer = LogWriter(
            files_at(target, run),
            max_bytes=max_bytes,
            max_age=max_age,
            keep=keep,
            on_drop=self._lost if self._stops else None,
        )
        self.recorder = RunRecorder(self.writer.write, now, redactor, run)

    async def run(
        self,
        failed: Callable[[], None] = lambda: None,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Write records until cancelled, then the rest of them. Started when the header has been written."""
        self._failed = failed
        await self.writer.run(self._head, task_status)

    def check(self) -> None:
        """Raise LogFailed when the policy is to stop and a record has been lost."""
        if self._stops and self.writer.failure is not None:
            raise LogFailed(
                f"The event log {self.writer.shown} could not be written: {self.writer.failure}. Nothing is done "
                "unrecorded, so everything was stopped. Make room for the log, or write it elsewhere (--log-events)."
            )
        if self._stops and self.writer.deleted:
            raise LogFailed(
                f"The event log {self.writer.shown} was deleted while it was written. What was recorded before is lost."
            )

    def _head(self, continues: str | None) -> None:
        later = {} if continues is None else {"continues": continues}
        self.recorder.header(**self._about, **later)

    def _lost(self) -> None:
        self._failed()


def about(settings: Settings) -> dict[str, Any]:
    """What a header tells: what the operator has decided about how answers look. A replay needs to know it."""
    shape = settings.model_dump(include={"reasoning", "stream_default", "store", "unsupported"})
    return {"dialect": settings.dialect, "settings": shape}


class RunRecorder(Recorder):
    """A recorder that counts the turns that have ended, and those of them that failed."""

    turns = 0
    failed = 0

    def event(self, phase: str, direction: str, kind: str, req_id: str | None, payload: Any) -> None:
        if kind == "turn_end":
            self.turns += 1
            self.failed += payload["outcome"] == "failed"
        super().event(phase, direction, kind, req_id, payload)

    def tool_calls(self, req_id: str) -> Record:
        """What notes the calls that are found in the text of a request's answer."""
        return lambda kind, payload: self.event("tool_parse", "none", kind, req_id, payload)


def now() -> tuple[str, float]:
    """(the time, monotonic seconds) of a record."""
    return utc_now().isoformat(timespec="microseconds").replace("+00:00", "Z"), time.monotonic()
