"""Logs made with the recorder itself: any request, at times that are known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.log.read import RecordReader, log_files
from bridge.log.record import Recorder
from bridge.log.recording import Recording, read_recordings
from bridge.redact import Redactor

Json = dict[str, Any]


@dataclass
class LogMaker:
    """Writes a log. The clock stands still until it is moved with `wait`."""

    path: Path
    seconds: float = 0.0
    count: int = 0
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self._file = self.path.open("wb")
        self.recorder = Recorder(self._write, self._now, Redactor(), "0badcafe")
        self._write(self.recorder.header(dialect="current", settings={}))

    def _write(self, line: bytes) -> None:
        self._file.write(line)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def close(self) -> Path:
        """The log is whole."""
        self._file.close()
        return self.path

    def turn(
        self,
        *,
        body: Any = None,
        path: str = "/v1/responses",
        req_id: str | None = None,
        model: str = "mock-text",
        said: Iterable[str] = (),
        sent: Iterable[str] = (),
        answer: Any = None,
        status: int | None = 200,
        headers: Iterable[tuple[str, str]] = (),
        notes: Iterable[tuple[str, Json]] = (),
        outcome: str | None = "completed",
        **end: Any,
    ) -> str:
        """One request: `said` are the model's deltas, `sent` pieces of a stream, `answer` a body; its id."""
        self.count += 1
        req_id = req_id or f"req_{self.count:032x}"
        event = self.recorder.event
        event("http_ingress", "in", "client_request", req_id, {"path": path, "body": {} if body is None else body})
        about: dict[str, Any] = {
            "model": model,
            "requested_model": model,
            "effort": None,
            "backend": "mock",
            "dropped": [],
        }
        event("turn", "none", "turn_start", req_id, about | {"dropped": []})
        for piece in said:
            self.wait(0.01)
            params = {"threadId": f"thread-{self.count}", "itemId": f"msg-{self.count}", "delta": piece}
            self.frame(req_id, "item/agentMessage/delta", params)
        for kind, payload in notes:
            event("tool_parse", "none", kind, req_id, payload)
        self.wait(0.01)
        if status is not None:
            start = {"status": status, "headers": [list(pair) for pair in headers]}
            event("client_egress", "out", "client_start", req_id, start)
        for piece in sent:
            event("client_egress", "out", "client_sse", req_id, piece)
            self.wait(0.01)
        if answer is not None:
            event("client_egress", "out", "client_json", req_id, answer)
        if outcome is not None:
            told: dict[str, Any] = {
                "outcome": outcome,
                "reason": None,
                "error": None,
                "usage": None,
                "calls": [],
                "repairs": [],
            }
            told |= {"first_event_s": 0.01, "total_s": 0.02}
            event("turn", "none", "turn_end", req_id, told | end)
        return req_id

    def frame(self, req_id: str, method: str, params: Any) -> None:
        """A notification of the child."""
        self.recorder.begin_read()
        line = json.dumps({"method": method, "params": params}).encode()
        self.recorder.rpc("in", "rpc_notification", line, method=method, key=f"t-{req_id}", req_id=req_id)
        self.recorder.end_read()

    def _now(self) -> tuple[str, float]:
        minutes, seconds = divmod(self.seconds, 60)
        return f"2026-03-01T{int(minutes) // 60 + 8:02}:{int(minutes) % 60:02}:{seconds:09.6f}Z", 1000 + self.seconds


def recordings(path: Path) -> list[Recording]:
    """The requests of a log."""
    return list(read_recordings(RecordReader(log_files(path))))
