"""TurnEvents as the lines of `exec --json`: wire protocol v0 (docs/exec-wire.md).

The order is created, then for each item added, deltas, done; then one `response.completed` or one `error`, and nothing
after it. A call that is cut off is never done, so nobody runs it. The lines are a subset of the Responses API's events,
with what an orchestrator needs and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orjson import dumps

from bridge.api.sse import restart_error
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.collect import ReasoningOutput, TextOutput
from bridge.turn.events import (
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)

NewId = Callable[[str], str]

INCOMPLETE = {
    "max_output_tokens": "The answer is incomplete: the model reached its limit of tokens.",
    "content_filter": "The answer is incomplete: the provider's content filter cut it off.",
}


@dataclass(slots=True)
class _OpenCall:
    """A call that is being made, and how many characters of its arguments were sent."""

    item: dict[str, Any]
    custom: bool
    size: int = 0


class WireEncoder:
    """One run. `begin` once, then `feed` until `finished`; `fail` ends it from outside."""

    def __init__(self, model: str, new_id: NewId) -> None:
        self.finished = False
        self.failure: BridgeError | None = None
        self._about = {"id": new_id("resp"), "model": model}
        self._new_id = new_id
        self._open: TextOutput | ReasoningOutput | None = None
        self._item_id = ""
        self._calls: dict[str, _OpenCall] = {}
        self._shown = False
        self._usage = Usage()
        self._lines: list[bytes] = []

    def __repr__(self) -> str:
        return f"<WireEncoder {self._about['id']} finished={self.finished}>"

    def begin(self) -> list[bytes]:
        """The line before the answer."""
        self._emit("response.created", response=self._about)
        return self._take()

    def feed(self, events: list[TurnEvent]) -> list[bytes]:
        """The lines for a batch of events, without their line ends."""
        for event in events:
            if self.finished:
                break
            if isinstance(event, TextDelta):
                self._text(event)
            elif isinstance(event, ReasoningDelta):
                self._reasoning(event)
            elif isinstance(event, TextDone):
                if isinstance(self._open, TextOutput) and self._open.item == event.item:
                    self._close()
            elif isinstance(event, ReasoningDone):
                self._reasoning_done(event)
            elif isinstance(event, CallDelta):
                self._call_delta(self._calls[event.id], event.pieces)
            elif isinstance(event, CallBegun):
                self._begin_call(event)
            elif isinstance(event, ToolCall):
                self._call(event)
            elif isinstance(event, WebSearch):
                self._search(event)
            elif isinstance(event, UsageUpdate):
                self._usage = event.usage
            elif isinstance(event, Restarted):
                if self._shown:
                    self._fail(restart_error(event))
            elif isinstance(event, Finished):
                self._finish(event)
        return self._take()

    def fail(self, error: BridgeError) -> list[bytes]:
        """The line for a failure that no backend told of; none when the end has been written."""
        if not self.finished:
            self._fail(error)
        return self._take()

    def _text(self, event: TextDelta) -> None:
        opened = self._open
        if not isinstance(opened, TextOutput) or opened.item != event.item:
            self._close()
            self._open = opened = TextOutput(event.item)
            self._item_id = self._new_id("msg")
            self._emit("response.output_item.added", item=self._item("message", role="assistant"))
            part = {"type": "output_text", "text": ""}
            self._emit("response.content_part.added", item_id=self._item_id, part=part)
        opened.pieces += event.pieces
        head = b'{"type":"response.output_text.delta","item_id":%b,"delta":' % dumps(self._item_id)
        self._lines += [b"%b%b}" % (head, dumps(piece)) for piece in event.pieces]

    def _reasoning(self, event: ReasoningDelta) -> None:
        opened = self._open_reasoning(event.item)
        parts, kind, place = (
            (opened.content, "response.reasoning_text.delta", "content_index")
            if event.raw
            else (opened.summary, "response.reasoning_summary_text.delta", "summary_index")
        )
        parts.setdefault(event.index, []).extend(event.pieces)
        for piece in event.pieces:
            self._emit(kind, item_id=self._item_id, **{place: event.index}, delta=piece)

    def _reasoning_done(self, event: ReasoningDone) -> None:
        opened = self._open
        if isinstance(opened, ReasoningOutput) and opened.item == event.item:
            opened.encrypted = event.encrypted
            self._close()
        elif event.encrypted is not None:
            # Nothing of it may be read, but whoever goes on with the conversation gives it back.
            self._open_reasoning(event.item).encrypted = event.encrypted
            self._close()

    def _open_reasoning(self, source: str) -> ReasoningOutput:
        opened = self._open
        if isinstance(opened, ReasoningOutput) and opened.item == source:
            return opened
        self._close()
        self._open = opened = ReasoningOutput(source)
        # What is encrypted is bound to the id that the provider gave it.
        self._item_id = source if source.startswith("rs_") else self._new_id("rs")
        self._emit("response.output_item.added", item=self._item("reasoning"))
        return opened

    def _begin_call(self, call: CallBegun | ToolCall) -> _OpenCall:
        self._close()
        self._item_id = call.id
        kind = "custom_tool_call" if call.custom else "function_call"
        item = self._item(kind, call_id=call.call_id, name=call.name)
        if call.namespace is not None:
            item["namespace"] = call.namespace
        self._emit("response.output_item.added", item=item)
        self._calls[call.id] = opened = _OpenCall(item, call.custom)
        return opened

    def _call_delta(self, opened: _OpenCall, pieces: list[str]) -> None:
        kind = "response.custom_tool_call_input.delta" if opened.custom else "response.function_call_arguments.delta"
        for piece in pieces:
            opened.size += len(piece)
            self._emit(kind, item_id=opened.item["id"], delta=piece)

    def _call(self, call: ToolCall) -> None:
        opened = self._calls.get(call.id)
        if opened is None:
            opened = self._begin_call(call)
            self._call_delta(opened, [call.arguments])
        elif rest := call.arguments[opened.size :]:
            self._call_delta(opened, [rest])
        del self._calls[call.id]
        member = "input" if call.custom else "arguments"
        self._emit("response.output_item.done", item=opened.item | {member: call.arguments})

    def _search(self, search: WebSearch) -> None:
        self._close()
        self._item_id = self._new_id("ws")
        item = self._item("web_search_call")
        self._emit("response.output_item.added", item=item)
        for state in ("in_progress", "searching", "completed"):
            self._emit(f"response.web_search_call.{state}", item_id=self._item_id)
        self._emit("response.output_item.done", item=item | {"status": "completed", "action": search.action})

    def _close(self) -> None:
        opened, self._open = self._open, None
        if isinstance(opened, TextOutput):
            content = [{"type": "output_text", "text": opened.text}]
            item = self._item("message", role="assistant", content=content)
        elif isinstance(opened, ReasoningOutput):
            item = self._item("reasoning", **_thoughts(opened))
        else:
            return
        self._emit("response.output_item.done", item=item)

    def _finish(self, end: Finished) -> None:
        self._close()
        if end.outcome == "incomplete":
            reason = end.reason or "incomplete"
            message = INCOMPLETE.get(reason, f"The answer is incomplete ({reason}).")
            self._fail(UpstreamError(message, code=reason))
        elif end.outcome != "completed":
            self._fail(end.error or UpstreamError("The turn was interrupted.", code="interrupted"))
        else:
            usage = {
                "input_tokens": self._usage.input,
                "output_tokens": self._usage.output,
                "cached_tokens": self._usage.cached,
            }
            self._emit("response.completed", response={**self._about, "usage": usage})
            self.finished = True

    def _fail(self, error: BridgeError) -> None:
        self.finished = True
        self.failure = error
        self._lines.append(error_line(error))

    def _item(self, kind: str, **members: Any) -> dict[str, Any]:
        self._shown = True
        return {"id": self._item_id, "type": kind, **members}

    def _emit(self, kind: str, **members: Any) -> None:
        self._lines.append(dumps({"type": kind, **members}))

    def _take(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines


def error_line(error: BridgeError) -> bytes:
    """The last line of a run that failed, also of one that never began."""
    # Arguments that are no UTF-8 may stand in a message.
    message = error.message.encode("utf-8", "replace").decode() or f"The run failed ({error.code})."
    return dumps({"type": "error", "message": message, "code": error.code})


def _thoughts(opened: ReasoningOutput) -> dict[str, Any]:
    members: dict[str, Any] = {"summary": [{"type": "summary_text", "text": text} for text in opened.summary_parts()]}
    content = [{"type": "reasoning_text", "text": text} for text in opened.content_parts()]
    if content:
        members["content"] = content
    if opened.encrypted is not None:
        members["encrypted_content"] = opened.encrypted
    return members
