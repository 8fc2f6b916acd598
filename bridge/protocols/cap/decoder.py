"""CAP as it was sent, read back as TurnEvents: the reverse of the encoder.

It is fed one packet at a time and trusts nothing: what is broken is skipped and counted, so a damaged log stays
readable. Plain dictionaries instead of the models, which are slow to load and refuse a whole packet for one bad member.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bridge.core.events import (
    Finished,
    ReasoningDelta,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import UpstreamError
from bridge.exact_json import member, objects, text_of

MESSAGE = "message"
"""The item of all text: packets do not say which message they belong to."""
RECONNECTING = "reconnecting"
WEB_SEARCH = "web_search"
TOOL_LABEL = "tool: "
"""How the label of a tool's progress begins."""

_OPS = ("delta", "event", "error", "close")
_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


def effective_meta(meta: Any) -> dict[str, Any]:
    """`meta` of a request with the names under `codex` on top, which take precedence."""
    if not isinstance(meta, dict):
        return {}
    own = meta.get("codex")
    plain = {name: value for name, value in meta.items() if name != "codex"}
    return plain | (own if isinstance(own, dict) else {})


@dataclass(frozen=True, slots=True)
class Shown:
    """Content that clients display and that is not part of a turn: citations, notices, markdown, media."""

    kind: str
    data: dict[str, Any]


class CapDecoder:
    """Decodes one answer, from its packets or from the one object that it is.

    A thought is decoded when it is complete, because its last packet repeats the whole of it. Without the event
    `tool_call` the client only got the names of calls, so the decoded calls have no arguments.
    """

    def __init__(self) -> None:
        self.error: dict[str, Any] | None = None
        """The StreamError, as it was sent."""
        self.metrics: dict[str, Any] | None = None
        self.finished = False
        self.skipped = 0
        """How many packets could not be decoded, or came after the end."""
        self._reason: str | None = None
        """Why the answer is incomplete."""
        self._thoughts: dict[tuple[str, int, bool], list[str]] = {}

    @property
    def unfinished_thoughts(self) -> list[ReasoningDelta]:
        """The thoughts of which only pieces have come."""
        return [ReasoningDelta(item, index, pieces, raw) for (item, index, raw), pieces in list(self._thoughts.items())]

    def feed(self, message: Any) -> list[TurnEvent | Shown]:
        """The events of a packet, a ServiceResponse or a StreamError."""
        kind = None if self.finished else kind_of(message)
        events: list[TurnEvent | Shown] | None = None
        if kind == "packet":
            events = self._packet(message["op"], message.get("p"))
        elif kind == "response":
            events = self._response(message["output"], message.get("metrics"))
        elif kind == "error":
            events = self._fail(message)
        elif self.error is not None and kind_of(message) == "packet" and message["op"] == "close":
            events = []  # an error is the end; the close packet adds nothing
        if events is None:
            self.skipped += 1
        return events or []

    def _packet(self, op: str, payload: Any) -> list[TurnEvent | Shown] | None:
        """The events of a packet; None if it is broken."""
        if op == "delta":
            return [TextDelta(MESSAGE, [payload])] if isinstance(payload, str) else None
        if op == "close":
            return self._finish("incomplete" if self._reason is not None else "completed")
        if not isinstance(payload, dict):
            # Events that are a string or null are legal, and mean nothing.
            return [] if op == "event" and (payload is None or isinstance(payload, str)) else None
        if op == "error":
            return self._fail(payload)
        kind, data = payload.get("type"), payload.get("data")
        return self._event(kind, data) if isinstance(kind, str) and isinstance(data, dict) else None

    def _response(self, output: dict[str, Any], metrics: Any) -> list[TurnEvent | Shown]:
        parts = [
            *(("thought_trace", data) for data in objects(output.get("reasoning"))),
            *(("tool_call", data) for data in objects(output.get("tool_calls"))),
        ]
        after = [("citation_block", {"items": output["citations"]})] if output.get("citations") else []
        after += [("user_error", data) for data in objects(output.get("notices"))]
        after += [("metrics", metrics)] if isinstance(metrics, dict) else []
        events = [event for kind, data in parts for event in self._event(kind, data) or ()]
        if isinstance(text := output.get("text"), str) and text:
            events.append(TextDelta(MESSAGE, [text]))
        events += [event for kind, data in after for event in self._event(kind, data) or ()]
        return events + self._finish("incomplete" if output.get("status") == "incomplete" else "completed")

    def _event(self, kind: str, data: dict[str, Any]) -> list[TurnEvent | Shown] | None:
        if kind == "thought_trace":
            return self._thought(data)
        if kind == "tool_call":
            return self._call(data)
        if kind == "progress_indicator":
            return self._progress(data)
        if kind == "metrics":
            self.metrics = data
            if not any(name in data for name in _TOKENS):
                return []
            counts = [_whole_number(data.get(name)) for name in _TOKENS]
            usage = Usage(counts[0], counts[1], counts[2], counts[3], estimated=data.get("estimated") is True)
            return [UsageUpdate(usage)]
        if kind == "user_error" and isinstance(reason := data.get("reason"), str):
            self._reason = reason
        return [Shown(kind, data)]

    def _thought(self, data: dict[str, Any]) -> list[TurnEvent | Shown] | None:
        text = data.get("thought")
        if not isinstance(text, str):
            return None
        key = text_of(data.get("item_id")), _whole_number(data.get("index")), data.get("kind") == "raw"
        if data.get("final") is False:
            self._thoughts.setdefault(key, []).append(text)
            return []
        self._thoughts.pop(key, None)
        item, index, raw = key
        return [ReasoningDelta(item, index, [text], raw)]

    def _call(self, data: dict[str, Any]) -> list[TurnEvent | Shown] | None:
        name, call_id, arguments = data.get("tool"), text_of(data.get("call_id")), data.get("arguments")
        if not isinstance(name, str):
            return None
        if data.get("state") == "running":
            return []
        kind = data.get("kind", name)
        if kind == WEB_SEARCH:
            return [WebSearch(call_id, arguments if isinstance(arguments, dict) else {})]
        return [ToolCall(call_id, call_id, name, text_of(arguments), custom=kind == "custom")]

    def _progress(self, data: dict[str, Any]) -> list[TurnEvent | Shown]:
        label, status = text_of(data.get("label")), data.get("status")
        if label == RECONNECTING:
            return [Restarted(RECONNECTING)]
        if not label.startswith(TOOL_LABEL) or status != "complete":
            return []
        name = label.removeprefix(TOOL_LABEL)
        return [WebSearch("", {}) if name == WEB_SEARCH else ToolCall("", "", name, "")]

    def _fail(self, error: dict[str, Any]) -> list[TurnEvent | Shown] | None:
        message, severity = error.get("message"), error.get("severity")
        if not isinstance(message, str):
            return None
        self.error = error
        details = error.get("details")
        wait = details.get("retry_after") if isinstance(details, dict) else None
        failure = UpstreamError(
            message,
            code=text_of(error.get("code")) or None,
            severity="transient" if severity == "transient" else "fatal",
            retry_after=wait if _is_number(wait) else None,
        )
        return self._finish("failed", failure)

    def _finish(
        self, outcome: Literal["completed", "incomplete", "failed"], error: UpstreamError | None = None
    ) -> list[TurnEvent | Shown]:
        self.finished = True
        thoughts = self.unfinished_thoughts
        self._thoughts.clear()
        return [*thoughts, Finished(outcome, self._reason if outcome == "incomplete" else None, error)]


def kind_of(message: Any) -> Literal["packet", "response", "error"] | None:
    """Which of CAP's messages to a client this is; None for anything else."""
    if not isinstance(message, dict):
        return None
    if message.get("op") in _OPS and "type" not in message:
        return "packet"
    if isinstance(message.get("output"), dict) and "request_id" in message:
        return "response"
    if isinstance(message.get("message"), str) and message.get("severity") in ("transient", "fatal"):
        return "error"
    return None


# When the encoder read its clock, from the times that it wrote: with these readings it writes the same bytes again.

_AT_THE_END = ("metrics", "user_error")
_ROUNDING = 0.5
"""Seconds. `resets_at` is rounded down to whole seconds; a reading half a second later gives the same result."""


def clock_readings(sent: list[dict[str, Any]], end: dict[str, Any] | None) -> list[float]:
    """Times in the order in which the encoder read them: start, first content, each event, end.

    `sent` are all packets, or the one answer; `end` is the recorded end of the turn. Empty if no time was sent.
    """
    metrics, ended = _metrics(sent), _ended(sent, end)
    if ended is None:
        return []
    begun = ended - _seconds(metrics.get("duration_ms"))
    first = begun + _seconds(metrics.get("ttft_ms")) if "ttft_ms" in metrics else ended
    if len(sent) == 1 and "op" not in sent[0]:
        # One object has no times of events: they are taken as that of the end.
        return [begun, first, ended] if "ttft_ms" in metrics else [begun, ended]
    return [begun, *_event_times(sent, first, ended), ended]


def _event_times(sent: list[dict[str, Any]], first: float, ended: float) -> Iterator[float]:
    shown = over = False
    for packet in sent:
        at_the_end = member(packet, "p", "type") in _AT_THE_END or packet.get("op") in ("error", "close")
        if not shown and not at_the_end and member(packet, "p", "data", "label") != RECONNECTING:
            shown = True
            yield first
        if not over and at_the_end:
            over = True
            yield ended
        time = _time(member(packet, "p", "timestamp"))
        if packet.get("op") == "event" and time is not None:
            yield time


def _ended(sent: list[dict[str, Any]], end: dict[str, Any] | None) -> float | None:
    """When the turn ended: from the end itself, or else from the last event."""
    for message in sent:
        resets = _time(member(message.get("p", message), "details", "resets_at"))
        wait = member(end, "error", "retry_after")
        if resets is not None and _is_number(wait):
            return resets - float(wait) + _ROUNDING
        if "op" not in message and (created := _time(message.get("created_at"))) is not None:
            return created
        if member(message, "p", "type") in _AT_THE_END:
            return _time(member(message, "p", "timestamp"))
    times = [time for message in sent if (time := _time(member(message, "p", "timestamp"))) is not None]
    return times[-1] if times else None


def _metrics(sent: list[dict[str, Any]]) -> dict[str, Any]:
    for message in sent:
        is_event = member(message, "p", "type") == "metrics"
        found = member(message, "p", "data") if is_event else message.get("metrics")
        if isinstance(found, dict):
            return found
    return {}


def _seconds(milliseconds: Any) -> float:
    return milliseconds / 1000 if _is_number(milliseconds) else 0.0


def _time(text: Any) -> float | None:
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return time.timestamp() if time is not None and time.tzinfo is not None else None


def _is_number(value: Any) -> bool:
    """Whether this is a number that can be calculated with: not NaN, nor too large for a float."""
    return isinstance(value, int | float) and abs(value) < 1e15


def _whole_number(value: Any) -> int:
    return value if isinstance(value, int) else 0
