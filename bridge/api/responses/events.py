"""TurnEvents as a Responses event stream, and as a response object.

The order is the API's: created, in_progress, then for each item added, its parts and deltas, done; one terminal event.
A call after whose beginning something else comes than its arguments was cut off, and is incomplete.
`sequence_number` counts from 0 without gaps. A text delta costs one bytes template and one `orjson.dumps`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from orjson import dumps

from bridge import exact_json
from bridge.api.responses.response import Echo, error_object, usage_object
from bridge.api.sse import join_events, restart_error
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.collect import add_pieces
from bridge.turn.events import (
    CANCELLED,
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

_PROVIDERS_ID = re.compile(r"rs_[A-Za-z0-9_-]{1,200}")


class _OpenText:
    """The message item that is being written."""

    def __init__(self, source: str, item_id: str, index: int) -> None:
        self.source = source
        self.id = item_id
        self.index = index
        self.pieces: list[str] = []
        self.delta_head = (
            b"event: response.output_text.delta\ndata: "
            b'{"type":"response.output_text.delta","item_id":%b,"output_index":%d,"content_index":0,"logprobs":[],'
            b'"sequence_number":' % (dumps(item_id), index)
        )


class _OpenReasoning:
    """The reasoning item that is being written: texts by part, and the summary part that is open."""

    def __init__(self, source: str, item_id: str, index: int) -> None:
        self.source = source
        self.id = item_id
        self.index = index
        self.summary: list[list[str]] = []
        self.content: list[list[str]] = []
        self.open_part: int | None = None
        """The provider's number of the summary part that is open; ours is its place."""
        self.raw_part: int | None = None
        self.encrypted: str | None = None


class _OpenCall:
    """The call that is being made."""

    def __init__(self, call: CallBegun | ToolCall, index: int) -> None:
        self.index = index
        self.pieces: list[str] = []
        self.member = "input" if call.custom else "arguments"
        self.events = "custom_tool_call_input" if call.custom else "function_call_arguments"
        self.item: dict[str, Any] = {
            "id": call.id,
            "type": "custom_tool_call" if call.custom else "function_call",
            "status": "in_progress",
            "call_id": call.call_id,
            "name": call.name,
            self.member: "",
            **({} if call.namespace is None else {"namespace": call.namespace}),
        }


class ResponsesEncoder:
    """One response. When not `streaming`, nothing is shown before the end, so an upstream restart is forgiven."""

    def __init__(
        self,
        echo: Echo,
        new_id: NewId,
        *,
        created_at: int,
        streaming: bool = True,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.id = new_id("resp")
        self.finished = False
        self.visible = False
        self.failure: BridgeError | None = None
        self._echo = echo
        self._new_id = new_id
        self.created_at = created_at
        self._now = now or (lambda: created_at)
        self._streaming = streaming
        self._sequence = 0
        self.output: list[dict[str, Any]] = []
        self._open: _OpenText | _OpenReasoning | _OpenCall | None = None
        self.usage: Usage | None = None
        self._out: list[bytes] = []
        self.final: dict[str, Any] | None = None
        """The response object at its end."""

    def __repr__(self) -> str:
        return f"<ResponsesEncoder {self.id} items={len(self.output)} finished={self.finished}>"

    def begin(self) -> bytes:
        response = self._response("in_progress")
        self._emit("response.created", response=response)
        self._emit("response.in_progress", response=response)
        return self._take()

    def feed(self, events: list[TurnEvent]) -> bytes:
        for event in events:
            if self.finished:
                break
            if isinstance(event, TextDelta):
                self._text(event)
            elif isinstance(event, TextDone):
                if isinstance(self._open, _OpenText) and self._open.source == event.item:
                    self._close_open("completed")
            elif isinstance(event, CallDelta):
                if isinstance(self._open, _OpenCall):
                    self._call_delta(self._open, event.pieces)
            elif isinstance(event, CallBegun):
                self._begin_call(event)
            elif isinstance(event, ToolCall):
                self._tool_call(event)
            elif isinstance(event, ReasoningDelta):
                self._reasoning(event)
            elif isinstance(event, ReasoningDone):
                self._reasoning_done(event)
            elif isinstance(event, WebSearch):
                self._web_search(event)
            elif isinstance(event, UsageUpdate):
                self.usage = event.usage
            elif isinstance(event, Restarted):
                self._restart(event)
            elif isinstance(event, Finished):
                self._finish(event)
        return self._take()

    def body(self) -> bytes:
        assert self.final is not None
        return exact_json.dumps(self.final)

    def snapshot(self) -> dict[str, Any]:
        """The response object as it stands, while it is being written."""
        return self._response("in_progress")

    @property
    def text(self) -> str:
        """All that the assistant has said in finished messages."""
        messages = [item["content"] for item in self.output if item["type"] == "message"]
        return "".join(part["text"] for content in messages for part in content)

    # Items

    def _text(self, event: TextDelta) -> None:
        opened = self._open
        if not isinstance(opened, _OpenText) or opened.source != event.item:
            opened = self._open_text(event.item)
        add_pieces(opened.pieces, event.pieces)
        out, head, number = self._out, opened.delta_head, self._sequence
        for piece in event.pieces:
            out.append(b'%b%d,"delta":%b}\n\n' % (head, number, dumps(piece)))
            number += 1
        self._sequence = number

    def _open_text(self, source: str) -> _OpenText:
        self._close_open("completed")
        opened = _OpenText(source, self._new_id("msg"), len(self.output))
        self._open = opened
        self.visible = True
        self._emit(
            "response.output_item.added",
            output_index=opened.index,
            item=_message(opened.id, "in_progress", None),
        )
        self._emit(
            "response.content_part.added",
            item_id=opened.id,
            output_index=opened.index,
            content_index=0,
            part=_text_part(""),
        )
        return opened

    def _reasoning(self, event: ReasoningDelta) -> None:
        opened = self._open
        if not isinstance(opened, _OpenReasoning) or opened.source != event.item:
            opened = self._open_reasoning(event.item)
        where: dict[str, Any] = {"item_id": opened.id, "output_index": opened.index}
        if event.raw:
            if opened.raw_part != event.index:
                opened.raw_part = event.index
                opened.content.append([])
            index = len(opened.content) - 1
            for piece in event.pieces:
                self._emit("response.reasoning_text.delta", **where, content_index=index, delta=piece)
            add_pieces(opened.content[-1], event.pieces)
            return
        if opened.open_part != event.index:
            self._close_summary_part(opened)
            opened.open_part = event.index
            opened.summary.append([])
            part = {"type": "summary_text", "text": ""}
            index = len(opened.summary) - 1
            self._emit("response.reasoning_summary_part.added", **where, summary_index=index, part=part)
        index = len(opened.summary) - 1
        for piece in event.pieces:
            self._emit("response.reasoning_summary_text.delta", **where, summary_index=index, delta=piece)
        add_pieces(opened.summary[-1], event.pieces)

    def _reasoning_done(self, event: ReasoningDone) -> None:
        opened = self._open
        if not isinstance(opened, _OpenReasoning) or opened.source != event.item:
            if event.encrypted is None:
                return
            # Nothing of it may be read, but it is there.
            opened = self._open_reasoning(event.item)
        opened.encrypted = event.encrypted
        self._close_open("completed")

    def _open_reasoning(self, source: str) -> _OpenReasoning:
        self._close_open("completed")
        # What is encrypted is bound to the id that the provider gave it.
        is_new = source not in {item["id"] for item in self.output}
        item_id = source if is_new and _PROVIDERS_ID.fullmatch(source) else self._new_id("rs")
        opened = _OpenReasoning(source, item_id, len(self.output))
        self._open = opened
        self.visible = True
        item = {"id": opened.id, "type": "reasoning", "summary": [], "status": "in_progress"}
        self._emit("response.output_item.added", output_index=opened.index, item=item)
        return opened

    def _begin_call(self, call: CallBegun | ToolCall) -> _OpenCall:
        self._close_open("completed")
        self.visible = True
        self._open = opened = _OpenCall(call, len(self.output))
        self._emit("response.output_item.added", output_index=opened.index, item=opened.item)
        return opened

    def _call_delta(self, opened: _OpenCall, pieces: list[str]) -> None:
        kind, item_id = f"response.{opened.events}.delta", opened.item["id"]
        for piece in pieces:
            self._emit(kind, item_id=item_id, output_index=opened.index, delta=piece)
        add_pieces(opened.pieces, pieces)

    def _tool_call(self, call: ToolCall) -> None:
        opened = self._open
        if not isinstance(opened, _OpenCall) or opened.item["id"] != call.id:
            opened = self._begin_call(call)
            self._call_delta(opened, [call.arguments])
        elif rest := call.arguments[sum(map(len, opened.pieces)) :]:
            self._call_delta(opened, [rest])
        self._open = None
        self._close_call(opened, "completed")

    def _web_search(self, search: WebSearch) -> None:
        self._close_open("completed")
        self.visible = True
        item = {"id": self._new_id("ws"), "type": "web_search_call", "status": "completed", "action": search.action}
        where: dict[str, Any] = {"item_id": item["id"], "output_index": len(self.output)}
        self._emit("response.output_item.added", output_index=len(self.output), item=item | {"status": "in_progress"})
        for state in ("in_progress", "searching", "completed"):
            self._emit(f"response.web_search_call.{state}", **where)
        self._item_done(item)

    # Ends

    def _close_open(self, status: str) -> None:
        opened, self._open = self._open, None
        if isinstance(opened, _OpenText):
            self._close_text(opened, status)
        elif isinstance(opened, _OpenReasoning):
            self._close_reasoning(opened, status)
        elif isinstance(opened, _OpenCall):
            self._close_call(opened, "incomplete")

    def _close_call(self, opened: _OpenCall, status: str) -> None:
        arguments = "".join(opened.pieces)
        where = {"item_id": opened.item["id"], "output_index": opened.index}
        named = {} if opened.member == "input" else {"name": opened.item["name"]}
        if status == "completed":
            # Some clients run a call when they see this event; one that was cut off must not be run.
            self._emit(f"response.{opened.events}.done", **where, **named, **{opened.member: arguments})
        self._item_done({**opened.item, "status": status, opened.member: arguments})

    def _close_text(self, opened: _OpenText, status: str) -> None:
        text = "".join(opened.pieces)
        where: dict[str, Any] = {"item_id": opened.id, "output_index": opened.index, "content_index": 0}
        self._emit("response.output_text.done", **where, text=text, logprobs=[])
        self._emit("response.content_part.done", **where, part=_text_part(text))
        self._item_done(_message(opened.id, status, text))

    def _close_reasoning(self, opened: _OpenReasoning, status: str) -> None:
        self._close_summary_part(opened)
        where: dict[str, Any] = {"item_id": opened.id, "output_index": opened.index}
        content = []
        for index, pieces in enumerate(opened.content):
            text = "".join(pieces)
            content.append({"type": "reasoning_text", "text": text})
            self._emit("response.reasoning_text.done", **where, content_index=index, text=text)
        summary = [{"type": "summary_text", "text": "".join(pieces)} for pieces in opened.summary]
        item: dict[str, Any] = {"id": opened.id, "type": "reasoning", "summary": summary, "status": status}
        if content:
            item["content"] = content
        if opened.encrypted is not None:
            item["encrypted_content"] = opened.encrypted
        self._item_done(item)

    def _close_summary_part(self, opened: _OpenReasoning) -> None:
        if opened.open_part is None:
            return
        opened.open_part = None
        index, text = len(opened.summary) - 1, "".join(opened.summary[-1])
        where: dict[str, Any] = {"item_id": opened.id, "output_index": opened.index, "summary_index": index}
        self._emit("response.reasoning_summary_text.done", **where, text=text)
        self._emit("response.reasoning_summary_part.done", **where, part={"type": "summary_text", "text": text})

    def _item_done(self, item: dict[str, Any]) -> None:
        self._emit("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)

    def _restart(self, event: Restarted) -> None:
        if not self.visible:
            return
        if self._streaming:
            self._finish(Finished("failed", error=restart_error(event)))
        else:
            self.output.clear()
            self._open = None
            self.visible = False

    def _finish(self, end: Finished) -> None:
        self._close_open("completed" if end.outcome == "completed" else "incomplete")
        self.finished = True
        if end.outcome == "completed":
            self.final = self._response("completed", completed_at=int(self._now()))
            self._emit("response.completed", response=self.final)
        elif end.outcome == "cancelled" and end.reason == CANCELLED:
            # The API has a status for it, but no event of its own.
            self.final = self._response("cancelled")
            self._emit("response.incomplete", response=self.final)
        elif end.outcome == "incomplete":
            self.final = self._response("incomplete", incomplete_details={"reason": end.reason or "unknown"})
            self._emit("response.incomplete", response=self.final)
        else:
            self.failure = end.error or UpstreamError("The turn was interrupted.", code="interrupted")
            self.final = self._response("failed", error=error_object(self.failure))
            self._emit("response.failed", response=self.final)

    # Writing

    def _response(self, status: str, **members: Any) -> dict[str, Any]:
        usage = usage_object(self.usage) if status != "in_progress" and self.usage else None
        return self._echo.response(
            self.id, self.created_at, status=status, output=list(self.output), usage=usage, **members
        )

    def _emit(self, kind: str, **members: Any) -> None:
        payload = {"type": kind, "sequence_number": self._sequence, **members}
        self._sequence += 1
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), exact_json.dumps(payload)))

    def _take(self) -> bytes:
        out, self._out = self._out, []
        return join_events(out)


def _message(item_id: str, status: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_text_part(text)]
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
