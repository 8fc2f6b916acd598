"""The events of a Messages stream as TurnEvents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.core.events import CallBegun, Finished, ReasoningDone, ToolCall, Usage, UsageUpdate
from bridge.core.turn import Turn
from bridge.protocols.messages.build import SEARCH, tool_names
from bridge.protocols.messages.history import later_call_id
from bridge.protocols.messages.models import pack_thought
from bridge.protocols.upstream import UpstreamBuffer, error_from_object, is_json, string
from bridge.tools.payload import arguments_or_none, text_of

_CUT_SHORT: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    # The provider's search took too long, and the bridge cannot continue it.
    "pause_turn": "max_output_tokens",
    "refusal": "content_filter",
}
"""Stop reasons of incomplete answers, and their names in the Responses API."""
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


@dataclass(slots=True)
class _Block:
    """An open block of content. `start` is the block in its first event, `call` its call."""

    kind: str
    item: str
    start: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    call: CallBegun | None = None


class MessagesBuffer(UpstreamBuffer):
    """One answer to a turn. A call streams, and is complete when its block is.

    A custom tool's text is in the JSON of its input, so it comes as a whole, at the end.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._model = turn.model
        self._names = tool_names(turn)
        self._searches = turn.web_search is not None
        self._message = "msg"
        self._begun: set[int] = set()
        self._texts: dict[int, str] = {}
        self._open_text: str | None = None
        """A text may continue in the next block: with citations there is a block for each sentence."""
        self._blocks: dict[int, _Block] = {}
        self._doubtful: ToolCall | None = None
        """A call whose arguments may have been cut off: the next event decides."""
        self._call_ids: set[str] = set()
        self._counts: dict[str, int] = {}
        self._thought = 0
        self._stop: str | None = None

    def receive_event(self, event: Any) -> None:
        if event["type"] == "content_block_delta":
            self._delta(event["index"], event["delta"])
        else:
            self._receive(event["type"], event)

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta["type"]
        if kind == "text_delta":
            if text := string(delta["text"]):
                self.text(self._texts[index], text)
            return
        block = self._blocks.get(index)
        if block is None:
            return  # an unknown kind of block, or citations of a text
        if kind == "thinking_delta":
            piece = string(delta["thinking"])
            block.pieces.append(piece)
            self.reasoning(block.item, 0, piece, raw=False)
        elif kind == "input_json_delta":
            block.pieces.append(string(delta["partial_json"]))
            if block.call is not None and not block.call.custom:
                self.call_delta(block.call.id, block.pieces[-1])
        elif kind == "signature_delta":
            block.signature += string(delta["signature"])

    def _receive(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "content_block_start":
            self._begin(event["index"], event["content_block"])
        elif kind == "content_block_stop":
            self._end(event["index"])
        elif kind == "message_start":
            message = event["message"]
            if isinstance(message.get("id"), str) and message["id"]:
                self._message = message["id"]
            self._count(message.get("usage"))
            self.usage(UsageUpdate(self._usage()))
        elif kind == "message_delta":
            self._stop = event["delta"].get("stop_reason") or self._stop
            self._count(event.get("usage"))
        elif kind == "message_stop":
            self._close()
        elif kind == "message":
            for each in _events_of(event):
                self.receive_event(each)
        elif kind == "error":
            said = event["error"]
            self.ended = True
            self.error_object = said if isinstance(said, dict) else {"message": str(said)}
            self.fail(error_from_object(self.error_object))

    def _begin(self, index: int, start: Mapping[str, Any]) -> None:
        if not isinstance(index, int) or index in self._begun:
            raise TypeError(index)
        self._begun.add(index)
        kind, item = start["type"], f"{self._message}_{index}"
        self._settle(text_goes_on=kind == "text")
        if kind == "text":
            self._open_text = self._texts[index] = self._open_text or item
            if start.get("text"):
                self.text(self._open_text, string(start["text"]))
        elif kind in ("thinking", "redacted_thinking", "tool_use", "server_tool_use"):
            self._blocks[index] = block = _Block(kind, item, start, signature=string(start.get("signature") or ""))
            if kind == "thinking" and start.get("thinking"):
                block.pieces.append(string(start["thinking"]))
                self.reasoning(item, 0, block.pieces[0], raw=False)
            elif kind == "tool_use":
                block.call = self._call(block)
                self.call_begun(block.call)

    def _end(self, index: int) -> None:
        block = self._blocks.pop(index, None)
        if block is None:
            return
        if block.call is not None:
            self._called(block, block.call)
        elif block.kind == "server_tool_use":
            self._searched(block)
        else:
            self._thought_done(block)

    def _call(self, block: _Block) -> CallBegun:
        name, call_id = string(block.start["name"]), self._call_id(block)
        tool = self._names.tools.get(name)
        if tool is None:
            return CallBegun(f"fc_{call_id}", call_id, name)
        return CallBegun(f"fc_{call_id}", call_id, tool.name, tool.namespace, tool.custom)

    def _called(self, block: _Block, begun: CallBegun) -> None:
        arguments = "".join(block.pieces)
        if not arguments and block.start.get("input"):
            arguments = orjson.dumps(block.start["input"]).decode()
        call = begun.complete(text_of(arguments) if begun.custom else arguments_or_none(arguments))
        if is_json(arguments):
            self.called(call)
        else:
            self._doubtful = call

    def _call_id(self, block: _Block) -> str:
        given = block.start.get("id")
        call_id = given if isinstance(given, str) and given else f"call_{block.item}"
        if self._call_ids:
            call_id = later_call_id(call_id, len(self._call_ids) + 1)
        self._call_ids.add(call_id)
        return call_id

    def _searched(self, block: _Block) -> None:
        if not self._searches or block.start.get("name") != SEARCH:
            return
        told = "".join(block.pieces)
        asked = orjson.loads(told) if is_json(told) else block.start.get("input") or {}
        self.searched(block.item, {"type": "search", "query": str(asked.get("query") or "")})

    def _thought_done(self, block: _Block) -> None:
        """Reasoning without readable text is an item, too: the next turn sends it back."""
        thought: dict[str, Any] = {"type": block.kind}
        if block.kind == "redacted_thinking":
            thought["data"] = string(block.start["data"])
        else:
            thought |= {"thinking": "".join(block.pieces), "signature": block.signature}
        is_signed = block.kind == "redacted_thinking" or bool(block.signature)
        if is_signed or block.pieces:
            self._streamed.setdefault(block.item, 0)
            self.add(ReasoningDone(block.item, pack_thought(self._model, thought) if is_signed else None))

    def _settle(self, *, text_goes_on: bool = False, cut: bool = False) -> None:
        """At the next block or the end: a doubtful call is complete, unless the answer was cut off."""
        call, self._doubtful = self._doubtful, None
        if call is not None and not cut:
            self.called(call)
        if self._open_text is not None and not text_goes_on:
            self.text_done(self._open_text, "")
            self._open_text = None

    def _close(self) -> None:
        reason = _CUT_SHORT.get(self._stop or "")
        self._settle(cut=reason is not None)
        self.usage(UsageUpdate(self._usage()))
        if reason is None:
            self.complete()
        else:
            self.ended = True
            self.finish(Finished("incomplete", reason=reason))

    def _count(self, usage: Any) -> None:
        """Update the counts: each is a total, and a missing one has not changed."""
        if usage is None:
            return
        for name in _COUNTS:
            if usage.get(name) is not None:
                self._counts[name] = int(usage[name])
        details = usage.get("output_tokens_details")
        if isinstance(details, dict) and details.get("thinking_tokens") is not None:
            self._thought = int(details["thinking_tokens"])

    def _usage(self) -> Usage:
        fresh, written, read, output = (self._counts.get(name, 0) for name in _COUNTS)
        return Usage(fresh + written + read, read, output, min(self._thought, output), cache_write=written)


def _events_of(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The events of a stream that would have been this message."""
    yield {"type": "message_start", "message": message}
    for index, block in enumerate(message["content"]):
        # The start of a block may have all of it.
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if block["type"] == "tool_use":
            whole = {"type": "input_json_delta", "partial_json": orjson.dumps(block["input"]).decode()}
            yield {"type": "content_block_delta", "index": index, "delta": whole}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": message, "usage": message.get("usage")}
    yield {"type": "message_stop"}
