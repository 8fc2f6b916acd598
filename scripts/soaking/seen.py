"""What a client has seen of its request, in one form for all protocols."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEFT = "left"
"""The client has gone before the end."""
CUT = "cut"
"""The connection ended before the answer did."""

CAP_CODES = {
    "agent_crashed": "backend_crashed",
    "agent_not_ready": "restarting",
    "context_window_exceeded": "context_length_exceeded",
    "deadline_exceeded": "backend_timeout",
    "shutting_down": "shutdown_initiated",
}
"""What CAP calls an error, and what the bridge does."""
ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class Seen:
    """`outcome` is `completed`, the code of an error, LEFT or CUT. `allowed` is what the plan lets it be."""

    client: str
    plan: str
    token: str
    allowed: set[str]
    path: str = ""
    stream: bool = False
    status: int | None = None
    request_id: str | None = None
    outcome: str = CUT
    text: str | None = None
    wanted_text: str | None = None
    calls: list[str] = field(default_factory=list)
    wanted_calls: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    faults: list[str] = field(default_factory=list)
    """Rules of the protocol that the answer broke."""

    def __str__(self) -> str:
        return f"{self.client} {self.plan} {self.path}{' streamed' if self.stream else ''} ({self.token})"


def read_body(seen: Seen, body: bytes) -> None:
    """A whole JSON answer."""
    data = json.loads(body)
    if seen.path == "assist":
        seen.outcome = CAP_CODES.get(data["code"], data["code"]) if seen.status != 200 else data["output"]["status"]
        seen.text = data["output"]["text"] if seen.status == 200 else None
        return
    if seen.status != 200:
        seen.outcome = _code(data["error"])
        return
    if data.get("object") == "chat.completion":
        (choice,) = data["choices"]
        seen.text = choice["message"]["content"] or ""
        seen.calls = [call["function"]["arguments"] for call in choice["message"].get("tool_calls", ())]
        seen.outcome = "completed"
    else:
        _response(seen, data)


def read_events(seen: Seen, events: Iterable[dict[str, Any] | None]) -> None:
    """A stream; None is `[DONE]`. One end, the last of all; numbers without gaps; deltas that add up."""
    told = list(events)
    if seen.path == "assist":
        _packets(seen, told)
        return
    if seen.path == "chat":
        _chat(seen, told)
        return
    deltas: list[str] = []
    for number, event in enumerate(told):
        if event is None or event.get("sequence_number") != number:
            seen.faults.append(f"event {number} has another number: {str(event)[:200]}")
            return
        if event["type"] == "response.output_text.delta":
            deltas.append(event["delta"])
        elif event["type"] in ENDS:
            _response(seen, event["response"])
            if number != len(told) - 1:
                seen.faults.append(f"{len(told) - 1 - number} events follow the end")
            if seen.outcome == "completed" and "".join(deltas) != seen.text:
                seen.faults.append("the deltas do not add up to the text")
            return


def _packets(seen: Seen, told: list[Any]) -> None:
    """Texts and events, perhaps an error, and `close`."""
    ops = [packet["op"] for packet in told]
    if "close" not in ops:
        return
    if ops.count("close") > 1 or ops.count("error") > 1 or ops[-1] != "close" or "error" in ops[:-2]:
        seen.faults.append(f"the packets end with {ops[-4:]}")
    failure = told[-2]["p"] if ops[-2:-1] == ["error"] else None
    seen.outcome = "completed" if failure is None else CAP_CODES.get(failure["code"], failure["code"])
    seen.text = "".join(packet["p"] for packet in told if packet["op"] == "delta")


def _chat(seen: Seen, told: list[dict[str, Any] | None]) -> None:
    text: list[str] = []
    calls: dict[int, str] = {}
    finished = 0
    for event in told:
        if event is None:
            continue
        if "error" in event:
            seen.outcome = _code(event["error"])
            finished += 1
        for choice in event.get("choices", ()):
            text.append(choice["delta"].get("content") or "")
            for call in choice["delta"].get("tool_calls", ()):
                calls[call["index"]] = calls.get(call["index"], "") + call["function"].get("arguments", "")
            if choice["finish_reason"]:
                finished += 1
                seen.outcome = "completed"
    seen.text, seen.calls = "".join(text), list(calls.values())
    if told.count(None) > 1 or (None in told and told[-1] is not None):
        seen.faults.append("[DONE] is not the last event")
    if finished > 1:
        seen.faults.append(f"there are {finished} ends")
    if None not in told:
        seen.outcome = CUT


def _response(seen: Seen, response: dict[str, Any]) -> None:
    if response["status"] in ("completed", "incomplete"):
        seen.outcome = response["status"]
    else:
        seen.outcome = _code(response["error"])
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    seen.text = "".join(part["text"] for part in parts)
    seen.calls = [item["arguments"] for item in response["output"] if item["type"] == "function_call"]


def _code(error: dict[str, Any]) -> str:
    return str(error.get("bridge_code") or error.get("code"))


def save(path: Path, seen: list[Seen]) -> None:
    """Keep it for another look."""
    path.write_text(json.dumps([asdict(each) | {"allowed": sorted(each.allowed)} for each in seen]))


def load(path: Path) -> list[Seen]:
    """What was kept."""
    return [Seen(**each | {"allowed": set(each["allowed"])}) for each in json.loads(path.read_text())]


def judge(seen: Seen) -> list[str]:
    """What is wrong with what a client has seen, by its plan alone."""
    wrong = [f"{seen}: {fault}" for fault in seen.faults]
    if seen.outcome not in seen.allowed:
        wrong.append(f"{seen}: ended as {seen.outcome!r}, expected {' or '.join(sorted(seen.allowed))}")
    elif seen.outcome == "completed":
        if seen.wanted_text is not None and seen.text != seen.wanted_text:
            wrong.append(f"{seen}: said {str(seen.text)[:120]!r}, expected {seen.wanted_text[:120]!r}")
        if seen.calls != seen.wanted_calls:
            wrong.append(f"{seen}: called {seen.calls}, expected {seen.wanted_calls}")
    return wrong
