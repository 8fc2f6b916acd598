"""TurnEvents as CAP packets: a stream of them, or the one ServiceResponse that they fold into.

The order is `(delta | event)* error? close`, and nothing follows the close packet. Packets are numbered from 1 without
gaps. A delta costs two bytes templates and one `orjson.dumps`. The id of an event is made of the request's id and the
packet's number, so that the same turn, told again, has the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid5

import orjson
from orjson import dumps
from pydantic import ValidationError

from bridge.api.cap.envelope import ServiceResponse
from bridge.api.cap.failures import failure_from
from bridge.api.cap.fold import INCOMPLETE, ConversationState, TurnFold
from bridge.api.cap.presentation import CitationBlock, CitationItem
from bridge.api.cap.stream import read_packet
from bridge.api.cap.writers import CLOSE_PACKET, LineWriter, SseWriter
from bridge.api.reading import check_depth
from bridge.api.sse import restart_error
from bridge.errors import BridgeError, InvalidRequest, UpstreamError
from bridge.turn.collect import Result, TextOutput, add_pieces
from bridge.turn.events import (
    CANCELLED,
    CLIENT_GONE,
    CallBegun,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
    WebSearch,
)
from bridge.turn.items import full_name

Form = Literal["sse", "ndjson", "json"]

BETWEEN_MESSAGES = "\n\n"
RECONNECTING = "reconnecting"
WEB_SEARCH = "web_search"

_INCOMPLETE = {
    "max_output_tokens": "The answer is incomplete: the model reached its limit of tokens.",
    "content_filter": "The answer is incomplete: the provider's content filter cut it off.",
    CANCELLED: "The answer is incomplete: it was cancelled.",
}


@dataclass(slots=True)
class _Thought:
    """A part of a reasoning item that is being told."""

    item: str
    index: int
    raw: bool
    pieces: list[str] = field(default_factory=list)

    def is_of(self, event: ReasoningDelta) -> bool:
        return (self.item, self.index, self.raw) == (event.item, event.index, event.raw)


class CapEncoder:
    """One turn. `events` are those that the client has asked for; `now` gives seconds since 1970.

    In the form `json` nothing is shown before the end, so an upstream restart is forgiven, and `body` is the answer.
    `keeps_empty` tells pieces without text, too: so they stand in a log from which their text was removed.
    """

    def __init__(
        self,
        request_id: UUID,
        *,
        now: Callable[[], float],
        started_at: float,
        form: Form = "sse",
        events: frozenset[str] = frozenset(),
        conversation: tuple[str, ConversationState] | None = None,
        keeps_empty: bool = False,
    ) -> None:
        self.request_id = request_id
        self.finished = False
        self.visible = False
        self.failure: BridgeError | None = None
        self.result = Result()
        """The turn so far, for whoever keeps the conversation."""
        self.sequence = 0
        """The number of the last packet."""
        self._now = now
        self._started_at = started_at
        self._first_at: float | None = None
        self._ended_at = started_at
        self._cancelled: str | None = None
        """Why its own client has ended it."""
        self._streaming = form != "json"
        self._events = events
        self._conversation = conversation
        self._keeps_empty = keeps_empty
        self._writer = SseWriter(request_id) if form == "sse" else LineWriter()
        self._item: str | None = None
        self._run_of: str | None = None
        """The message that was told last, while nothing else has been; its pieces are `_run`."""
        self._run: list[str] = []
        self._thought: _Thought | None = None
        self._begun: dict[str, str] = {}
        """The names of the calls that are being made, where their progress is told."""
        self._out: list[bytes] = []
        self.kept: list[bytes] = []
        """In the form `json` all packets so far."""

    def __repr__(self) -> str:
        return f"<CapEncoder {self.request_id} packets={self.sequence} finished={self.finished}>"

    @property
    def usage(self) -> Usage | None:
        """The turn's usage so far."""
        return self.result.usage

    def begin(self) -> bytes:
        """Nothing: what there is to tell before the answer stands in headers."""
        return b""

    def feed(self, events: list[TurnEvent]) -> bytes:
        """The bytes for a batch of events, in the form that was chosen; none in the form `json`."""
        return self.write(self.packets(events))

    def packets(self, events: list[TurnEvent]) -> list[bytes]:
        """The JSON of the packets for a batch of events. `sequence` is then the number of the last one."""
        for event in events:
            if self.finished:
                break
            if isinstance(event, TextDelta) and event.item == self._run_of:
                # The way of nearly every event.
                add_pieces(self._run, event.pieces)
                self._deltas(event.pieces)
                continue
            self._run_of = None
            if isinstance(event, Restarted) and self.visible and self._streaming:
                event = Finished("failed", error=restart_error(event))
            self.result.add((event,))
            if isinstance(event, TextDelta):
                self._text(event)
            elif isinstance(event, ReasoningDelta):
                self._reasoning(event)
            elif isinstance(event, ReasoningDone):
                if self._thought is not None and self._thought.item == event.item:
                    self._close_thought()
            elif isinstance(event, CallBegun):
                self._begin_call(event)
            elif isinstance(event, ToolCall):
                self._call(event)
            elif isinstance(event, WebSearch):
                self._search(event)
            elif isinstance(event, Restarted):
                self._restart()
            elif isinstance(event, Finished):
                self._finish(event)
        return self._take()

    def fail(self, error: BridgeError) -> list[bytes]:
        """The packets for a failure that no backend told of; none when the end has been told."""
        return self.packets([Finished("failed", error=error)])

    def write(self, packets: list[bytes]) -> bytes:
        """The bytes of the packets that were made last."""
        if not self._streaming:
            self.kept += packets
            return b""
        return self._writer.write(packets, self.sequence - len(packets) + 1) if packets else b""

    def body(self) -> bytes:
        """The ServiceResponse, in the form `json`. Only after the end, and only when the turn did not fail."""
        assert self.failure is None
        fold = TurnFold()
        for packet in self.kept:
            fold.add(read_packet(packet))
        return self.response(fold)

    def response(self, fold: TurnFold) -> bytes:
        """The ServiceResponse of all packets, folded. Only after the end."""
        assert self.finished
        output = fold.output(self._conversation)
        if self._cancelled is not None:
            # A stream that its own client has ended says nothing of it.
            output["status"] = "incomplete"
            output.setdefault("notices", []).append(_notice(self._cancelled))
        response = ServiceResponse(
            request_id=self.request_id,
            created_at=_time(self._ended_at),
            output=output,
            metrics=fold.metrics or self._metrics(),
        )
        return response.to_json().encode()

    # What is said

    def _text(self, event: TextDelta) -> None:
        if not any(event.pieces) and not self._keeps_empty:
            return
        pieces = list(event.pieces)
        self._show()
        if self._item is not None and self._item != event.item:
            pieces.insert(0, BETWEEN_MESSAGES)
        self._item = self._run_of = event.item
        output = self.result.outputs[-1]
        assert isinstance(output, TextOutput)
        self._run = output.pieces
        self._deltas(pieces)

    def _deltas(self, pieces: list[str]) -> None:
        if not self._streaming:
            pieces = ["".join(pieces)]
        out, keeps_empty = self._out, self._keeps_empty
        for piece in pieces:
            if piece or keeps_empty:
                out.append(b'{"op":"delta","p":%b}' % dumps(piece))

    def _reasoning(self, event: ReasoningDelta) -> None:
        if event.raw and "reasoning_raw" not in self._events:
            return
        if self._thought is None or not self._thought.is_of(event):
            self._close_thought()
            self._thought = _Thought(event.item, event.index, event.raw)
        self._thought.pieces += event.pieces
        if "reasoning_stream" in self._events and (any(event.pieces) or self._keeps_empty):
            self._first_shown()
            self._tell_thought(self._thought, "".join(event.pieces), final=False)

    def _close_thought(self) -> None:
        thought, self._thought = self._thought, None
        if thought is not None and any(thought.pieces):
            self._first_shown()
            self._tell_thought(thought, "".join(thought.pieces), final=True)

    def _tell_thought(self, thought: _Thought, text: str, *, final: bool) -> None:
        kind = "raw" if thought.raw else "summary"
        data = {"thought": text, "kind": kind, "item_id": thought.item, "index": thought.index, "final": final}
        self._event("thought_trace", data)

    def _begin_call(self, call: CallBegun | ToolCall) -> None:
        """Tell that a call is being made. A client that wants `tool_call` events gets one when it is complete."""
        if "tool_call" not in self._events:
            self._show()
            self._begun[call.id] = name = full_name(call.namespace, call.name)
            self._progress(f"tool: {name}", "running")

    def _call(self, call: ToolCall) -> None:
        if call.id not in self._begun:
            self._begin_call(call)
        if (begun := self._begun.pop(call.id, None)) is not None:
            self._progress(f"tool: {begun}", "complete")
            return
        self._show()
        name = full_name(call.namespace, call.name)
        arguments = call.arguments if call.custom else _arguments(call.arguments)
        about = {"call_id": call.call_id, "tool": name, "kind": "custom" if call.custom else "function"}
        self._event("tool_call", {**about, "arguments": arguments, "state": "requested"})

    def _search(self, search: WebSearch) -> None:
        self._show()
        action = {name: value for name, value in search.action.items() if name != "sources"}
        about = {"call_id": search.item, "tool": WEB_SEARCH, "kind": WEB_SEARCH, "arguments": action}
        for state in ("running", "complete"):
            if "tool_call" in self._events:
                self._event("tool_call", {**about, "state": state})
            else:
                self._progress(f"tool: {WEB_SEARCH}", state)
        citations = _citations(search)
        if citations:
            self._event("citation_block", CitationBlock(items=citations).dump())

    # Ends

    def _restart(self) -> None:
        """The turn begins anew, and nothing of it has been seen."""
        self.visible = False
        self._first_at = None
        self._item = None
        self._thought = None
        self._begun.clear()
        if not self._streaming:
            self._out.clear()
            self.kept.clear()
            self.sequence = 0
        self._progress(RECONNECTING, "running")

    def _finish(self, end: Finished) -> None:
        self._close_thought()
        for name in self._begun.values():
            self._progress(f"tool: {name}", "failed")
        self.finished = True
        self._ended_at = self._now()
        if end.outcome == "cancelled" and end.reason in (CANCELLED, CLIENT_GONE):
            self._cancelled = end.reason
        elif end.outcome == "incomplete":
            self._event("user_error", _notice(end.reason or "incomplete"))
        elif end.outcome in ("failed", "cancelled"):
            self.failure = end.error or UpstreamError("The turn was interrupted.", code="interrupted")
        elif self._is_only_calls:
            self.failure = _unanswerable(self.result.calls[0])
        if self.failure is not None:
            if self.result.acted:
                self.failure = self.failure.after_effects()
            failure = failure_from(self.failure, now=self._ended_at, request_id=self.request_id)
            self._out += failure.packets
            return
        if "metrics" in self._events and self._cancelled is None:
            self._event("metrics", self._metrics())
        self._out.append(CLOSE_PACKET)

    @property
    def _is_only_calls(self) -> bool:
        """Whether the model has called tools and said nothing, to a client that did not ask to see calls."""
        return bool(self.result.calls) and not self.result.text.strip() and "tool_call" not in self._events

    def _metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {"duration_ms": _milliseconds(self._ended_at - self._started_at)}
        if self._first_at is not None:
            metrics["ttft_ms"] = _milliseconds(self._first_at - self._started_at)
        usage = self.usage
        if usage is not None:
            metrics |= {
                "tokens": usage.total,
                "input_tokens": usage.input,
                "cached_input_tokens": usage.cached,
                "output_tokens": usage.output,
                "reasoning_tokens": usage.reasoning,
            }
            if usage.estimated:
                metrics["estimated"] = True
        return metrics

    # Writing

    def _show(self) -> None:
        """Something other than a thought is told: the thought before it is complete."""
        if self._thought is not None:
            self._close_thought()
        if not self.visible:
            self._first_shown()

    def _first_shown(self) -> None:
        if self._first_at is None:
            self._first_at = self._now()
        self.visible = True

    def _progress(self, label: str, status: str) -> None:
        self._event("progress_indicator", {"label": label, "status": status})

    def _event(self, kind: str, data: Mapping[str, Any]) -> None:
        number = self.sequence + len(self._out) + 1
        event_id = uuid5(self.request_id, str(number))
        event = {"id": event_id, "timestamp": _time(self._now()), "type": kind, "data": data}
        self._out.append(b'{"op":"event","p":%b}' % _dumps(event))

    def _take(self) -> list[bytes]:
        out, self._out = self._out, []
        self.sequence += len(out)
        return out


def _unanswerable(call: ToolCall) -> BridgeError:
    return UpstreamError(
        f"The model called the tool {full_name(call.namespace, call.name)[:100]!r}, which nobody offered, and gave no "
        "other answer. Send the request again, or choose another model.",
        code="empty_response",
    )


def _notice(reason: str) -> dict[str, Any]:
    message = _INCOMPLETE.get(reason, f"The answer is incomplete ({reason}).")
    return {"message": message, "code": INCOMPLETE, "domain": "llm", "retryable": False, "reason": reason}


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _dumps(event: dict[str, Any]) -> bytes:
    try:
        return dumps(event, option=orjson.OPT_UTC_Z)
    except TypeError:
        # Numbers of more than 64 bits.
        written = {**event, **orjson.loads(_dumps({name: event[name] for name in ("id", "timestamp")}))}
        return json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode()


def _arguments(text: str) -> Any:
    """The arguments of a call as an object; what is none stays the text that it is."""
    try:
        check_depth([orjson.loads(text)])
        # Again, since that makes large numbers inexact.
        found = json.loads(text)
    except (ValueError, InvalidRequest):
        return text
    return found if isinstance(found, dict) else text


def _citations(search: WebSearch) -> list[CitationItem]:
    """The sources that a search names, where their addresses are those of web pages."""
    sources = search.action.get("sources")
    found: list[CitationItem] = []
    for source in sources if isinstance(sources, list) else ():
        url, title = (source.get("url"), source.get("title")) if isinstance(source, dict) else (None, None)
        if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
            continue
        named = title if isinstance(title, str) and title else url
        with suppress(ValidationError):
            source_id = f"{search.item}:{len(found)}"
            found.append(CitationItem.model_validate({"source_id": source_id, "uri": url, "title": named}))
    return found
