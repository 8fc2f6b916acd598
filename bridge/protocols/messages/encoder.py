"""TurnEvents as the events of a Messages stream, and as a whole message.

`message_start` comes first, then each block of content from its start to its stop, `message_delta` with the reason of
the end and the usage, and `message_stop`; or an `error` in place of the last two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orjson import JSONDecodeError, dumps

from bridge import exact_json
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
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.core.items import full_name
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.client import AnswerContext, Json, NewId
from bridge.protocols.event_encoder import EventEncoder
from bridge.protocols.messages.build import SEARCH
from bridge.protocols.messages.models import client_block
from bridge.protocols.messages.protocol import error_body
from bridge.protocols.sse import interrupted, join_events, restart_error
from bridge.tools.payload import INPUT, arguments_of

NO_ARGUMENTS = "{}"
_STOP_REASONS = {"content_filter": "refusal"}
"""The stop reasons of incomplete answers. Any other one has reached a limit of tokens."""


@dataclass(slots=True)
class _Open:
    """The block that is being written. `source` is the backend's id of its item; `head` begins each of its deltas."""

    kind: str
    source: str
    head: bytes = b""
    pieces: list[str] = field(default_factory=list)
    size: int = 0
    """Of a call: the number of characters of its arguments that were sent."""
    blank: str = ""
    """White space before them, which is not sent: alone it means no arguments."""
    call: CallBegun | ToolCall | None = None


class MessagesEncoder(EventEncoder):
    """One message. If not `streaming`, nothing is sent before the end, and the upstream may restart.

    `thinks`: the client wants blocks of thinking; `shows_thoughts`: with their text, and not only their signatures.
    """

    def __init__(
        self, model: str, new_id: NewId, *, streaming: bool = True, thinks: bool = True, shows_thoughts: bool = True
    ) -> None:
        super().__init__()
        self.id = new_id("msg")
        self.visible = False
        self.failure: BridgeError | None = None
        self.usage: Usage | None = None
        self._model = model
        self._new_id = new_id
        self._streaming = streaming
        self._thinks = thinks
        self._shows_thoughts = shows_thoughts
        self._content: list[Json] = []
        self._index = 0
        self._open: _Open | None = None
        self._calls = 0
        self._searches = 0
        self._has_summary = False
        self._part: tuple[int, bool] | None = None
        """The part of the open block of thinking: blocks have no parts, so there is a blank line between two."""
        self._end: Json = {"stop_reason": None, "stop_sequence": None}
        self._out: list[bytes] = []

    def __repr__(self) -> str:
        return f"<MessagesEncoder {self.id} blocks={self._index} finished={self.finished}>"

    def begin(self) -> bytes:
        # The usage is not known yet: `message_delta` has all of it.
        self._emit("message_start", message=self._message([], usage_object(Usage())))
        self._emit("ping")
        return self.feed([])

    def feed(self, events: list[TurnEvent]) -> bytes:
        self._encode(events)
        out, self._out = self._out, []
        return join_events(out)

    def body(self) -> bytes:
        usage = usage_object(self.usage or Usage(), self._searches)
        return exact_json.dumps(self._message(self._content, usage))

    # Blocks

    def _text(self, event: TextDelta) -> None:
        pieces = event.pieces if all(event.pieces) else [piece for piece in event.pieces if piece]
        if not pieces:
            return  # clients cannot send an empty block back
        opened = self._open
        if opened is None or opened.kind != "text" or opened.source != event.item:
            opened = self._start("text", event.item, {"type": "text", "text": ""}, b'"text_delta","text":')
        self._deltas(opened, pieces)

    def _text_done(self, event: TextDone) -> None:
        if self._open is not None and self._open.kind == "text" and self._open.source == event.item:
            self._close()

    def _reasoning(self, event: ReasoningDelta) -> None:
        pieces = [piece for piece in event.pieces if piece]
        # Raw reasoning repeats the summary at length, so it is shown only if no summary came before.
        if not pieces or not self._thinks or not self._shows_thoughts or (event.raw and self._has_summary):
            return
        self._has_summary = self._has_summary or not event.raw
        opened, part = self._open, (event.index, event.raw)
        if opened is None or opened.kind != "thinking" or opened.source != event.item:
            opened = self._start_thinking(event.item)
        elif self._part != part:
            pieces = ["\n\n", *pieces]
        self._part = part
        self._deltas(opened, pieces)

    def _start_thinking(self, source: str) -> _Open:
        return self._start("thinking", source, client_block("", None), b'"thinking_delta","thinking":')

    def _reasoning_done(self, event: ReasoningDone) -> None:
        """The signature is the reasoning for its provider. Reasoning without readable text is a block, too."""
        if not self._thinks:
            return
        opened = self._open
        if opened is not None and (opened.kind != "thinking" or opened.source != event.item):
            opened = None
        if event.encrypted is None:
            if opened is not None:
                self._close()
            return
        block = client_block("".join(opened.pieces) if opened is not None else "", event.encrypted, event.item)
        if block["type"] == "redacted_thinking":
            self._start("redacted_thinking", event.item, block)
            self._close(block)
            return
        if opened is None:
            self._start_thinking(event.item)
        self._delta({"type": "signature_delta", "signature": block["signature"]})
        self._close(block)

    def _call_begun(self, call: CallBegun | ToolCall) -> _Open:
        self._calls += 1
        block = {"type": "tool_use", "id": call.call_id, "name": full_name(call.namespace, call.name), "input": {}}
        opened = self._start("tool_use", call.id, block, b'"input_json_delta","partial_json":')
        opened.call = call
        return opened

    def _call_delta(self, event: CallDelta) -> None:
        opened = self._open
        # A custom tool's text becomes a member of the input when it is complete.
        if opened is None or opened.call is None or opened.source != event.id or opened.call.custom:
            return
        pieces: list[str] = []
        for piece in event.pieces:
            if not opened.size:
                opened.blank += piece
                if not opened.blank.strip():
                    continue
                piece = opened.blank
            if piece:
                opened.size += len(piece)
                pieces.append(piece)
        self._deltas(opened, pieces)

    def _tool_call(self, call: ToolCall) -> None:
        opened = self._open
        if opened is None or opened.call is None or opened.source != call.id:
            opened = self._call_begun(call)
        arguments = arguments_of(call.arguments) if call.custom else call.arguments
        # Without any arguments a client could not tell a whole call from one that was cut off.
        if rest := arguments[opened.size :] if arguments.strip() else NO_ARGUMENTS:
            self._deltas(opened, [rest])
        block = {"type": "tool_use", "id": call.call_id, "name": full_name(call.namespace, call.name)}
        self._close({**block, "input": message_input(arguments)})

    def _web_search(self, event: WebSearch) -> None:
        """A search and its result: of what was found, the addresses are known at most."""
        self._searches += 1
        action = event.action
        queries, sources = action.get("queries") or [""], action.get("sources") or []
        query = {"query": action.get("query") or action.get("url") or queries[0]}
        use = {"type": "server_tool_use", "id": self._new_id("srvtoolu"), "name": SEARCH, "input": query}
        self._start("server_tool_use", event.item, {**use, "input": {}}, b'"input_json_delta","partial_json":')
        self._delta({"type": "input_json_delta", "partial_json": dumps(query).decode()})
        self._close(use)
        found = [
            {"type": "web_search_result", "url": each["url"], "title": each["url"], "encrypted_content": ""}
            for each in sources
        ]
        result = {"type": "web_search_tool_result", "tool_use_id": use["id"], "content": found}
        self._start("web_search_tool_result", event.item, result)
        self._close(result)

    def _start(self, kind: str, source: str, block: Json, delta: bytes = b"") -> _Open:
        self._close()
        self.visible = True
        self._part = None
        self._emit("content_block_start", index=self._index, content_block=block)
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
        self._open = _Open(kind, source, head % self._index + delta)
        return self._open

    def _deltas(self, opened: _Open, pieces: list[str]) -> None:
        if opened.call is None:
            add_pieces(opened.pieces, pieces)
        if self._streaming:
            head = opened.head
            self._out += [b"%b%b}}\n\n" % (head, dumps(piece)) for piece in pieces]

    def _delta(self, delta: Json) -> None:
        self._emit("content_block_delta", index=self._index, delta=delta)

    def _close(self, block: Json | None = None) -> None:
        """End the open block; `block` is what it became, unless it is a text.

        A call without one was cut off. It gets no end, because clients run a call when they see that, and it is not
        part of the message.
        """
        opened, self._open = self._open, None
        if opened is None:
            return
        if block is None and opened.kind == "text":
            block = {"type": "text", "text": "".join(opened.pieces)}
        elif block is None and opened.kind == "thinking":
            block = client_block("".join(opened.pieces), None)
        if block is not None:
            self._content.append(block)
            self._emit("content_block_stop", index=self._index)
        self._index += 1

    def _usage(self, event: UsageUpdate) -> None:
        self.usage = event.usage

    # The end

    def _restart(self, event: Restarted) -> None:
        if self.visible and self._streaming:
            self._finish(Finished("failed", error=restart_error(event)))
            return
        self._content.clear()
        self._open, self._index, self._calls, self._searches = None, 0, 0, 0
        self.visible = self._has_summary = False

    def _finish(self, end: Finished) -> None:
        self.finished = True
        if end.outcome in ("failed", "cancelled"):
            self.failure = end.error or interrupted()
            self._emit(**error_body(self.failure))
            return
        self._close()
        reason = "tool_use" if self._calls else "end_turn"
        if end.outcome == "incomplete":
            reason = _STOP_REASONS.get(end.reason or "", "max_tokens")
        elif end.stop_sequence is not None:
            reason = "stop_sequence"
        self._end = {"stop_reason": reason, "stop_sequence": end.stop_sequence}
        self._emit("message_delta", delta=self._end, usage=usage_object(self.usage or Usage(), self._searches))
        self._emit("message_stop")

    def _message(self, content: list[Json], usage: Json) -> Json:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, **self._end, "usage": usage}

    def _emit(self, type: str, **members: Any) -> None:
        if self._streaming:
            self._out.append(b"event: %b\ndata: %b\n\n" % (type.encode(), dumps({"type": type, **members})))


def message_input(arguments: str) -> Json:
    """The arguments as an object. Others are sent under the name of a custom tool's text, so that nothing is lost."""
    try:
        given = exact_json.loads(arguments) if arguments.strip() else {}
    except JSONDecodeError:
        given = None
    return given if isinstance(given, dict) else {INPUT: arguments}


def usage_object(usage: Usage, searches: int = 0) -> Json:
    """Usage as the Messages API writes it: its `input_tokens` do not include what the cache has read or written."""
    found: Json = {
        "input_tokens": max(0, usage.input - usage.cached - usage.cache_write),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
    if searches:
        found["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
    return found | {"estimated": True} if usage.estimated else found


def make_encoder(turn: Turn, data: Json, context: AnswerContext) -> MessagesEncoder:
    """The encoder of the answer to a body."""
    thinking = data.get("thinking")
    is_omitted = isinstance(thinking, dict) and thinking.get("display") == "omitted"
    return MessagesEncoder(
        turn.requested_model,
        context.new_id,
        streaming=bool(turn.stream),
        thinks=turn.encrypted_reasoning,
        shows_thoughts=context.reasoning != "hidden" and not is_omitted,
    )
