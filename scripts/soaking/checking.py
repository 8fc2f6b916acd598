"""The event log of a soak against its rules, and against what the clients have seen.

Each request has one beginning and one end; nothing is sent after the end; the end is what its client saw; as many turns
end as begin; a crash is reported only where a child has exited; no secret appears anywhere.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seen import CUT, LEFT, Seen, judge

from bridge.log.read import RecordReader, log_files, request_of

CRASH_CODES = frozenset({"backend_crashed"})
UNREADY_CODES = frozenset(
    {"restarting", "handshake_pending", "handshake_failed", "worker_not_started", "degraded", "backend_not_ready"}
)
CRASH_WINDOW = 6.0
"""Seconds between a crash and the record of it: the child gets time to end."""
UNREADY_WINDOW = 70.0
"""Seconds for which a child that has ended too often is not started again."""
FREE_WITHIN = 10.0
"""Seconds after which the turn of a client that has left must be over; five are promised, on a machine that is free."""
END = re.compile(
    r"""^(?:event: response\.(?:completed|incomplete|failed)|data: \[DONE\]|data: \{"op":"close".*)$""", re.M
)


@dataclass(slots=True)
class Told:
    """One request as the log tells it."""

    requests: int = 0
    starts: int = 0
    ends: int = 0
    heads: int = 0
    stream_ends: int = 0
    after_stream_end: bool = False
    token: str = ""
    path: str = ""
    outcome: str = ""
    at: float = 0.0
    ended_at: float = 0.0
    late: list[str] = field(default_factory=list)


class Ledger:
    """All requests of a log."""

    def __init__(self) -> None:
        self.requests: dict[str, Told] = {}
        self.exits: list[float] = []
        self.running = 0
        self.most = 0
        self.troubles: list[str] = []

    def read(self, directory: Path) -> None:
        """Every record, with the project's own reader."""
        reader = RecordReader(log_files(directory))
        for _, record in reader:
            self.add(record)
        self.troubles = reader.trouble.sentences()

    def add(self, record: dict[str, Any]) -> None:
        """One record, in order."""
        kind, phase = record["kind"], record["phase"]
        if kind == "backend_exit":
            self.exits.append(record["mono"])
        if record["req_id"] is None or phase in ("backend_io", "backend_submission"):
            # What a child says of a turn that has ended is its own affair.
            return
        told = self.requests.setdefault(request_of(record["req_id"])[0], Told(at=record["mono"]))
        if told.ends:
            told.late.append(kind)
        payload: Any = record.get("payload")
        if kind == "client_request":
            told.requests += 1
            told.path, told.token = payload.get("path", ""), token_of(payload.get("body"))
        elif kind == "turn_start":
            told.starts += 1
            self.running += 1
            self.most = max(self.most, self.running)
        elif kind == "turn_end":
            told.ends += 1
            told.ended_at = record["mono"]
            self.running -= told.starts
            told.outcome = payload["error"]["code"] if payload["outcome"] == "failed" else payload["outcome"]
        elif kind == "client_start":
            told.heads += 1
        elif kind == "client_sse":
            if told.stream_ends and payload:
                told.after_stream_end = True
            told.stream_ends += len(END.findall(payload))

    def faults(self) -> list[str]:
        """What is wrong with the log in itself."""
        found = [f"the log: {sentence}" for sentence in self.troubles]
        for name, told in self.requests.items():
            about = f"{name} ({told.token or told.path})"
            if told.requests != 1:
                found.append(f"{about}: {told.requests} beginnings")
            if told.ends != 1:
                found.append(f"{about}: {told.ends} ends")
            if told.starts > 1 or told.heads > 1:
                found.append(f"{about}: {told.starts} turns, {told.heads} heads")
            if told.late:
                found.append(f"{about}: after its end {', '.join(told.late[:5])}")
            if told.stream_ends > 1 or told.after_stream_end:
                found.append(f"{about}: its stream has {told.stream_ends} ends, or something after the end")
        if self.running:
            found.append(f"{self.running} turns have begun and not ended")
        return found


def token_of(body: Any) -> str:
    """The token that the client put into its message; empty where it could not."""
    if not isinstance(body, dict):
        return ""
    messages, cap = body.get("messages"), body.get("payload")
    if isinstance(cap, dict):
        body = {"input": cap.get("query")}
    text = messages[-1].get("content") if isinstance(messages, list) and messages else body.get("input")
    try:
        return str(json.loads(text)["mark"])
    except (TypeError, ValueError, KeyError, AttributeError):
        return ""


def check(directory: Path, seen: list[Seen], *, stderr: Path, secrets: Iterable[str]) -> tuple[list[str], Ledger]:
    """Everything that is wrong, one sentence each; and what the log holds."""
    ledger = Ledger()
    ledger.read(directory)
    found = ledger.faults()
    tokens = Counter(told.token for told in ledger.requests.values() if told.token)
    found += [f"the token {token} has {count} requests" for token, count in tokens.items() if count > 1]
    by_token = {told.token: told for told in ledger.requests.values() if told.token}
    known: set[int] = set()
    for each in seen:
        told = ledger.requests.get(each.request_id or "") or by_token.get(each.token)
        found += judge(each) if not _is_crash(each, ledger.exits) else []
        if told is None:
            if each.outcome == "completed":
                found.append(f"{each}: completed, and not in the log")
            continue
        known.add(id(told))
        found += _compare(each, told)
    strangers = [name for name, told in ledger.requests.items() if id(told) not in known]
    if strangers:
        found.append(f"{len(strangers)} requests in the log were not made by any client: {', '.join(strangers[:5])}")
    for path in [*log_files(directory), stderr]:
        data = path.read_bytes()
        found += [f"{path.name} holds the secret {secret[:14]}…" for secret in secrets if secret.encode() in data]
    if b"Traceback" in stderr.read_bytes():
        found.append("the bridge's stderr holds a traceback")
    return found, ledger


def _is_crash(seen: Seen, exits: list[float]) -> bool:
    """Whether it failed because a child ended, as every turn of that child does."""
    if seen.faults:
        return False
    if seen.outcome in CRASH_CODES:
        return any(seen.began - 1 <= at <= seen.ended + CRASH_WINDOW for at in exits)
    if seen.outcome in UNREADY_CODES:
        return any(seen.began - UNREADY_WINDOW <= at <= seen.ended + CRASH_WINDOW for at in exits)
    return False


def _compare(seen: Seen, told: Told) -> list[str]:
    if seen.outcome == LEFT:
        took = told.ended_at - seen.ended
        return [f"{seen}: its turn ended {took:.1f} s after the client had left"] if took > FREE_WITHIN else []
    if seen.outcome != CUT and told.ends == 1 and told.outcome != seen.outcome:
        return [f"{seen}: the client saw {seen.outcome!r}, the log says {told.outcome!r}"]
    return []
