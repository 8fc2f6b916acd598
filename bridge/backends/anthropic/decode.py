"""The events of a Messages stream as TurnEvents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.backends.anthropic.history import later_call_id
from bridge.backends.anthropic.thinking import pack_thought
from bridge.backends.anthropic.tools import SEARCH, ToolNames
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.backends.upstream.failures import error_from_object
from bridge.errors import UpstreamError
from bridge.tools.freeform import arguments_or_none, text_of
from bridge.turn.events import CallBegun, Finished, ReasoningDone, ToolCall, Usage, UsageUpdate
from bridge.turn.turn import Turn

_CUT_SHORT: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    # A search that took the provider too long; there is no way here to let it go on.
    "pause_turn": "max_output_tokens",
    "refusal": "content_filter",
}
"""Ends before the end, and what the Responses API calls them."""
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


@dataclass(slots=True)
class _Block:
    """A block of content that is open. `start` is what was told of it at the beginning, `call` what it calls."""

    kind: str
    item: str
    start: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    call: CallBegun | None = None


class MessagesBuffer(UpstreamBuffer):
    """One answer to a turn. A call streams, and is complete when its block is.

    A custom tool's text stands in the JSON of its input, so it comes as a whole, at the end.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._model = turn.model
        self._names = ToolNames(turn)
        self._searches = turn.web_search is not None
        self._message = "msg"
        self._begun: set[int] = set()
        self._texts: dict[int, str] = {}
        self._open_text: str | None = None
        """A text may go on in the next block: with citations there is one for each sentence."""
        self._blocks: dict[int, _Block] = {}
        self._doubtful: ToolCall | None = None
        """A call whose arguments may have been cut off; what comes next tells."""
        self._call_ids: set[str] = set()
        self._counts: dict[str, int] = {}
        self._thought = 0
        self._stop: str | None = None

    def receive(self, data: bytes) -> None:
        try:
            event = orjson.loads(data)
            if event["type"] == "content_block_delta":
                self._delta(event["index"], event["delta"])
            else:
                self._receive(event["type"], event)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UpstreamError(
                "The provider sent an event that makes no sense. Try again.", code="broken_event"
            ) from None

    def _delta(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta["type"]
        if kind == "text_delta":
            if text := _string(delta["text"]):
                self.text(self._texts[index], text)
            return
        block = self._blocks.get(index)
        if block is None:
            return  # a block of a kind that nobody here knows, or citations of a text
        if kind == "thinking_delta":
            piece = _string(delta["thinking"])
            block.pieces.append(piece)
            self.reasoning(block.item, 0, piece, raw=False)
        elif kind == "input_json_delta":
            block.pieces.append(_string(delta["partial_json"]))
            if block.call is not None and not block.call.custom:
                self.call_delta(block.call.id, block.pieces[-1])
        elif kind == "signature_delta":
            block.signature += _string(delta["signature"])

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
        elif kind == "error":
            said = event["error"]
            self.ended = True
            self.fail(error_from_object(said if isinstance(said, dict) else {"message": str(said)}))

    def _begin(self, index: int, start: Mapping[str, Any]) -> None:
        if not isinstance(index, int) or index in self._begun:
            raise TypeError(index)
        self._begun.add(index)
        kind, item = start["type"], f"{self._message}_{index}"
        self._settle(text_goes_on=kind == "text")
        if kind == "text":
            self._open_text = self._texts[index] = self._open_text or item
            if start.get("text"):
                self.text(self._open_text, _string(start["text"]))
        elif kind in ("thinking", "redacted_thinking", "tool_use", "server_tool_use"):
            self._blocks[index] = block = _Block(kind, item, start, signature=_string(start.get("signature") or ""))
            if kind == "thinking" and start.get("thinking"):
                block.pieces.append(_string(start["thinking"]))
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
        name, call_id = _string(block.start["name"]), self._call_id(block)
        tool = self._names.function(name)
        if tool is None:
            return CallBegun(f"fc_{call_id}", call_id, name)
        return CallBegun(f"fc_{call_id}", call_id, tool.name, tool.namespace, tool.custom)

    def _called(self, block: _Block, begun: CallBegun) -> None:
        arguments = "".join(block.pieces)
        if not arguments and block.start.get("input"):
            arguments = orjson.dumps(block.start["input"]).decode()
        call = ToolCall(
            begun.id,
            begun.call_id,
            begun.name,
            text_of(arguments) if begun.custom else arguments_or_none(arguments),
            namespace=begun.namespace,
            custom=begun.custom,
        )
        if _is_json(arguments):
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
        asked = orjson.loads(told) if _is_json(told) else block.start.get("input") or {}
        self.searched(block.item, {"type": "search", "query": str(asked.get("query") or "")})

    def _thought_done(self, block: _Block) -> None:
        """Also a thought that cannot be read is one: the next turn gives it back."""
        thought: dict[str, Any] = {"type": block.kind}
        if block.kind == "redacted_thinking":
            thought["data"] = _string(block.start["data"])
        else:
            thought |= {"thinking": "".join(block.pieces), "signature": block.signature}
        is_signed = block.kind == "redacted_thinking" or bool(block.signature)
        if is_signed or block.pieces:
            self._streamed.setdefault(block.item, 0)
            self.add(ReasoningDone(block.item, pack_thought(self._model, thought) if is_signed else None))

    def _settle(self, *, text_goes_on: bool = False, cut: bool = False) -> None:
        """More has come, or the end: a call that looked unfinished was meant so, unless the answer was cut off."""
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
        """The counts so far; each is the whole, and what is not told has not changed."""
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


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
