"""The items of an answer as the Responses API writes them, for its own stream and for the exec wire."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from bridge.core.collect import add_pieces
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import BridgeError
from bridge.protocols.client import Json, NewId
from bridge.protocols.event_encoder import EventEncoder
from bridge.protocols.responses.build import build_call, output_text
from bridge.protocols.sse import restart_error

TEXT_DELTA = "response.output_text.delta"
_CALL_DELTAS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
"""The deltas of a function's call, and of a custom tool's."""
DeltaFrame = tuple[bytes, bytes]
"""The bytes of a delta that are the same for every piece. They are built once, since a delta is the hot path."""
_PROVIDERS_ID = re.compile(r"rs_[A-Za-z0-9_-]{1,200}")


@dataclass(slots=True)
class _Open:
    """The item that is being written. `source` is the backend's id of it, `id` ours."""

    source: str
    id: str
    index: int
    pieces: list[str] = field(default_factory=list)
    where: Json = field(init=False)
    """The members of every event of this item."""
    frame: DeltaFrame = (b"", b"")
    """Of the deltas of a message or a call."""

    def __post_init__(self) -> None:
        self.where = {"item_id": self.id, "output_index": self.index}


@dataclass(slots=True)
class OpenText(_Open):
    """A message."""


@dataclass(slots=True)
class _Parts:
    """The texts of a summary, or of the raw reasoning. They are numbered by their order here, not by the provider's
    numbers.
    """

    texts: list[list[str]] = field(default_factory=list)
    open: int | None = None
    """The provider's number of the part that is open."""
    frame: DeltaFrame = (b"", b"")


@dataclass(slots=True)
class _OpenReasoning(_Open):
    """Reasoning. A part of its summary and a part of its content can be open at the same time."""

    summary: _Parts = field(default_factory=_Parts)
    content: _Parts = field(default_factory=_Parts)
    encrypted: str | None = None


@dataclass(slots=True)
class OpenCall(_Open):
    """A call, with as much of its arguments as has come."""

    custom: bool = False
    item: Json = field(default_factory=dict)


class ItemEncoder(EventEncoder, ABC):
    """Writes items as the Responses API does, one at a time. A subclass decides what becomes of each event (`_emit`,
    `_write_deltas`) and how the answer ends.
    """

    def __init__(self, new_id: NewId, *, streaming: bool = True) -> None:
        super().__init__()
        self.visible = False
        self.failure: BridgeError | None = None
        self.usage: Usage | None = None
        self.output: list[Json] = []
        self._new_id = new_id
        self._streaming = streaming
        self._open: OpenText | _OpenReasoning | OpenCall | None = None
        self._out: list[bytes] = []

    @abstractmethod
    def _emit(self, kind: str, **members: Any) -> None:
        """Write one event."""

    @abstractmethod
    def _delta_frame(self, kind: str, where: Json) -> DeltaFrame:
        """The frame of deltas of this kind."""

    @abstractmethod
    def _write_deltas(self, frame: DeltaFrame, pieces: list[str]) -> None:
        """Write a delta for each piece."""

    @abstractmethod
    def _finish(self, end: Finished) -> None:
        """Write the end."""

    def _restart(self, event: Restarted) -> None:
        if self.visible:
            self._finish(Finished("failed", error=restart_error(event)))

    def _text(self, event: TextDelta) -> None:
        opened = self._open
        if not isinstance(opened, OpenText) or opened.source != event.item:
            opened = self._open_text(event.item)
        add_pieces(opened.pieces, event.pieces)
        self._write_deltas(opened.frame, event.pieces)

    def _text_done(self, event: TextDone) -> None:
        if isinstance(self._open, OpenText) and self._open.source == event.item:
            self._close_open("completed")

    def _call_delta(self, event: CallDelta) -> None:
        if isinstance(self._open, OpenCall):
            self._arguments(self._open, event.pieces)

    def _usage(self, event: UsageUpdate) -> None:
        self.usage = event.usage

    # Items

    def _begin_item(self) -> int:
        self._close_open("completed")
        self.visible = True
        return len(self.output)

    def _item_added(self, item: Json) -> None:
        self._emit("response.output_item.added", output_index=len(self.output), item=item)

    def _item_done(self, item: Json) -> None:
        self._emit("response.output_item.done", output_index=len(self.output), item=item)
        self.output.append(item)

    def _open_text(self, source: str) -> OpenText:
        index, item_id = self._begin_item(), self._new_id("msg")
        self._open = opened = OpenText(source, item_id, index)
        opened.frame = self._delta_frame(TEXT_DELTA, {**opened.where, "content_index": 0, "logprobs": []})
        self._item_added(_message(item_id, "in_progress", None))
        self._emit("response.content_part.added", **opened.where, content_index=0, part=output_text(""))
        return opened

    def _reasoning(self, event: ReasoningDelta) -> None:
        opened = self._open
        if not isinstance(opened, _OpenReasoning) or opened.source != event.item:
            opened = self._open_reasoning(event.item)
        parts = opened.content if event.raw else opened.summary
        if parts.open != event.index:
            index = len(parts.texts)
            if event.raw:
                kind, where = "response.reasoning_text.delta", {**opened.where, "content_index": index}
            else:
                self._close_summary_part(opened)
                kind, where = "response.reasoning_summary_text.delta", {**opened.where, "summary_index": index}
                self._emit("response.reasoning_summary_part.added", **where, part=_summary_text(""))
            parts.open, parts.frame = event.index, self._delta_frame(kind, where)
            parts.texts.append([])
        self._write_deltas(parts.frame, event.pieces)
        add_pieces(parts.texts[-1], event.pieces)

    def _reasoning_done(self, event: ReasoningDone) -> None:
        opened = self._open
        if not isinstance(opened, _OpenReasoning) or opened.source != event.item:
            if event.encrypted is None:
                return
            # Reasoning without readable text is an item, too: the client sends it back.
            opened = self._open_reasoning(event.item)
        opened.encrypted = event.encrypted
        self._close_open("completed")

    def _open_reasoning(self, source: str) -> _OpenReasoning:
        index = self._begin_item()
        # Encrypted content is bound to the provider's id of its item.
        is_new = source not in {item["id"] for item in self.output}
        item_id = source if is_new and _PROVIDERS_ID.fullmatch(source) else self._new_id("rs")
        self._open = opened = _OpenReasoning(source, item_id, index)
        self._item_added({"id": item_id, "type": "reasoning", "summary": [], "status": "in_progress"})
        return opened

    def _call_begun(self, call: CallBegun | ToolCall) -> OpenCall:
        index, item = self._begin_item(), build_call(call, call.id, "in_progress", "")
        self._open = opened = OpenCall(call.id, call.id, index, custom=call.custom, item=item)
        opened.frame = self._delta_frame(_CALL_DELTAS[call.custom], opened.where)
        self._item_added(item)
        return opened

    def _arguments(self, opened: OpenCall, pieces: list[str]) -> None:
        self._write_deltas(opened.frame, pieces)
        add_pieces(opened.pieces, pieces)

    def _tool_call(self, call: ToolCall) -> None:
        opened = self._open
        if not isinstance(opened, OpenCall) or opened.id != call.id:
            opened = self._call_begun(call)
            self._arguments(opened, [call.arguments])
        elif rest := call.arguments[sum(map(len, opened.pieces)) :]:
            self._arguments(opened, [rest])
        self._open = None
        self._close_call(opened, "completed")

    def _web_search(self, search: WebSearch) -> None:
        index = self._begin_item()
        item = {"id": self._new_id("ws"), "type": "web_search_call", "status": "completed", "action": search.action}
        self._item_added(item | {"status": "in_progress"})
        for state in ("in_progress", "searching", "completed"):
            self._emit(f"response.web_search_call.{state}", item_id=item["id"], output_index=index)
        self._item_done(item)

    def _close_open(self, status: str) -> None:
        opened, self._open = self._open, None
        if isinstance(opened, OpenText):
            text = "".join(opened.pieces)
            self._emit("response.output_text.done", **opened.where, content_index=0, text=text, logprobs=[])
            self._emit("response.content_part.done", **opened.where, content_index=0, part=output_text(text))
            self._item_done(_message(opened.id, status, text))
        elif isinstance(opened, _OpenReasoning):
            self._close_reasoning(opened, status)
        elif isinstance(opened, OpenCall):
            self._close_call(opened, "incomplete")

    def _close_call(self, opened: OpenCall, status: str) -> None:
        arguments, member = "".join(opened.pieces), "input" if opened.custom else "arguments"
        named = {} if opened.custom else {"name": opened.item["name"]}
        if status == "completed":
            # Some clients run a call when they see this event; an incomplete call must not run.
            kind = _CALL_DELTAS[opened.custom].removesuffix("delta") + "done"
            self._emit(kind, **opened.where, **named, **{member: arguments})
        self._item_done({**opened.item, "status": status, member: arguments})

    def _close_reasoning(self, opened: _OpenReasoning, status: str) -> None:
        self._close_summary_part(opened)
        content = [{"type": "reasoning_text", "text": "".join(pieces)} for pieces in opened.content.texts]
        for index, part in enumerate(content):
            self._emit("response.reasoning_text.done", **opened.where, content_index=index, text=part["text"])
        summary = [_summary_text("".join(pieces)) for pieces in opened.summary.texts]
        item: Json = {"id": opened.id, "type": "reasoning", "summary": summary, "status": status}
        if content:
            item["content"] = content
        if opened.encrypted is not None:
            item["encrypted_content"] = opened.encrypted
        self._item_done(item)

    def _close_summary_part(self, opened: _OpenReasoning) -> None:
        parts = opened.summary
        if parts.open is None:
            return
        parts.open = None
        where, text = {**opened.where, "summary_index": len(parts.texts) - 1}, "".join(parts.texts[-1])
        self._emit("response.reasoning_summary_text.done", **where, text=text)
        self._emit("response.reasoning_summary_part.done", **where, part=_summary_text(text))


def _summary_text(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def _message(item_id: str, status: str, text: str | None) -> Json:
    content = [] if text is None else [output_text(text)]
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
