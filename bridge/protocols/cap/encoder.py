"""TurnEvents as CAP packets, or as the one ServiceResponse that the packets fold into.

The order is `(delta | event)* error? close`; nothing follows the close packet. Packets are numbered from 1 without
gaps. A delta costs two byte templates and one `orjson.dumps`. The id of an event is derived from the request's id and
the packet's number, so the same turn always has the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid5

import orjson
from orjson import dumps
from pydantic import ValidationError

from bridge import exact_json
from bridge.core.collect import Result, TextOutput, add_pieces
from bridge.core.events import (
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
from bridge.core.items import full_name
from bridge.errors import BridgeError, InvalidRequest, UpstreamError
from bridge.protocols.cap import ConversationState
from bridge.protocols.cap.decoder import RECONNECTING, TOOL_LABEL, WEB_SEARCH
from bridge.protocols.cap.failures import failure_from
from bridge.protocols.cap.models import CitationBlock, CitationItem, ServiceResponse
from bridge.protocols.cap.stream import CLOSE_PACKET, INCOMPLETE, LineWriter, SseWriter, fold_packets
from bridge.protocols.reading import check_depth
from bridge.protocols.sse import incomplete_message, interrupted, restart_error

Form = Literal["sse", "ndjson", "json"]

BETWEEN_MESSAGES = "\n\n"


class CapEncoder:
    """Encodes one turn. `events` are the optional events that the client asked for; `now` gives seconds since 1970.

    In the form `json` nothing is sent before the end, so an upstream restart does no harm, and `body` is the answer.
    With `keeps_empty`, pieces without text are sent as well: a redacted log contains them.
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
        """The turn so far, to be stored in the conversation."""
        self.sequence = 0
        """The number of the last packet."""
        self._now = now
        self._started_at = started_at
        self._first_at: float | None = None
        self._ended_at = started_at
        self._cancelled: str | None = None
        """Why the client ended the turn."""
        self._streaming = form != "json"
        self._events = events
        self._conversation = conversation
        self._keeps_empty = keeps_empty
        self._writer = SseWriter(request_id) if form == "sse" else LineWriter()
        self._item: str | None = None
        self._run_of: str | None = None
        """The message whose pieces come without interruption; they are collected in `_run`."""
        self._run: list[str] = []
        self._thought: ReasoningDelta | None = None
        """The part of a reasoning item that is not complete yet: all its pieces."""
        self._begun: dict[str, str] = {}
        """Names of unfinished calls by id, for the progress indicators."""
        self._out: list[bytes] = []
        self.kept: list[bytes] = []
        """In the form `json`, all packets so far."""

    def __repr__(self) -> str:
        return f"<CapEncoder {self.request_id} packets={self.sequence} finished={self.finished}>"

    @property
    def usage(self) -> Usage | None:
        return self.result.usage

    def begin(self) -> bytes:
        """Nothing: the ids that precede an answer are sent in headers."""
        return b""

    def feed(self, events: list[TurnEvent]) -> bytes:
        """The bytes for a batch of events; none in the form `json`."""
        return self.write(self.packets(events))

    def packets(self, events: list[TurnEvent]) -> list[bytes]:
        """The packets for a batch of events, as JSON. Afterwards `sequence` is the number of the last one."""
        for event in events:
            if self.finished:
                break
            if isinstance(event, TextDelta) and event.item == self._run_of:
                # The path of nearly every event.
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
                self._close_thought(event.item)
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
        out, self._out = self._out, []
        self.sequence += len(out)
        return out

    def fail(self, error: BridgeError) -> list[bytes]:
        """The packets for a failure that no backend reported; none after the end."""
        return self.packets([Finished("failed", error=error)])

    def write(self, packets: list[bytes]) -> bytes:
        """The bytes of the packets that `packets` returned last."""
        if not self._streaming:
            self.kept += packets
            return b""
        return self._writer.write(packets, self.sequence - len(packets) + 1) if packets else b""

    def body(self) -> bytes:
        """The ServiceResponse, in the form `json`. Only after the end of a turn that did not fail."""
        return self.response(self.kept)

    def response(self, packets: Iterable[bytes]) -> bytes:
        """The ServiceResponse with the content of all `packets` of this turn, which has ended and did not fail."""
        assert self.finished
        assert self.failure is None
        output, metrics = fold_packets(packets, self._conversation)
        if self._cancelled is not None:
            # The stream of a cancelled turn has no packet about it.
            output["status"] = "incomplete"
            output.setdefault("notices", []).append(_notice(self._cancelled))
        return (
            ServiceResponse(
                request_id=self.request_id,
                created_at=_time(self._ended_at),
                output=output,
                metrics=metrics or self._metrics(),
            )
            .to_json()
            .encode()
        )

    # Content

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
        thought = self._thought
        if thought is None or (thought.item, thought.index, thought.raw) != (event.item, event.index, event.raw):
            self._close_thought()
            thought = self._thought = ReasoningDelta(event.item, event.index, [], event.raw)
        thought.pieces += event.pieces
        if "reasoning_stream" in self._events and (any(event.pieces) or self._keeps_empty):
            self._send_thought(event, final=False)

    def _close_thought(self, item: str | None = None) -> None:
        """Send the unfinished thought as a whole; with `item`, only one of this reasoning item."""
        thought = self._thought
        if thought is None or item not in (None, thought.item):
            return
        self._thought = None
        if any(thought.pieces):
            self._send_thought(thought, final=True)

    def _send_thought(self, thought: ReasoningDelta, *, final: bool) -> None:
        self._first_shown()
        kind = "raw" if thought.raw else "summary"
        text = "".join(thought.pieces)
        data = {"thought": text, "kind": kind, "item_id": thought.item, "index": thought.index, "final": final}
        self._event("thought_trace", data)

    def _begin_call(self, call: CallBegun | ToolCall) -> None:
        """Report the progress of a call, unless the client gets a `tool_call` event once it is complete."""
        if "tool_call" not in self._events:
            self._show()
            self._begun[call.id] = name = full_name(call.namespace, call.name)
            self._progress(f"{TOOL_LABEL}{name}", "running")

    def _call(self, call: ToolCall) -> None:
        if call.id not in self._begun:
            self._begin_call(call)
        if (begun := self._begun.pop(call.id, None)) is not None:
            self._progress(f"{TOOL_LABEL}{begun}", "complete")
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
                self._progress(f"{TOOL_LABEL}{WEB_SEARCH}", state)
        citations = _citations(search)
        if citations:
            self._event("citation_block", CitationBlock(items=citations).dump())

    # Ends

    def _restart(self) -> None:
        """The turn starts again, and the client has seen nothing of it."""
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
            self._progress(f"{TOOL_LABEL}{name}", "failed")
        self.finished = True
        self._ended_at = self._now()
        if end.outcome == "cancelled" and end.reason in (CANCELLED, CLIENT_GONE):
            self._cancelled = end.reason
        elif end.outcome == "incomplete":
            self._event("user_error", _notice(end.reason or "incomplete"))
        elif end.outcome in ("failed", "cancelled"):
            self.failure = end.error or interrupted()
        elif self.result.calls and not self.result.text.strip() and "tool_call" not in self._events:
            # Only calls, for a client that did not ask to see calls.
            name = full_name(self.result.calls[0].namespace, self.result.calls[0].name)
            self.failure = UpstreamError(
                f"The model called the tool {name[:100]!r}, which was not offered, and gave no other answer. Send the "
                "request again, or choose another model.",
                code="empty_response",
            )
        if self.failure is not None:
            if self.result.acted:
                self.failure = self.failure.after_effects()
            failure = failure_from(self.failure, now=self._ended_at, request_id=self.request_id)
            self._out += failure.packets
            return
        if "metrics" in self._events and self._cancelled is None:
            self._event("metrics", self._metrics())
        self._out.append(CLOSE_PACKET)

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
        """Content other than a thought follows: the thought before it is complete."""
        self._close_thought()
        self._first_shown()

    def _first_shown(self) -> None:
        if not self.visible:
            self.visible = True
            self._first_at = self._now()

    def _progress(self, label: str, status: str) -> None:
        self._event("progress_indicator", {"label": label, "status": status})

    def _event(self, kind: str, data: Mapping[str, Any]) -> None:
        event_id = uuid5(self.request_id, str(self.sequence + len(self._out) + 1))
        event = {"id": event_id, "timestamp": _time(self._now()), "type": kind, "data": data}
        self._out.append(b'{"op":"event","p":%b}' % exact_json.dumps(event, option=orjson.OPT_UTC_Z))


def _notice(reason: str) -> dict[str, Any]:
    about = {"code": INCOMPLETE, "domain": "llm", "retryable": False, "reason": reason}
    return {"message": incomplete_message(reason), **about}


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _arguments(text: str) -> Any:
    """The arguments of a call as an object; text that is not a JSON object stays text."""
    try:
        found = exact_json.loads(text)
        check_depth([found])
    except (ValueError, InvalidRequest):
        return text
    return found if isinstance(found, dict) else text


def _citations(search: WebSearch) -> list[CitationItem]:
    """The sources of a search that have http(s) URLs."""
    sources = search.action.get("sources")
    found: list[CitationItem] = []
    for source in sources if isinstance(sources, list) else ():
        url, title = (source.get("url"), source.get("title")) if isinstance(source, dict) else (None, None)
        if isinstance(url, str) and url.lower().startswith(("http://", "https://")):
            named = title if isinstance(title, str) and title else url
            with suppress(ValidationError):
                item = {"source_id": f"{search.item}:{len(found)}", "uri": url, "title": named}
                found.append(CitationItem.model_validate(item))
    return found
